"""Every time limit of Autojoin, in one place, and the deadlines of a join made from them.

Template and state machines repeat these numbers (they cannot import them); tests/template holds each to this module.
Units are in the names: `_s` seconds, `_ms` milliseconds since the epoch.
"""

from __future__ import annotations

from dataclasses import dataclass

# -- functions: Timeout of each in template.yaml ----------------------------------------------------------------------
FUNCTION_TIMEOUT_S: dict[str, int] = {
    "intake": 20,
    "node": 25,
    "wait": 60,
    "command": 25,
    "answer": 20,
    "hook": 20,
    "membership": 60,
    "etcd": 60,
    "names": 60,
}
LONGEST_FUNCTION_S = max(FUNCTION_TIMEOUT_S.values())

# -- looks inside a waiting function ----------------------------------------------------------------------------------
LOOK_FOR_S = 50
"""A waiting operation looks again for at most this long, then answers "not yet"; under the function's time-out."""
LOOK_EVERY_S = 1.0

# -- tasks: TimeoutSeconds in statemachine/*.asl.yaml -------------------------------------------------------------------
TASK_TIMEOUT_S = 40
"""Of a task that calls a function and returns; over the function's own time-out."""
WAIT_TASK_TIMEOUT_S = 75
CALLBACK_TIMEOUT_S = 60
"""One turn of a command: the task waits for its answer, then looks for itself."""
SETTLE_S = 10
"""Between two looks of a clean-up at an execution that has just been aborted."""

# -- commands: executionTimeout of each document and its delivery time-out ---------------------------------------------
DELIVERY_TIMEOUT_S = 60
COMMAND_EXECUTION_S: dict[str, int] = {
    "start-etcd": 180,
    "start-api": 240,
    "join-tp": 240,
    "join-rp": 600,
    "join-worker": 600,
    "verify": 240,
    "verify-master": 240,
    "leave-node": 120,
    "remove-node": 120,
    "inspect": 120,
}
"""Above the limits that the scripts set themselves (`limit_s` in documents/src), so that a script reports instead of being killed."""
SLACK_S = 30
"""Between a command's own end and the deadline by which we stop asking for it."""

AGENT_S = 600
"""For the SSM agent to come online. Source: facts of the field, Ubuntu's snap takes minutes (aws-samples saw 10 min)."""

MEMBER_S = 300
"""For another instance's claim of the founding to end: its instance is being terminated, which takes EC2 minutes at most."""
SYNCED_S = 60
"""For etcd to be seen by a function, after its own script saw it healthy."""
TARGET_S = 300
"""For a target to become healthy: the slowest health check of the examples is 3 times 10 s, a network load balancer adds minutes."""

# -- hooks ---------------------------------------------------------------------------------------------------------------
SHORTEST_HEARTBEAT_S = 180
"""A hook's HeartbeatTimeout must be at least this: heartbeats come once per turn, and a turn is at most half of it."""
MAX_HOOK_S = 48 * 3600
MAX_HEARTBEATS = 100
"""Source: EC2 Auto Scaling User Guide, lifecycle hooks: 48 hours or 100 times the heartbeat time-out, whichever is less."""

# -- machines ------------------------------------------------------------------------------------------------------------
JOIN_MACHINE_S = 10800
LEAVE_MACHINE_S = 4800
"""TimeoutSeconds of each machine; over the longest way through its graph (tests/machines/test_time_on_the_graph.py)."""
RESERVE_S = 14100
"""Kept free at the end of a hook: the longest way of a join from any of its deadlines to its end (in a hook that is old all of
them are one), the age that the finalizer's event may reach, and a whole clean-up. Held on the graph by the same test."""

# -- events --------------------------------------------------------------------------------------------------------------
RULE_EVENT_AGE_S = 60
FUNCTION_EVENT_AGE_S = 110
"""Age after which a lifecycle event is given up and dead-lettered; both together stay under the shortest hook. A function's
first retry comes after a minute (Lambda, asynchronous invocation), so a shorter age would allow none."""

ORPHANED_S = RULE_EVENT_AGE_S + FUNCTION_EVENT_AGE_S + 3 * LONGEST_FUNCTION_S
"""After an execution's end, its lease may be taken by a new join: by then the finalizer has come or was lost for good."""

COMMAND_ITEM_TTL_S = 7 * 24 * 3600


def command_budget_s(document: str) -> int:
    """Longest time in seconds from sending `document` to its last state: delivery + execution + slack.

    Source: SSM: the total of TimeoutSeconds (delivery) and executionTimeout.
    """
    return DELIVERY_TIMEOUT_S + COMMAND_EXECUTION_S[document] + SLACK_S


@dataclass(frozen=True)
class Deadlines:
    """Until when each wait of a join may go round, in milliseconds since the epoch, in the order of the steps."""

    agent_ms: int
    member_ms: int
    start_etcd_ms: int
    synced_ms: int
    start_api_ms: int
    api_name_ms: int
    join_ms: int
    verify_ms: int
    front_door_ms: int
    overall_ms: int


def hook_total_s(heartbeat_timeout_s: int, global_timeout_s: int | None = None) -> int:
    """Seconds that a hook can hold an instance at most, heartbeats included."""
    computed = min(MAX_HEARTBEATS * heartbeat_timeout_s, MAX_HOOK_S)
    return min(computed, global_timeout_s) if global_timeout_s else computed


def join_deadlines(role: str, now_ms: int, hook_opened_ms: int | None, hook_total: int | None) -> Deadlines:
    """Deadlines of a join of `role` that starts at `now_ms`.

    hook_opened_ms  when the held hook's action began; None when no hook is held
    hook_total      seconds that the hook can hold at most; None when no hook is held
    Each wait starts when the one before has ended, so its deadline adds up; none lies behind the hook's end less RESERVE_S.
    Waits that the role does not have take no time.
    """
    is_master = role in ("tp", "rp", "master")
    waits_s = {
        "agent_ms": AGENT_S,
        "member_ms": MEMBER_S if is_master else 0,
        "start_etcd_ms": command_budget_s("start-etcd") if is_master else 0,
        "synced_ms": SYNCED_S if is_master else 0,
        "start_api_ms": command_budget_s("start-api") if is_master else 0,
        "api_name_ms": TARGET_S if is_master else 0,
        "join_ms": command_budget_s(f"join-{role}"),
        "verify_ms": command_budget_s("verify-master" if is_master else "verify"),
        "front_door_ms": TARGET_S if is_master else 0,
    }
    ends, at_ms = {}, now_ms
    for name, seconds in waits_s.items():
        at_ms += seconds * 1000
        ends[name] = at_ms
    if hook_opened_ms is not None and hook_total is not None:
        at_ms = min(at_ms, hook_opened_ms + (hook_total - RESERVE_S) * 1000)
    return Deadlines(**{name: min(end, at_ms) for name, end in ends.items()}, overall_ms=at_ms)


def worst_case_s(attempts: int, interval_s: float, backoff_rate: float, max_delay_s: float) -> float:
    """Longest time in seconds that an ASL retrier can wait between its first and its last call, jitter ignored.

    attempts     retries after the first try (ASL MaxAttempts), >= 0
    max_delay_s  cap of one wait, in seconds
    Excludes the time of the calls themselves. Source: Amazon States Language, "Retrying after error".
    """
    return sum(min(interval_s * backoff_rate**n, max_delay_s) for n in range(attempts))
