"""No hook outlives its deadline: deadline + longest way without a Deadline < the hook's total, proved on the graphs."""

from __future__ import annotations

import itertools
import re
from dataclasses import fields
from functools import cache
from typing import Any

import pytest

from autojoin.domain import budgets
from tests.fakes.world import World, machine, masters_topology

JOIN: dict[str, Any] = machine("join").definition["States"]
LEAVE: dict[str, Any] = machine("leave").definition["States"]
ROLES = ("worker", "tp", "rp")
DEADLINES = [f.name for f in fields(budgets.Deadlines) if f.name != "overall_ms"]


def worst_s(state: dict[str, Any]) -> float:
    """Longest time in seconds that one visit of a state can take: every try of every retrier to its time-out."""
    if state["Type"] == "Wait":
        return float(state["Seconds"])
    if state["Type"] != "Task":
        return 0.0
    retries = state.get("Retry", [])
    tries = 1 + sum(r["MaxAttempts"] for r in retries)
    waits = sum(budgets.worst_case_s(r["MaxAttempts"], r["IntervalSeconds"], r["BackoffRate"], r["MaxDelaySeconds"]) for r in retries)
    return tries * float(state["TimeoutSeconds"]) + waits


def successors(state: dict[str, Any]) -> set[str]:
    found = {state.get("Next"), state.get("Default")}
    found |= {c["Next"] for c in state.get("Choices", [])} | {c["Next"] for c in state.get("Catch", [])}
    return {s for s in found if s}


def longest_from(states: dict[str, Any], start: str, back: set[tuple[str, str]]) -> float:
    """Longest way in seconds from `start` to an end, each cycle's way back (Deadline, first state of its cycle) left out."""

    @cache
    def longest(name: str) -> float:
        onward = [s for s in successors(states[name]) if (name, s) not in back]
        return worst_s(states[name]) + max((longest(s) for s in onward), default=0.0)

    return longest(start)


JOIN_BACK = {
    ("AgentDeadline", "AwaitAgent"),
    ("MemberDeadline", "Member"),
    ("StartEtcdDeadline", "StartEtcd"),
    ("SyncedDeadline", "StartEtcd"),
    ("StartApiDeadline", "StartApi"),
    ("ApiNameDeadline", "ApiName"),
    ("JoinDeadline", "Join"),
    ("VerifyDeadline", "Verify"),
    ("FrontDoorDeadline", "FrontDoor"),
}
LEAVE_BACK = {("Settle", "TakeOver"), ("LeaveDeadline", "LeaveNode"), ("RemoveDeadline", "RemoveNode")}
FINALIZER_S = budgets.RULE_EVENT_AGE_S + budgets.FUNCTION_EVENT_AGE_S + 3 * budgets.FUNCTION_TIMEOUT_S["intake"]


def longest_clean_up_s() -> float:
    """The clean-up's ways round are bounded by time: quiet after the longest function, leave and removal by leave_ms and remove_ms."""
    quiet = budgets.LONGEST_FUNCTION_S + 2 * budgets.SLACK_S + worst_s(LEAVE["TakeOver"])
    removal = budgets.command_budget_s("leave-node") + budgets.command_budget_s("remove-node")
    return quiet + removal + longest_from(LEAVE, "TakeOver", LEAVE_BACK)


def longest_after_a_deadline_s() -> float:
    """From the last turn before a deadline to the end of the join; every later state may take its longest, since it is done at once."""
    return max(longest_from(JOIN, target, JOIN_BACK) for _, target in JOIN_BACK)


def longest_join_s(role: str) -> float:
    """No turn begins behind its deadline, so a join ends by some deadline and the longest way from the turn before it."""
    made = budgets.join_deadlines(role, 0, None, None)
    before = worst_s(JOIN["Admit"]) + worst_s(JOIN["Preflight"])
    limits = {deadline: limit_ms(made, deadline) for deadline, _ in JOIN_BACK}
    return before + max(limits[deadline] / 1000 + longest_from(JOIN, target, JOIN_BACK) for deadline, target in JOIN_BACK)


def limit_ms(made: budgets.Deadlines, deadline: str) -> int:
    """The limit that a Deadline state compares with."""
    (field,) = {f for c in JOIN[deadline]["Choices"] for f in re.findall(r"admission\.deadlines\.(\w+)", c["Condition"])}
    return int(getattr(made, field))


def waits_s(role: str) -> float:
    """All waits of a role together."""
    return budgets.join_deadlines(role, 0, None, None).overall_ms / 1000


def test_a_clean_up_ends_before_its_machine_times_out() -> None:
    assert longest_clean_up_s() < budgets.LEAVE_MACHINE_S


@pytest.mark.parametrize("role", ROLES)
def test_a_join_ends_before_its_machine_times_out(role: str) -> None:
    assert longest_join_s(role) < budgets.JOIN_MACHINE_S


def test_the_reserve_holds_the_rest_of_the_join_and_a_whole_clean_up() -> None:
    assert longest_after_a_deadline_s() + FINALIZER_S + budgets.LEAVE_MACHINE_S < budgets.RESERVE_S


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("heartbeat_s", [budgets.SHORTEST_HEARTBEAT_S, 300, 3600, 7200])
def test_every_accepted_hook_has_room_for_a_whole_join(heartbeat_s: int, role: str) -> None:
    late_s = budgets.RULE_EVENT_AGE_S + budgets.FUNCTION_EVENT_AGE_S + budgets.TASK_TIMEOUT_S

    assert budgets.hook_total_s(heartbeat_s) - budgets.RESERVE_S > waits_s(role) + late_s


@pytest.mark.parametrize("role", ROLES)
def test_each_wait_of_a_role_is_as_long_as_what_it_waits_for_may_take(role: str) -> None:
    made = budgets.join_deadlines(role, 0, None, None)
    ends = [getattr(made, field) / 1000 for field in DEADLINES]
    lengths = dict(zip(DEADLINES, (b - a for a, b in itertools.pairwise([0.0, *ends])), strict=True))
    is_master = role != "worker"
    verify = "verify-master" if is_master else "verify"

    assert lengths["agent_ms"] == budgets.AGENT_S
    assert lengths["join_ms"] == budgets.command_budget_s(f"join-{role}")
    assert lengths["verify_ms"] == budgets.command_budget_s(verify)
    assert lengths["member_ms"] == budgets.MEMBER_S * is_master
    assert lengths["start_etcd_ms"] == budgets.command_budget_s("start-etcd") * is_master
    assert lengths["synced_ms"] == budgets.SYNCED_S * is_master
    assert lengths["start_api_ms"] == budgets.command_budget_s("start-api") * is_master
    assert lengths["api_name_ms"] == lengths["front_door_ms"] == budgets.TARGET_S * is_master


SILENT = {"Admit", "Preflight", "Synced", "Complete", "HandOver"}
"""States whose functions keep no hook alive."""


@pytest.mark.parametrize("role", ROLES)
def test_every_other_state_of_a_join_keeps_the_hook_alive(role: str) -> None:
    world, beats = World(), {}
    world.declared = masters_topology(world)
    node = "i-00000000000000001"
    if role == "worker":
        world.add_instance(node)
    else:
        world.launch_master(role, node)

    def fault(point: Any) -> None:
        if point.machine == "autojoin-join" and JOIN[point.state]["Type"] == "Task":
            beats[point.state] = world.actions[node].heartbeats - beats.get(point.state, 0)

    world.fault = fault
    execution = world.join(node)

    assert execution.status == "SUCCEEDED", (execution.error, execution.cause)
    assert {s for s, n in beats.items() if not n} == SILENT & set(beats)
    assert role == "worker" or set(beats) == {n for n, s in JOIN.items() if s["Type"] == "Task"} - {"HandOver"}


def test_two_heartbeats_of_a_join_are_never_further_apart_than_the_shortest_hook_lasts() -> None:
    """Retries apart: each state until its time-out, and the states behind it that keep nothing alive."""

    @cache
    def silent_s(name: str) -> float:
        """Longest until the next heartbeat, or the end, from the beginning of a silent state."""
        if JOIN[name]["Type"] == "Task" and name not in SILENT:
            return 0.0
        return float(JOIN[name].get("TimeoutSeconds", 0)) + max((silent_s(n) for n in onward(name)), default=0.0)

    def onward(name: str) -> list[str]:
        return [n for n in successors(JOIN[name]) if (name, n) not in JOIN_BACK and n != "HandOver"]

    for name in (n for n, s in JOIN.items() if s["Type"] == "Task" and n not in SILENT):
        apart_s = float(JOIN[name]["TimeoutSeconds"]) + max(silent_s(n) for n in onward(name))

        assert apart_s < budgets.SHORTEST_HEARTBEAT_S, name


def test_a_turn_is_at_most_half_of_the_shortest_heartbeat_time_out() -> None:
    turns = [float(s["TimeoutSeconds"]) for s in JOIN.values() if s["Type"] == "Task" and "Deadline" in str(s.get("Next"))]

    assert max(turns) <= budgets.SHORTEST_HEARTBEAT_S / 2


@pytest.mark.parametrize(("states", "back"), [(JOIN, JOIN_BACK), (LEAVE, LEAVE_BACK)])
def test_every_way_round_passes_a_deadline(states: dict[str, Any], back: set[tuple[str, str]]) -> None:
    deadlines = {name for name in states if name.endswith("Deadline")}
    for start in states:
        seen: set[str] = set()
        todo = [s for s in successors(states[start]) if s not in deadlines]
        while todo:
            name = todo.pop()
            assert name != start, f"{start} is on a way round without a Deadline"
            if name not in seen:
                seen.add(name)
                todo += [s for s in successors(states[name]) if s not in deadlines]
