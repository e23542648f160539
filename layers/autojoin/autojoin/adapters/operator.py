"""Port Operator on Auto Scaling, EC2, Systems Manager, Secrets Manager and Route 53. No function has these permissions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from botocore.exceptions import ClientError

from autojoin import errors
from autojoin.adapters.aws import message_of, translated
from autojoin.adapters.route53 import record_set
from autojoin.domain.lifecycle import LAUNCH_TRANSITION
from autojoin.domain.naming import Record
from autojoin.ports import AddressSet, GroupMember, GroupTag, GroupView, Zone

NO_PARAMETER = frozenset({"ParameterNotFound"})
STANDS = frozenset({"ParameterAlreadyExists"})
NO_SECRET = frozenset({"ResourceNotFoundException"})
NO_ZONE = frozenset({"NoSuchHostedZone", "InvalidInput"})
VALIDATION = frozenset({"ValidationError"})


class AwsOperator:
    """Describes and changes a group, its instances, parameters and the zone. `client` makes a client by service name."""

    def __init__(self, client: Callable[[str], Any]) -> None:
        self._client = client

    def group(self, name: str) -> GroupView | None:
        """The group with its instances, tags and whether its launch template gives them a profile."""
        with translated("autoscaling:DescribeAutoScalingGroups"):
            found = self._client("autoscaling").describe_auto_scaling_groups(AutoScalingGroupNames=[name])["AutoScalingGroups"]
        if not found:
            return None
        (group,) = found
        return GroupView(
            name=name,
            max_size=group["MaxSize"],
            protects_new=group.get("NewInstancesProtectedFromScaleIn", False),
            subnet_ids=tuple(s for s in group.get("VPCZoneIdentifier", "").split(",") if s),
            tags={t["Key"]: GroupTag(t["Value"], t["PropagateAtLaunch"]) for t in group.get("Tags", [])},
            members=tuple(
                GroupMember(i["InstanceId"], i["LifecycleState"], i.get("ProtectedFromScaleIn", False)) for i in group["Instances"]
            ),
            has_profile=self._has_profile(group),
        )

    def tag_group(self, group: str, tags: Mapping[str, str]) -> None:
        """Set these tags on the group, propagated at launch."""
        described = [
            {"ResourceId": group, "ResourceType": "auto-scaling-group", "Key": k, "Value": v, "PropagateAtLaunch": True}
            for k, v in tags.items()
        ]
        with translated("autoscaling:CreateOrUpdateTags"):
            self._client("autoscaling").create_or_update_tags(Tags=described)

    def put_launch_hook(self, group: str, name: str, heartbeat_timeout_s: int, metadata: str) -> None:
        """Make the launch hook, with ABANDON as its default result."""
        with translated("autoscaling:PutLifecycleHook"):
            self._client("autoscaling").put_lifecycle_hook(
                AutoScalingGroupName=group,
                LifecycleHookName=name,
                LifecycleTransition=LAUNCH_TRANSITION,
                HeartbeatTimeout=heartbeat_timeout_s,
                DefaultResult="ABANDON",
                NotificationMetadata=metadata,
            )

    def tag_instance(self, instance_id: str, tags: Mapping[str, str]) -> None:
        """Set these tags on the instance."""
        with translated("ec2:CreateTags"):
            self._client("ec2").create_tags(Resources=[instance_id], Tags=[{"Key": k, "Value": v} for k, v in tags.items()])

    def parameter(self, name: str) -> str | None:
        """The parameter's value, or None if there is no such one."""
        try:
            with translated("ssm:GetParameter", unless=NO_PARAMETER):
                return str(self._client("ssm").get_parameter(Name=name)["Parameter"]["Value"])
        except ClientError:
            return None

    def put_parameter(self, name: str, value: str, *, replace: bool) -> bool:
        """Write the parameter; False if it exists and is not to be replaced."""
        try:
            with translated("ssm:PutParameter", unless=STANDS):
                self._client("ssm").put_parameter(Name=name, Value=value, Type="String", Overwrite=replace)
        except ClientError:
            return False
        return True

    def has_secret(self, name: str) -> bool:
        """Whether the secret exists and is not being deleted."""
        try:
            with translated("secretsmanager:DescribeSecret", unless=NO_SECRET):
                described = self._client("secretsmanager").describe_secret(SecretId=name)
        except ClientError:
            return False
        return "DeletedDate" not in described

    def zone(self, zone_id: str) -> Zone | None:
        """The hosted zone and its SOA record, which every zone has."""
        route53 = self._client("route53")
        try:
            with translated("route53:GetHostedZone", unless=NO_ZONE):
                name = route53.get_hosted_zone(Id=zone_id)["HostedZone"]["Name"]
        except ClientError:
            return None
        with translated("route53:ListResourceRecordSets"):
            found = route53.list_resource_record_sets(HostedZoneId=zone_id, StartRecordName=name, StartRecordType="SOA", MaxItems="1")
        soa = found["ResourceRecordSets"][0]
        return Zone(zone_id, name.rstrip("."), soa["ResourceRecords"][0]["Value"], soa["TTL"])

    def put_soa(self, zone: Zone, soa: str) -> None:
        """Give the zone's SOA record this value, its TTL unchanged."""
        record_set = {"Name": f"{zone.name}.", "Type": "SOA", "TTL": zone.soa_ttl_s, "ResourceRecords": [{"Value": soa}]}
        with translated("route53:ChangeResourceRecordSets"):
            self._client("route53").change_resource_record_sets(
                HostedZoneId=zone.zone_id, ChangeBatch={"Changes": [{"Action": "UPSERT", "ResourceRecordSet": record_set}]}
            )

    def address_sets(self, zone_id: str, name: str) -> tuple[AddressSet, ...]:
        """The A record sets of the name."""
        with translated("route53:ListResourceRecordSets"):
            pages = self._client("route53").get_paginator("list_resource_record_sets")
            listed = pages.paginate(HostedZoneId=zone_id, StartRecordName=name, StartRecordType="A", PaginationConfig={"MaxItems": 100})
            found = [r for page in listed for r in page["ResourceRecordSets"]]
        return tuple(
            AddressSet(
                r.get("SetIdentifier"),
                r.get("TTL", 0),
                tuple(v["Value"] for v in r.get("ResourceRecords", ())) or (r["AliasTarget"]["DNSName"],),
            )
            for r in found
            if r["Type"] == "A" and r["Name"].rstrip(".") == name
        )

    def put_name(self, record: Record, instead_of: AddressSet | None) -> None:
        """Make the instance's record set, in one change with the removal of the simple one that stood there."""
        changes: list[dict[str, Any]] = [{"Action": "UPSERT", "ResourceRecordSet": record_set(record)}]
        if instead_of:
            values = [{"Value": a} for a in instead_of.addresses]
            simple = {"Name": record.name, "Type": "A", "TTL": instead_of.ttl_s, "ResourceRecords": values}
            changes.insert(0, {"Action": "DELETE", "ResourceRecordSet": simple})
        with translated("route53:ChangeResourceRecordSets"):
            self._client("route53").change_resource_record_sets(HostedZoneId=record.zone_id, ChangeBatch={"Changes": changes})

    def _has_profile(self, group: Mapping[str, Any]) -> bool | None:
        mixed = group.get("MixedInstancesPolicy", {}).get("LaunchTemplate", {}).get("LaunchTemplateSpecification")
        template = group.get("LaunchTemplate") or mixed
        if not template:
            return None
        with translated("ec2:DescribeLaunchTemplateVersions"):
            found = self._client("ec2").describe_launch_template_versions(
                LaunchTemplateId=template["LaunchTemplateId"], Versions=[template.get("Version", "$Default")]
            )
        return any("IamInstanceProfile" in v["LaunchTemplateData"] for v in found["LaunchTemplateVersions"])


def stack_outputs(cloudformation: Any, stack: str) -> Mapping[str, str]:
    """The outputs of Autojoin's stack, by name. Raises InvalidInput if there is no such stack, or it is of something else."""
    try:
        with translated("cloudformation:DescribeStacks", unless=VALIDATION):
            (found,) = cloudformation.describe_stacks(StackName=stack)["Stacks"]
    except ClientError as refused:
        raise _no_stack(message_of(refused)) from refused
    outputs = {o["OutputKey"]: o["OutputValue"] for o in found.get("Outputs", [])}
    if "TableName" not in outputs:
        raise _no_stack(f"stack {stack} is {found['StackStatus']} and has no output TableName")
    return outputs


def _no_stack(seen: str) -> errors.InvalidInput:
    return errors.InvalidInput(
        seen,
        "Autojoin's stack, deployed, in this account and region",
        "deploy it first, or name it with --stack; check the region and the credentials",
    )
