"""A function's environment as a validated model. Read in one place, the composition root."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from autojoin.errors import InvalidInput
from autojoin.events.problems import problems_of


class Settings(BaseModel):
    """Environment variables of our functions. A function has only those that its boundary needs."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    boundary: str = Field("unknown", alias="AUTOJOIN_BOUNDARY")
    table_name: str = Field("", alias="AUTOJOIN_TABLE")
    document_prefix: str = Field("", alias="AUTOJOIN_DOCUMENT_PREFIX")
    join_machine_arn: str = Field("", alias="AUTOJOIN_JOIN_MACHINE_ARN")
    leave_machine_arn: str = Field("", alias="AUTOJOIN_LEAVE_MACHINE_ARN")
    command_log_group: str = Field("", alias="AUTOJOIN_COMMAND_LOG_GROUP")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Settings:
        """The settings in these variables. Raises InvalidInput naming a variable that does not fit."""
        try:
            return cls.model_validate(dict(environment))
        except ValidationError as error:
            raise InvalidInput(problems_of(error), "the variables of template.yaml", "deploy the template again") from None

    def required(self, name: str) -> str:
        """The setting of that name. Raises InvalidInput if the function was deployed without it."""
        value = getattr(self, name)
        if not value:
            variable = type(self).model_fields[name].alias
            raise InvalidInput(
                f"function {self.boundary} has no environment variable {variable}",
                "the variables of template.yaml",
                "deploy the template again",
            )
        return str(value)
