"""The composition root: ports made of adapters, each imported and built when it is first asked for."""

from __future__ import annotations

import os
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

from autojoin.config import Settings
from autojoin.observability import PowertoolsTelemetry

if TYPE_CHECKING:
    from autojoin import ports as wanted


class AwsPorts:
    """Port set of a function on AWS. Asking for one port imports no other adapter."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    @cached_property
    def telemetry(self) -> PowertoolsTelemetry:
        """Logs and metrics."""
        return PowertoolsTelemetry(self.settings.boundary)

    @cached_property
    def clock(self) -> wanted.Clock:
        """Time."""
        from autojoin.adapters.clock import SystemClock

        return SystemClock()

    @cached_property
    def instances(self) -> wanted.Instances:
        """EC2."""
        from autojoin.adapters.ec2 import Ec2Instances

        return Ec2Instances(_client("ec2"))

    @cached_property
    def groups(self) -> wanted.Groups:
        """Auto Scaling."""
        from autojoin.adapters.autoscaling import AutoScalingGroups

        return AutoScalingGroups(_client("autoscaling"))

    @cached_property
    def commands(self) -> wanted.Commands:
        """Run Command."""
        from autojoin.adapters.ssm import SsmCommands

        return SsmCommands(_client("ssm"), self.settings.required("document_prefix"), self.settings.command_log_group)

    @cached_property
    def configuration(self) -> wanted.Configuration:
        """Parameter Store."""
        from autojoin.adapters.ssm import SsmConfiguration

        return SsmConfiguration(_client("ssm"))

    @cached_property
    def registry(self) -> wanted.Registry:
        """The table."""
        from autojoin.adapters.dynamodb import DynamoDbRegistry

        return DynamoDbRegistry(_client("dynamodb"), self.settings.required("table_name"), self.clock.now_ms)

    @cached_property
    def machines(self) -> wanted.Machines:
        """Step Functions."""
        from autojoin.adapters.stepfunctions import StepFunctionsMachines

        return StepFunctionsMachines(_client("stepfunctions"), self.settings.join_machine_arn, self.settings.leave_machine_arn)

    @cached_property
    def callbacks(self) -> wanted.Callbacks:
        """Answers to waiting tasks."""
        from autojoin.adapters.stepfunctions import StepFunctionsCallbacks

        return StepFunctionsCallbacks(_client("stepfunctions"))


@cache
def _client(service: str) -> Any:
    from autojoin.adapters.aws import client

    return client(service)


@cache
def ports() -> AwsPorts:
    """This function's ports, made once per process from its environment."""
    return AwsPorts(Settings.from_environment(os.environ))
