"""Numbers in template, machines, documents and examples are those of autojoin.domain.budgets, in an order that is safe."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from autojoin.domain import budgets
from tests.template.support import ROOT, functions, machine_source, of_type, parse_template, raw, translated

MACHINES = {"join": budgets.JOIN_MACHINE_S, "leave": budgets.LEAVE_MACHINE_S}
TASKS = [(m, n, s) for m in MACHINES for n, s in machine_source(m)["States"].items() if s["Type"] == "Task"]
RULES = of_type(raw(), "AWS::Events::Rule")


def called(task: dict[str, Any]) -> str:
    return task["Arguments"]["FunctionName"].removeprefix("${").removesuffix("FunctionArn}").lower()


def document(name: str) -> dict[str, Any]:
    parsed: dict[str, Any] = yaml.safe_load((ROOT / f"documents/{name}.yaml").read_text())
    return parsed


def test_time_outs_of_functions_are_the_budgets() -> None:
    assert {name: f["Properties"]["Timeout"] for name, f in functions().items()} == budgets.FUNCTION_TIMEOUT_S


def test_time_outs_of_functions_survive_the_transform() -> None:
    deployed = of_type(translated(), "AWS::Lambda::Function")

    assert {f["LogicalId"]: budgets.FUNCTION_TIMEOUT_S[name] for name, f in functions().items()} == {
        k: r["Properties"]["Timeout"] for k, r in deployed.items()
    }


@pytest.mark.parametrize(("machine", "limit_s"), MACHINES.items())
def test_time_outs_of_machines_are_the_budgets(machine: str, limit_s: int) -> None:
    assert machine_source(machine)["TimeoutSeconds"] == limit_s


@pytest.mark.parametrize(("machine", "name", "task"), TASKS, ids=lambda v: v if isinstance(v, str) else "")
def test_a_tasks_time_out_is_its_kinds_budget_and_over_its_functions(machine: str, name: str, task: dict[str, Any]) -> None:
    if task["Resource"].endswith(".waitForTaskToken"):
        expected = budgets.CALLBACK_TIMEOUT_S
    else:
        waits = budgets.FUNCTION_TIMEOUT_S[called(task)] > budgets.LOOK_FOR_S
        expected = budgets.WAIT_TASK_TIMEOUT_S if waits else budgets.TASK_TIMEOUT_S

    assert task["TimeoutSeconds"] == expected
    assert task["TimeoutSeconds"] > budgets.FUNCTION_TIMEOUT_S[called(task)]


@pytest.mark.parametrize(("machine", "name", "task"), TASKS, ids=lambda v: v if isinstance(v, str) else "")
def test_a_task_that_keeps_a_hook_alive_ends_within_half_of_the_shortest(machine: str, name: str, task: dict[str, Any]) -> None:
    assert 2 * task["TimeoutSeconds"] <= budgets.SHORTEST_HEARTBEAT_S


def test_pauses_of_a_clean_up_are_the_budget() -> None:
    waits = [s["Seconds"] for s in machine_source("leave")["States"].values() if s["Type"] == "Wait"]

    assert waits == [budgets.SETTLE_S]


@pytest.mark.parametrize("name", sorted(RULES))
def test_an_event_is_given_up_before_the_shortest_hook_times_out(name: str) -> None:
    invoked = {k: r["Properties"] for k, r in of_type(raw(), "AWS::Serverless::Function").items()}

    for target in RULES[name]["Properties"]["Targets"]:
        function = invoked[target["Arn"]["Fn::GetAtt"][0]]
        rule_s = target["RetryPolicy"]["MaximumEventAgeInSeconds"]
        function_s = function["EventInvokeConfig"]["MaximumEventAgeInSeconds"]

        assert (rule_s, function_s) == (budgets.RULE_EVENT_AGE_S, budgets.FUNCTION_EVENT_AGE_S)
        assert rule_s + function_s < budgets.SHORTEST_HEARTBEAT_S
        # Lambda retries an asynchronous event after one minute, then after two more; the age must allow what is promised.
        assert function_s > function["EventInvokeConfig"]["MaximumRetryAttempts"] * 60 + function["Timeout"]


@pytest.mark.parametrize(("name", "execution_s"), budgets.COMMAND_EXECUTION_S.items())
def test_a_documents_time_out_is_a_parameter_that_takes_the_budget(name: str, execution_s: int) -> None:
    found = document(name)
    (step,) = [s for s in found["mainSteps"] if s["action"] == "aws:runShellScript"]

    assert step["inputs"]["timeoutSeconds"] == "{{ ExecutionTimeout }}"
    assert re.fullmatch(found["parameters"]["ExecutionTimeout"]["allowedPattern"], str(execution_s))


@pytest.mark.parametrize(("name", "execution_s"), budgets.COMMAND_EXECUTION_S.items())
def test_a_command_ends_before_nobody_asks_for_it_any_more(name: str, execution_s: int) -> None:
    assert execution_s < budgets.DELIVERY_TIMEOUT_S + execution_s < budgets.command_budget_s(name)


@pytest.mark.parametrize("role", ["worker", "tp", "rp"])
def test_the_deadlines_of_a_join_end_before_its_machine(role: str) -> None:
    assert budgets.join_deadlines(role, 0, None, None).overall_ms < budgets.JOIN_MACHINE_S * 1000


def test_sending_a_document_waits_for_delivery_as_long_as_systems_manager_allows() -> None:
    assert budgets.DELIVERY_TIMEOUT_S >= 30


@pytest.mark.parametrize("example", sorted(p.name for p in (ROOT / "examples").glob("*.yaml")))
def test_an_examples_hook_is_one_that_a_join_can_keep_alive(example: str) -> None:
    parsed = parse_template(f"examples/{example}")
    parameter = parsed["Parameters"].get("HeartbeatTimeout")
    if parameter is None:
        assert not of_type(parsed, "AWS::AutoScaling::AutoScalingGroup")
        return

    assert parameter["MinValue"] == budgets.SHORTEST_HEARTBEAT_S
    assert parameter["MinValue"] <= parameter["Default"] <= parameter["MaxValue"] <= 7200
