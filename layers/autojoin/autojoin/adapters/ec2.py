"""Port Instances on EC2."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from botocore.exceptions import ClientError

from autojoin import errors
from autojoin.adapters.aws import message_of, translated
from autojoin.domain.identity import CLUSTER_TAG, PARTITION_TAG, ROLE_TAG
from autojoin.records import Instance

GONE = frozenset({"IncorrectInstanceState", "IncorrectState", "InvalidInstanceID.NotFound"})
NO_SUCH = frozenset({"InvalidInstanceID.NotFound", "InvalidInstanceID.Malformed"})


class Ec2Instances:
    """Describes instances and subnets, and switches one attribute."""

    def __init__(self, ec2: Any) -> None:
        self._ec2 = ec2

    def get(self, instance_id: str) -> Instance | None:
        """The instance, or None if EC2 does not know the id (NotFound, Malformed, or an empty answer)."""
        try:
            with translated("ec2:DescribeInstances", unless=NO_SUCH):
                answer = self._ec2.describe_instances(InstanceIds=[instance_id])
        except ClientError:
            return None
        found = [i for r in answer["Reservations"] for i in r["Instances"]]
        return _instance(found[0]) if found else None

    def running(self, cluster: str, partition: str, roles: Iterable[str]) -> tuple[Instance, ...]:
        """Pending and running instances with these tags, oldest launch first."""
        filters = [
            {"Name": f"tag:{CLUSTER_TAG}", "Values": [cluster]},
            {"Name": f"tag:{PARTITION_TAG}", "Values": [partition]},
            {"Name": f"tag:{ROLE_TAG}", "Values": sorted(roles)},
            {"Name": "instance-state-name", "Values": ["pending", "running"]},
        ]
        with translated("ec2:DescribeInstances"):
            pages = self._ec2.get_paginator("describe_instances").paginate(Filters=filters)
            found = [_instance(i) for page in pages for r in page["Reservations"] for i in r["Instances"]]
        return tuple(sorted(found, key=lambda i: (i.launched_ms, i.instance_id)))

    def subnet_cidrs(self, subnet_ids: Iterable[str]) -> Mapping[str, str]:
        """IPv4 CIDR of each subnet, by subnet id."""
        with translated("ec2:DescribeSubnets"):
            answer = self._ec2.describe_subnets(SubnetIds=sorted(subnet_ids))
        return {s["SubnetId"]: s["CidrBlock"] for s in answer["Subnets"]}

    def switch_off_source_dest_check(self, instance_id: str) -> None:
        """Switch the source/destination check off. Safe to repeat. Raises InstanceGone if it is terminated or unknown."""
        try:
            with translated("ec2:ModifyInstanceAttribute", unless=GONE):
                self._ec2.modify_instance_attribute(InstanceId=instance_id, SourceDestCheck={"Value": False})
        except ClientError as refused:
            raise errors.InstanceGone(
                f"ec2:ModifyInstanceAttribute of {instance_id}: {message_of(refused)}", "pending or running", "nothing"
            ) from refused


def _instance(described: Mapping[str, Any]) -> Instance:
    return Instance(
        instance_id=described["InstanceId"],
        state=described["State"]["Name"],
        address=described.get("PrivateIpAddress") or None,
        subnet_id=described.get("SubnetId") or None,
        tags={t["Key"]: t["Value"] for t in described.get("Tags", [])},
        launched_ms=int(described["LaunchTime"].timestamp() * 1000),
    )
