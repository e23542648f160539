"""Parallel and Map: own scope, own tokens, first failure stops the rest."""

from __future__ import annotations

from typing import Any

import pytest

from lab import asl
from tests.shims.asl_builders import State, catch, machine, payload_of, retry, run, task


def parallel(*branches: dict[str, State], **more: Any) -> State:
    """A Parallel state; each branch starts at its first state."""
    inner = [{"StartAt": next(iter(b)), "States": b} for b in branches]
    return {"Type": "Parallel", "Branches": inner, "End": True, **more}


def mapped(states: dict[str, State], **more: Any) -> State:
    """A Map state over its input."""
    processor = {"ProcessorConfig": {"Mode": "INLINE"}, "StartAt": next(iter(states)), "States": states}
    return {"Type": "Map", "ItemProcessor": processor, "End": True, **more}


def test_branches_get_the_arguments_and_their_results_are_in_order() -> None:
    state = parallel(
        {
            "A": {"Type": "Wait", "Seconds": 9, "Next": "A2"},
            "A2": {"Type": "Pass", "Output": "{% [$states.input, 'a'] %}", "End": True},
        },
        {"B": {"Type": "Pass", "Output": "{% [$states.input, 'b'] %}", "End": True}},
        Arguments="{% $states.input.n %}",
        Output="{% $states.result %}",
    )

    assert run(machine({"P": state}), given={"n": 1}).output == [[1, "a"], [1, "b"]]


def test_inner_variables_stay_inside_and_outer_ones_are_seen() -> None:
    branch = {
        "A": {"Type": "Pass", "Assign": {"inner": "{% $outer %}"}, "Next": "B"},
        "B": {"Type": "Pass", "Output": "{% $inner %}", "End": True},
    }
    states = {
        "S": {"Type": "Pass", "Assign": {"outer": 1}, "Next": "P"},
        "P": {**parallel(branch), "End": None, "Next": "E", "Assign": {"kept": "{% $states.result %}"}},
        "E": {"Type": "Succeed", "Output": "{% {'kept': $kept, 'leaked': $exists($inner)} %}"},
    }
    states["P"].pop("End")

    assert run(machine(states)).output == {"kept": [1], "leaked": False}


def test_the_first_failure_stops_the_other_branches() -> None:
    calls: list[str] = []
    clock = asl.VirtualClock(0)

    def invoke(name: str, _: Any) -> None:
        calls.append(name)
        if name == "bad":
            raise asl.TaskFailed("Bad", "broken")

    state = parallel(
        {"A": {"Type": "Wait", "Seconds": 5, "Next": "A2"}, "A2": task(function="late")},
        {"B": task(function="bad")},
        Catch=[catch("S")],
    )
    engine = asl.Engine(clock, invoke)
    done = engine.start(asl.parse(machine({"P": state, "S": {"Type": "Succeed", "Output": "{% $states.input.Error %}"}})), "run", {})
    engine.run()

    assert (done.output, calls, done.stopped_at) == ("Bad", ["bad"], 0)


def test_a_parallel_is_retried_as_a_whole() -> None:
    fails = ["Bad"]

    def invoke(name: str, _: Any) -> str:
        if name == "b" and fails:
            raise asl.TaskFailed(fails.pop())
        return name

    state = parallel(
        {"A": task(function="a", Output="{% $states.result.Payload %}")},
        {"B": task(function="b", Output="{% $states.result.Payload %}")},
        Retry=[retry("Bad")],
    )

    done = run(machine({"P": state}), invoke)

    assert (done.output, done.visited.count("A")) == (["a", "b"], 2)


def test_a_map_gives_each_item_its_place_and_value() -> None:
    selector = {
        "i": "{% $states.context.Map.Item.Index %}",
        "v": "{% $states.context.Map.Item.Value %}",
        "n": "{% $states.input.n %}",
    }
    state = mapped({"A": {"Type": "Pass", "End": True}}, Items="{% $states.input.items %}", ItemSelector=selector)

    done = run(machine({"M": state}), given={"items": ["x", "y"], "n": 7})

    assert done.output == [{"i": 0, "v": "x", "n": 7}, {"i": 1, "v": "y", "n": 7}]


def test_a_map_without_items_takes_its_input_and_an_empty_one_gives_nothing() -> None:
    assert run(machine({"M": mapped({"A": {"Type": "Pass", "End": True}})}), given=[1, 2]).output == [1, 2]
    assert run(machine({"M": mapped({"A": {"Type": "Pass", "End": True}})}), given=[]).output == []


def test_items_that_are_no_list_are_an_error() -> None:
    done = run(machine({"M": mapped({"A": {"Type": "Pass", "End": True}})}), given={"a": 1})

    assert (done.status, done.error) == ("FAILED", "States.QueryEvaluationError")


@pytest.mark.parametrize(("limit", "batches"), [(0, 1), (1, 5), (2, 3), ("{% 3 %}", 2)])
def test_max_concurrency_bounds_what_runs_at_once(limit: Any, batches: int) -> None:
    clock = asl.VirtualClock(0)
    engine = asl.Engine(clock, lambda *_: None)
    state = mapped({"W": {"Type": "Wait", "Seconds": 10, "End": True}}, MaxConcurrency=limit)

    engine.start(asl.parse(machine({"M": state})), "run", list(range(5)))
    engine.run()

    assert clock.time() == batches * 10


def test_thirty_callbacks_at_once_have_thirty_tokens_and_each_gets_its_own_answer() -> None:
    tokens: dict[int, str] = {}
    clock = asl.VirtualClock(0)
    engine = asl.Engine(clock, payload_of(lambda p: tokens.setdefault(p["n"], p["token"])))
    state = mapped({"A": task({"n": "{% $states.input %}"}, callback=True)})
    done = engine.start(asl.parse(machine({"M": state})), "run", list(range(30)))
    engine.run()

    for n in reversed(range(30)):
        engine.send_task_success(tokens[n], n)
    engine.run()

    assert len(set(tokens.values())) == 30
    assert done.output == list(range(30))


def test_a_retry_in_one_branch_keeps_the_other_branchs_token() -> None:
    seen: dict[str, list[str]] = {"a": [], "b": []}
    clock = asl.VirtualClock(0)

    def invoke(name: str, payload: Any) -> None:
        seen[name].append(payload["token"])
        if name == "a" and len(seen["a"]) == 1:
            raise asl.TaskFailed("Busy")

    engine = asl.Engine(clock, invoke)
    state = parallel({"A": task(callback=True, function="a", Retry=[retry("Busy")])}, {"B": task(callback=True, function="b")})
    done = engine.start(asl.parse(machine({"P": state})), "run", {})
    engine.run()
    engine.send_task_success(seen["a"][1], {"a": 1})
    engine.send_task_success(seen["b"][0], {"b": 2})
    engine.run()

    assert len({*seen["a"], *seen["b"]}) == 3
    assert done.output == [{"a": 1}, {"b": 2}]


def test_a_stop_in_the_middle_of_a_map_runs_no_later_state() -> None:
    calls: list[int] = []
    clock = asl.VirtualClock(0)
    engine = asl.Engine(clock, payload_of(lambda p: calls.append(p["n"])))
    states = {
        "A": task({"n": "{% $states.input %}"}, Output="{% $states.input %}", Next="W"),
        "W": {"Type": "Wait", "Seconds": 10, "Next": "B"},
        "B": task({"n": -1}),
    }
    done = engine.start(asl.parse(machine({"M": mapped(states)})), "run", [1, 2, 3])
    engine.run(until=5)

    engine.stop(done.arn)
    engine.run()

    assert (done.status, calls) == ("ABORTED", [1, 2, 3])


def test_the_history_shows_the_states_inside_with_their_own_chains() -> None:
    done = run(machine({"M": mapped({"A": {"Type": "Pass", "End": True}})}), given=[1, 2])

    kinds = [e["type"] for e in done.history]
    assert (kinds.count("MapIterationStarted"), kinds.count("PassStateEntered"), kinds.count("MapIterationSucceeded")) == (2, 2, 2)
    started = done.events("MapStateStarted")[0]["id"]
    assert [e["previousEventId"] for e in done.events("MapIterationStarted")] == [started, started]
    assert done.transitions == 3
