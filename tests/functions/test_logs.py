"""Log lines: keys once per invocation, the execution's name as correlation id, never a task token."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest

from autojoin import errors
from autojoin.observability import PowertoolsTelemetry
from tests.fakes.world import Script, World, refusal

NODE = "i-0123456789abcdef0"
KEYS = {"step", "cluster", "partition", "role", "asg", "instance_id", "execution"}


def a_world() -> World:
    """Made in the test itself: a logger keeps the stdout that it was made with."""
    made = World()
    made.telemetry = PowertoolsTelemetry(f"test-{uuid.uuid4()}")  # type: ignore[assignment]
    made.add_group()
    made.add_master()
    made.add_instance(NODE)
    return made


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def logs(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [line for line in lines(capsys) if "_aws" not in line]


def test_every_line_of_a_step_after_admit_carries_all_keys(capsys: pytest.CaptureFixture[str]) -> None:
    world = a_world()
    world.join(NODE)

    sent = [line for line in logs(capsys) if line["message"] == "command sent"]

    assert [line["step"] for line in sent] == ["Join", "Verify"]
    for line in sent:
        assert line.keys() >= KEYS
        assert (line["cluster"], line["partition"], line["role"], line["asg"]) == ("demo", "rp1", "worker", "workers")
        assert (line["instance_id"], line["execution"], line["correlation_id"]) == (NODE, "test", "test")


def test_keys_of_one_invocation_do_not_stay_for_the_next(capsys: pytest.CaptureFixture[str]) -> None:
    world = a_world()
    world.join(NODE)
    with pytest.raises(errors.InvalidInput):
        world.handlers["hook"]({"operation": "Nothing"}, None)

    last = logs(capsys)[-1]

    assert last["step"] == "Nothing"
    assert not last.keys() & (KEYS - {"step"})
    assert "correlation_id" not in last


@pytest.mark.parametrize("script", [Script(), refusal(22, "CanaryFailed"), Script(stdout="no result"), Script(ends=False)])
def test_no_task_token_is_in_any_line(capsys: pytest.CaptureFixture[str], script: Script) -> None:
    world = a_world()
    world.scripts["verify"] = [script]

    world.join(NODE)

    out = capsys.readouterr().out
    assert world.tokens
    assert not [token for token in world.tokens if token in out]
    assert "token" not in {key for line in out.splitlines() for key in json.loads(line)}


def test_a_refused_event_is_logged_by_its_error_without_its_token(capsys: pytest.CaptureFixture[str]) -> None:
    world = a_world()
    with pytest.raises(errors.InvalidInput):
        world.handlers["command"]({"operation": "Join", "token": "do-not-say-me", "run": 7}, None)

    (line,) = logs(capsys)

    assert (line["level"], line["error"], line["step"]) == ("WARNING", "InvalidInput", "Join")
    assert "do-not-say-me" not in json.dumps(line)


def test_metrics_have_dimensions_of_few_values(capsys: pytest.CaptureFixture[str]) -> None:
    world = a_world()
    world.scripts["verify"] = [refusal(22, "CanaryFailed")]
    world.join(NODE)

    metrics = [line for line in lines(capsys) if "_aws" in line]

    names = {m["Name"] for line in metrics for d in line["_aws"]["CloudWatchMetrics"] for m in d["Metrics"]}
    assert names == {"JoinsRolledBack"}
    for line in metrics:
        (directive,) = line["_aws"]["CloudWatchMetrics"]
        assert directive["Namespace"] == "Autojoin"
        assert NODE not in json.dumps(line)
