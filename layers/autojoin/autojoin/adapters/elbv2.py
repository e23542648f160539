"""Port Targets on Elastic Load Balancing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from botocore.exceptions import ClientError

from autojoin.adapters.aws import translated
from autojoin.domain.naming import Target
from autojoin.records import TargetGroup

GROUP_GONE = frozenset({"TargetGroupNotFound", "TargetGroupNotFoundException"})
NOT_THERE = GROUP_GONE | {"InvalidTarget", "InvalidTargetException"}


class ElbV2Targets:
    """Registers and deregisters single targets, and looks at their health."""

    def __init__(self, elbv2: Any) -> None:
        self._elbv2 = elbv2

    def groups(self, arns: Iterable[str]) -> Mapping[str, TargetGroup]:
        """Those of the target groups that exist, by ARN."""
        found = {}
        for arn in sorted(arns):
            try:
                with translated("elasticloadbalancing:DescribeTargetGroups", unless=GROUP_GONE):
                    (group,) = self._elbv2.describe_target_groups(TargetGroupArns=[arn])["TargetGroups"]
            except ClientError:
                continue
            found[arn] = TargetGroup(arn, group.get("Port", 0), group.get("TargetType", "instance"))
        return found

    def register(self, target: Target) -> None:
        """Register the target. Safe to repeat."""
        with translated("elasticloadbalancing:RegisterTargets"):
            self._elbv2.register_targets(TargetGroupArn=target.group_arn, Targets=[_described(target)])

    def deregister(self, target: Target) -> None:
        """Deregister the target. Safe to repeat, and for a group that is gone."""
        try:
            with translated("elasticloadbalancing:DeregisterTargets", unless=NOT_THERE):
                self._elbv2.deregister_targets(TargetGroupArn=target.group_arn, Targets=[_described(target)])
        except ClientError:
            return

    def health(self, target: Target) -> tuple[str, str]:
        """State and reason code of the target."""
        with translated("elasticloadbalancing:DescribeTargetHealth"):
            answer = self._elbv2.describe_target_health(TargetGroupArn=target.group_arn, Targets=[_described(target)])
        (found,) = answer["TargetHealthDescriptions"]
        return found["TargetHealth"]["State"], found["TargetHealth"].get("Reason", "")


def _described(target: Target) -> dict[str, Any]:
    return {"Id": target.target_id, "Port": target.port}
