"""Everything that can go wrong, everywhere: cases are made from the state machines and from the calls of a run without faults.

First at the edges of each Task state, then at each call of a function that changes something. Each case asserts that its
fault came to pass, and then what has to be true whatever happened (`check`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from autojoin.domain import budgets
from autojoin.domain.founding import State
from autojoin.ports import Membership
from lab import asl
from lab.asl.faults import Faults
from tests.fakes.world import WORKER_TAGS, Action, Script, World, hook, machine, masters_topology, refusal

NODE, OTHER = "i-00000000000000001", "i-00000000000000002"
RUN, CLEANUP = "test", "test-cleanup"
JOIN: dict[str, Any] = machine("join").definition["States"]
LEAVE: dict[str, Any] = machine("leave").definition["States"]


@dataclass(frozen=True)
class Mode:
    """A way to join without faults from outside. `failing`: the document that refuses; `serving`: by hand, of a node that serves."""

    role: str = "worker"
    failing: str = ""
    serving: bool = False

    @property
    def keeps(self) -> bool:
        """Whether it fails once the partition is formed, so that the only copy of its data is kept."""
        return self.failing == "verify-master" and not self.serving

    @property
    def is_master(self) -> bool:
        return self.role != "worker"


MODES = {
    "launch": Mode(),
    "failing launch": Mode(failing="verify"),
    "re-join": Mode(serving=True),
    "failing re-join": Mode(failing="verify", serving=True),
    "tp launch": Mode("tp"),
    "rp failing launch": Mode("rp", failing="start-etcd"),
    "rp kept": Mode("rp", failing="verify-master"),
    "rp re-join": Mode("rp", serving=True),
    "rp failing re-join": Mode("rp", failing="verify-master", serving=True),
}
"""launch: held by the shortest hook and started by its event."""
REFUSALS = {
    "verify": refusal(22, "CanaryFailed"),
    "start-etcd": refusal(17, "PortInUse"),
    "verify-master": refusal(20, "NodeNotReady"),
}


@dataclass
class Case:
    """A world in one mode, and what came to pass in it."""

    name: str
    world: World = field(default_factory=World)
    before: str | None = None
    held: Action | None = None
    fired: int = 0
    own: set[tuple[str, str]] = field(default_factory=set)

    @property
    def mode(self) -> Mode:
        return MODES[self.name]

    @property
    def serving(self) -> bool:
        return self.mode.serving

    def play(self, fault: Faults | None = None, arrange: Callable[[], None] = lambda: None) -> None:
        """Start the join with the fault in its way, and run until nothing is left to do."""
        world, mode = self.world, self.mode
        if mode.is_master:
            world.declared = masters_topology(world)
            world.add_masters(mode.role, hook(f"{mode.role}-masters", heartbeat_s=budgets.SHORTEST_HEARTBEAT_S))
            world.launch_master(mode.role, NODE)
        else:
            world.add_group("workers", WORKER_TAGS, hook("workers", heartbeat_s=budgets.SHORTEST_HEARTBEAT_S))
            world.add_master()
            world.add_instance(NODE)
        self.held = world.actions[NODE]
        world.hooks_expire = True
        if self.serving:
            self.before = world.join(NODE, "before").arn
            self.own = intents(world)
        if mode.failing:
            world.scripts[mode.failing] = [REFUSALS[mode.failing]]
        world.fault = fault
        arrange()
        world.join(NODE, RUN, by_event=not self.serving)


# -- what has to be true ---------------------------------------------------------------------------------------------------


def executions(case: Case) -> dict[str, asl.Execution]:
    return {e.name: e for e in case.world.engine.executions.values()}


def check(case: Case) -> None:
    """The invariants, after any run with one fault."""
    world, runs = case.world, executions(case)
    assert all(e.status != "RUNNING" for e in runs.values())
    assert len([c for c in world.completions if c[0] == NODE]) <= 1
    assert not sent_twice(world)
    record = world.records.get(NODE)
    joined = record is not None and record.joined_ms is not None
    kept = is_formed(world) and not joined
    may_serve = kept and "by-hand" in runs  # in service already when it joined by hand and failed again: what it is called by stays
    cleanup = runs.get(CLEANUP)
    no_cleanup = never_cleaned(case, cleanup)
    incomplete = cleanup is not None and "incomplete" in (cleanup.cause or "")

    if (NODE, "CONTINUE") in world.completions:
        assert joined or kept
        assert "leave-node" not in documents(world)
        assert not joined or case.mode.role == "tp" or ("node", NODE) in intents(world)
    if (NODE, "ABANDON") in world.completions:
        assert not any(e.output["outcome"] == "joined" for e in runs.values() if e.status == "SUCCEEDED")
        assert no_cleanup or incomplete or left_of(world) == []
    if case.serving:
        check_still_serving(case)
    elif not joined and not no_cleanup:
        left = left_of(world)
        of_kept = {"LEASE", "RECORD", f"INTENT#node#{NODE}", f"INTENT#founding#{partition(case)}"}
        if may_serve:
            of_kept |= {entry for entry in left if entry.startswith(("INTENT#record#", "INTENT#target#"))}
        assert incomplete or left == [] or (kept and set(left) <= of_kept)
        assert not incomplete or world.leases[NODE].owner is None
        assert not incomplete or any(entry.startswith("INTENT#") for entry in left)
    if case.held and not case.serving and NODE in world.actions and not no_cleanup:
        assert not case.held.open
    if case.mode.is_master:
        check_founding(world)
        if not (joined or no_cleanup or incomplete or may_serve):
            assert not world.names.records
            assert not world.targets.registered
    check_lease(case, no_cleanup)
    if case.mode.is_master and world.ec2[NODE].state == "terminated" and not no_cleanup:
        check_replacement(case)


def check_founding(world: World) -> None:
    """One cluster for ever: nothing was served before it was formed, and what was formed was not destroyed by us."""
    formed_at, api_started = None, False
    for _, what, about in world.done:
        if what == "witness" and about.state is State.FORMED and not about.is_void:
            assert formed_at is None
            formed_at = about
        elif what == "api started":
            api_started = True
            assert formed_at is not None
        elif what in ("ABANDON", "etcd stopped", "sent leave-node"):
            assert formed_at is None or world.ec2[NODE].state == "terminated"
    assert len(set(world.done_to("etcd founded"))) <= 1
    assert not api_started or is_formed(world)


def check_replacement(case: Case) -> None:
    """The group's next instance takes over what was only claimed, and never founds again what was formed."""
    world = case.world
    formed, claimed = is_formed(world), bool(world.witness.parameters)
    world.fault, world.scripts, world.failures = None, {}, {}
    world.launch_master(case.mode.role, OTHER)
    replacement = world.join(OTHER, "replacement")

    if formed:
        assert replacement.error == "QuorumLost"
        assert ("QuorumLost", {}) in world.telemetry.counts
        assert world.actions[OTHER].result == "ABANDON"
    else:
        assert (replacement.status, replacement.error) == ("SUCCEEDED", None)
        assert world.markers.items[("demo", partition(case))].epoch == (2 if claimed else 1)


def is_formed(world: World) -> bool:
    return any(m.state is State.FORMED and not m.is_void for m in world.witness.parameters.values())


def partition(case: Case) -> str:
    return f"{case.mode.role}1"


def check_still_serving(case: Case) -> None:
    """Whatever came of a re-join: the node is in the table, its units were not stopped, its Node was not removed."""
    record = case.world.records[NODE]
    assert record.joined_ms is not None
    assert record.node_uid == "uid-1"
    assert case.own <= intents(case.world)
    assert "leave-node" not in documents(case.world)
    assert {s[2]["Scope"] for s in case.world.sent if s[0] == "remove-node"} <= {"canaries"}
    if case.mode.is_master and case.world.ec2[NODE].state != "terminated":
        assert len(case.world.names.records) == 1
        assert len(case.world.targets.registered) == 2
    cleanup = executions(case).get(CLEANUP)
    if cleanup is not None and "RolledBack" in cleanup.visited and "incomplete" not in (cleanup.cause or ""):
        assert intents(case.world) == case.own


def check_lease(case: Case, no_cleanup: bool) -> None:
    """It is free, or of an execution that ended; then a join by hand gets it once the clean-up had its time."""
    world = case.world
    owner = world.lease(NODE).owner
    assert owner is None or no_cleanup
    is_out = NODE not in world.lifecycle or world.lifecycle[NODE].lifecycle_state.startswith("Terminat")
    kept = case.mode.is_master and is_formed(world) and not is_out
    if (owner is None and not kept) or is_out:
        return
    world.fault, world.scripts, world.failures = None, {}, {}
    world.time.sleep(budgets.ORPHANED_S + 1)
    later = world.join(NODE, "later", by_event=False)
    gone = "InstanceGone" if not case.serving else ""
    assert (later.status == "SUCCEEDED" and later.output["outcome"] == "joined") or later.error == gone


def check_recovered(case: Case) -> None:
    """After a fault that repeating mends: the run came to the same end as without it."""
    runs = executions(case)
    if case.mode.failing:
        assert runs[CLEANUP].visited[-1] == "RolledBack"
        assert "incomplete" not in (runs[CLEANUP].cause or "")
        expected = "CONTINUE" if case.mode.keeps else "ABANDON"
        assert case.serving or (case.held and case.held.result == expected)
        assert ("FoundersKept", {}) in case.world.telemetry.counts or not case.mode.keeps
    else:
        assert runs[RUN].status == "SUCCEEDED"
        assert CLEANUP not in runs
        assert case.held
        assert case.held.result == "CONTINUE"


def never_cleaned(case: Case, cleanup: asl.Execution | None) -> bool:
    """Whether the clean-up was made impossible: nobody could start it, or it could not end; the hook runs out by itself."""
    if cleanup is None:
        failed = executions(case)[RUN].status != "SUCCEEDED"
        return failed and case.world.lose_events
    return cleanup.status == "ABORTED" or "NotCleaned" in cleanup.visited


def left_of(world: World) -> list[str]:
    """What stays in the table; where a command's token and end met goes by its ttl, as the end's event may come last."""
    return [entry for entry in world.left_of(NODE) if not entry.startswith("COMMAND#")]


def intents(world: World) -> set[tuple[str, str]]:
    return {(kind, key) for node, kind, key in world.intended if node == NODE}


def documents(world: World) -> list[str]:
    return [s[0] for s in world.sent]


def sent_twice(world: World) -> list[str]:
    comments = sorted(s[3] for s in world.sent)
    return [comment for comment, same in itertools.groupby(comments) if len(list(same)) > 1]


# -- faults at the edges of states -----------------------------------------------------------------------------------------


REFUSED = asl.TaskFailed("AwsRefused", "denied")
THROTTLED = asl.TaskFailed("AwsThrottled", "rate exceeded")
CRASHED = asl.TaskFailed("Sandbox.Timedout", "no answer")
FAULTS: dict[str, tuple[str, int, Any]] = {
    "refused before its effect": ("before", 1, REFUSED),
    "refused after its effect": ("after", 1, REFUSED),
    "never called": ("before", 1, asl.KILL_ANSWER),
    "answer lost": ("after", 1, asl.KILL_ANSWER),
    "crashed after its effect": ("after", 1, CRASHED),
    "crashed after its effect, always": ("after", 99, CRASHED),
    "called twice": ("before", 1, asl.REPEAT),
    "throttled twice": ("before", 2, THROTTLED),
    "throttled twice after its effect": ("after", 2, THROTTLED),
    "throttled always": ("before", 99, THROTTLED),
    "aborted before": ("before", 1, asl.ABORT),
    "aborted after": ("after", 1, asl.ABORT),
    "late by two minutes": ("before", 1, asl.Delay(120)),
    "instance killed before": ("before", 1, "kill"),
    "instance killed after": ("after", 1, "kill"),
    "hook over before": ("before", 1, "hook over"),
    "hook over after": ("after", 1, "hook over"),
    "started by hand too, before": ("before", 1, "start"),
    "started by hand too, after": ("after", 1, "start"),
}


MENDED = (
    "never called", "answer lost", "crashed after its effect", "called twice", "throttled twice", "throttled twice after its effect",
    "late by two minutes", "started by hand too, before", "started by hand too, after",
)  # fmt: skip


def tasks_of(mode: str) -> list[tuple[str, str]]:
    """(machine, state) of every Task that a mode comes by without faults; what a failing one shares with the others is theirs."""
    case = Case(mode)
    case.play()
    runs = executions(case)
    if not case.mode.failing:
        return [("join", s) for s in dict.fromkeys(runs[RUN].visited) if JOIN[s]["Type"] == "Task"]
    return [("join", "HandOver"), *(("leave", s) for s in dict.fromkeys(runs[CLEANUP].visited) if LEAVE[s]["Type"] == "Task")]


def edge_cases() -> list[Any]:
    """Every Task state that a mode comes by, with every fault that makes sense there."""
    made = []
    for mode in MODES:
        for (name, state), what, lost in itertools.product(tasks_of(mode), FAULTS, (False, True)):
            if (MODES[mode].serving and "hook over" in what) or (lost and MODES[mode].is_master):
                continue
            if not (lost and "aborted" in what and name == "join"):
                events = ", events lost" if lost else ""
                made.append(pytest.param(mode, name, state, what, lost, id=f"{mode}, {name}.{state} {what}{events}"))
    return made


def test_together_the_modes_come_by_every_task() -> None:
    seen = {at for mode in MODES for at in tasks_of(mode)}

    assert seen == {("join", n) for n, s in JOIN.items() if s["Type"] == "Task"} | {
        ("leave", n) for n, s in LEAVE.items() if s["Type"] == "Task"
    }


def act(case: Case, action: Any) -> Any:
    """Do to the world what is no fault of the interpreter's."""
    world = case.world
    if action == "kill":
        world.terminate(NODE)
    elif action == "hook over" and NODE in world.actions and world.actions[NODE].open:
        world.end_action(NODE, "Terminating:Proceed")
    elif action == "start":
        world.engine.call_later(0.0, lambda: world.start("join", {"instance_id": NODE}, "by-hand"))
    return None if isinstance(action, str) and action in ("kill", "hook over", "start") else action


@pytest.mark.parametrize(("mode", "name", "state", "what", "lost"), edge_cases())
def test_a_fault_at_a_state_breaks_no_invariant(mode: str, name: str, state: str, what: str, lost: bool) -> None:
    case = Case(mode)
    edge, times, action = FAULTS[what]

    def fault(point: asl.FaultPoint) -> Any:
        at = (point.execution, point.machine, point.state, point.edge)
        if at != (RUN if name == "join" else CLEANUP, f"autojoin-{name}", state, edge) or case.fired >= times:
            return None
        case.fired += 1
        return act(case, action)

    case.world.lose_events = lost
    case.play(fault)

    assert case.fired
    if what in MENDED and not (state == "Admit" and "started" in what):
        check_recovered(case)
    check(case)


# -- faults at the calls of a function ---------------------------------------------------------------------------------------

EFFECTS = (
    "switch_off_source_dest_check", "heartbeat", "complete", "send", "cancel", "take_lease", "release_lease", "put_record",
    "put_intent", "delete_intent", "forget", "meet_token", "start_leave", "succeed", "markers.put", "witness.write", "names.put",
    "names.delete", "targets.register", "targets.deregister",
)  # fmt: skip


def wrap(world: World, around: Callable[[str, Callable[[], Any]], Any]) -> None:
    """Every call that changes something goes through `around(method, call)`."""

    def wrapped(method: str, real: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *given, **more: around(method, lambda: real(*given, **more))

    for method in EFFECTS:
        port, _, name = method.rpartition(".")
        owner = getattr(world, port) if port else world
        setattr(owner, name, wrapped(method, getattr(owner, name)))


def calls_of(mode: str) -> list[tuple[int, str]]:
    """The calls of a run without faults, numbered; of a failing one of masters those of its clean-up, the others are a launch's."""
    case, seen = Case(mode), []

    def around(method: str, call: Callable[[], Any]) -> Any:
        seen.append((len(seen), method))
        return call()

    case.play(arrange=lambda: wrap(case.world, around))
    if not (case.mode.is_master and case.mode.failing):
        return seen
    return seen[next(n for n, method in seen if method == "start_leave") :]


CRASHES = {
    "crashes": asl.TaskFailed("Sandbox.Timedout", "no answer"),
    "is refused": asl.TaskFailed("AwsRefused", "denied"),
    "is throttled": asl.TaskFailed("AwsThrottled", "rate exceeded"),
}


def call_cases() -> list[Any]:
    made = []
    for mode in MODES:
        for nth, method in calls_of(mode):
            for what, edge in itertools.product(CRASHES, ("before", "after")):
                made.append(pytest.param(mode, nth, method, what, edge, id=f"{mode}, {nth} {what} {edge} {method}"))
    return made


@pytest.mark.parametrize(("mode", "nth", "method", "what", "edge"), call_cases())
def test_a_function_that_stops_at_a_call_breaks_no_invariant(mode: str, nth: int, method: str, what: str, edge: str) -> None:
    case, count = Case(mode), itertools.count()

    def around(called: str, call: Callable[[], Any]) -> Any:
        mine = next(count) == nth
        if mine and edge == "before":
            case.fired += 1
            raise CRASHES[what]
        result = call()
        if mine:
            assert called == method
            case.fired += 1
            raise CRASHES[what]
        return result

    case.play(arrange=lambda: wrap(case.world, around))

    assert case.fired
    if what != "is refused":
        check_recovered(case)
    check(case)


# -- several things at once --------------------------------------------------------------------------------------------------


def test_a_leave_script_that_is_busy_runs_before_the_node_is_removed() -> None:
    """The cancelled join script may hold the node's lock a little longer; a Node must not go while its kubelet runs."""
    case = Case("failing launch")
    case.world.scripts["leave-node"] = [refusal(15, "Busy"), refusal(15, "Busy"), Script()]

    case.play()

    assert documents(case.world) == ["join-worker", "verify", "leave-node", "leave-node", "leave-node", "remove-node"]
    assert (case.held and case.held.result, left_of(case.world)) == ("ABANDON", [])


@pytest.mark.parametrize("takes_s", [65.0, 100.0])
def test_a_slow_leave_script_ends_before_the_node_is_removed(takes_s: float) -> None:
    case = Case("failing launch")
    case.world.scripts["leave-node"] = [Script(takes_s=takes_s)]

    case.play()

    visited = executions(case)[CLEANUP].visited
    assert visited.count("LeaveNode") == 2
    assert documents(case.world).count("leave-node") == 1
    assert (case.held and case.held.result, left_of(case.world)) == ("ABANDON", [])


@pytest.mark.parametrize("script", [Script(ends=False), refusal(16, "UnitFailed")])
def test_a_leave_script_that_fails_is_named_only_where_nothing_terminates_the_instance(script: Script) -> None:
    held, lone = World(), World()
    for world, group in ((held, "workers"), (lone, None)):
        world.add_master()
        world.add_instance(NODE, group=group)
        world.scripts |= {"verify": [refusal(22, "CanaryFailed")], "leave-node": [script]}
        world.join(NODE, RUN)

    assert "incomplete" not in (held.execution_named(CLEANUP).cause or "")
    assert left_of(held) == []
    assert "incomplete" in (lone.execution_named(CLEANUP).cause or "")
    assert ("node", NODE) in intents(lone)
    assert lone.leases[NODE].owner is None


def test_a_node_that_a_hook_holds_does_not_serve_whatever_its_record_says() -> None:
    """It came back from a warm pool: joined once, now on its way into service again."""
    case = Case("failing re-join")
    case.play(arrange=lambda: hold_again(case.world))

    assert case.world.actions[NODE].result == "ABANDON"
    assert left_of(case.world) == []


def hold_again(world: World) -> None:
    world.lifecycle[NODE] = Membership("workers", "Pending:Wait")
    world.actions[NODE] = Action("22222222-2222-3333-4444-555555555555", "autojoin-launching")


def test_clean_ups_of_joins_with_long_names_have_names_of_their_own() -> None:
    world = World()
    world.add_master()
    world.scripts["verify"] = [refusal(22, "CanaryFailed")]
    for n in (1, 2):
        world.add_instance(f"i-0000000000000000{n}")
        world.join(f"i-0000000000000000{n}", f"{'n' * 78}-{n}")

    cleanups = [e for e in world.engine.executions.values() if e.name.endswith("-cleanup")]
    assert len(cleanups) == 2
    assert {a.result for a in world.actions.values()} == {"ABANDON"}


def test_a_function_that_outlives_its_aborted_execution_is_waited_for() -> None:
    case = Case("launch")
    case.world.scripts["join-worker"] = [Script(ends=False)]

    def around(method: str, call: Callable[[], Any]) -> Any:
        if method == "send":
            case.world.time.sleep(20)
        return call()

    def arrange() -> None:
        wrap(case.world, around)
        case.world.engine.call_later(15, lambda: case.world.engine.stop(executions(case)[RUN].arn))

    case.play(arrange=arrange)

    sent = [s[4] for s in case.world.sent if s[0] == "join-worker"]
    assert executions(case)[RUN].status == "ABORTED"
    assert len(sent) == 1
    assert case.world.cancelled == sent
    assert (case.held and case.held.result, left_of(case.world)) == ("ABANDON", [])


def test_a_script_that_stays_busy_ends_in_time_and_is_rolled_back() -> None:
    case = Case("launch")
    case.world.scripts["join-worker"] = [refusal(15, "Busy")]

    case.play()

    assert executions(case)[RUN].error == "JoinTimedOut"
    assert len(executions(case)[RUN].history) < HISTORY_LIMIT / 2
    assert (case.held and case.held.result, left_of(case.world)) == ("ABANDON", [])


HISTORY_LIMIT = 25_000
"""Events of one execution. Source: Step Functions quotas."""


def test_a_hook_that_is_as_short_as_allowed_is_kept_alive_by_the_longest_join() -> None:
    case = Case("launch")
    case.world.scripts["join-worker"] = [Script(takes_s=600.0)]
    case.world.scripts["verify"] = [Script(takes_s=240.0, stdout='{"ok": true, "node_uid": "uid-1"}')]

    case.play(arrange=lambda: case.world.agents_at.update({NODE: (case.world.time.time() + 590, "3.3.2746.0")}))

    assert executions(case)[RUN].status == "SUCCEEDED"
    assert case.held
    assert case.held.result == "CONTINUE"
