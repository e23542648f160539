"""Every time limit of Autojoin, in one place, and the deadlines of a join made from them.

Template and state machines repeat these numbers (they cannot import them); tests/template holds each to this module.
Units are in the names: `_s` seconds, `_ms` milliseconds since the epoch.
"""

from __future__ import annotations

from dataclasses import dataclass

# -- functions: Timeout of each in template.yaml ----------------------------------------------------------------------
FUNCTION_TIMEOUT_S: dict[str, int] = {"intake": 20, "node": 25, "wait": 60, "command": 25, "answer": 20, "hook": 20}
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
COMMAND_EXECUTION_S: dict[str, int] = {"join-worker": 600, "verify": 240, "leave-node": 120, "remove-node": 120}
"""Above the limits that the scripts set themselves (`limit_s` in documents/src), so that a script reports instead of being killed."""
SLACK_S = 30
"""Between a command's own end and the deadline by which we stop asking for it."""

AGENT_S = 600
"""For the SSM agent to come online. Source: facts of the field, Ubuntu's snap takes minutes (aws-samples saw 10 min)."""

# -- hooks ---------------------------------------------------------------------------------------------------------------
SHORTEST_HEARTBEAT_S = 180
"""A hook's HeartbeatTimeout must be at least this: heartbeats come once per turn, and a turn is at most half of it."""
MAX_HOOK_S = 48 * 3600
MAX_HEARTBEATS = 100
"""Source: EC2 Auto Scaling User Guide, lifecycle hooks: 48 hours or 100 times the heartbeat time-out, whichever is less."""

# -- machines ------------------------------------------------------------------------------------------------------------
JOIN_MACHINE_S = 5400
LEAVE_MACHINE_S = 4500
"""TimeoutSeconds of each machine; over the longest way through its graph (tests/machines/test_time_on_the_graph.py)."""
RESERVE_S = 6600
"""Kept free at the end of a hook: the longest way of a join from its last deadline to its end, the age that the finalizer's
event may reach, and a whole clean-up. Held on the graph by the same test."""

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
    join_ms: int
    verify_ms: int
    overall_ms: int


def hook_total_s(heartbeat_timeout_s: int, global_timeout_s: int | None = None) -> int:
    """Seconds that a hook can hold an instance at most, heartbeats included."""
    computed = min(MAX_HEARTBEATS * heartbeat_timeout_s, MAX_HOOK_S)
    return min(computed, global_timeout_s) if global_timeout_s else computed


def join_deadlines(now_ms: int, hook_opened_ms: int | None, hook_total: int | None) -> Deadlines:
    """Deadlines of a join that starts at `now_ms`.

    hook_opened_ms  when the held hook's action began; None when no hook is held
    hook_total      seconds that the hook can hold at most; None when no hook is held
    Each wait starts when the one before has ended, so its deadline adds up; none lies behind the hook's end less RESERVE_S.
    """
    agent = now_ms + AGENT_S * 1000
    join = agent + command_budget_s("join-worker") * 1000
    verify = join + command_budget_s("verify") * 1000
    end_ms = verify
    if hook_opened_ms is not None and hook_total is not None:
        end_ms = min(end_ms, hook_opened_ms + (hook_total - RESERVE_S) * 1000)
    return Deadlines(min(agent, end_ms), min(join, end_ms), min(verify, end_ms), end_ms)


def worst_case_s(attempts: int, interval_s: float, backoff_rate: float, max_delay_s: float) -> float:
    """Longest time in seconds that an ASL retrier can wait between its first and its last call, jitter ignored.

    attempts     retries after the first try (ASL MaxAttempts), >= 0
    max_delay_s  cap of one wait, in seconds
    Excludes the time of the calls themselves. Source: Amazon States Language, "Retrying after error".
    """
    return sum(min(interval_s * backoff_rate**n, max_delay_s) for n in range(attempts))
