"""Who an instance is: its profile's role, the credentials of that role, and what its metadata service tells.

Credentials are sessions of the region's own STS, so that its IAM evaluation rules what a script on the node may do.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lab.fleet.groups import LaunchFailed
from lab.fleet.instance import Instance
from lab.region import authorisation

if TYPE_CHECKING:
    from lab.region.region import Region

CREDENTIALS_S = 3600 * 6
RENEW_S = 600
"""Credentials are renewed this many seconds before they expire."""


class Identities:
    """The roles and credentials of a region's instances."""

    def __init__(self, region: Region) -> None:
        self._region = region
        self._lock = threading.Lock()
        self._kept: dict[str, dict[str, Any]] = {}

    def credentials(self, instance: Instance) -> dict[str, Any] | None:
        """STS credentials of the instance profile's role, the same until they are about to expire; None without a role."""
        from ministack.services import iam, sts

        role = iam._roles.get(instance.role) if instance.role else None
        if role is None or not self._trusts_ec2(instance):
            return None
        with self._lock:
            kept = self._kept.get(instance.instance_id)
            if kept is None or kept["until"] < time.time() + RENEW_S:
                until = time.time() + CREDENTIALS_S
                kept = {
                    "until": until,
                    "AccessKeyId": "ASIA" + secrets.token_hex(8).upper(),
                    "SecretAccessKey": secrets.token_urlsafe(30),
                    "Token": secrets.token_urlsafe(60),
                    "Expiration": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(until)),
                }
                sts.register_session(
                    kept["AccessKeyId"],
                    {
                        "Arn": f"arn:aws:sts::{self._region.account}:assumed-role/{instance.role}/{instance.instance_id}",
                        "UserId": f"{role.get('RoleId', instance.role)}:{instance.instance_id}",
                        "SecretAccessKey": kept["SecretAccessKey"],
                        "SessionToken": kept["Token"],
                        "Expiration": until,
                        "AccountId": self._region.account,
                        "PrincipalType": "AssumedRole",
                    },
                )
                self._kept[instance.instance_id] = kept
            return {name: kept[name] for name in ("AccessKeyId", "SecretAccessKey", "Token", "Expiration")}

    def agent_may_register(self, instance: Instance) -> bool:
        """Whether the instance's role lets an SSM agent report itself."""
        from ministack.services import iam

        if not self._trusts_ec2(instance):
            return False
        attached = iam._roles.get(instance.role).get("AttachedPolicies", [])
        if any(arn.endswith(":policy/AmazonSSMManagedInstanceCore") for arn in attached):  # ministack has it by name only
            return True
        return authorisation.role_may(self._role_arn(instance), "ssm:UpdateInstanceInformation", "*")

    def _role_arn(self, instance: Instance) -> str:
        return f"arn:aws:iam::{self._region.account}:role/{instance.role}"

    def _trusts_ec2(self, instance: Instance) -> bool:
        return instance.role is not None and authorisation.role_trusts(self._role_arn(instance), "ec2.amazonaws.com")


class SelfKnowledge:
    """What the metadata service tells about an instance."""

    def __init__(self, region: Region, identities: Identities, instance: Instance) -> None:
        self._region, self._identities, self._instance = region, identities, instance
        self.tokens_required = instance.metadata_options["HttpTokens"] == "required"
        self.tags_allowed = instance.metadata_options["InstanceMetadataTags"] == "enabled"

    def flat(self) -> dict[str, str]:
        one, region = self._instance, self._region
        interface = f"network/interfaces/macs/{one.mac}"
        tree = {
            "ami-id": one.image_id,
            "hostname": f"ip-{one.address.replace('.', '-')}.ec2.internal",
            "local-hostname": f"ip-{one.address.replace('.', '-')}.ec2.internal",
            "instance-id": one.instance_id,
            "instance-type": one.instance_type,
            "local-ipv4": one.address,
            "mac": one.mac,
            "placement/availability-zone": one.zone,
            "placement/region": region.name,
            "services/domain": "amazonaws.com",
            "services/partition": "aws",
            f"{interface}/device-number": "0",
            f"{interface}/interface-id": interface_id(one),
            f"{interface}/local-ipv4s": one.address,
            f"{interface}/mac": one.mac,
            f"{interface}/subnet-id": one.subnet_id,
            f"{interface}/subnet-ipv4-cidr-block": one.subnet_cidr,
            f"{interface}/vpc-id": one.vpc_id,
            f"{interface}/vpc-ipv4-cidr-block": _vpc_cidr(one.vpc_id),
        }
        state = one.lifecycle_state
        if state is not None:
            tree["autoscaling/target-lifecycle-state"] = "Terminated" if state.startswith("Terminat") else "InService"
        if one.profile_arn:
            tree["iam/info"] = json.dumps({"Code": "Success", "InstanceProfileArn": one.profile_arn}, indent=2)
        for key, value in one.tags.items():
            tree[f"tags/instance/{key}"] = value
        return tree

    def role(self) -> str | None:
        return self._instance.role

    def credentials(self) -> dict[str, Any] | None:
        return self._identities.credentials(self._instance)

    def document(self) -> dict[str, Any]:
        one, region = self._instance, self._region
        return {
            "accountId": region.account, "architecture": "x86_64", "availabilityZone": one.zone, "imageId": one.image_id,
            "instanceId": one.instance_id, "instanceType": one.instance_type, "privateIp": one.address, "region": region.name,
            "pendingTime": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(one.launched_at)), "version": "2017-09-30",
        }  # fmt: skip


def interface_id(instance: Instance) -> str:
    """Id of an instance's only network interface."""
    return f"eni-{instance.instance_id[2:]}"


def _vpc_cidr(vpc_id: str) -> str:
    from ministack.services import ec2

    return str((ec2._vpcs.get(vpc_id) or {}).get("CidrBlock", ""))


def profile_of(given: Mapping[str, str] | None) -> tuple[dict[str, Any] | None, str | None]:
    """The instance profile's record and its role's name. Raises LaunchFailed for one that does not exist."""
    from ministack.services import iam

    if not given:
        return None, None
    name = given.get("Name") or str(given.get("Arn", "")).rsplit("/", 1)[-1]
    profile = iam._lookup_instance_profile(name=name)
    if profile is None:
        raise LaunchFailed(f"Value ({name}) for parameter iamInstanceProfile.name is invalid. Invalid IAM Instance Profile name")
    roles = [role if isinstance(role, str) else role.get("RoleName") for role in profile.get("Roles") or []]
    return profile, (str(roles[0]).rsplit("/", 1)[-1] if roles else None)
