"""Ports Machines and Callbacks on Step Functions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from botocore.exceptions import ClientError

from autojoin.adapters.aws import translated
from autojoin.records import ExecutionState

ALREADY = frozenset({"ExecutionAlreadyExists"})
NO_SUCH = frozenset({"ExecutionDoesNotExist", "InvalidArn"})
"""A lease may be an operator's, whose name is no ARN."""
NOT_WAITING = frozenset({"TaskTimedOut", "TaskDoesNotExist", "InvalidToken"})
LONGEST_CAUSE = 32_000
"""Characters. Source: Step Functions API, SendTaskFailure: cause up to 32,768."""


class StepFunctionsMachines:
    """Starts our machines by name, and looks at executions."""

    def __init__(self, sfn: Any, join_machine_arn: str, leave_machine_arn: str) -> None:
        self._sfn, self._join, self._leave = sfn, join_machine_arn, leave_machine_arn

    def start_join(self, name: str, request: Mapping[str, object]) -> bool:
        """Start the join machine; False if an execution of that name exists, running or ended."""
        return self._start(self._join, name, request)

    def start_leave(self, name: str, request: Mapping[str, object]) -> bool:
        """Start the leave machine; False if an execution of that name exists, running or ended."""
        return self._start(self._leave, name, request)

    def execution(self, arn: str) -> ExecutionState | None:
        """The execution, or None if there is no such one."""
        try:
            with translated("states:DescribeExecution", unless=NO_SUCH):
                found = self._sfn.describe_execution(executionArn=arn)
        except ClientError:
            return None
        stopped = found.get("stopDate")
        return ExecutionState(found["status"], int(stopped.timestamp() * 1000) if stopped else None)

    def _start(self, machine: str, name: str, request: Mapping[str, object]) -> bool:
        try:
            with translated("states:StartExecution", unless=ALREADY):
                self._sfn.start_execution(stateMachineArn=machine, name=name, input=json.dumps(request))
        except ClientError:
            return False
        return True


class StepFunctionsCallbacks:
    """Answers tasks that wait for a token."""

    def __init__(self, sfn: Any) -> None:
        self._sfn = sfn

    def succeed(self, token: str, output: Mapping[str, object]) -> bool:
        """Answer the task; False if it does not wait any more."""
        try:
            with translated("states:SendTaskSuccess", unless=NOT_WAITING):
                self._sfn.send_task_success(taskToken=token, output=json.dumps(output))
        except ClientError:
            return False
        return True

    def fail(self, token: str, error: str, cause: str) -> bool:
        """Fail the task; False if it does not wait any more."""
        try:
            with translated("states:SendTaskFailure", unless=NOT_WAITING):
                self._sfn.send_task_failure(taskToken=token, error=error, cause=cause[:LONGEST_CAUSE])
        except ClientError:
            return False
        return True
