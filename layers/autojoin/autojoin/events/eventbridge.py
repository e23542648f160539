"""EventBridge envelopes that our rules let in. Unknown fields are ignored: AWS adds some from time to time."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from autojoin.events.requests import INSTANCE_ID


class Incoming(BaseModel):
    """Base: what AWS sends."""

    model_config = ConfigDict(extra="ignore", frozen=True, populate_by_name=True, defer_build=True)


class LifecycleDetail(Incoming):
    """Detail of a lifecycle action. Source: EC2 Auto Scaling User Guide, event reference."""

    LifecycleActionToken: str = Field(min_length=36, max_length=36)
    AutoScalingGroupName: str = Field(min_length=1, max_length=1600)
    LifecycleHookName: str = Field(min_length=1, max_length=255)
    EC2InstanceId: str = Field(pattern=INSTANCE_ID)
    LifecycleTransition: Literal["autoscaling:EC2_INSTANCE_LAUNCHING"]
    NotificationMetadata: str | None = None
    Origin: str | None = None
    Destination: str | None = None


class TestNotification(Incoming):
    """What Auto Scaling sends when a hook is made: no instance, no token."""

    Event: Literal["autoscaling:TEST_NOTIFICATION"]
    AutoScalingGroupName: str | None = None


class LaunchAction(Incoming):
    """An instance is held by a launch hook; or the test of a new hook, which comes in the same envelope."""

    detail_type_name: ClassVar[str] = "EC2 Instance-launch Lifecycle Action"

    source: Literal["aws.autoscaling"]
    detail_type: Literal["EC2 Instance-launch Lifecycle Action"] = Field(alias="detail-type")
    time: datetime
    detail: LifecycleDetail | TestNotification


class ExecutionDetail(Incoming):
    """Detail of an execution's end."""

    executionArn: str
    stateMachineArn: str
    name: str
    status: Literal["FAILED", "TIMED_OUT", "ABORTED"]
    input: str | None = None
    error: str | None = None
    cause: str | None = None


class JoinEnded(Incoming):
    """A join ended without success: the finalizer makes sure that it is cleaned up."""

    detail_type_name: ClassVar[str] = "Step Functions Execution Status Change"

    source: Literal["aws.states"]
    detail_type: Literal["Step Functions Execution Status Change"] = Field(alias="detail-type")
    detail: ExecutionDetail


class InvocationDetail(Incoming):
    """Detail of a command's status on one instance."""

    command_id: str = Field(alias="command-id")
    instance_id: str = Field(alias="instance-id")
    document_name: str = Field(alias="document-name")
    status: str


class CommandEnded(Incoming):
    """A command of ours reached its last state on an instance."""

    detail_type_name: ClassVar[str] = "EC2 Command Invocation Status-change Notification"

    source: Literal["aws.ssm"]
    detail_type: Literal["EC2 Command Invocation Status-change Notification"] = Field(alias="detail-type")
    detail: InvocationDetail
