"""Parameter Store refuses what it refuses on AWS.

ministack creates, overwrites and lists parameters well. It takes a page of any size, a value of any length and a name of
any characters. Made true: GetParametersByPath answers at most ten at a time, a standard parameter holds 4096 characters, and
names are those that AWS allows.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lab.region.region import Region

PAGE = 10
STANDARD_CHARS = 4096
_NAME = re.compile(r"[a-zA-Z0-9_.\-/]{1,1011}")


def apply(region: Region) -> None:
    """Look at what is asked before ministack does."""
    from ministack.core.responses import error_response_json
    from ministack.services import ssm

    put, by_path = ssm._put_parameter, ssm._get_parameters_by_path

    def put_parameter(data: dict[str, Any]) -> Any:
        name, tier = str(data.get("Name") or ""), data.get("Tier") or "Standard"
        problem = None
        if not _NAME.fullmatch(name) or ("/" in name and not name.startswith("/")):
            problem = "Parameter name must be a fully qualified name of letters, numbers and the symbols .-_/"
        elif tier == "Standard" and len(str(data.get("Value") or "")) > STANDARD_CHARS:
            problem = (
                f"Standard tier parameters support a maximum parameter value of {STANDARD_CHARS} characters. To create a larger "
                "parameter value, upgrade the parameter to use the advanced-parameter tier."
            )
        elif not data.get("Value"):
            problem = (
                "1 validation error detected: Value at 'value' failed to satisfy constraint: Member must have length greater than or "
                "equal to 1"
            )
        return error_response_json("ValidationException", problem, 400) if problem else put(data)

    def get_parameters_by_path(data: dict[str, Any]) -> Any:
        if not 1 <= int(data.get("MaxResults") or PAGE) <= PAGE:
            problem = (
                f"1 validation error detected: Value '{data['MaxResults']}' at 'maxResults' failed to satisfy constraint: Member "
                f"must have value less than or equal to {PAGE}"
            )
            return error_response_json("ValidationException", problem, 400)
        return by_path(data)

    ssm._put_parameter, ssm._get_parameters_by_path = put_parameter, get_parameters_by_path
