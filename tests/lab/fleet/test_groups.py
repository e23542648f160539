"""The rules of groups and hooks, on a clock that the test moves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lab.fleet.groups import LAUNCHING, TERMINATING, Group, Groups, LaunchFailed, Member
from lab.fleet.timers import ManualTimers
from lab.fleet.wire import ApiError


class FakeHost:
    """Launches members that run when told to, and ends them when told to."""

    def __init__(self) -> None:
        self.launched: list[str] = []
        self.ended: list[str] = []
        self.refuses: str | None = None

    def launch(self, group: Group, subnet_id: str) -> Member:
        if self.refuses:
            raise LaunchFailed(self.refuses)
        self.launched.append(f"i-{len(self.launched):017x}")
        zone = "us-east-1" + subnet_id[-1:]
        return Member(self.launched[-1], subnet_id, zone, "m5.large", "ami-1", None)

    def terminate(self, instance_id: str) -> None:
        if instance_id not in self.ended:
            self.ended.append(instance_id)


class World:
    def __init__(self) -> None:
        self.clock, self.host = ManualTimers(), FakeHost()
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.journal: list[dict[str, Any]] = []
        self.groups = Groups(
            self.clock, self.host, lambda kind, detail, _: self.events.append((kind, detail)),
            lambda kind, **fields: self.journal.append({"kind": kind, **fields}), account="000000000000", region="us-east-1",
        )  # fmt: skip

    def group(self, *hooks: dict[str, Any], desired: int = 1, **more: Any) -> Group:
        return self.groups.create(
            {
                "AutoScalingGroupName": "g", "MinSize": 0, "MaxSize": 4, "DesiredCapacity": desired, "VPCZoneIdentifier": "s-a",
                "LaunchTemplate": {"LaunchTemplateName": "t"}, "LifecycleHookSpecificationList": list(hooks), **more,
            }
        )  # fmt: skip

    def run_all(self) -> None:
        for instance_id in self.host.launched:
            self.groups.running(instance_id)
        self.clock.advance(0.2)

    def states(self) -> list[str]:
        return [member.state for member in self.groups.group("g").members.values()]

    def token(self, index: int = -1) -> str:
        return str([e["token"] for e in self.journal if e["kind"] == "hook" and e["event"] == "opened"][index])

    def hook_events(self) -> list[tuple[str, str | None, str | None]]:
        return [(e["event"], e["result"], e["by"]) for e in self.journal if e["kind"] == "hook"]

    def gone(self, instance_id: str | None = None) -> None:
        self.groups.gone(instance_id or self.host.ended[-1])


@pytest.fixture
def world() -> World:
    return World()


def launch_hook(**more: Any) -> dict[str, Any]:
    return {"LifecycleHookName": "launch", "LifecycleTransition": LAUNCHING, "HeartbeatTimeout": 300, **more}


def terminate_hook(**more: Any) -> dict[str, Any]:
    return {"LifecycleHookName": "end", "LifecycleTransition": TERMINATING, "HeartbeatTimeout": 300, **more}


def refused(call: Callable[[], object]) -> str:
    with pytest.raises(ApiError) as caught:
        call()
    return f"{caught.value.code}: {caught.value.message}"


def test_an_instance_without_hooks_goes_into_service(world: World) -> None:
    world.group()

    world.run_all()

    assert world.states() == ["InService"]
    assert [e["state"] for e in world.journal if e["kind"] == "lifecycle"] == ["Pending", "Pending:Proceed", "InService"]
    assert [kind for kind, _ in world.events] == ["EC2 Instance Launch Successful"]


def test_a_launch_hook_holds_the_instance_and_announces_itself(world: World) -> None:
    world.group(launch_hook(NotificationMetadata='{"autojoin":1}'))

    world.run_all()

    assert world.states() == ["Pending:Wait"]
    kind, detail = world.events[-1]
    assert kind == "EC2 Instance-launch Lifecycle Action"
    assert detail == {
        "LifecycleActionToken": world.token(), "AutoScalingGroupName": "g", "LifecycleHookName": "launch",
        "EC2InstanceId": world.host.launched[0], "LifecycleTransition": LAUNCHING, "NotificationMetadata": '{"autojoin":1}',
        "Origin": "EC2", "Destination": "AutoScalingGroup",
    }  # fmt: skip
    assert len(world.token()) == 36


def test_continue_by_token_puts_it_into_service_once(world: World) -> None:
    world.group(launch_hook())
    world.run_all()
    token = world.token()

    world.groups.complete("g", "launch", "CONTINUE", token=token, by="arn:me")
    again = refused(lambda: world.groups.complete("g", "launch", "ABANDON", token=token, by="arn:me"))
    world.clock.advance(1)

    assert world.states() == ["InService"]
    assert again == f"ValidationError: No active Lifecycle Action found with token {token}"
    assert world.hook_events() == [("opened", None, None), ("completed", "CONTINUE", "arn:me"), ("refused", "ABANDON", "arn:me")]


def test_completion_by_instance_needs_no_token(world: World) -> None:
    world.group(launch_hook())
    world.run_all()

    world.groups.complete("g", "launch", "CONTINUE", instance_id=world.host.launched[0])
    world.clock.advance(1)

    assert world.states() == ["InService"]
    assert "No active Lifecycle Action found with instance ID" in refused(
        lambda: world.groups.complete("g", "launch", "CONTINUE", instance_id=world.host.launched[0])
    )


def test_a_foreign_token_completes_nothing(world: World) -> None:
    world.group(launch_hook())
    world.run_all()

    said = refused(lambda: world.groups.complete("g", "launch", "CONTINUE", token="0" * 36, instance_id=world.host.launched[0]))

    assert "No active Lifecycle Action found with token" in said
    assert world.states() == ["Pending:Wait"]


def test_abandon_ends_the_instance_and_the_group_replaces_it_a_little_later(world: World) -> None:
    world.group(launch_hook())
    world.run_all()

    world.groups.complete("g", "launch", "ABANDON", token=world.token())

    assert world.states() == ["Terminating"]
    assert world.host.ended == [world.host.launched[0]]
    world.gone()
    assert world.states() == []
    world.clock.advance(0.5)
    assert len(world.host.launched) == 1
    world.clock.advance(1)
    assert len(world.host.launched) == 2
    world.run_all()
    assert world.states() == ["Pending:Wait"]
    assert world.token(0) != world.token(1)


def test_no_replacement_while_launching_is_suspended(world: World) -> None:
    world.group(launch_hook())
    world.run_all()
    world.groups.suspend("g", ["Launch"])
    world.groups.complete("g", "launch", "ABANDON", token=world.token())
    world.gone()

    world.clock.advance(60)
    suspended = len(world.host.launched)
    world.groups.resume("g", ["Launch"])

    assert (suspended, len(world.host.launched)) == (1, 2)


@pytest.mark.parametrize(("default", "state"), [("ABANDON", "Terminating"), ("CONTINUE", "InService")])
def test_the_heartbeat_time_out_ends_the_action_with_the_default_result(world: World, default: str, state: str) -> None:
    world.group(launch_hook(DefaultResult=default))
    world.run_all()
    token = world.token()

    world.clock.advance(299)
    before = world.states()
    world.clock.advance(2)

    assert before == ["Pending:Wait"]
    assert world.states()[0] == state
    assert world.hook_events()[-1] == ("timed_out", default, "timer")
    assert "No active Lifecycle Action" in refused(lambda: world.groups.complete("g", "launch", "CONTINUE", token=token))


def test_a_heartbeat_starts_the_time_out_anew(world: World) -> None:
    world.group(launch_hook())
    world.run_all()

    world.clock.advance(250)
    world.groups.heartbeat("g", "launch", token=world.token())
    world.clock.advance(250)
    held = world.states()
    world.clock.advance(60)

    assert held == ["Pending:Wait"]
    assert world.states()[0] == "Terminating"
    opened, beat = (e for e in world.journal if e["kind"] == "hook" and e["event"] in ("opened", "heartbeat"))
    assert beat["deadline"] - opened["deadline"] == pytest.approx(250, abs=1)


def test_heartbeats_do_not_extend_the_global_time_out(world: World) -> None:
    world.group(launch_hook(HeartbeatTimeout=30))
    world.run_all()

    for _ in range(119):
        world.clock.advance(25)
        world.groups.heartbeat("g", "launch", token=world.token())
    held = world.states()
    world.clock.advance(26)

    assert held == ["Pending:Wait"]
    assert world.states()[0] == "Terminating"
    assert "No active Lifecycle Action" in refused(lambda: world.groups.heartbeat("g", "launch", token=world.token()))


def test_the_instance_waits_for_all_hooks_and_the_first_abandon_ends_it(world: World) -> None:
    world.group(launch_hook(), launch_hook(LifecycleHookName="second"), desired=2)
    world.run_all()
    first, second = world.host.launched
    world.groups.complete("g", "launch", "CONTINUE", instance_id=first)
    world.clock.advance(1)
    still = world.groups.group("g").members[first].state

    world.groups.complete("g", "second", "CONTINUE", instance_id=first)
    world.groups.complete("g", "second", "ABANDON", instance_id=second)
    world.clock.advance(0.2)

    assert still == "Pending:Wait"
    assert world.states() == ["InService", "Terminating"]
    assert "No active" in refused(lambda: world.groups.complete("g", "launch", "CONTINUE", instance_id=second))


def test_a_terminate_hook_holds_a_leaving_instance(world: World) -> None:
    world.group(terminate_hook())
    world.run_all()

    world.groups.set_desired("g", 0)
    held, ended = world.states(), list(world.host.ended)
    world.groups.complete("g", "end", "CONTINUE", token=world.token())
    world.clock.advance(1)
    world.gone()

    assert (held, ended) == (["Terminating:Wait"], [])
    assert world.states() == []
    assert world.events[-2][1]["Origin"] == "AutoScalingGroup"
    assert [kind for kind, _ in world.events][-2:] == [
        "EC2 Instance-terminate Lifecycle Action",
        "EC2 Instance Terminate Successful",
    ]
    assert [e["state"] for e in world.journal if e["kind"] == "lifecycle"][-4:] == [
        "Terminating", "Terminating:Wait", "Terminating:Proceed", "Terminated",
    ]  # fmt: skip


@pytest.mark.parametrize(("policy", "state"), [(None, "Terminating:Proceed"), ("retain", "Terminating:Retained")])
def test_abandon_at_termination_keeps_the_instance_only_where_the_group_retains(world: World, policy: str | None, state: str) -> None:
    more = {"InstanceLifecyclePolicy": {"RetentionTriggers": {"TerminateHookAbandon": policy}}} if policy else {}
    world.group(terminate_hook(), **more)
    world.run_all()
    world.groups.terminate(world.host.launched[0], decrement=True)

    world.groups.complete("g", "end", "ABANDON", token=world.token())

    assert world.states() == [state]


def test_a_retained_instance_ends_by_request_without_hooks(world: World) -> None:
    world.group(terminate_hook(), InstanceLifecyclePolicy={"RetentionTriggers": {"TerminateHookAbandon": "retain"}})
    world.run_all()
    world.groups.terminate(world.host.launched[0], decrement=True)
    world.groups.complete("g", "end", "ABANDON", token=world.token())

    world.groups.terminate(world.host.launched[0], decrement=False)
    world.gone()

    assert world.states() == []


def test_taking_an_instance_out_while_it_launches_ends_its_launch_action(world: World) -> None:
    world.group(launch_hook())
    world.run_all()
    token = world.token()

    world.groups.terminate(world.host.launched[0], decrement=True)

    assert world.states() == ["Terminating:Proceed"]
    assert "No active Lifecycle Action" in refused(lambda: world.groups.complete("g", "launch", "CONTINUE", token=token))


def test_an_instance_that_dies_is_held_by_no_hook_and_is_replaced(world: World) -> None:
    world.group(launch_hook(), terminate_hook())
    world.run_all()
    token = world.token()

    world.gone(world.host.launched[0])
    after_death = world.states()
    world.clock.advance(1.5)

    assert after_death == []
    assert len(world.host.launched) == 2
    assert "No active Lifecycle Action" in refused(lambda: world.groups.complete("g", "launch", "CONTINUE", token=token))


def test_deleting_a_hook_lets_what_it_holds_go_on(world: World) -> None:
    world.group(launch_hook(), terminate_hook(), desired=2)
    world.run_all()
    first, second = world.host.launched
    world.groups.complete("g", "launch", "CONTINUE", instance_id=second)
    world.clock.advance(1)
    world.groups.terminate(second, decrement=True)

    world.groups.delete_hook("g", "launch")
    world.groups.delete_hook("g", "end")
    world.clock.advance(1)

    assert world.groups.group("g").members[first].state == "Terminating"
    assert world.host.ended == [first, second]


def test_scale_in_spares_protected_instances(world: World) -> None:
    world.group(desired=3)
    world.run_all()
    world.groups.protect("g", world.host.launched[:2], True)

    world.groups.set_desired("g", 0)
    world.clock.advance(1)

    assert world.host.ended == [world.host.launched[2]]


def test_instances_are_spread_over_the_subnets(world: World) -> None:
    world.group(desired=4, VPCZoneIdentifier="s-a,s-b")

    assert sorted(m.subnet_id for m in world.groups.group("g").members.values()) == ["s-a", "s-a", "s-b", "s-b"]


def test_a_launch_that_the_host_refuses_is_an_activity_and_is_tried_again(world: World) -> None:
    world.host.refuses = "no address left"
    world.group()

    failed = [a["StatusMessage"] for a in world.groups.group("g").activities]
    world.host.refuses = None
    world.clock.advance(6)

    assert failed == ["no address left"]
    assert len(world.host.launched) == 1


def test_capacity_stays_within_the_bounds(world: World) -> None:
    world.group()

    assert "above max value 4" in refused(lambda: world.groups.set_desired("g", 5))
    world.groups.update("g", {"MinSize": 1})
    assert "below min value 1" in refused(lambda: world.groups.set_desired("g", 0))
    assert "desiredSize equals minSize" in refused(lambda: world.groups.terminate(world.host.launched[0], decrement=True))


def test_a_group_with_instances_is_deleted_by_force_only(world: World) -> None:
    world.group(terminate_hook())
    world.run_all()

    said = refused(lambda: world.groups.delete("g", force=False))
    world.groups.delete("g", force=True)
    held = world.states()
    world.gone()

    assert said.startswith("ResourceInUse")
    assert held == ["Terminating"]
    assert not world.groups.exists("g")


def test_draining_a_group_honours_its_hooks(world: World) -> None:
    world.group(terminate_hook())
    world.run_all()

    world.groups.drain("g")
    held = world.states()
    world.groups.complete("g", "end", "CONTINUE", token=world.token())
    world.clock.advance(1)
    world.gone()

    assert held == ["Terminating:Wait"]
    assert not world.groups.exists("g")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"HeartbeatTimeout": 29}, "from 30 to 7200"),
        ({"HeartbeatTimeout": 7201}, "from 30 to 7200"),
        ({"DefaultResult": "IGNORE"}, "CONTINUE or ABANDON"),
        ({"LifecycleTransition": "autoscaling:EC2_INSTANCE_DANCING"}, "LifecycleTransition"),
        ({"LifecycleHookName": "a b"}, "LifecycleHookName"),
    ],
)
def test_a_hook_that_aws_refuses_is_refused(world: World, change: dict[str, Any], said: str) -> None:
    assert said in refused(lambda: world.group(launch_hook(**change)))


def test_the_global_time_out_is_a_hundred_heartbeats_and_at_most_two_days(world: World) -> None:
    hooks = world.group(launch_hook(HeartbeatTimeout=300), terminate_hook(HeartbeatTimeout=7200)).hooks

    assert hooks["launch"].global_timeout_s == 30_000
    assert hooks["end"].global_timeout_s == 172_800
