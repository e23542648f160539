"""Ports Names and Targets, on moto: a record is deleted only exactly, a target is one of the groups that exist."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import boto3
import pytest

from autojoin import errors
from autojoin.adapters.elbv2 import ElbV2Targets
from autojoin.adapters.route53 import Route53Names
from autojoin.domain.naming import Record, Target, name_of_api
from autojoin.ports import TargetGroup
from tests.adapters.conftest import REGION, Stubs

ME, OTHER = "i-00000000000000001", "i-00000000000000002"
NAME = name_of_api("rp1", "demo.arktos.internal")


@pytest.fixture
def zone(region: None) -> Iterator[tuple[Any, str]]:
    client = boto3.client("route53", region_name=REGION)
    zone_id = client.create_hosted_zone(Name="demo.arktos.internal", CallerReference="x")["HostedZone"]["Id"].rpartition("/")[2]
    yield client, zone_id
    for found in client.list_resource_record_sets(HostedZoneId=zone_id)["ResourceRecordSets"]:
        if found["Type"] == "A":
            change = {"Action": "DELETE", "ResourceRecordSet": found}
            client.change_resource_record_sets(HostedZoneId=zone_id, ChangeBatch={"Changes": [change]})
    client.delete_hosted_zone(Id=zone_id)


def records(client: Any, zone_id: str) -> list[dict[str, Any]]:
    return [r for r in client.list_resource_record_sets(HostedZoneId=zone_id)["ResourceRecordSets"] if r["Type"] == "A"]


def test_a_record_is_one_of_a_multivalue_answer(zone: tuple[Any, str]) -> None:
    client, zone_id = zone
    names = Route53Names(client)

    for _ in range(2):
        names.put(Record(zone_id, NAME, ME, 10, "10.0.0.10"))
    names.put(Record(zone_id, NAME, OTHER, 10, "10.0.0.11"))

    found = records(client, zone_id)
    assert {(r["SetIdentifier"], r["ResourceRecords"][0]["Value"]) for r in found} == {(ME, "10.0.0.10"), (OTHER, "10.0.0.11")}
    assert {(r["Name"], r["TTL"], r["MultiValueAnswer"]) for r in found} == {(NAME + ".", 10, True)}


def test_only_the_own_record_is_deleted(zone: tuple[Any, str]) -> None:
    client, zone_id = zone
    names, record = Route53Names(client), Record(zone_id, NAME, ME, 10, "10.0.0.10")
    names.put(record)
    names.put(Record(zone_id, NAME, OTHER, 10, "10.0.0.11"))

    assert names.delete(record)

    assert [r["SetIdentifier"] for r in records(client, zone_id)] == [OTHER]


def test_what_is_to_be_deleted_is_named_in_every_part(stubs: Stubs) -> None:
    """moto deletes by name and identifier alone; Route 53 compares everything."""
    asked = {
        "HostedZoneId": "Z0DEMO",
        "ChangeBatch": {
            "Changes": [
                {
                    "Action": "DELETE",
                    "ResourceRecordSet": {
                        "Name": NAME,
                        "Type": "A",
                        "SetIdentifier": ME,
                        "MultiValueAnswer": True,
                        "TTL": 10,
                        "ResourceRecords": [{"Value": "10.0.0.10"}],
                    },
                }
            ]
        },
    }
    answer = {"ChangeInfo": {"Id": "C1", "Status": "PENDING", "SubmittedAt": "2026-01-01T00:00:00Z"}}
    stubs.expect("route53", "change_resource_record_sets", answer, asked)

    assert Route53Names(stubs.client("route53")).delete(Record("Z0DEMO", NAME, ME, 10, "10.0.0.10"))


@pytest.mark.parametrize("code", ["InvalidChangeBatch", "NoSuchHostedZone"])
def test_a_record_that_is_not_there_or_another_one_is_not_deleted(stubs: Stubs, code: str) -> None:
    stubs.refuse("route53", "change_resource_record_sets", code, "not found")

    assert not Route53Names(stubs.client("route53")).delete(Record("Z0DEMO", NAME, ME, 10, "10.0.0.10"))


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("NoSuchHostedZone", errors.ZoneNotConfigured),
        ("AccessDenied", errors.AwsRefused),
        ("InvalidChangeBatch", errors.AwsRefused),
        ("Throttling", errors.AwsThrottled),
        ("PriorRequestNotComplete", errors.AwsThrottled),
    ],
)
def test_a_refused_put_is_an_error_by_its_reason(stubs: Stubs, code: str, expected: type[Exception]) -> None:
    stubs.refuse("route53", "change_resource_record_sets", code)

    with pytest.raises(expected):
        Route53Names(stubs.client("route53")).put(Record("Z0DEMO", NAME, ME, 10, "10.0.0.10"))


@pytest.mark.parametrize("code", ["AccessDenied", "Throttling"])
def test_a_refused_delete_is_not_taken_for_a_record_that_is_not_there(stubs: Stubs, code: str) -> None:
    stubs.refuse("route53", "change_resource_record_sets", code)

    with pytest.raises((errors.AwsRefused, errors.AwsThrottled)):
        Route53Names(stubs.client("route53")).delete(Record("Z0DEMO", NAME, ME, 10, "10.0.0.10"))


# -- targets ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def vpc(region: None) -> dict[str, str]:
    ec2 = boto3.client("ec2", region_name=REGION)
    vpc_id = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    subnet_id = ec2.create_subnet(VpcId=vpc_id, CidrBlock="10.0.0.0/24")["Subnet"]["SubnetId"]
    (instance,) = ec2.run_instances(ImageId="ami-12345678", MinCount=1, MaxCount=1, SubnetId=subnet_id)["Instances"]
    return {"vpc": vpc_id, "instance": instance["InstanceId"]}


@pytest.fixture
def elbv2(vpc: dict[str, str]) -> Any:
    return boto3.client("elbv2", region_name=REGION)


def a_group(elbv2: Any, vpc: dict[str, str], name: str, target_type: str = "instance", port: int = 8080) -> str:
    made = elbv2.create_target_group(Name=name, Protocol="TCP", Port=port, VpcId=vpc["vpc"], TargetType=target_type)
    return str(made["TargetGroups"][0]["TargetGroupArn"])


def test_groups_that_exist_are_known_with_their_port_and_type(elbv2: Any, vpc: dict[str, str]) -> None:
    by_instance, by_address = a_group(elbv2, vpc, "by-instance"), a_group(elbv2, vpc, "by-address", "ip", 443)

    found = ElbV2Targets(elbv2).groups([by_instance, by_address, by_instance.replace("by-instance", "gone")])

    assert found == {by_instance: TargetGroup(by_instance, 8080, "instance"), by_address: TargetGroup(by_address, 443, "ip")}


def test_a_target_comes_and_goes_however_often_it_is_said(elbv2: Any, vpc: dict[str, str]) -> None:
    target = Target(a_group(elbv2, vpc, "comes-and-goes"), vpc["instance"], 8080)
    targets = ElbV2Targets(elbv2)

    def registered() -> list[str]:
        return [d["Target"]["Id"] for d in elbv2.describe_target_health(TargetGroupArn=target.group_arn)["TargetHealthDescriptions"]]

    for _ in range(2):
        targets.register(target)
    assert registered() == [vpc["instance"]]
    for _ in range(2):
        targets.deregister(target)
    assert registered() == []


def test_a_target_of_a_group_that_is_gone_is_deregistered_already(stubs: Stubs) -> None:
    stubs.refuse("elbv2", "deregister_targets", "TargetGroupNotFound")

    ElbV2Targets(stubs.client("elbv2")).deregister(Target("arn:aws:x", ME, 8080))


@pytest.mark.parametrize(
    ("health", "expected"),
    [
        ({"State": "healthy"}, ("healthy", "")),
        ({"State": "initial", "Reason": "Elb.RegistrationInProgress"}, ("initial", "Elb.RegistrationInProgress")),
        ({"State": "unused", "Reason": "Target.NotInUse"}, ("unused", "Target.NotInUse")),
    ],
)
def test_a_targets_health_is_its_state_and_reason(stubs: Stubs, health: dict[str, str], expected: tuple[str, str]) -> None:
    answer = {"TargetHealthDescriptions": [{"Target": {"Id": ME, "Port": 8080}, "TargetHealth": health}]}
    stubs.expect("elbv2", "describe_target_health", answer, {"TargetGroupArn": "arn:aws:x", "Targets": [{"Id": ME, "Port": 8080}]})

    assert ElbV2Targets(stubs.client("elbv2")).health(Target("arn:aws:x", ME, 8080)) == expected


@pytest.mark.parametrize("method", ["register_targets", "deregister_targets"])
@pytest.mark.parametrize(("code", "expected"), [("AccessDenied", errors.AwsRefused), ("Throttling", errors.AwsThrottled)])
def test_a_refused_change_is_an_error(stubs: Stubs, method: str, code: str, expected: type[Exception]) -> None:
    stubs.refuse("elbv2", method, code)
    act = getattr(ElbV2Targets(stubs.client("elbv2")), method.partition("_")[0])

    with pytest.raises(expected):
        act(Target("arn:aws:x", ME, 8080))


def test_what_an_intent_keeps_of_a_record_or_target_is_all_of_it() -> None:
    record, target = Record("Z0DEMO", NAME, ME, 10, "10.0.0.10"), Target("arn:aws:x", ME, 8080)

    assert Record.of(record.value) == record
    assert Target.of(target.group_arn, target.value) == target
