"""Port Operator on moto, and by Stubber where moto says something else than AWS."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import boto3
import pytest

from autojoin import errors
from autojoin.adapters.operator import AwsOperator, stack_outputs
from autojoin.domain.lifecycle import LAUNCH_TRANSITION
from autojoin.domain.naming import Record
from autojoin.ports import AddressSet, GroupTag, Zone
from tests.adapters.conftest import REGION, Stubs

OURS = '{"autojoin":1}'
SOA = "ns-1536.awsdns-00.co.uk. awsdns-hostmaster.amazon.com. 1 7200 900 1209600 86400"


def client(service: str) -> Any:
    return boto3.client(service, region_name=REGION)


@pytest.fixture(scope="module")
def operator(region: None) -> AwsOperator:
    return AwsOperator(client)


@pytest.fixture(scope="module")
def subnet(region: None) -> str:
    ec2 = client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    return str(ec2.create_subnet(VpcId=vpc, CidrBlock="10.0.0.0/20")["Subnet"]["SubnetId"])


@pytest.fixture
def group(subnet: str) -> Iterator[str]:
    """A group of one instance, its launch template without a profile."""
    made = make_group("masters", subnet, {}, tags=[{"Key": "autojoin:cluster", "Value": "demo", "PropagateAtLaunch": False}])
    yield made
    delete_group(made)


def make_group(name: str, subnet: str, data: dict[str, Any], tags: list[dict[str, Any]] | None = None, *, mixed: bool = False) -> str:
    data = {"ImageId": "ami-12c6146b", "InstanceType": "m5.large", **data}
    template = client("ec2").create_launch_template(LaunchTemplateName=name, LaunchTemplateData=data)["LaunchTemplate"]
    specification = {"LaunchTemplateId": template["LaunchTemplateId"], "Version": "$Latest"}
    policy = {"LaunchTemplate": {"LaunchTemplateSpecification": specification}}
    how = {"MixedInstancesPolicy": policy} if mixed else {"LaunchTemplate": specification}
    client("autoscaling").create_auto_scaling_group(
        AutoScalingGroupName=name,
        MinSize=0,
        MaxSize=2,
        DesiredCapacity=1,
        VPCZoneIdentifier=subnet,
        NewInstancesProtectedFromScaleIn=True,
        Tags=tags or [],
        **how,
    )
    return name


def delete_group(name: str) -> None:
    client("autoscaling").delete_auto_scaling_group(AutoScalingGroupName=name, ForceDelete=True)
    client("ec2").delete_launch_template(LaunchTemplateName=name)


def test_a_group_is_described_with_its_instances_tags_and_subnets(operator: AwsOperator, group: str, subnet: str) -> None:
    seen = operator.group(group)

    assert seen
    assert (seen.max_size, seen.protects_new, seen.subnet_ids, seen.has_profile) == (2, True, (subnet,), False)
    assert seen.tags == {"autojoin:cluster": GroupTag("demo", False)}
    assert [(m.lifecycle_state, m.is_protected) for m in seen.members] == [("InService", True)]


@pytest.mark.parametrize("mixed", [False, True])
def test_a_profile_of_the_launch_template_is_seen(operator: AwsOperator, subnet: str, mixed: bool) -> None:
    name = make_group(f"profiled-{mixed}", subnet, {"IamInstanceProfile": {"Name": "node"}}, mixed=mixed)

    seen = operator.group(name)

    assert seen
    assert seen.has_profile is True
    delete_group(name)


def test_a_group_that_does_not_exist_is_none(operator: AwsOperator) -> None:
    assert operator.group("nobody") is None


def test_a_group_without_launch_template_says_nothing_of_a_profile(stubs: Stubs) -> None:
    described = {
        "AutoScalingGroupName": "old",
        "MinSize": 0,
        "MaxSize": 1,
        "DesiredCapacity": 0,
        "DefaultCooldown": 300,
        "AvailabilityZones": ["eu-central-1a"],
        "HealthCheckType": "EC2",
        "CreatedTime": 0,
        "LaunchConfigurationName": "old",
        "Instances": [],
    }
    stubs.expect("autoscaling", "describe_auto_scaling_groups", {"AutoScalingGroups": [described]}, {"AutoScalingGroupNames": ["old"]})

    seen = AwsOperator(stubs.client).group("old")

    assert seen
    assert (seen.has_profile, seen.subnet_ids, seen.tags) == (None, (), {})


def test_tags_of_a_group_propagate_and_replace(operator: AwsOperator, group: str) -> None:
    operator.tag_group(group, {"autojoin:cluster": "demo", "autojoin:role": "rp"})
    operator.tag_group(group, {"autojoin:role": "rp"})

    seen = operator.group(group)
    assert seen
    assert seen.tags == {"autojoin:cluster": GroupTag("demo", True), "autojoin:role": GroupTag("rp", True)}


def test_the_hook_may_be_put_twice_and_abandons(operator: AwsOperator, group: str) -> None:
    for _ in range(2):
        operator.put_launch_hook(group, "autojoin-launching", 300, OURS)

    (hook,) = client("autoscaling").describe_lifecycle_hooks(AutoScalingGroupName=group)["LifecycleHooks"]
    assert (hook["DefaultResult"], hook["HeartbeatTimeout"], hook["LifecycleTransition"]) == ("ABANDON", 300, LAUNCH_TRANSITION)


def test_the_hook_carries_our_metadata(stubs: Stubs) -> None:
    """moto forgets it."""
    asked = {
        "AutoScalingGroupName": "masters",
        "LifecycleHookName": "autojoin-launching",
        "LifecycleTransition": LAUNCH_TRANSITION,
        "HeartbeatTimeout": 300,
        "DefaultResult": "ABANDON",
        "NotificationMetadata": OURS,
    }
    stubs.expect("autoscaling", "put_lifecycle_hook", {}, asked)

    AwsOperator(stubs.client).put_launch_hook("masters", "autojoin-launching", 300, OURS)


def test_an_instance_is_tagged(operator: AwsOperator, group: str) -> None:
    seen = operator.group(group)
    assert seen
    instance_id = seen.members[0].instance_id

    operator.tag_instance(instance_id, {"autojoin:partition": "rp1"})

    (reservation,) = client("ec2").describe_instances(InstanceIds=[instance_id])["Reservations"]
    assert {"Key": "autojoin:partition", "Value": "rp1"} in reservation["Instances"][0]["Tags"]


def test_a_parameter_is_replaced_only_when_told(operator: AwsOperator) -> None:
    assert operator.parameter("/autojoin/demo/cluster") is None

    assert operator.put_parameter("/autojoin/demo/cluster", "one", replace=False)
    assert not operator.put_parameter("/autojoin/demo/cluster", "two", replace=False)
    assert operator.parameter("/autojoin/demo/cluster") == "one"
    assert operator.put_parameter("/autojoin/demo/cluster", "three", replace=True)
    assert operator.parameter("/autojoin/demo/cluster") == "three"


def test_a_secret_that_is_being_deleted_counts_as_none(operator: AwsOperator) -> None:
    name = "autojoin/demo/rp1/kubernetes"
    assert not operator.has_secret(name)
    client("secretsmanager").create_secret(Name=name, SecretString=json.dumps({}))
    assert operator.has_secret(name)

    client("secretsmanager").delete_secret(SecretId=name)

    assert not operator.has_secret(name)


def test_the_soa_of_a_zone_is_read_and_written_with_its_ttl(operator: AwsOperator) -> None:
    route53 = client("route53")
    zone_id = route53.create_hosted_zone(Name="demo.arktos.internal", CallerReference="1")["HostedZone"]["Id"].rpartition("/")[2]
    written = Zone(zone_id, "demo.arktos.internal", "", 900)
    operator.put_soa(written, SOA)

    assert operator.zone(zone_id) == Zone(zone_id, "demo.arktos.internal", SOA, 900)


@pytest.mark.parametrize("code", ["NoSuchHostedZone", "InvalidInput"])
def test_a_zone_that_does_not_exist_is_none(stubs: Stubs, code: str) -> None:
    stubs.refuse("route53", "get_hosted_zone", code)

    assert AwsOperator(stubs.client).zone("ZNOBODY") is None


def test_the_outputs_of_a_stack_by_name(stubs: Stubs) -> None:
    outputs = [{"OutputKey": "TableName", "OutputValue": "autojoin-nodes"}, {"OutputKey": "CommandLogGroup", "OutputValue": "/autojoin"}]
    stack = {"StackName": "autojoin", "StackStatus": "CREATE_COMPLETE", "CreationTime": 0, "Outputs": outputs}
    stubs.expect("cloudformation", "describe_stacks", {"Stacks": [stack]}, {"StackName": "autojoin"})

    found = stack_outputs(stubs.client("cloudformation"), "autojoin")

    assert found == {"TableName": "autojoin-nodes", "CommandLogGroup": "/autojoin"}


def test_a_stack_of_something_else_is_refused(stubs: Stubs) -> None:
    stack = {"StackName": "web", "StackStatus": "CREATE_COMPLETE", "CreationTime": 0}
    stubs.expect("cloudformation", "describe_stacks", {"Stacks": [stack]})

    with pytest.raises(errors.InvalidInput, match="web is CREATE_COMPLETE and has no output TableName"):
        stack_outputs(stubs.client("cloudformation"), "web")


def test_a_stack_that_does_not_exist_is_refused(stubs: Stubs) -> None:
    stubs.refuse("cloudformation", "describe_stacks", "ValidationError", "Stack with id nobody does not exist")

    with pytest.raises(errors.InvalidInput, match="nobody does not exist"):
        stack_outputs(stubs.client("cloudformation"), "nobody")


def test_a_simple_record_gives_way_to_one_set_per_instance_in_one_change(operator: AwsOperator) -> None:
    route53 = client("route53")
    zone_id = route53.create_hosted_zone(Name="names.internal", CallerReference="names")["HostedZone"]["Id"].rpartition("/")[2]
    name = "api.tp1.names.internal"
    simple = {"Name": name, "Type": "A", "TTL": 300, "ResourceRecords": [{"Value": "10.0.0.10"}]}
    route53.change_resource_record_sets(HostedZoneId=zone_id, ChangeBatch={"Changes": [{"Action": "CREATE", "ResourceRecordSet": simple}]})

    (before,) = operator.address_sets(zone_id, name)
    operator.put_name(Record(zone_id, name, "i-0123456789abcdef0", 10, "10.0.0.10"), before)

    assert before == AddressSet(None, 300, ("10.0.0.10",))
    assert operator.address_sets(zone_id, name) == (AddressSet("i-0123456789abcdef0", 10, ("10.0.0.10",)),)
    assert operator.address_sets(zone_id, "api.tp2.names.internal") == ()
