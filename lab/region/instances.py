"""EC2 instances of the region are those of the fleet.

ministack's instances are records: a random 10.0.x.x address, zone a always, no network interfaces, filters that match
everything they do not know, no shutting-down, no ModifyInstanceAttribute, no events. Made true while a fleet is attached:
RunInstances (launch templates, instance profile, tags, one interface), DescribeInstances with AWS's filters (an unknown one is
refused), DescribeInstanceStatus, TerminateInstances, ModifyInstanceAttribute and DescribeInstanceAttribute of the
source/destination check, StopInstances and its kin refused. Address and zone come from the subnet. Without a fleet
ministack's own actions answer.
"""

from __future__ import annotations

import datetime
import fnmatch
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from lab.fleet import wire
from lab.fleet.groups import LaunchFailed
from lab.fleet.instance import STATE_CODES, Instance
from lab.fleet.wire import Answer, ApiError

if TYPE_CHECKING:
    from lab.fleet.fleet import Fleet
    from lab.region.region import Region

_ID = re.compile(r"i-([0-9a-f]{8}|[0-9a-f]{17})")
Handler = Callable[["Fleet", Mapping[str, Any]], Mapping[str, Any]]


def apply(region: Region) -> None:
    """Put the fleet's actions in front of ministack's."""
    from ministack.services import ec2

    if not hasattr(region, "fleet"):
        region.fleet = None  # type: ignore[attr-defined]

    for name, handler in HANDLERS.items():
        ec2._ACTION_MAP[name] = _bound(region, name, handler, ec2._ACTION_MAP.get(name))


def _bound(region: Region, name: str, handler: Handler, original: Callable[[Any], Answer] | None) -> Callable[[Any], Answer]:
    operation = wire.service_model("ec2").operation_model(name)

    def handle(parameters: Mapping[str, Any]) -> Answer:
        fleet = region.fleet  # type: ignore[attr-defined]
        if fleet is None:
            if original is None:
                return wire.error_answer("ec2", ApiError("InvalidAction", f"{name}: the lab has no fleet"))
            return original(parameters)
        try:
            return wire.answer(operation, handler(fleet, parameters))
        except ApiError as error:
            return wire.error_answer("ec2", error)
        except LaunchFailed as failure:
            code = "InvalidSubnetID.NotFound" if "subnet ID" in str(failure) and "exist" in str(failure) else "InvalidParameterValue"
            return wire.error_answer("ec2", ApiError(code, str(failure)))

    return handle


def template_of(spec: Mapping[str, Any] | None) -> dict[str, Any]:
    """A launch template's {id, name, version, data} by {LaunchTemplateId or LaunchTemplateName, Version}. Raises LaunchFailed."""
    from ministack.services import ec2

    spec = spec or {}
    wanted_id, wanted_name = spec.get("LaunchTemplateId"), spec.get("LaunchTemplateName")
    for template in ec2._launch_templates.values():
        if template["LaunchTemplateId"] == wanted_id or (not wanted_id and template["LaunchTemplateName"] == wanted_name):
            asked = str(spec.get("Version") or "$Default")
            number = {"$Latest": template["LatestVersionNumber"], "$Default": template["DefaultVersionNumber"]}.get(asked, asked)
            for version in template["Versions"]:
                if str(version["VersionNumber"]) == str(number):
                    return {
                        "id": template["LaunchTemplateId"],
                        "name": template["LaunchTemplateName"],
                        "version": version["VersionNumber"],
                        "data": version["LaunchTemplateData"],
                    }
            raise LaunchFailed(f"Could not find the specified version {asked} of the launch template {template['LaunchTemplateName']}")
    raise LaunchFailed(f"The specified launch template, with template {wanted_id or wanted_name}, does not exist")


# -- actions -------------------------------------------------------------------------------------------------------------


def _run_instances(fleet: Fleet, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    from ministack.services import ec2

    def one(name: str) -> str:
        return str(ec2._p(parameters, name))

    def many(prefix: str) -> list[str]:
        return [str(value) for value in ec2._parse_member_list(parameters, prefix)]

    data: dict[str, Any] = {}
    template = None
    if one("LaunchTemplate.LaunchTemplateId") or one("LaunchTemplate.LaunchTemplateName"):
        spec = {key: one(f"LaunchTemplate.{key}") for key in ("LaunchTemplateId", "LaunchTemplateName", "Version")}
        found = template_of(spec)
        data = found["data"]
        template = {"LaunchTemplateId": found["id"], "LaunchTemplateName": found["name"], "Version": str(found["version"])}
    interface = (data.get("NetworkInterfaces") or [{}])[0]
    profile = {key: one(f"IamInstanceProfile.{key}") for key in ("Arn", "Name") if one(f"IamInstanceProfile.{key}")}
    options = {
        key: one(f"MetadataOptions.{key}")
        for key in ("HttpTokens", "HttpEndpoint", "InstanceMetadataTags", "HttpPutResponseHopLimit")
        if one(f"MetadataOptions.{key}")
    }
    tags = {
        tag["Key"]: str(tag["Value"])
        for spec in data.get("TagSpecifications") or []
        if spec.get("ResourceType") == "instance"
        for tag in spec.get("Tags") or []
    }
    index = 1
    while one(f"TagSpecification.{index}.ResourceType"):
        if one(f"TagSpecification.{index}.ResourceType") == "instance":
            tags |= {tag["Key"]: tag["Value"] for tag in _tags_at(parameters, f"TagSpecification.{index}.Tag")}
        index += 1
    if any(key.startswith("aws:") for key in tags):
        raise ApiError(
            "InvalidParameterValue",
            "Value ( aws: ) for parameter key is invalid. Tag keys starting with 'aws:' are reserved for internal use",
        )
    subnet = one("SubnetId") or one("NetworkInterface.1.SubnetId") or interface.get("SubnetId") or ec2._DEFAULT_SUBNET_ID
    count = int(one("MaxCount") or 1)
    if int(one("MinCount") or 1) > count or count < 1:
        raise ApiError("InvalidParameterCombination", "MinCount must not exceed MaxCount, and MaxCount must be at least 1")
    given_groups = many("SecurityGroupId") or many("NetworkInterface.1.SecurityGroupId")
    launched = [
        fleet.launch_instance(
            subnet_id=subnet, image_id=one("ImageId") or data.get("ImageId") or "ami-00000000",
            instance_type=one("InstanceType") or data.get("InstanceType") or "t3.micro",
            profile=profile or data.get("IamInstanceProfile"),
            security_groups=given_groups or data.get("SecurityGroupIds") or interface.get("Groups") or [],
            tags=tags, metadata_options={**(data.get("MetadataOptions") or {}), **options}, address=one("PrivateIpAddress") or None,
            launch_template=template,
        )
        for _ in range(count)
    ]  # fmt: skip
    return {**_reservation(fleet, launched[0]), "Instances": [shown(fleet, instance) for instance in launched]}


def _tags_at(parameters: Mapping[str, Any], prefix: str) -> list[dict[str, str]]:
    from ministack.services import ec2

    tags, index = [], 1
    while ec2._p(parameters, f"{prefix}.{index}.Key"):
        tags.append({"Key": ec2._p(parameters, f"{prefix}.{index}.Key"), "Value": ec2._p(parameters, f"{prefix}.{index}.Value")})
        index += 1
    return tags


def _describe_instances(fleet: Fleet, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    chosen, token = _page(parameters, _chosen(fleet, parameters))
    reservations = [{**_reservation(fleet, instance), "Instances": [shown(fleet, instance)]} for instance in chosen]
    return {"Reservations": reservations, **({"NextToken": token} if token else {})}


def _describe_instance_status(fleet: Fleet, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    from ministack.services import ec2

    everything = str(ec2._p(parameters, "IncludeAllInstances")).lower() == "true"
    chosen = [one for one in _chosen(fleet, parameters) if everything or one.state == "running"]
    chosen, token = _page(parameters, chosen)
    status = {"Status": "ok", "Details": [{"Name": "reachability", "Status": "passed"}]}
    found = [
        {
            "InstanceId": one.instance_id, "AvailabilityZone": one.zone, "InstanceState": _state(one.state),
            "SystemStatus": status if one.state == "running" else {"Status": "not-applicable"},
            "InstanceStatus": status if one.booted_at else {"Status": "initializing" if one.alive else "not-applicable"},
        }
        for one in chosen
    ]  # fmt: skip
    return {"InstanceStatuses": found, **({"NextToken": token} if token else {})}


def _terminate_instances(fleet: Fleet, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    from ministack.services import ec2

    ids = [str(value) for value in ec2._parse_member_list(parameters, "InstanceId")]
    changes = []
    for instance in [_known(fleet, instance_id) for instance_id in ids]:
        before = instance.state
        fleet.terminate(instance.instance_id)
        changes.append({"InstanceId": instance.instance_id, "PreviousState": _state(before), "CurrentState": _state(instance.state)})
    return {"TerminatingInstances": changes}


def _refused_power(fleet: Fleet, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    raise ApiError("UnsupportedOperation", "the lab's instances are not stopped, started or rebooted; terminate them or kill them")


def _modify_instance_attribute(fleet: Fleet, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    from ministack.services import ec2

    instance = _known(fleet, str(ec2._p(parameters, "InstanceId")))
    value = str(ec2._p(parameters, "SourceDestCheck.Value"))
    if str(ec2._p(parameters, "Attribute")) == "sourceDestCheck":
        value = str(ec2._p(parameters, "Value"))
    if value.lower() not in ("true", "false"):
        raise ApiError("InvalidParameterCombination", "the lab changes SourceDestCheck only")
    if not instance.alive:
        raise ApiError(
            "IncorrectInstanceState",
            f"The instance '{instance.instance_id}' is not in a state from which its attributes can be modified: {instance.state}",
        )
    fleet.set_source_dest_check(instance.instance_id, value.lower() == "true")
    return {}


def _describe_instance_attribute(fleet: Fleet, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    from ministack.services import ec2

    instance = _known(fleet, str(ec2._p(parameters, "InstanceId")))
    attribute = str(ec2._p(parameters, "Attribute"))
    known: dict[str, dict[str, Any]] = {
        "sourceDestCheck": {"SourceDestCheck": {"Value": instance.source_dest_check}},
        "instanceType": {"InstanceType": {"Value": instance.instance_type}},
        "disableApiTermination": {"DisableApiTermination": {"Value": False}},
        "instanceInitiatedShutdownBehavior": {"InstanceInitiatedShutdownBehavior": {"Value": "stop"}},
        "groupSet": {"Groups": instance.record["SecurityGroups"]},
    }
    if attribute not in known:
        raise ApiError("InvalidParameterValue", f"the lab does not show the attribute {attribute}")
    return {"InstanceId": instance.instance_id, **known[attribute]}


HANDLERS: dict[str, Handler] = {
    "RunInstances": _run_instances,
    "DescribeInstances": _describe_instances,
    "DescribeInstanceStatus": _describe_instance_status,
    "TerminateInstances": _terminate_instances,
    "StopInstances": _refused_power,
    "StartInstances": _refused_power,
    "RebootInstances": _refused_power,
    "ModifyInstanceAttribute": _modify_instance_attribute,
    "DescribeInstanceAttribute": _describe_instance_attribute,
}


# -- shapes --------------------------------------------------------------------------------------------------------------


def shown(fleet: Fleet, instance: Instance) -> dict[str, Any]:
    """An instance as DescribeInstances answers it."""
    from lab.fleet.identity import interface_id

    launched = datetime.datetime.fromtimestamp(int(instance.launched_at), datetime.UTC)
    name = f"ip-{instance.address.replace('.', '-')}.ec2.internal"
    groups = [dict(group) for group in instance.record["SecurityGroups"]]
    ended = instance.state == "terminated"
    result: dict[str, Any] = {
        "InstanceId": instance.instance_id,
        "ImageId": instance.image_id,
        "State": _state(instance.state),
        "PrivateDnsName": "" if ended else name,
        "PublicDnsName": "",
        "AmiLaunchIndex": 0,
        "InstanceType": instance.instance_type,
        "LaunchTime": launched,
        "Placement": {"AvailabilityZone": instance.zone, "Tenancy": "default", "GroupName": ""},
        "Monitoring": {"State": "disabled"},
        "Architecture": "x86_64",
        "BlockDeviceMappings": [],
        "EbsOptimized": False,
        "EnaSupport": True,
        "Hypervisor": "xen",
        "RootDeviceName": "/dev/xvda",
        "RootDeviceType": "ebs",
        "VirtualizationType": "hvm",
        "Tags": [{"Key": key, "Value": value} for key, value in sorted(instance.tags.items())],
        "SecurityGroups": [] if ended else groups,
        "NetworkInterfaces": [],
        "MetadataOptions": {
            "State": "applied",
            "HttpTokens": instance.metadata_options["HttpTokens"],
            "HttpPutResponseHopLimit": int(instance.metadata_options["HttpPutResponseHopLimit"]),
            "HttpEndpoint": instance.metadata_options["HttpEndpoint"],
            "InstanceMetadataTags": instance.metadata_options["InstanceMetadataTags"],
        },
    }
    if instance.record.get("IamInstanceProfile"):
        result["IamInstanceProfile"] = dict(instance.record["IamInstanceProfile"])
    if instance.state in ("terminated", "shutting-down"):
        result["StateReason"] = {
            "Code": "Client.UserInitiatedShutdown",
            "Message": "Client.UserInitiatedShutdown: User initiated shutdown",
        }
    if ended:
        return result
    address = {"Primary": True, "PrivateDnsName": name, "PrivateIpAddress": instance.address}
    result |= {
        "PrivateIpAddress": instance.address,
        "SubnetId": instance.subnet_id,
        "VpcId": instance.vpc_id,
        "SourceDestCheck": instance.source_dest_check,
        "NetworkInterfaces": [
            {
                "NetworkInterfaceId": interface_id(instance), "SubnetId": instance.subnet_id, "VpcId": instance.vpc_id,
                "OwnerId": fleet.region.account, "Status": "in-use", "MacAddress": instance.mac, "Description": "",
                "PrivateIpAddress": instance.address, "PrivateDnsName": name, "SourceDestCheck": instance.source_dest_check,
                "Groups": groups, "InterfaceType": "interface", "PrivateIpAddresses": [address],
                "Attachment": {
                    "AttachmentId": f"eni-attach-{instance.instance_id[2:]}", "DeviceIndex": 0, "Status": "attached",
                    "AttachTime": launched, "DeleteOnTermination": True, "NetworkCardIndex": 0,
                },
            }
        ],
    }  # fmt: skip
    return result


def _reservation(fleet: Fleet, instance: Instance) -> dict[str, Any]:
    return {"ReservationId": f"r-{instance.instance_id[2:]}", "OwnerId": fleet.region.account, "Groups": []}


def _state(name: str) -> dict[str, Any]:
    return {"Code": STATE_CODES[name], "Name": name}


def _known(fleet: Fleet, instance_id: str) -> Instance:
    if not _ID.fullmatch(instance_id):
        raise ApiError("InvalidInstanceID.Malformed", f'Invalid id: "{instance_id}"')
    instance = fleet.instances.get(instance_id)
    if instance is None:
        raise ApiError("InvalidInstanceID.NotFound", f"The instance ID '{instance_id}' does not exist")
    return instance


def _chosen(fleet: Fleet, parameters: Mapping[str, Any]) -> list[Instance]:
    from ministack.services import ec2

    filters: dict[str, list[str]] = ec2._parse_filters(parameters)
    unknown = [name for name in filters if name not in FILTERS and not name.startswith("tag:")]
    if unknown:
        raise ApiError("InvalidParameterValue", f"The filter '{unknown[0]}' is invalid")
    ids = [str(value) for value in ec2._parse_member_list(parameters, "InstanceId")]
    instances = [_known(fleet, instance_id) for instance_id in ids] if ids else list(fleet.instances.values())
    return [one for one in instances if all(_matches(one, name, values) for name, values in filters.items())]


def _matches(instance: Instance, name: str, wanted: list[str]) -> bool:
    if name.startswith("tag:"):
        value = instance.tags.get(name[4:])
        values = [] if value is None else [value]
    else:
        values = [str(value) for value in FILTERS[name](instance) if value is not None]
    return any(fnmatch.fnmatchcase(value, pattern.replace("[", "[[]")) for value in values for pattern in wanted)


def _if_there(instance: Instance, *values: Any) -> list[Any]:
    return [] if instance.state == "terminated" else list(values)


def _interface(instance: Instance) -> str:
    from lab.fleet.identity import interface_id

    return interface_id(instance)


FILTERS: dict[str, Callable[[Instance], list[Any]]] = {
    "instance-id": lambda one: [one.instance_id],
    "instance-state-name": lambda one: [one.state],
    "instance-state-code": lambda one: [STATE_CODES[one.state]],
    "instance-type": lambda one: [one.instance_type],
    "image-id": lambda one: [one.image_id],
    "availability-zone": lambda one: [one.zone],
    "private-ip-address": lambda one: _if_there(one, one.address),
    "private-dns-name": lambda one: _if_there(one, f"ip-{one.address.replace('.', '-')}.ec2.internal"),
    "vpc-id": lambda one: _if_there(one, one.vpc_id),
    "subnet-id": lambda one: _if_there(one, one.subnet_id),
    "iam-instance-profile.arn": lambda one: [one.profile_arn],
    "source-dest-check": lambda one: _if_there(one, str(one.source_dest_check).lower()),
    "instance.group-id": lambda one: [group["GroupId"] for group in one.record["SecurityGroups"]],
    "reservation-id": lambda one: [f"r-{one.instance_id[2:]}"],
    "tag-key": lambda one: list(one.tags),
    "tag-value": lambda one: list(one.tags.values()),
    "network-interface.addresses.private-ip-address": lambda one: _if_there(one, one.address),
    "network-interface.private-ip-address": lambda one: _if_there(one, one.address),
    "network-interface.network-interface-id": lambda one: _if_there(one, _interface(one)),
    "network-interface.subnet-id": lambda one: _if_there(one, one.subnet_id),
    "network-interface.vpc-id": lambda one: _if_there(one, one.vpc_id),
    "network-interface.mac-address": lambda one: _if_there(one, one.mac),
    "network-interface.availability-zone": lambda one: _if_there(one, one.zone),
    "network-interface.group-id": lambda one: _if_there(one, *(group["GroupId"] for group in one.record["SecurityGroups"])),
    "network-interface.source-dest-check": lambda one: _if_there(one, str(one.source_dest_check).lower()),
    "network-interface.status": lambda one: _if_there(one, "in-use"),
}
"""What each filter compares; a terminated instance has no network any more. Names are AWS's, those the lab knows."""


def _page(parameters: Mapping[str, Any], found: list[Instance]) -> tuple[list[Instance], str | None]:
    from ministack.services import ec2

    first, most = int(ec2._p(parameters, "NextToken") or 0), int(ec2._p(parameters, "MaxResults") or 1000)
    rest = len(found) > first + most
    return found[first : first + most], str(first + most) if rest else None
