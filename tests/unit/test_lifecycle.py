"""Lifecycle hooks: which are ours, and which a join can keep alive."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autojoin import errors
from autojoin.domain import budgets
from autojoin.domain.lifecycle import LAUNCH_TRANSITION, TERMINATE_TRANSITION, Hook, hook_of_ours, is_warm

OURS = '{"autojoin":1}'


def hook(name: str = "h", *, metadata: str | None = OURS, transition: str = LAUNCH_TRANSITION, heartbeat_s: int = 300) -> Hook:
    return Hook("workers", name, transition, heartbeat_s, None, metadata)


@pytest.mark.parametrize("metadata", [OURS, '{"autojoin": 1, "by": "me"}'])
def test_a_hook_is_ours_by_its_metadata(metadata: str) -> None:
    assert hook(metadata=metadata).is_ours


@pytest.mark.parametrize("metadata", [None, "", "autojoin", "1", "[1]", "null", '{"autojoin":2}', '{"autojoin":"1"}', "{", "[" * 4000])
def test_a_hook_with_other_metadata_is_not_ours(metadata: str | None) -> None:
    assert not hook(metadata=metadata).is_ours


@given(st.text('{}[]":,autojoin1 \né', max_size=60))
def test_whose_a_hook_is_can_be_said_of_any_metadata(metadata: str) -> None:
    assert hook(metadata=metadata).is_ours in (True, False)


def test_the_one_launch_hook_of_ours_is_found_among_others() -> None:
    others = (hook("other", metadata=None), hook("leaving", transition=TERMINATE_TRANSITION))

    found = hook_of_ours("workers", (*others, hook("ours")))

    assert found.name == "ours"


@pytest.mark.parametrize("hooks", [(), (hook(metadata=None),), (hook(transition=TERMINATE_TRANSITION),)])
def test_a_group_without_a_launch_hook_of_ours_is_refused(hooks: tuple[Hook, ...]) -> None:
    with pytest.raises(errors.NoHookOfOurs):
        hook_of_ours("workers", hooks)


def test_a_group_with_two_launch_hooks_of_ours_is_refused_by_their_names() -> None:
    with pytest.raises(errors.SeveralHooksOfOurs, match="a, b"):
        hook_of_ours("workers", (hook("b"), hook("a")))


@given(heartbeat_s=st.integers(30, 7200))
def test_only_a_hook_that_turns_can_keep_alive_is_accepted(heartbeat_s: int) -> None:
    too_short = heartbeat_s < budgets.SHORTEST_HEARTBEAT_S
    try:
        found = hook_of_ours("workers", (hook(heartbeat_s=heartbeat_s),))
    except errors.HookTooShort:
        assert too_short
    else:
        assert not too_short
        assert found.heartbeat_timeout_s == heartbeat_s


@pytest.mark.parametrize(
    ("state", "warm"),
    [("Warmed:Pending:Wait", True), ("Warmed:Stopped", True), ("Pending:Wait", False), ("InService", False), ("Terminating", False)],
)
def test_a_warm_pool_is_told_by_the_state(state: str, warm: bool) -> None:
    assert is_warm(state) is warm
