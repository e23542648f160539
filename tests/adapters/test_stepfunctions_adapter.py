"""Ports Machines and Callbacks on Step Functions."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from autojoin import errors
from autojoin.adapters.stepfunctions import LONGEST_CAUSE, StepFunctionsCallbacks, StepFunctionsMachines
from autojoin.ports import ExecutionState
from tests.adapters.conftest import Stubs

JOIN = "arn:aws:states:eu-central-1:123456789012:stateMachine:autojoin-join"
LEAVE = "arn:aws:states:eu-central-1:123456789012:stateMachine:autojoin-leave"
EXECUTION = "arn:aws:states:eu-central-1:123456789012:execution:autojoin-join:name"
STARTED = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def machines(stubs: Stubs) -> StepFunctionsMachines:
    return StepFunctionsMachines(stubs.client("stepfunctions"), JOIN, LEAVE)


@pytest.fixture
def callbacks(stubs: Stubs) -> StepFunctionsCallbacks:
    return StepFunctionsCallbacks(stubs.client("stepfunctions"))


@pytest.mark.parametrize(("method", "machine"), [("start_join", JOIN), ("start_leave", LEAVE)])
def test_a_machine_is_started_by_name_with_json(stubs: Stubs, machines: StepFunctionsMachines, method: str, machine: str) -> None:
    asked = {"stateMachineArn": machine, "name": "name", "input": '{"a": 1}'}
    stubs.expect("stepfunctions", "start_execution", {"executionArn": EXECUTION, "startDate": STARTED}, asked)

    assert getattr(machines, method)("name", {"a": 1}) is True


def test_a_name_that_was_taken_starts_nothing_and_is_no_error(stubs: Stubs, machines: StepFunctionsMachines) -> None:
    stubs.refuse("stepfunctions", "start_execution", "ExecutionAlreadyExists")

    assert machines.start_join("name", {}) is False


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("ThrottlingException", errors.AwsThrottled),
        ("InvalidName", errors.AwsRefused),
        ("StateMachineDoesNotExist", errors.AwsRefused),
        ("AccessDeniedException", errors.AwsRefused),
    ],
)
def test_a_start_that_failed_is_not_taken_for_a_duplicate(
    stubs: Stubs, machines: StepFunctionsMachines, code: str, expected: type[Exception]
) -> None:
    stubs.refuse("stepfunctions", "start_execution", code)

    with pytest.raises(expected):
        machines.start_join("name", {})


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"status": "RUNNING"}, ExecutionState("RUNNING", None)),
        ({"status": "ABORTED", "stopDate": datetime(2026, 1, 1, 0, 0, 1, tzinfo=UTC)}, ExecutionState("ABORTED", 1_767_225_601_000)),
    ],
)
def test_an_execution_is_described_by_status_and_end(
    stubs: Stubs, machines: StepFunctionsMachines, more: dict[str, Any], expected: ExecutionState
) -> None:
    answer = {"executionArn": EXECUTION, "stateMachineArn": JOIN, "startDate": STARTED, **more}
    stubs.expect("stepfunctions", "describe_execution", answer, {"executionArn": EXECUTION})

    assert machines.execution(EXECUTION) == expected


@pytest.mark.parametrize(("owner", "code"), [(EXECUTION, "ExecutionDoesNotExist"), ("autojoin adopt", "InvalidArn")])
def test_an_execution_that_is_not_there_is_none(stubs: Stubs, machines: StepFunctionsMachines, owner: str, code: str) -> None:
    stubs.refuse("stepfunctions", "describe_execution", code)

    assert machines.execution(owner) is None


def test_a_task_is_answered(stubs: Stubs, callbacks: StepFunctionsCallbacks) -> None:
    stubs.expect("stepfunctions", "send_task_success", {}, {"taskToken": "t", "output": '{"done": true}'})
    stubs.expect("stepfunctions", "send_task_failure", {}, {"taskToken": "t", "error": "E", "cause": "c"})

    assert callbacks.succeed("t", {"done": True}) is True
    assert callbacks.fail("t", "E", "c") is True


@pytest.mark.parametrize("code", ["TaskTimedOut", "TaskDoesNotExist", "InvalidToken"])
def test_a_task_that_does_not_wait_any_more_is_said_to(stubs: Stubs, callbacks: StepFunctionsCallbacks, code: str) -> None:
    stubs.refuse("stepfunctions", "send_task_success", code)
    stubs.refuse("stepfunctions", "send_task_failure", code)

    assert callbacks.succeed("t", {}) is False
    assert callbacks.fail("t", "E", "c") is False


@pytest.mark.parametrize(("code", "expected"), [("ThrottlingException", errors.AwsThrottled), ("AccessDeniedException", errors.AwsRefused)])
def test_an_answer_that_was_not_taken_is_an_error_without_the_token(
    stubs: Stubs, callbacks: StepFunctionsCallbacks, code: str, expected: type[Exception]
) -> None:
    stubs.refuse("stepfunctions", "send_task_success", code)

    with pytest.raises(expected) as raised:
        callbacks.succeed("do-not-say-me", {})

    assert "do-not-say-me" not in str(raised.value)


def test_a_cause_is_cut_to_what_step_functions_takes(stubs: Stubs, callbacks: StepFunctionsCallbacks) -> None:
    stubs.expect("stepfunctions", "send_task_failure", {}, {"taskToken": "t", "error": "E", "cause": "x" * LONGEST_CAUSE})

    assert LONGEST_CAUSE <= 32_768
    assert callbacks.fail("t", "E", "x" * 40_000)
