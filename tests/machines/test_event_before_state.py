"""Auto Scaling's descriptions lag behind its events: a held instance may still be described as Pending."""

from __future__ import annotations

import pytest

from tests.fakes.world import Action, World, refusal

NODE = "i-00000000000000001"


@pytest.fixture
def world() -> World:
    made = World()
    made.add_group()
    made.add_master()
    made.add_instance(NODE, lifecycle_state="Pending", agent_after_s=200)
    made.actions[NODE] = Action("11111111-2222-3333-4444-555555555555", "autojoin-launching")
    return made


def test_a_hook_whose_event_came_before_its_state_is_kept_alive_and_continued(world: World) -> None:
    execution = world.join(NODE)

    assert execution.status == "SUCCEEDED"
    assert execution.output["hook"] == "continued"
    assert world.actions[NODE].result == "CONTINUE"
    assert world.actions[NODE].heartbeats > 2


def test_an_event_of_another_hook_does_not_make_a_pending_instance_held_and_touches_nothing(world: World) -> None:
    execution = world.start("join", {"instance_id": NODE, "group": "workers", "hook": "another", "token": world.actions[NODE].token})
    world.engine.run()

    assert execution.output == {"outcome": "in_progress", "owner": None}
    assert world.actions[NODE].open
    assert world.left_of(NODE) == []


def test_a_start_by_hand_leaves_a_pending_instance_to_the_event_of_its_hook(world: World) -> None:
    by_hand = world.start("join", {"instance_id": NODE}, "by-hand")
    by_event = world.join(NODE)

    assert by_hand.output == {"outcome": "in_progress", "owner": None}
    assert by_event.output["hook"] == "continued"


def test_a_failed_join_whose_hook_is_still_described_as_pending_is_abandoned(world: World) -> None:
    world.scripts["verify"] = [refusal(22, "CanaryFailed")]

    world.join(NODE)

    assert world.actions[NODE].result == "ABANDON"
    assert world.left_of(NODE) == []
