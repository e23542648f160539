"""Port Groups on EC2 Auto Scaling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from autojoin import errors
from autojoin.adapters.autoscaling import AutoScalingGroups
from autojoin.domain.lifecycle import HeldHook, Hook
from autojoin.ports import Membership
from tests.adapters.conftest import Stubs

INSTANCE = "i-0123456789abcdef0"
TOKEN = "11111111-2222-3333-4444-555555555555"
BY_TOKEN = HeldHook("workers", "autojoin-launching", TOKEN)
BY_INSTANCE = HeldHook("workers", "autojoin-launching", None)
NAMED = {"AutoScalingGroupName": "workers", "LifecycleHookName": "autojoin-launching"}
OVER = f"No active Lifecycle Action found with token {TOKEN}"

Act = Callable[[AutoScalingGroups], None]
ACTIONS: list[tuple[str, Act]] = [
    ("record_lifecycle_action_heartbeat", lambda g: g.heartbeat(BY_TOKEN, INSTANCE)),
    ("complete_lifecycle_action", lambda g: g.complete(BY_TOKEN, INSTANCE, "CONTINUE")),
]


@pytest.fixture
def groups(stubs: Stubs) -> AutoScalingGroups:
    return AutoScalingGroups(stubs.client("autoscaling"))


def described(**more: Any) -> dict[str, Any]:
    return {
        "InstanceId": INSTANCE,
        "AutoScalingGroupName": "workers",
        "AvailabilityZone": "eu-central-1a",
        "LifecycleState": "Pending:Wait",
        "HealthStatus": "HEALTHY",
        "ProtectedFromScaleIn": False,
        **more,
    }


def test_an_instance_of_a_group_has_a_group_and_a_state(stubs: Stubs, groups: AutoScalingGroups) -> None:
    stubs.expect("autoscaling", "describe_auto_scaling_instances", {"AutoScalingInstances": [described()]}, {"InstanceIds": [INSTANCE]})

    assert groups.membership(INSTANCE) == Membership("workers", "Pending:Wait")


def test_an_instance_of_no_group_has_no_membership(stubs: Stubs, groups: AutoScalingGroups) -> None:
    stubs.expect("autoscaling", "describe_auto_scaling_instances", {"AutoScalingInstances": []})

    assert groups.membership(INSTANCE) is None


def test_tags_of_a_group_are_read_to_the_last_page(stubs: Stubs, groups: AutoScalingGroups) -> None:
    asked = {"Filters": [{"Name": "auto-scaling-group", "Values": ["workers"]}]}
    first = {"Tags": [{"Key": "autojoin:cluster", "Value": "demo"}], "NextToken": "more"}
    stubs.expect("autoscaling", "describe_tags", first, asked)
    stubs.expect("autoscaling", "describe_tags", {"Tags": [{"Key": "autojoin:role", "Value": "worker"}]}, {**asked, "NextToken": "more"})

    assert groups.tags("workers") == {"autojoin:cluster": "demo", "autojoin:role": "worker"}


def test_a_group_that_is_not_there_has_no_tags(stubs: Stubs, groups: AutoScalingGroups) -> None:
    stubs.expect("autoscaling", "describe_tags", {"Tags": []})

    assert groups.tags("gone") == {}


def test_hooks_of_a_group_are_described_with_and_without_metadata(stubs: Stubs, groups: AutoScalingGroups) -> None:
    plain = {"LifecycleHookName": "other", "LifecycleTransition": "autoscaling:EC2_INSTANCE_TERMINATING", "HeartbeatTimeout": 3600}
    ours = {
        "LifecycleHookName": "autojoin-launching",
        "LifecycleTransition": "autoscaling:EC2_INSTANCE_LAUNCHING",
        "HeartbeatTimeout": 300,
        "GlobalTimeout": 30_000,
        "NotificationMetadata": '{"autojoin":1}',
    }
    stubs.expect("autoscaling", "describe_lifecycle_hooks", {"LifecycleHooks": [plain, ours]}, {"AutoScalingGroupName": "workers"})

    assert groups.hooks("workers") == (
        Hook("workers", "other", "autoscaling:EC2_INSTANCE_TERMINATING", 3600, None, None),
        Hook("workers", "autojoin-launching", "autoscaling:EC2_INSTANCE_LAUNCHING", 300, 30_000, '{"autojoin":1}'),
    )


def test_target_groups_of_a_group_come_from_all_pages(stubs: Stubs, groups: AutoScalingGroups) -> None:
    asked = {"AutoScalingGroupName": "workers"}
    method = "describe_load_balancer_target_groups"
    one, two = ({"LoadBalancerTargetGroups": [{"LoadBalancerTargetGroupARN": arn, "State": "InService"}]} for arn in ("a", "b"))
    stubs.expect("autoscaling", method, {**one, "NextToken": "more"}, asked)
    stubs.expect("autoscaling", method, two, {**asked, "NextToken": "more"})

    assert groups.target_groups("workers") == {"a", "b"}


@pytest.mark.parametrize(("held", "by"), [(BY_TOKEN, {"LifecycleActionToken": TOKEN}), (BY_INSTANCE, {"InstanceId": INSTANCE})])
def test_an_action_is_named_by_its_token_or_else_by_the_instance(
    stubs: Stubs, groups: AutoScalingGroups, held: HeldHook, by: dict[str, str]
) -> None:
    stubs.expect("autoscaling", "record_lifecycle_action_heartbeat", {}, {**NAMED, **by})
    stubs.expect("autoscaling", "complete_lifecycle_action", {}, {**NAMED, **by, "LifecycleActionResult": "ABANDON"})

    groups.heartbeat(held, INSTANCE)
    groups.complete(held, INSTANCE, "ABANDON")


@pytest.mark.parametrize(("method", "act"), ACTIONS)
def test_an_action_that_has_ended_is_over(stubs: Stubs, groups: AutoScalingGroups, method: str, act: Act) -> None:
    stubs.refuse("autoscaling", method, "ValidationError", OVER)

    with pytest.raises(errors.HookOver) as raised:
        act(groups)

    assert "autojoin-launching of workers" in str(raised.value)
    assert TOKEN not in str(raised.value)


@pytest.mark.parametrize(("method", "act"), ACTIONS)
@pytest.mark.parametrize(
    ("code", "message", "expected"),
    [
        ("ValidationError", "AutoScalingGroup name not found - no such group: workers", errors.AwsRefused),
        ("AccessDenied", OVER, errors.AwsRefused),
        ("ResourceContention", "busy", errors.AwsThrottled),
        ("Throttling", "Rate exceeded", errors.AwsThrottled),
        ("InternalFailure", "oops", errors.AwsUnavailable),
    ],
)
def test_every_other_refusal_is_not_taken_for_an_ended_action(
    stubs: Stubs, groups: AutoScalingGroups, method: str, act: Act, code: str, message: str, expected: type[Exception]
) -> None:
    stubs.refuse("autoscaling", method, code, message)

    with pytest.raises(errors.AutojoinError) as raised:
        act(groups)

    assert type(raised.value) is expected


@pytest.mark.parametrize("method", ["describe_auto_scaling_instances", "describe_tags", "describe_lifecycle_hooks"])
def test_throttled_reads_are_throttled(stubs: Stubs, groups: AutoScalingGroups, method: str) -> None:
    stubs.refuse("autoscaling", method, "Throttling")
    read = {"describe_auto_scaling_instances": groups.membership, "describe_tags": groups.tags}.get(method, groups.hooks)

    with pytest.raises(errors.AwsThrottled):
        read("x")
