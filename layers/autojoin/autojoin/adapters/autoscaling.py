"""Port Groups on EC2 Auto Scaling."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from botocore.exceptions import ClientError

from autojoin import errors
from autojoin.adapters.aws import as_ours, message_of, translated
from autojoin.domain.lifecycle import HeldHook, Hook
from autojoin.records import Membership

NO_ACTION = "No active Lifecycle Action found"
"""AWS has no code of its own for an ended action: ValidationError with this message."""
VALIDATION = frozenset({"ValidationError"})


class AutoScalingGroups:
    """Describes groups and their hooks; keeps lifecycle actions alive and completes them."""

    def __init__(self, autoscaling: Any) -> None:
        self._autoscaling = autoscaling

    def membership(self, instance_id: str) -> Membership | None:
        """The instance's group and lifecycle state, or None if it is in no group."""
        with translated("autoscaling:DescribeAutoScalingInstances"):
            answer = self._autoscaling.describe_auto_scaling_instances(InstanceIds=[instance_id])
        found = answer["AutoScalingInstances"]
        return Membership(found[0]["AutoScalingGroupName"], found[0]["LifecycleState"]) if found else None

    def tags(self, group: str) -> Mapping[str, str]:
        """The group's tags; empty if there is no such group."""
        with translated("autoscaling:DescribeTags"):
            pages = self._autoscaling.get_paginator("describe_tags").paginate(Filters=[{"Name": "auto-scaling-group", "Values": [group]}])
            return {t["Key"]: t["Value"] for page in pages for t in page["Tags"]}

    def hooks(self, group: str) -> tuple[Hook, ...]:
        """The group's lifecycle hooks."""
        with translated("autoscaling:DescribeLifecycleHooks"):
            answer = self._autoscaling.describe_lifecycle_hooks(AutoScalingGroupName=group)
        return tuple(
            Hook(
                group=group,
                name=h["LifecycleHookName"],
                transition=h["LifecycleTransition"],
                heartbeat_timeout_s=h["HeartbeatTimeout"],
                global_timeout_s=h.get("GlobalTimeout"),
                metadata=h.get("NotificationMetadata"),
            )
            for h in answer["LifecycleHooks"]
        )

    def target_groups(self, group: str) -> frozenset[str]:
        """ARNs of the target groups that Auto Scaling itself manages for the group."""
        with translated("autoscaling:DescribeLoadBalancerTargetGroups"):
            pages = self._autoscaling.get_paginator("describe_load_balancer_target_groups").paginate(AutoScalingGroupName=group)
            return frozenset(t["LoadBalancerTargetGroupARN"] for page in pages for t in page["LoadBalancerTargetGroups"])

    def heartbeat(self, hook: HeldHook, instance_id: str) -> None:
        """Restart the hook's timer. Raises HookOver if the action has ended."""
        with _of_action(hook, instance_id, "autoscaling:RecordLifecycleActionHeartbeat"):
            self._autoscaling.record_lifecycle_action_heartbeat(**_which(hook, instance_id))

    def complete(self, hook: HeldHook, instance_id: str, result: str) -> None:
        """Complete the action with CONTINUE or ABANDON. Raises HookOver if it has ended."""
        with _of_action(hook, instance_id, "autoscaling:CompleteLifecycleAction"):
            self._autoscaling.complete_lifecycle_action(LifecycleActionResult=result, **_which(hook, instance_id))


@contextmanager
def _of_action(hook: HeldHook, instance_id: str, action: str) -> Iterator[None]:
    """ClientErrors of a call on a lifecycle action, as ours; an ended action is HookOver."""
    try:
        with translated(action, unless=VALIDATION):
            yield
    except ClientError as refused:
        if NO_ACTION not in message_of(refused):
            raise as_ours(refused, action) from refused
        raise errors.HookOver(
            f"{action} for {instance_id}, hook {hook.name} of {hook.group}: an action that has ended",
            "a lifecycle action that still waits",
            "nothing: the group goes on without us; look at its activities for why",
        ) from refused


def _which(hook: HeldHook, instance_id: str) -> dict[str, str]:
    named = {"AutoScalingGroupName": hook.group, "LifecycleHookName": hook.name}
    return {**named, "LifecycleActionToken": hook.token} if hook.token else {**named, "InstanceId": instance_id}
