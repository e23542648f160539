"""Deadlines are in order, and none lies behind the end of the hook less its reserve."""

from __future__ import annotations

from dataclasses import astuple

from hypothesis import given
from hypothesis import strategies as st

from autojoin.domain import budgets
from autojoin.domain.budgets import MAX_HEARTBEATS, MAX_HOOK_S, RESERVE_S, hook_total_s, join_deadlines, worst_case_s

roles = st.sampled_from(["worker", "tp", "rp"])
times_ms = st.integers(0, 4_000_000_000_000)
heartbeats_s = st.integers(30, 7200)


@given(
    role=roles,
    now_ms=times_ms,
    age_s=st.integers(0, MAX_HOOK_S),
    heartbeat_s=heartbeats_s,
    global_s=st.none() | st.integers(30, MAX_HOOK_S),
)
def test_deadlines_are_ordered_and_never_behind_the_hooks_end_less_the_reserve(
    role: str, now_ms: int, age_s: int, heartbeat_s: int, global_s: int | None
) -> None:
    opened_ms = now_ms - age_s * 1000
    total_s = hook_total_s(heartbeat_s, global_s)

    made = join_deadlines(role, now_ms, opened_ms, total_s)

    assert list(astuple(made)) == sorted(astuple(made))
    assert made.overall_ms <= opened_ms + (total_s - RESERVE_S) * 1000


@given(now_ms=times_ms)
def test_without_a_hook_each_wait_has_its_whole_budget(now_ms: int) -> None:
    made = join_deadlines("worker", now_ms, None, None)

    assert made.agent_ms - now_ms == budgets.AGENT_S * 1000
    assert made.join_ms - made.agent_ms == budgets.command_budget_s("join-worker") * 1000
    assert made.agent_ms == made.member_ms == made.api_name_ms
    assert made.verify_ms - made.join_ms == budgets.command_budget_s("verify") * 1000
    assert made.overall_ms == made.verify_ms


@given(role=roles, now_ms=times_ms, heartbeat_s=st.integers(budgets.SHORTEST_HEARTBEAT_S, 7200))
def test_a_hook_that_has_just_opened_cuts_no_wait_short(role: str, now_ms: int, heartbeat_s: int) -> None:
    held = join_deadlines(role, now_ms, now_ms, hook_total_s(heartbeat_s))

    assert held == join_deadlines(role, now_ms, None, None)


@given(role=roles, now_ms=times_ms, heartbeat_s=heartbeats_s, older_s=st.integers(0, MAX_HOOK_S), age_s=st.integers(0, MAX_HOOK_S))
def test_an_older_hook_never_gives_more_time(role: str, now_ms: int, heartbeat_s: int, older_s: int, age_s: int) -> None:
    total_s = hook_total_s(heartbeat_s)

    younger = join_deadlines(role, now_ms, now_ms - age_s * 1000, total_s)
    older = join_deadlines(role, now_ms, now_ms - (age_s + older_s) * 1000, total_s)

    assert older.overall_ms <= younger.overall_ms
    assert older.agent_ms <= younger.agent_ms


@given(heartbeat_s=heartbeats_s, global_s=st.none() | st.integers(1, 400_000))
def test_a_hook_holds_no_longer_than_aws_lets_it(heartbeat_s: int, global_s: int | None) -> None:
    total_s = hook_total_s(heartbeat_s, global_s)

    assert total_s <= MAX_HOOK_S
    assert total_s <= MAX_HEARTBEATS * heartbeat_s
    assert global_s is None or total_s <= global_s


def test_a_command_is_asked_for_until_after_its_own_end() -> None:
    for document, execution_s in budgets.COMMAND_EXECUTION_S.items():
        assert budgets.command_budget_s(document) > budgets.DELIVERY_TIMEOUT_S + execution_s


def test_functions_end_before_the_tasks_that_call_them() -> None:
    waiting = [budgets.FUNCTION_TIMEOUT_S[name] for name in ("wait", "membership", "etcd", "names")]
    calling = max(s for s in budgets.FUNCTION_TIMEOUT_S.values() if s not in waiting)

    assert budgets.LOOK_FOR_S < min(waiting) <= max(waiting) < budgets.WAIT_TASK_TIMEOUT_S
    assert calling < budgets.TASK_TIMEOUT_S < budgets.CALLBACK_TIMEOUT_S


def test_an_event_is_given_up_before_the_shortest_hook_ends() -> None:
    assert budgets.RULE_EVENT_AGE_S + budgets.FUNCTION_EVENT_AGE_S < budgets.SHORTEST_HEARTBEAT_S


def test_turns_are_at_most_half_of_the_shortest_heartbeat_time_out() -> None:
    assert 2 * max(budgets.WAIT_TASK_TIMEOUT_S, budgets.CALLBACK_TIMEOUT_S) <= budgets.SHORTEST_HEARTBEAT_S


@given(
    attempts=st.integers(0, 20),
    interval_s=st.floats(0.1, 60),
    rate=st.floats(1, 5),
    cap_s=st.floats(0.1, 100),
)
def test_a_retriers_waits_are_capped(attempts: int, interval_s: float, rate: float, cap_s: float) -> None:
    waits_s = worst_case_s(attempts, interval_s, rate, cap_s)

    assert 0 <= waits_s <= attempts * cap_s + 1e-6
    assert waits_s <= worst_case_s(attempts + 1, interval_s, rate, cap_s)


def test_a_retriers_waits_double_up_to_their_cap() -> None:
    assert worst_case_s(4, 2, 2, 10) == 2 + 4 + 8 + 10
