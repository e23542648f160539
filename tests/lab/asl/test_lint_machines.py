"""Each rule of the lint finds the machine that breaks it, and only that."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.shims.asl_builders import STANDARD_RETRY, State, catch, choice, machine
from tools import lint_machines
from tools.lint_machines import Ends, lint

ENDS = Ends(without_hook=frozenset({"Planned"}))
ORDER = ("Admit", "AwaitAgent", "Join", "Complete")
GIVEN = {"NodeFunctionArn": "", "Partition": ""}


def good_task(following: str, *, callback: bool = False, **more: Any) -> State:
    """A Task that keeps every rule."""
    payload = {"token": "{% $states.context.Task.Token %}"} if callback else {"run": "{% $run %}"}
    failure = {"failure": "{% $states.errorOutput %}"}
    turns = [catch(f"{more.pop('name')}Deadline", "States.Timeout", "States.HeartbeatTimeout")] if callback else []
    return {
        "Type": "Task",
        "Comment": "What for.",
        "Resource": "arn:${Partition}:states:::lambda:invoke" + (".waitForTaskToken" if callback else ""),
        "TimeoutSeconds": 60,
        "Arguments": {"FunctionName": "${NodeFunctionArn}", "Payload": payload},
        "Retry": [copy.deepcopy(STANDARD_RETRY)],
        "Catch": [*turns, catch("HandOver", Assign=failure)],
        "Next": following,
        **more,
    }


def good() -> State:
    """A machine in the shape of the join that keeps every rule."""
    late = "$millis() > $run.deadline_ms"
    return machine(
        {
            "Admit": good_task("Admitted", Assign={"run": "{% $states.result.Payload %}"}),
            "Admitted": choice(("$run.outcome = 'planned'", "Planned"), default="AwaitAgent"),
            "AwaitAgent": good_task("AgentDeadline", Assign={"agent": "{% $states.result.Payload %}"}),
            "AgentDeadline": choice(("$agent.done = true", "Join"), (late, "HandOver"), default="AwaitAgent"),
            "Join": good_task("JoinDeadline", callback=True, name="Join"),
            "JoinDeadline": choice(("$agent.joined = true", "Complete"), (late, "HandOver"), default="Join"),
            "Complete": good_task("Joined"),
            "HandOver": {**good_task("NotJoined"), "Catch": [catch("NotJoined")]},
            "Joined": {"Type": "Succeed", "Output": {"run": "{% $run %}"}},
            "Planned": {"Type": "Succeed"},
            "NotJoined": {"Type": "Fail", "Error": "{% $failure.Error %}", "Cause": "{% $failure.Cause %}"},
        }
    )


def findings(definition: State, **options: Any) -> list[str]:
    """What the lint says."""
    options = {"substitutions": GIVEN, "ends": ENDS, "step_order": ORDER, **options}
    return [f"{p.state}: {p.text}" for p in lint(yaml.safe_dump(definition), **options)]


def broken(*path: Any, value: Any = None) -> State:
    """The good machine with one value changed, or removed if None."""
    definition = good()
    place: Any = definition["States"]
    for key in path[:-1]:
        place = place[key]
    if value is None:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return definition


def test_a_machine_that_keeps_every_rule_has_no_finding() -> None:
    assert findings(good()) == []


ARGUMENTS = ("Arguments", "Payload", "run")


@pytest.mark.parametrize(
    ("definition", "finding"),
    [
        # rule 1
        (broken("Complete", "Next", value="Nowhere"), "next goes to 'Nowhere', which does not exist"),
        (broken("Complete", "ResultPath", value="$.x"), "ResultPath: not a field"),
        (broken("Admitted", "Choices", 0, "Next", value="AwaitAgent"), "Planned: is not reachable"),
        # rule 2
        (broken("Admit", "Comment"), "Admit: a Task needs a Comment"),
        (broken("Admit", "TimeoutSeconds"), "Admit: a Task needs TimeoutSeconds"),
        (broken("Admit", "Retry"), "Admit: a Task needs Retry"),
        (broken("Admit", "Catch"), "Admit: a Task needs a Catch of States.ALL"),
        (broken("Admit", "Catch", 0, "ErrorEquals", value=["Busy"]), "Admit: a Task needs a Catch of States.ALL"),
        (broken("Admit", "Retry", 0, "MaxDelaySeconds"), "needs MaxDelaySeconds"),
        (broken("Admit", "Retry", 0, "JitterStrategy"), "needs JitterStrategy FULL"),
        (broken("Admit", "Retry", 0, "JitterStrategy", value="NONE"), "needs JitterStrategy FULL"),
        (broken("Admit", "Retry", 0, "ErrorEquals", value=["States.TaskFailed"]), "retries are by name, not States.TaskFailed"),
        (broken("Admit", "Retry", 0, "ErrorEquals", 4), "lacks Lambda.TooManyRequestsException"),
        # rule 3
        (broken("Join", "Catch", 0, "ErrorEquals", value=["States.Timeout"]), "catches States.HeartbeatTimeout by name"),
        (broken("Join", "Catch", 0, "ErrorEquals", value=["States.HeartbeatTimeout"]), "catches States.Timeout by name"),
        (broken("Join", "Arguments", "Payload", value={"x": 1}), "passes $states.context.Task.Token"),
        # rule 4
        (broken("AwaitAgent", "Next", value="AwaitAgent"), "AwaitAgent: is in a cycle without a Deadline choice"),
        (broken("AgentDeadline", "Choices", 1, "Condition", value="{% $agent.late = true %}"), "looks at $millis()"),
        # rule 5
        (broken("Admit", "Catch", 0, "Next", value="NotJoined"), "NotJoined: is reached without handing over"),
        (broken("AgentDeadline", "Choices", 0, "Next", value="Joined"), "Joined: is reached without completing"),
        (broken("Complete", "Catch", 0, "Next", value="Joined"), "Joined: is reached without completing"),
        (broken("HandOver", "Next", value="Joined"), "Joined: is reached without completing"),
        (broken("HandOver", "Next", value="Complete"), "HandOver: after it Complete can still be reached"),
        (broken("Complete", "Next", value="HandOver"), "Complete: after it HandOver can still be reached"),
        # rule 6
        (broken("AgentDeadline", "Choices", 0, "Next", value="Complete"), "Join: comes after AwaitAgent in the plan"),
        (broken("JoinDeadline", "Choices", 0, "Next", value="AwaitAgent"), "AwaitAgent: comes before Join in the plan, but after it"),
        # rule 8
        (broken("Admit", *ARGUMENTS, value="{% $uppercase($run) %}"), "calls $uppercase"),
        (broken("Admit", *ARGUMENTS, value="{% $run.a & 'x' %}"), "uses the operator &"),
        (broken("Admit", *ARGUMENTS, value="{% $run.n + 1 %}"), "uses the operator +"),
        (broken("Admit", *ARGUMENTS, value="{% $run.list[0] %}"), "has a filter, index"),
        (broken("Admit", *ARGUMENTS, value="{% $run.list[] %}"), "has a filter, index"),
        (broken("Admit", *ARGUMENTS, value="{% $run{'a': b} %}"), "has a filter, index, grouping"),
        (broken("Admit", *ARGUMENTS, value="{% $run.list[$.a = 1] %}"), "has a filter, index"),
        (broken("Admit", *ARGUMENTS, value="{% $run.* %}"), "path that is not"),
        (broken("Admit", *ARGUMENTS, value="{% $run.$string() %}"), "path that is not"),
        (broken("Admit", *ARGUMENTS, value="{% instance_id.x %}"), "path that is not"),
        (broken("Admit", *ARGUMENTS, value="{% $run ? 1 : 2 %}"), "uses condition"),
        (broken("Admit", *ARGUMENTS, value="{% ($x := 1; $x) %}"), "block of several"),
        (broken("Admit", *ARGUMENTS, value="{% function($x){$x} %}"), "uses lambda"),
        (broken("Admit", *ARGUMENTS, value="{% /a/ %}"), "uses regex"),
        (broken("Admit", *ARGUMENTS, value="{% [1..3] %}"), "uses the operator .."),
        (broken("Admit", *ARGUMENTS, value="{% 'a' in $run %}"), "uses the operator in"),
        (broken("Admit", *ARGUMENTS, value="{% $ %}"), "reads the context value"),
        (broken("Admit", *ARGUMENTS, value="{% $eval('1') %}"), "calls $eval"),
        (broken("Admit", *ARGUMENTS, value="{% {$run.a: 1} %}"), "object key that is not a literal"),
        # rule 9
        (broken("Admit", "Arguments", "FunctionName", value="arn:aws:lambda:eu-west-1:123456789012:function:x"), "literal ARN"),
        (broken("Admit", *ARGUMENTS, value="account 123456789012"), "literal account"),
        (broken("Admit", *ARGUMENTS, value="in ap-southeast-2 only"), "literal region"),
        (broken("Admit", "Arguments", "FunctionName", value="autojoin-node"), "literal name"),
        # rule 10
        (broken("Admit", *ARGUMENTS, value="{% $rum %}"), "reads $rum, which nothing assigns"),
    ],
)
def test_a_planted_fault_is_found(definition: State, finding: str) -> None:
    assert any(finding in found for found in findings(definition)), findings(definition)


def test_a_deadline_without_a_way_out_is_found() -> None:
    definition = good()
    definition["States"]["AgentDeadline"] = choice(("$millis() > $run.deadline_ms", "AwaitAgent"), default="AwaitAgent")

    assert "AgentDeadline: a Deadline choice needs a way out of its cycle" in findings(definition)


def test_a_deadline_must_be_a_choice_to_count() -> None:
    definition = good()
    definition["States"]["AgentDeadline"] = {"Type": "Pass", "Next": "AwaitAgent"}

    assert any("cycle without a Deadline choice" in found for found in findings(definition))


def test_an_end_that_is_neither_succeed_nor_fail_is_found() -> None:
    definition = good()
    definition["States"]["Joined"] = {"Type": "Pass", "End": True}

    assert any("Joined: a machine ends in a Succeed or a Fail" in found for found in findings(definition))


def test_a_listed_end_that_does_not_exist_is_found() -> None:
    assert ": there is no state Ghost, which is listed as an end without a hook" in findings(
        good(), ends=Ends(without_hook=frozenset({"Planned", "Ghost"}))
    )


def test_a_step_of_the_plan_without_a_state_and_a_task_without_a_step_are_found() -> None:
    assert "Verify: is a step of the plan, but not a state" in findings(good(), step_order=("Admit", "Verify", "Complete"))
    assert "Join: is a Task between the plan's steps, but not a step of the plan" in findings(
        good(), step_order=("Admit", "AwaitAgent", "Complete")
    )


def test_substitutions_must_be_given_and_used() -> None:
    found = findings(good(), substitutions={"Partition": "", "Unused": ""})

    assert ": ${NodeFunctionArn} is used, but the template does not give it" in found
    assert ": substitution Unused is given, but not used" in found


@pytest.mark.parametrize("field", ["Arguments", "Output"])
def test_an_assign_to_an_outer_name_inside_a_map_is_found(field: str) -> None:
    definition = good()
    inner = {"Type": "Pass", "Assign": {"run": 1}, field if field == "Output" else "Comment": "x", "End": True}
    processor = {"StartAt": "Inner", "States": {"Inner": inner}}
    definition["States"]["Complete"]["Next"] = "Each"
    definition["States"]["Each"] = {"Type": "Map", "Items": [1], "ItemProcessor": processor, "Next": "Joined"}

    assert any("'run' is a variable of the outer scope" in found for found in findings(definition))


def test_rules_hold_inside_parallel_and_map_too() -> None:
    definition = good()
    bare = {"Type": "Task", "Resource": "arn:aws:states:::lambda:invoke", "Arguments": {"FunctionName": "x"}, "End": True}
    processor = {"StartAt": "Inner", "States": {"Inner": bare}}
    definition["States"]["Complete"]["Next"] = "Each"
    definition["States"]["Each"] = {"Type": "Map", "Items": [1], "ItemProcessor": processor, "Next": "Joined"}

    assert {"Inner: a Task needs a Comment", "Inner: FunctionName has a literal name: x"} <= set(findings(definition))


@pytest.fixture
def repository(tmp_path: Path) -> Callable[[State], list[str]]:
    """Writes a machine and its template; returns the command's arguments."""

    def write(definition: State) -> list[str]:
        file, template = tmp_path / "join.asl.yaml", tmp_path / "template.yaml"
        file.write_text(yaml.safe_dump(definition))
        template.write_text(
            "Resources:\n"
            "  Join:\n"
            "    Type: AWS::Serverless::StateMachine\n"
            "    Properties:\n"
            "      DefinitionUri: join.asl.yaml\n"
            "      DefinitionSubstitutions:\n"
            "        NodeFunctionArn: !GetAtt Node.Arn\n"
            "        Partition: !Ref AWS::Partition\n"
        )
        (tmp_path / "planned.py").write_text(f"ORDER = {ORDER!r}\n")
        return [str(file), "--template", str(template), "--plan", "planned:ORDER", "--plan-root", str(tmp_path)]

    return write


@pytest.fixture(autouse=True)
def own_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command knows the ends of machines by their file's name."""
    monkeypatch.setitem(lint_machines.ENDS, "join", ENDS)


def test_the_command_prints_file_state_and_problem(repository: Callable[[State], list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    assert lint_machines.main(repository(good())) == 0

    arguments = repository(broken("Admit", "Comment"))
    assert lint_machines.main(arguments) == 1
    assert capsys.readouterr().out == f"{arguments[0]}: Admit: a Task needs a Comment\n"


def test_the_command_misses_a_machine_that_the_template_does_not_name(
    repository: Callable[[State], list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = repository(good())
    Path(arguments[0]).rename(tmp_path / "leave.asl.yaml")

    assert lint_machines.main([str(tmp_path / "leave.asl.yaml"), *arguments[1:]]) == 1
    assert "no state machine of" in capsys.readouterr().out


def test_the_command_says_when_the_plan_cannot_be_imported(
    repository: Callable[[State], list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = repository(good())

    assert lint_machines.main([*arguments, "--plan", "planned:ABSENT"]) == 1
    assert "the plan's step order cannot be imported" in capsys.readouterr().out
