"""The same machine runs the same on both clocks, and as moto's engine sees it."""

from __future__ import annotations

import itertools
import json
import threading
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lab import asl
from tests.shims.asl_builders import State, catch, choice, machine, retry, task
from tests.shims.moto_engine import MotoEngine

ERRORS = ("Busy", "Broken", "Odd")
Script = dict[str, list[str | None]]


@st.composite
def tasks(draw: st.DrawFn, name: str, following: str, errors: bool) -> State:
    """A Task whose payload, output and variables depend on what came before."""
    state = task({"state": name, "input": "{% $states.input %}", "log": "{% $log %}"}, Next=following)
    if draw(st.booleans()):
        state["Assign"] = {"log": "{% $states.result.Payload.log %}", "last": name}
    if draw(st.booleans()):
        state["Output"] = {"of": name, "n": "{% $states.result.Payload.n %}"}
    if errors and draw(st.booleans()):
        state["Retry"] = [retry(draw(st.sampled_from(ERRORS)), MaxAttempts=draw(st.integers(0, 2)))]
    if errors and draw(st.booleans()):
        names = draw(st.sampled_from([("States.ALL",), ("Busy",), ("States.TaskFailed",)]))
        assign = {"Assign": {"log": "{% $states.errorOutput.Error %}"}} if draw(st.booleans()) else {}
        state["Catch"] = [catch(following, *names, **assign)]
    return state


@st.composite
def machines(draw: st.DrawFn) -> tuple[State, Script]:
    """A chain of states of all types with functions that follow a script of errors."""
    count = draw(st.integers(1, 5))
    names = [f"S{i}" for i in range(count)] + ["End"]
    states: dict[str, State] = {"Start": {"Type": "Pass", "Assign": {"log": "", "last": None}, "Next": names[0]}}
    script: Script = {}
    for i, name in enumerate(names[:-1]):
        following = names[i + 1]
        kind = draw(st.sampled_from(["Task", "Task", "Choice", "Pass", "Parallel", "Map"]))
        if kind == "Task":
            states[name] = draw(tasks(name, following, True))
            script[name] = draw(st.lists(st.sampled_from([None, *ERRORS]), max_size=3))
        elif kind == "Choice":
            # both ways lead on, so that every state is reachable
            rules = [("$exists($last) and $last = 'S0'", following), ("$log = 'Busy'", names[min(i + 2, count)])]
            states[name] = choice(*rules, default=following)
        elif kind == "Pass":
            states[name] = {"Type": "Pass", "Output": {"was": "{% $states.input %}"}, "Next": following}
        elif kind == "Parallel":
            branches = []
            for b in "ab":
                inner = draw(tasks(f"{name}{b}", "-", False))
                inner.pop("Next")
                inner.pop("Assign", None)
                branches.append({"StartAt": f"{name}{b}", "States": {f"{name}{b}": {**inner, "End": True}}})
            states[name] = {"Type": "Parallel", "Branches": branches, "Next": following, "Assign": {"log": "parallel"}}
        else:
            inner = {"Type": "Pass", "Output": "{% {'item': $states.input, 'log': $log} %}", "End": True}
            processor = {"ProcessorConfig": {"Mode": "INLINE"}, "StartAt": f"{name}m", "States": {f"{name}m": inner}}
            states[name] = {"Type": "Map", "Items": [1, "two", {"three": 3}], "ItemProcessor": processor, "Next": following}
    states["End"] = {"Type": "Succeed", "Output": {"input": "{% $states.input %}", "log": "{% $log %}", "last": "{% $last %}"}}
    return machine(states, "Start"), script


class Scripted:
    """Functions that fail as the script says, then answer from their payload."""

    def __init__(self, script: Script) -> None:
        self._left = {k: list(v) for k, v in script.items()}
        self._lock = threading.Lock()

    def __call__(self, _: str, payload: Any) -> Any:
        with self._lock:
            left = self._left.get(payload["state"], [])
            error = left.pop(0) if left else None
        if error:
            raise asl.TaskFailed(error, json.dumps({"errorType": error, "errorMessage": ""}, separators=(",", ":")))
        return {"n": len(str(payload["input"])), "log": str(payload["log"])[:20] + '"' + payload["state"]}


def ended_on(clock: asl.VirtualClock | asl.RealClock, definition: State, script: Script) -> asl.Execution:
    """The execution on a clock, after its end."""
    engine = asl.Engine(clock, Scripted(script))
    try:
        execution = engine.start(asl.parse(definition), "run", {"a": [1, {"b": None}]})
        engine.run()
        if isinstance(clock, asl.RealClock):
            assert execution.wait(60)
        return execution
    finally:
        engine.close()


def seen(execution: asl.Execution) -> tuple[Any, ...]:
    """What must be the same everywhere; branches may interleave differently."""
    return (execution.status, execution.output, execution.error, sorted(execution.visited), execution.transitions)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(machines())
def test_a_machine_runs_the_same_on_both_clocks(made: tuple[State, Script]) -> None:
    definition, script = made

    virtual = ended_on(asl.VirtualClock(), definition, script)
    real = ended_on(asl.RealClock(speed=1000), definition, script)

    assert seen(virtual) == seen(real)


@settings(max_examples=60, deadline=None)
@given(machines())
def test_a_virtual_run_is_the_same_each_time(made: tuple[State, Script]) -> None:
    definition, script = made

    first, second = (ended_on(asl.VirtualClock(), definition, script) for _ in range(2))

    assert first.history == second.history


@settings(max_examples=60, deadline=None)
@given(machines())
def test_a_history_is_one_tree_in_the_order_of_time(made: tuple[State, Script]) -> None:
    history = ended_on(asl.VirtualClock(), *made).history

    assert [e["id"] for e in history] == list(range(1, len(history) + 1))
    assert all(e["previousEventId"] < e["id"] for e in history)
    assert all(a["timestamp"] <= b["timestamp"] for a, b in itertools.pairwise(history))


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(machines())
def test_motos_engine_sees_the_same_data_and_end(made: tuple[State, Script]) -> None:
    definition, script = made

    ours = ended_on(asl.VirtualClock(), definition, script)
    with MotoEngine(Scripted(script)) as moto:
        theirs = moto.run(definition, {"a": [1, {"b": None}]})

    assert (theirs.status, theirs.output, theirs.error) == (ours.status, ours.output, ours.error)
    assert sorted(theirs.visited) == sorted(ours.visited)


@pytest.mark.parametrize("callback", [True, False])
def test_motos_engine_agrees_on_callbacks(callback: bool) -> None:
    definition = machine({"A": task({"x": "{% $states.input.x %}"}, callback=callback)})

    def work(engine: Any) -> Any:
        def invoke(_: str, payload: Any) -> Any:
            if callback:
                engine().send_task_success(payload["token"], {"x": payload["x"]})
            return payload["x"]

        return invoke

    engine = asl.Engine(asl.VirtualClock(), work(lambda: engine))
    ours = engine.start(asl.parse(definition), "run", {"x": 'a"b\\'})
    engine.run()
    with MotoEngine(work(lambda: moto)) as moto:
        theirs = moto.run(definition, {"x": 'a"b\\'})

    assert (theirs.status, ours.status) == ("SUCCEEDED", "SUCCEEDED")
    assert theirs.output == ours.output or (not callback and theirs.output["Payload"] == ours.output["Payload"])


def test_real_engine_stops_times_out_and_answers_from_other_threads() -> None:
    tokens: list[str] = []
    engine = asl.Engine(asl.RealClock(speed=100), lambda _, p: tokens.append(p["token"]))
    try:
        parsed = asl.parse(machine({"A": task(callback=True, TimeoutSeconds=30)}))
        answered, late, stopped = (engine.start(parsed, n, {}) for n in ("answered", "late", "stopped"))
        engine.stop(stopped.arn)
        first = threading.Event()
        threading.Thread(target=lambda: (_wait_for(answered), engine.send_task_success(_token(answered, tokens), 1), first.set())).start()
        assert answered.wait(60)
        assert late.wait(60)
        assert first.wait(60)
    finally:
        engine.close()

    assert [x.status for x in (answered, late, stopped)] == ["SUCCEEDED", "FAILED", "ABORTED"]
    assert late.error == "States.Timeout"


def _wait_for(execution: asl.Execution) -> None:
    while not execution.events("TaskSubmitted"):
        execution.wait(0.001)


def _token(execution: asl.Execution, tokens: list[str]) -> str:
    parameters = execution.events("TaskScheduled")[0]["taskScheduledEventDetails"]["parameters"]
    return next(t for t in tokens if t in parameters)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.lists(st.integers(0, 20), max_size=4), min_size=1, max_size=6))
def test_sleeping_handlers_never_wait_for_each_other(naps: list[list[int]]) -> None:
    clock = asl.VirtualClock(0)
    woken: list[float] = []

    def invoke(_: str, payload: Any) -> float:
        for nap in payload["naps"]:
            clock.sleep(nap)
            woken.append(clock.time())
        return clock.time()

    engine = asl.Engine(clock, invoke)
    parsed = asl.parse(machine({"A": task({"naps": "{% $states.input %}"}, Output="{% $states.result.Payload %}")}))
    done = [engine.start(parsed, f"e{i}", n) for i, n in enumerate(naps)]
    engine.run()

    assert [d.output for d in done] == [sum(n) for n in naps]
    assert [d.stopped_at for d in done] == [sum(n) for n in naps]
    assert woken == sorted(woken)
