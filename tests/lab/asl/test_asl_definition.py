"""The interpreter refuses what it does not know, and what AWS refuses at creation."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from lab import asl
from tests.shims.asl_builders import State, catch, choice, machine, retry, task

GOOD = machine(
    {
        "A": task({"x": "{% $states.input.x %}"}, TimeoutSeconds=60, Retry=[retry("Busy")], Catch=[catch("F")], Next="B"),
        "B": choice(("$states.input.done = true", "S"), default="W"),
        "W": {"Type": "Wait", "Seconds": 3, "Next": "A"},
        "S": {"Type": "Succeed", "Output": "{% $states.input %}"},
        "F": {"Type": "Fail", "Error": "E", "Cause": "C"},
    }
)


@pytest.mark.parametrize("text", [json.dumps(GOOD), yaml.safe_dump(GOOD), GOOD])
def test_json_yaml_and_mappings_are_taken(text: Any) -> None:
    parsed = asl.parse(text)

    assert (parsed.start_at, set(parsed.states)) == ("A", {"A", "B", "W", "S", "F"})


def changed(state: str, **fields: Any) -> State:
    """GOOD with fields of a state changed; None removes one."""
    definition = json.loads(json.dumps(GOOD))
    for key, value in fields.items():
        definition["States"][state].pop(key, None)
        if value is not None:
            definition["States"][state][key] = value
    return definition


def inside(inner: State, **outer: Any) -> State:
    """A machine with a Parallel of one branch."""
    branch = {"StartAt": "I", "States": {"I": inner}}
    return machine({"P": {"Type": "Parallel", "Branches": [branch], "End": True, **outer}})


@pytest.mark.parametrize(
    ("definition", "problem"),
    [
        (changed("A", ResultPath="$.x"), "A.ResultPath"),
        (changed("A", Next="Nowhere"), "A: next goes to 'Nowhere'"),
        (changed("A", Next=None), "A: needs either Next or End"),
        (changed("A", End=True), "A: needs either Next or End"),
        (changed("A", Resource="arn:aws:states:::sqs:sendMessage"), "A.Resource"),
        (changed("A", Arguments={"Payload": 1}), "A.Arguments: needs FunctionName"),
        (changed("A", Arguments={"FunctionName": "f", "Qualifier": "1"}), "A.Arguments.Qualifier"),
        (changed("A", TimeoutSeconds=0), "A.TimeoutSeconds"),
        (changed("A", TimeoutSeconds=True), "A.TimeoutSeconds"),
        (changed("A", HeartbeatSeconds=10), "A.HeartbeatSeconds"),
        (changed("A", Assign={"states": 1}), "A.Assign: 'states'"),
        (changed("A", Assign=[1]), "A.Assign: must be a mapping"),
        (changed("A", Output="{% $states. %}"), "A.Output"),
        (changed("A", Output=" {% $x %}"), "A.Output: an expression is the whole string"),
        (changed("A", Output="{% $eval('1') %}"), "$eval"),
        (changed("A", Output="{% $uuid() %}"), "$uuid"),
        (changed("A", Output="${Name}"), "A.Output: '${Name}' has not been substituted"),
        (changed("A", Retry=[retry("States.ALL"), retry("Busy")]), "A.Retry[0].ErrorEquals: States.ALL"),
        (changed("A", Retry=[retry("Busy", MaxDelaySeconds=1)]), "A.Retry[0].MaxDelaySeconds"),
        (changed("A", Retry=[retry("Busy", JitterStrategy="HALF")]), "A.Retry[0].JitterStrategy"),
        (changed("A", Retry=[retry("Busy", BackoffRate=0.5)]), "A.Retry[0].BackoffRate"),
        (changed("A", Retry=[retry("Busy", Delay=1)]), "A.Retry[0].Delay"),
        (changed("A", Catch=[{"ErrorEquals": ["States.ALL"]}]), "A.Catch[0]: needs Next"),
        (changed("A", Catch=[catch("F", ResultPath="$.e")]), "A.Catch[0].ResultPath"),
        (changed("B", Next="S"), "B.Next"),
        (changed("B", Choices=[]), "B.Choices"),
        (changed("B", Choices=[{"Condition": "true", "Next": "S"}]), "B.Choices[0].Condition"),
        (changed("B", Choices=[{"Condition": True, "Next": "S", "Variable": "$.x"}]), "B.Choices[0].Variable"),
        (changed("W", Seconds=1.5), "W.Seconds"),
        (changed("W", Timestamp="2027-01-01T00:00:00Z"), "W: needs either Seconds or Timestamp"),
        (changed("S", Assign={"x": 1}), "S.Assign"),
        (changed("F", Cause=3), "F.Cause"),
        (changed("F", Type="Stop"), "F: Type 'Stop'"),
        ({**GOOD, "QueryLanguage": "JSONPath"}, "QueryLanguage"),
        ({**GOOD, "StartAt": "Z"}, "StartAt"),
        ({**GOOD, "Timeout": 3}, "Timeout: not a field"),
        ({**GOOD, "TimeoutSeconds": 0}, "TimeoutSeconds"),
        (machine({"A": {"Type": "Succeed"}, "B": {"Type": "Succeed"}}), "B: is not reachable"),
        (inside({"Type": "Pass", "Assign": {"x": 1}, "End": True}, Assign={"x": 2}), "'x' is a variable of the outer scope"),
        (inside({"Type": "Pass", "Next": "P"}), "next goes to 'P'"),
        (machine({"P": {"Type": "Parallel", "Branches": [], "End": True}}), "P.Branches"),
        (machine({"M": {"Type": "Map", "End": True, "ItemReader": {}}}), "M.ItemReader"),
        (machine({"M": {"Type": "Map", "End": True}}), "M.ItemProcessor"),
    ],
)
def test_a_problem_is_refused_and_named(definition: State, problem: str) -> None:
    with pytest.raises(asl.DefinitionError) as refused:
        asl.parse(definition)

    assert any(problem in found for found in refused.value.problems), refused.value.problems


def test_all_problems_are_named_at_once() -> None:
    with pytest.raises(asl.DefinitionError) as refused:
        asl.parse(changed("A", Next="Nowhere", ResultPath="$", TimeoutSeconds=0))

    assert len(refused.value.problems) >= 3


@pytest.mark.parametrize("text", ["[1, 2]", "a: b: c", "just words"])
def test_text_that_is_no_definition_is_refused(text: str) -> None:
    with pytest.raises(asl.DefinitionError):
        asl.parse(text)


def test_substitutions_are_replaced_by_name_and_others_stay() -> None:
    text = asl.substitute("${A}-${B}-${C}", {"A": "1", "B": "2"})

    assert (text, asl.substitutions_in(text)) == ("1-2-${C}", {"C"})
