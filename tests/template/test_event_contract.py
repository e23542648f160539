"""Samples of events/: what our rules let in fits our models, and what they must not let in is refused by one or the other."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from moto.events.models import EventPattern

from autojoin import errors
from autojoin.events.eventbridge import CommandEnded, JoinEnded, LaunchAction
from autojoin.events.requests import JoinRequest
from autojoin.use_cases.parse import parse
from tests.fakes.world import World
from tests.template.patterns import matches
from tests.template.support import PSEUDO, ROOT, of_type, raw, resolve

MODELS = {"LaunchRule": LaunchAction, "JoinEndedRule": JoinEnded, "CommandEndedRule": CommandEnded}
PATTERNS = {name: resolve(r["Properties"]["EventPattern"]) for name, r in of_type(raw(), "AWS::Events::Rule").items()}
RULE_OF = {"launch": "LaunchRule", "join": "JoinEndedRule", "command": "CommandEndedRule"}
"""Rule of a sample, by the first word of its file's name."""
SCHEMA = json.loads((ROOT / "events/manual/schema.json").read_text())


def samples(folder: str) -> list[Any]:
    found = sorted(p for p in (ROOT / "events" / folder).glob("*.json") if p.name != "schema.json")
    return [pytest.param(p, id=p.stem) for p in found]


def load(path: Path) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(path.read_text())
    return parsed


def letting_in(event: dict[str, Any]) -> set[str]:
    """The rules that an event matches, by our matcher and by moto's, which have to agree."""
    ours = {name for name, pattern in PATTERNS.items() if matches(pattern, event)}
    second = {name for name, pattern in PATTERNS.items() if EventPattern(None, pattern).matches_event(event)}
    assert ours == second
    return ours


def parses(event: dict[str, Any], rules: set[str]) -> bool:
    try:
        for rule in rules:
            parse(MODELS[rule], event, "event")
    except errors.InvalidInput:
        return False
    return bool(rules)


def is_valid_by_schema(given: Any) -> bool:
    return not list(jsonschema.Draft202012Validator(SCHEMA).iter_errors(given))


def is_valid_by_model(given: Any) -> bool:
    try:
        parse(JoinRequest, given, "input")
    except errors.InvalidInput:
        return False
    return True


# -- rules -------------------------------------------------------------------------------------------------------------


def test_every_rule_has_a_model_and_samples() -> None:
    sampled = {RULE_OF[p.values[0].stem.partition("-")[0]] for p in samples("rules")}

    assert PATTERNS.keys() == MODELS.keys() == sampled


@pytest.mark.parametrize("path", samples("rules"))
def test_a_sample_matches_exactly_its_rule_and_fits_its_model(path: Path) -> None:
    event = load(path)
    rule = RULE_OF[path.stem.partition("-")[0]]

    assert letting_in(event) == {rule}
    assert parses(event, {rule})


@pytest.mark.parametrize("path", samples("rules"))
def test_a_sample_is_a_whole_envelope_of_this_deployment(path: Path) -> None:
    event = load(path)

    assert event.keys() == {"version", "id", "detail-type", "source", "account", "time", "region", "resources", "detail"}
    assert (event["account"], event["region"]) == (PSEUDO["AWS::AccountId"], PSEUDO["AWS::Region"])


@pytest.mark.parametrize("path", samples("rules"))
def test_a_sample_is_worked_on_by_the_function_of_its_rule(path: Path) -> None:
    (target,) = of_type(raw(), "AWS::Events::Rule")[RULE_OF[path.stem.partition("-")[0]]]["Properties"]["Targets"]
    boundary = target["Arn"]["Fn::GetAtt"][0].removesuffix("Function").lower()

    answer = World().handlers[boundary](load(path), None)

    assert answer


def test_a_launch_into_a_warm_pool_is_let_in_and_sorted_out_by_intake() -> None:
    answer = World().handlers["intake"](load(ROOT / "events/rules/launch-action-into-warm-pool.json"), None)

    assert (answer["action"], answer["reason"]) == ("ignored", "warm-pool")


def test_a_launch_of_another_tool_is_let_in_and_left_alone() -> None:
    world = World()
    world.add_group("payments", {"team": "payments"})

    answer = world.handlers["intake"](load(ROOT / "events/rules/launch-action-of-another-tool.json"), None)

    assert (answer["action"], answer["reason"]) == ("ignored", "foreign-group")


def test_a_launch_of_ours_starts_a_join_once() -> None:
    event = load(ROOT / "events/rules/launch-action.json")
    world = World()
    world.time.now = LaunchAction.model_validate(event).time.timestamp()
    world.add_master()
    world.add_group("demo-rp1-workers")
    world.add_instance(event["detail"]["EC2InstanceId"], group="demo-rp1-workers")
    world.actions[event["detail"]["EC2InstanceId"]].token = event["detail"]["LifecycleActionToken"]

    first = world.handlers["intake"](event, None)
    world.handlers["intake"](event, None)
    world.engine.run()
    late = world.handlers["intake"](event, None)
    world.engine.run()

    assert first == {"action": "started", "reason": None, "execution": event["detail"]["LifecycleActionToken"]}
    assert late == {"action": "ignored", "reason": "hook-over", "execution": None}
    assert [e.name for e in world.engine.executions.values()] == [event["detail"]["LifecycleActionToken"]]


@pytest.mark.parametrize("path", samples("rules"))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20, deadline=None, database=None)
@given(extra=st.sampled_from(["new-field", "Origin", "x"]), value=st.none() | st.integers() | st.lists(st.integers(), max_size=2))
def test_fields_that_aws_adds_some_day_change_nothing(path: Path, extra: str, value: Any) -> None:
    event = load(path)
    grown = copy.deepcopy(event)
    grown[f"z-{extra}"] = value
    grown["detail"][f"z-{extra}"] = value

    assert letting_in(grown) == letting_in(event)
    assert parses(grown, letting_in(grown))


# -- by hand -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", samples("manual"))
def test_an_input_by_hand_fits_schema_and_model(path: Path) -> None:
    assert is_valid_by_schema(load(path))
    assert is_valid_by_model(load(path))


def test_the_schema_is_the_models() -> None:
    ended = subprocess.run(
        [sys.executable, "tools/render_schemas.py", "--check"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )

    assert ended.returncode == 0, ended.stderr


def test_every_field_of_an_input_is_described() -> None:
    assert all(field.get("description") for field in SCHEMA["properties"].values())


# -- refused -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", samples("refused"))
def test_what_is_to_be_refused_is_let_in_by_no_rule_that_parses_it_and_is_no_input(path: Path) -> None:
    event = load(path)

    assert not parses(event, letting_in(event))
    assert not is_valid_by_schema(event)
    assert not is_valid_by_model(event)


@pytest.mark.parametrize("path", samples("refused"))
def test_what_is_to_be_refused_starts_nothing_in_any_function(path: Path) -> None:
    world = World()
    for handler in world.handlers.values():
        if letting_in(load(path)) or "detail-type" not in load(path):
            with pytest.raises(errors.InvalidInput):
                handler(load(path), None)

    assert world.engine.executions == {}


@pytest.mark.parametrize(
    "path", [p for p in samples("refused") if "malformed" in p.id or "without-token" in p.id or "bad-instance" in p.id]
)
def test_a_malformed_launch_is_refused_by_the_field(path: Path) -> None:
    with pytest.raises(errors.InvalidInput, match=r"LifecycleActionToken|EC2InstanceId"):
        World().handlers["intake"](load(path), None)


# -- the matcher itself ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "event", "expected"),
    [
        ({"a": ["x"]}, {"a": "x", "b": 1}, True),
        ({"a": ["x"]}, {"a": "y"}, False),
        ({"a": ["x"]}, {}, False),
        ({"a": ["x", "y"]}, {"a": "y"}, True),
        ({"a": ["x"]}, {"a": ["y", "x"]}, True),
        ({"a": {"b": [1]}}, {"a": {"b": 1}}, True),
        ({"a": {"b": [1]}}, {"a": 1}, False),
        ({"a": [1]}, {"a": True}, False),
        ({"a": [{"anything-but": ["x", "y"]}]}, {"a": "z"}, True),
        ({"a": [{"anything-but": ["x", "y"]}]}, {"a": "x"}, False),
        ({"a": [{"anything-but": "x"}]}, {"a": "y"}, True),
        ({"a": [{"anything-but": ["x"]}]}, {}, False),
        ({"a": ["x"], "b": ["y"]}, {"a": "x", "b": "x"}, False),
    ],
)
def test_a_pattern_matches_as_eventbridge_says(pattern: dict[str, Any], event: dict[str, Any], expected: bool) -> None:
    assert matches(pattern, event) is expected


@pytest.mark.parametrize("pattern", [{"a": "x"}, {"a": []}, {"a": [{"prefix": "x"}]}, {"a": [{"anything-but": {"prefix": "x"}}]}])
def test_a_pattern_that_is_not_understood_is_an_error_not_a_match(pattern: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"a: a pattern|no rule of ours uses|something else than values"):
        matches(pattern, {"a": "x"})
