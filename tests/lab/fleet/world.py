"""A region with a network, an instance profile and a fleet, for the tests of the fleet and of its protocols."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lab.fleet.fleet import Fleet
from lab.lab import take_network
from lab.region.region import Region

IMAGE_ID = "ami-0123456789abcdef0"
TRUST = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Principal": {"Service": "ec2.amazonaws.com"}, "Action": "sts:AssumeRole"}],
}


def node_policy(*more: dict[str, Any]) -> str:
    """What an agent needs, and more statements."""
    agent = {"Effect": "Allow", "Action": ["ssm:UpdateInstanceInformation", "ssmmessages:*", "ec2messages:*"], "Resource": "*"}
    return json.dumps({"Version": "2012-10-17", "Statement": [agent, *more]})


class World:
    """What a test finds made. Names are new in each world, so that worlds may follow one another in a region."""

    def __init__(self, region: Region, fleet: Fleet, network: int) -> None:
        self.region, self.fleet, self.network = region, fleet, network
        self.tag = uuid.uuid4().hex[:6]
        self.ec2, self.asg, self.ssm = region.client("ec2"), region.client("autoscaling"), region.client("ssm")
        iam = region.client("iam")
        vpc = self.ec2.create_vpc(CidrBlock=f"127.{network}.0.0/16")["Vpc"]["VpcId"]
        self.vpc_id = vpc
        zones = ("us-east-1a", "us-east-1b")
        self.subnets = [
            self.ec2.create_subnet(VpcId=vpc, CidrBlock=f"127.{network}.{16 * i}.0/20", AvailabilityZone=zone)["Subnet"]["SubnetId"]
            for i, zone in enumerate(zones)
        ]
        self.role, self.profile = f"node-{self.tag}", f"profile-{self.tag}"
        iam.create_role(RoleName=self.role, AssumeRolePolicyDocument=json.dumps(TRUST))
        parameter = f"arn:aws:ssm:us-east-1:000000000000:parameter/{self.tag}/public/*"
        iam.put_role_policy(
            RoleName=self.role, PolicyName="node",
            PolicyDocument=node_policy(
                {"Effect": "Allow", "Action": "ssm:GetParameter", "Resource": parameter},
                {"Effect": "Allow", "Action": ["logs:CreateLogStream", "logs:PutLogEvents"], "Resource": "*"},
            ),
        )  # fmt: skip
        iam.create_instance_profile(InstanceProfileName=self.profile)
        iam.add_role_to_instance_profile(InstanceProfileName=self.profile, RoleName=self.role)
        self.template = f"template-{self.tag}"
        self.ec2.create_launch_template(
            LaunchTemplateName=self.template,
            LaunchTemplateData={
                "ImageId": IMAGE_ID, "InstanceType": "m5.large", "IamInstanceProfile": {"Name": self.profile},
                "MetadataOptions": {"HttpTokens": "required", "InstanceMetadataTags": "enabled"},
                "TagSpecifications": [{"ResourceType": "instance", "Tags": [{"Key": "from", "Value": "template"}]}],
            },
        )  # fmt: skip

    def group(self, name: str, *, hooks: list[dict[str, Any]] | None = None, desired: int = 0, **more: Any) -> str:
        """An Auto Scaling group; returns its name."""
        name = f"{name}-{self.tag}"
        self.asg.create_auto_scaling_group(
            **{
                "AutoScalingGroupName": name, "MinSize": 0, "MaxSize": 5, "DesiredCapacity": desired,
                "LaunchTemplate": {"LaunchTemplateName": self.template, "Version": "$Latest"}, "VPCZoneIdentifier": self.subnets[0],
                "Tags": [
                    {"Key": "team", "Value": "a", "PropagateAtLaunch": True}, {"Key": "own", "Value": "b", "PropagateAtLaunch": False},
                ],
                **({"LifecycleHookSpecificationList": hooks} if hooks else {}), **more,
            }
        )  # fmt: skip
        return name

    def run_instance(self, **more: Any) -> str:
        """An instance of its own; returns its id when its agent is online."""
        instance_id: str = self.ec2.run_instances(
            **{
                "MinCount": 1, "MaxCount": 1, "ImageId": IMAGE_ID, "InstanceType": "t3.micro", "SubnetId": self.subnets[0],
                "IamInstanceProfile": {"Name": self.profile}, **more,
            }
        )["Instances"][0]["InstanceId"]  # fmt: skip
        self.until(lambda: self.fleet.instances[instance_id].agent_online)
        return instance_id

    def members(self, group: str) -> list[dict[str, Any]]:
        """The group's instances as the API shows them."""
        return list(self.asg.describe_auto_scaling_groups(AutoScalingGroupNames=[group])["AutoScalingGroups"][0]["Instances"])

    def member_in(self, group: str, state: str) -> str:
        """Id of the first instance of the group to reach a lifecycle state."""
        found = self.until(lambda: [one for one in self.members(group) if one["LifecycleState"] == state])
        return str(found[0]["InstanceId"])

    def opened(self, instance_id: str) -> dict[str, Any]:
        """The journal's entry of the hook that holds an instance."""
        entry: dict[str, Any] = self.until(
            lambda: [e for e in self.region.journal.entries("hook") if e["instance_id"] == instance_id and e["event"] == "opened"]
        )[-1]
        return entry

    @staticmethod
    def until(look: Callable[[], Any], timeout_s: float = 30.0) -> Any:
        """What `look` returns once it is truthy; fails the test when it never is."""
        give_up = time.monotonic() + timeout_s
        while not (found := look()):
            assert time.monotonic() < give_up, f"nothing came of it in {timeout_s:.0f} s"
            time.sleep(0.03)
        return found


@contextmanager
def world(region: Region, root: Path) -> Iterator[World]:
    """A world in a running region, with a fleet whose instances boot quickly and whose image holds one program."""
    image = root / "image"
    (image / "bin").mkdir(parents=True)
    (image / "bin/hello").write_text("#!/bin/sh\necho hello from $AUTOJOIN_ROOT\n", encoding="utf-8")
    (image / "bin/hello").chmod(0o755)
    network, lock = take_network()
    with lock:
        fleet = Fleet(region, root, image, region.journal, network, boot_s=0.1, agent_s=0.05)
        try:
            yield World(region, fleet, network)
        finally:
            fleet.stop()
