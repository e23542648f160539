"""Fault points: a run can be broken before and after every attempt of every state."""

from __future__ import annotations

from typing import Any

import pytest

from lab import asl
from tests.shims.asl_builders import State, catch, choice, machine, retry, task

DEFINITION = machine(
    {
        "A": task(TimeoutSeconds=60, Retry=[retry("Flaky")], Catch=[catch("H")], Next="C"),
        "C": choice((True, "W")),
        "W": {"Type": "Wait", "Seconds": 1, "Next": "P"},
        "P": {"Type": "Pass", "Next": "B"},
        "B": task(callback=True, TimeoutSeconds=60, Catch=[catch("H")], Next="S"),
        "S": {"Type": "Succeed"},
        "H": task(function="hand-over", Next="F"),
        "F": {"Type": "Fail", "Error": "NotJoined"},
    }
)
EDGES = [(state, edge) for state in ("A", "C", "W", "P", "B", "S") for edge in ("before", "after")]


class World:
    """Functions that count, and answer callbacks at once."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.engine: asl.Engine | None = None

    def __call__(self, function: str, payload: Any) -> None:
        self.calls.append("B" if "token" in payload else "A" if function == "f" else "H")
        if "token" in payload and self.engine is not None:
            try:
                self.engine.send_task_success(payload["token"], {})
            except asl.TaskTimedOut:
                self.calls.append("refused")


def broken(action: Any, state: str, edge: str, definition: State = DEFINITION, attempt: int = 1) -> tuple[asl.Execution, World]:
    """A run with one fault at one attempt of the first visit of a state."""
    world = World()

    def faults(point: asl.FaultPoint) -> Any:
        if (point.state, point.edge, point.attempt, point.visit) == (state, edge, attempt, 1):
            if isinstance(action, asl.TaskFailed):
                raise action
            return action
        return None

    engine = asl.Engine(asl.VirtualClock(0), world, faults=faults)
    world.engine = engine
    execution = engine.start(asl.parse(definition), "run", {})
    engine.run()
    return execution, world


def test_without_a_fault_the_run_succeeds() -> None:
    execution, world = broken(None, "A", "before")

    assert (execution.status, world.calls) == ("SUCCEEDED", ["A", "B"])


def test_every_state_has_both_edges() -> None:
    points: list[tuple[str, str]] = []

    world = World()
    world.engine = asl.Engine(asl.VirtualClock(), world, faults=lambda p: points.append((p.state, p.edge)))
    world.engine.start(asl.parse(DEFINITION), "run", {})
    world.engine.run()

    assert points == EDGES


@pytest.mark.parametrize(("state", "edge"), EDGES)
def test_an_abort_at_any_edge_ends_the_execution_there(state: str, edge: str) -> None:
    execution, world = broken(asl.ABORT, state, edge)

    assert (execution.status, execution.visited[-1]) == ("ABORTED", state)
    assert world.calls == {"A": [] if edge == "before" else ["A"], "B": ["A"] if edge == "before" else ["A", "B"]}.get(
        state, ["A", "B"] if state == "S" else ["A"]
    )


@pytest.mark.parametrize(("edge", "calls"), [("before", ["H"]), ("after", ["A", "H"])])
def test_a_task_can_fail_before_and_after_its_effect(edge: str, calls: list[str]) -> None:
    execution, world = broken(asl.TaskFailed("Crash"), "A", edge)

    assert (execution.error, world.calls) == ("NotJoined", calls)


@pytest.mark.parametrize(("edge", "calls"), [("before", ["A", "B"]), ("after", ["A", "A", "B"])])
def test_a_retried_fault_is_one_attempt(edge: str, calls: list[str]) -> None:
    execution, world = broken(asl.TaskFailed("Flaky"), "A", edge)

    assert (execution.status, world.calls) == ("SUCCEEDED", calls)


@pytest.mark.parametrize(("state", "edge", "calls"), [("A", "before", ["H"]), ("A", "after", ["A", "H"]), ("B", "after", ["A", "B", "H"])])
def test_a_lost_answer_ends_in_the_time_out(state: str, edge: str, calls: list[str]) -> None:
    execution, world = broken(asl.KILL_ANSWER, state, edge)

    timed_out = execution.events("TaskTimedOut")
    assert (execution.error, world.calls, len(timed_out)) == ("NotJoined", calls, 1)
    assert timed_out[0]["taskTimedOutEventDetails"]["error"] == "States.Timeout"


def test_a_repeated_call_happens_twice_and_the_second_answer_is_refused() -> None:
    execution, world = broken(asl.REPEAT, "B", "before")

    assert (execution.status, world.calls) == ("SUCCEEDED", ["A", "B", "B", "refused"])


def test_a_delay_takes_its_time() -> None:
    execution, _ = broken(asl.Delay(30), "C", "after")

    assert (execution.status, execution.stopped_at) == ("SUCCEEDED", 31)


@pytest.mark.parametrize(
    ("action", "state", "edge"), [(asl.REPEAT, "A", "after"), (asl.TaskFailed("X"), "C", "before"), ("typo", "A", "before")]
)
def test_a_fault_that_cannot_happen_is_an_error_of_the_test(action: Any, state: str, edge: str) -> None:
    with pytest.raises(ValueError, match="not possible"):
        broken(action, state, edge)
