"""Lifecycle states and hooks of Auto Scaling groups: what is held, and by which hook of ours."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import NamedTuple

from autojoin import errors
from autojoin.domain import budgets

LAUNCH_TRANSITION = "autoscaling:EC2_INSTANCE_LAUNCHING"
TERMINATE_TRANSITION = "autoscaling:EC2_INSTANCE_TERMINATING"
HELD_AT_LAUNCH = "Pending:Wait"
BEFORE_ITS_HOOK = "Pending"


@dataclass(frozen=True)
class Hook:
    """One lifecycle hook of a group, as described by Auto Scaling."""

    group: str
    name: str
    transition: str
    heartbeat_timeout_s: int
    global_timeout_s: int | None
    metadata: str | None

    @property
    def is_ours(self) -> bool:
        """Whether its NotificationMetadata is a JSON object with "autojoin": 1."""
        try:
            parsed = json.loads(self.metadata or "")
        except (ValueError, RecursionError):
            return False
        return isinstance(parsed, dict) and parsed.get("autojoin") == 1


class HeldHook(NamedTuple):
    """A hook of ours that holds an instance now. `token` is None when the execution was started without one."""

    group: str
    name: str
    token: str | None


def hook_of_ours(group: str, hooks: tuple[Hook, ...]) -> Hook:
    """The one launch hook of ours among a group's hooks.

    Raises NoHookOfOurs, SeveralHooksOfOurs, HookTooShort.
    """
    ours = [h for h in hooks if h.is_ours and h.transition == LAUNCH_TRANSITION]
    if not ours:
        raise errors.NoHookOfOurs(
            f'group {group} has {len(hooks)} launch hooks, none with NotificationMetadata {{"autojoin":1}}',
            "exactly one launch hook of ours",
            "add the hook of examples/workers.yaml to the group's LifecycleHookSpecificationList",
        )
    if len(ours) > 1:
        raise errors.SeveralHooksOfOurs(
            f'group {group} has the launch hooks {", ".join(sorted(h.name for h in ours))}, all with {{"autojoin":1}}',
            "exactly one launch hook of ours",
            "delete all but one; other tools' hooks may stay, without our NotificationMetadata",
        )
    (hook,) = ours
    if hook.heartbeat_timeout_s < budgets.SHORTEST_HEARTBEAT_S:
        raise errors.HookTooShort(
            f"hook {hook.name} of group {group} has HeartbeatTimeout {hook.heartbeat_timeout_s} s",
            f"at least {budgets.SHORTEST_HEARTBEAT_S} s",
            f"set HeartbeatTimeout to {budgets.SHORTEST_HEARTBEAT_S} or more (the example uses 300)",
        )
    return hook


def is_held(lifecycle_state: str, token: str | None) -> bool:
    """Whether a launch hook holds an instance in this state.

    token  of its lifecycle action, if known: its event can come before Auto Scaling's answers show the wait
    """
    return lifecycle_state == HELD_AT_LAUNCH or (lifecycle_state == BEFORE_ITS_HOOK and token is not None)


def is_on_its_way_in_or_out(lifecycle_state: str) -> bool:
    """Whether an instance in this state is not in service yet, or not any more."""
    return lifecycle_state.startswith(("Pending", "Terminat", "Warmed"))


def is_warm(lifecycle_state: str) -> bool:
    """Whether the instance is in, or on its way into or out of, a warm pool."""
    return lifecycle_state.startswith("Warmed:")
