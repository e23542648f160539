"""What an execution is started with: the join machine's input and the leave machine's."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

INSTANCE_ID = r"^i-([0-9a-f]{8}|[0-9a-f]{17})$"
"""Source: EC2 resource ids, short and long form."""


class JoinRequest(BaseModel):
    """Input of the join machine. By hand `instance_id` is enough; intake adds what the lifecycle event says."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    instance_id: str = Field(pattern=INSTANCE_ID, description="The instance to join, or to re-join.")
    dry_run: bool = Field(False, description="Only plan: read, change nothing, return the plan.")
    source: Literal["manual", "event", "sweep"] = Field("manual", description="Who started it.")
    group: str | None = Field(None, max_length=1600, description="Group of the lifecycle action (from its event).")
    hook: str | None = Field(None, max_length=255, description="Hook of the lifecycle action (from its event).")
    token: str | None = Field(None, max_length=36, description="Token of the lifecycle action (from its event).")
    opened_ms: int | None = Field(None, ge=0, description="When the action began, milliseconds since the epoch.")


class Failure(BaseModel):
    """Why a join failed, as Step Functions catches it."""

    model_config = ConfigDict(extra="ignore", frozen=True, defer_build=True)

    Error: str = "Unknown"
    Cause: str = ""


class LeaveRequest(BaseModel):
    """Input of the leave machine in mode rollback: undo what one failed join made."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    mode: Literal["rollback"]
    instance_id: str = Field(pattern=INSTANCE_ID)
    from_execution: str = Field(description="ARN of the failed join.")
    request: JoinRequest = Field(description="The failed join's input.")
    failure: Failure = Failure()
