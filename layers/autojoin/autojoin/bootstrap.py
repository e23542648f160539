"""The composition root: ports made of adapters, each imported and built when it is first asked for."""

from __future__ import annotations

import gc
import os
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

from autojoin.config import Settings

if TYPE_CHECKING:
    from autojoin import ports as wanted
    from autojoin.observability import PowertoolsTelemetry

gc.disable()
"""What is loaded stays, so to look for garbage among it is time lost; on again once the first invocation has ended (entrypoint)."""


class AwsPorts:
    """Port set of a function on AWS. Asking for one port imports no other adapter."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    @cached_property
    def telemetry(self) -> PowertoolsTelemetry:
        """Logs and metrics."""
        from autojoin.observability import PowertoolsTelemetry

        return PowertoolsTelemetry(self.settings.get("boundary", "unknown"))

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

        return SsmCommands(_client("ssm"), self.settings.required("document_prefix"), self.settings.get("command_log_group"))

    @cached_property
    def configuration(self) -> wanted.Configuration:
        """Parameter Store."""
        from autojoin.adapters.parameters import SsmConfiguration

        return SsmConfiguration(_client("ssm"))

    @cached_property
    def registry(self) -> wanted.Registry:
        """The table."""
        from autojoin.adapters.dynamodb import DynamoDbRegistry

        return DynamoDbRegistry(_client("dynamodb"), self.settings.required("table_name"), self.clock.now_ms)

    @cached_property
    def markers(self) -> wanted.Markers:
        """The table: foundings."""
        from autojoin.adapters.dynamodb import DynamoDbMarkers

        return DynamoDbMarkers(_client("dynamodb"), self.settings.required("table_name"))

    @cached_property
    def witness(self) -> wanted.Witness:
        """Parameter Store: foundings."""
        from autojoin.adapters.parameters import SsmWitness

        return SsmWitness(_client("ssm"))

    @cached_property
    def etcd(self) -> wanted.Etcd:
        """etcd on nodes."""
        from autojoin.adapters.etcd import EtcdGateway

        return EtcdGateway()

    @cached_property
    def names(self) -> wanted.Names:
        """Route 53."""
        from autojoin.adapters.route53 import Route53Names

        return Route53Names(_client("route53"))

    @cached_property
    def targets(self) -> wanted.Targets:
        """Elastic Load Balancing."""
        from autojoin.adapters.elbv2 import ElbV2Targets

        return ElbV2Targets(_client("elbv2"))

    @cached_property
    def machines(self) -> wanted.Machines:
        """Step Functions."""
        from autojoin.adapters.stepfunctions import StepFunctionsMachines

        return StepFunctionsMachines(
            _client("stepfunctions"), self.settings.get("join_machine_arn"), self.settings.get("leave_machine_arn")
        )

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
    return AwsPorts(Settings(os.environ))
