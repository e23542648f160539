"""A function's environment. Read in one place, the composition root."""

from __future__ import annotations

from collections.abc import Mapping

from autojoin.errors import InvalidInput

VARIABLES: dict[str, str] = {
    "boundary": "AUTOJOIN_BOUNDARY",
    "table_name": "AUTOJOIN_TABLE",
    "document_prefix": "AUTOJOIN_DOCUMENT_PREFIX",
    "join_machine_arn": "AUTOJOIN_JOIN_MACHINE_ARN",
    "leave_machine_arn": "AUTOJOIN_LEAVE_MACHINE_ARN",
    "command_log_group": "AUTOJOIN_COMMAND_LOG_GROUP",
}
"""Settings and their environment variables. A function has only those that its boundary needs."""


class Settings:
    """The settings in an environment."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment

    def get(self, name: str, default: str = "") -> str:
        """The setting of that name."""
        return self._environment.get(VARIABLES[name]) or default

    def required(self, name: str) -> str:
        """The setting of that name. Raises InvalidInput if the function was deployed without it."""
        value = self.get(name)
        if not value:
            raise InvalidInput(
                f"function {self.get('boundary', 'unknown')} has no environment variable {VARIABLES[name]}",
                "the variables of template.yaml",
                "deploy the template again",
            )
        return value
