"""No hook outlives its deadline: deadline + longest way without a Deadline < the hook's total, proved on the graphs."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from autojoin.domain import budgets
from tests.fakes.world import machine

JOIN: dict[str, Any] = machine("join").definition["States"]
LEAVE: dict[str, Any] = machine("leave").definition["States"]


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


JOIN_BACK = {("AgentDeadline", "AwaitAgent"), ("JoinDeadline", "Join"), ("VerifyDeadline", "Verify")}
LEAVE_BACK = {("Settle", "TakeOver"), ("LeaveDeadline", "LeaveNode"), ("RemoveDeadline", "RemoveNode")}
FINALIZER_S = budgets.RULE_EVENT_AGE_S + budgets.FUNCTION_EVENT_AGE_S + 3 * budgets.FUNCTION_TIMEOUT_S["intake"]


def longest_clean_up_s() -> float:
    """The clean-up's ways round are bounded by time: quiet after the longest function, leave and removal by leave_ms and remove_ms."""
    quiet = budgets.LONGEST_FUNCTION_S + 2 * budgets.SLACK_S + worst_s(LEAVE["TakeOver"])
    removal = budgets.command_budget_s("leave-node") + budgets.command_budget_s("remove-node")
    return quiet + removal + longest_from(LEAVE, "TakeOver", LEAVE_BACK)


def longest_after_a_deadline_s() -> float:
    """From the last look before a deadline (one more turn may just have begun) to the end of the join."""
    return longest_from(JOIN, "Verify", JOIN_BACK)


def test_a_clean_up_ends_before_its_machine_times_out() -> None:
    assert longest_clean_up_s() < budgets.LEAVE_MACHINE_S


def test_a_join_ends_before_its_machine_times_out() -> None:
    before = worst_s(JOIN["Admit"]) + worst_s(JOIN["Preflight"])
    waits = budgets.AGENT_S + budgets.command_budget_s("join-worker") + budgets.command_budget_s("verify") + worst_s(JOIN["AwaitAgent"])

    assert before + waits + longest_after_a_deadline_s() < budgets.JOIN_MACHINE_S


def test_the_reserve_holds_the_rest_of_the_join_and_a_whole_clean_up() -> None:
    assert longest_after_a_deadline_s() + FINALIZER_S + budgets.LEAVE_MACHINE_S < budgets.RESERVE_S


@pytest.mark.parametrize("heartbeat_s", [budgets.SHORTEST_HEARTBEAT_S, 300, 3600, 7200])
def test_every_accepted_hook_has_room_for_a_whole_join(heartbeat_s: int) -> None:
    needed = budgets.AGENT_S + budgets.command_budget_s("join-worker") + budgets.command_budget_s("verify")

    assert budgets.hook_total_s(heartbeat_s) - budgets.RESERVE_S > needed


def test_heartbeats_come_at_most_half_a_heartbeat_time_out_apart() -> None:
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
