"""Port Instances on EC2."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from autojoin import errors
from autojoin.adapters.ec2 import Ec2Instances
from autojoin.ports import Instance
from tests.adapters.conftest import Stubs

INSTANCE = "i-0123456789abcdef0"
LAUNCHED = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)


@pytest.fixture
def instances(stubs: Stubs) -> Ec2Instances:
    return Ec2Instances(stubs.client("ec2"))


def described(instance_id: str = INSTANCE, *, launched: datetime = LAUNCHED, **more: Any) -> dict[str, Any]:
    found = {
        "InstanceId": instance_id,
        "State": {"Code": 16, "Name": "running"},
        "LaunchTime": launched,
        "PrivateIpAddress": "10.0.0.10",
        "SubnetId": "subnet-a",
        "Tags": [{"Key": "autojoin:cluster", "Value": "demo"}],
    }
    return {k: v for k, v in {**found, **more}.items() if v is not None}


def reservations(*found: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"Reservations": [{"Instances": [i]} for i in found], **more}


def test_an_instance_is_described(stubs: Stubs, instances: Ec2Instances) -> None:
    stubs.expect("ec2", "describe_instances", reservations(described()), {"InstanceIds": [INSTANCE]})

    assert instances.get(INSTANCE) == Instance(
        INSTANCE, "running", "10.0.0.10", "subnet-a", {"autojoin:cluster": "demo"}, int(LAUNCHED.timestamp() * 1000)
    )


def test_a_terminated_instance_has_neither_address_nor_subnet_nor_tags(stubs: Stubs, instances: Ec2Instances) -> None:
    gone = described(State={"Code": 48, "Name": "terminated"}, PrivateIpAddress=None, SubnetId=None, Tags=None)
    stubs.expect("ec2", "describe_instances", reservations(gone))

    found = instances.get(INSTANCE)

    assert found is not None
    assert (found.state, found.address, found.subnet_id, found.tags) == ("terminated", None, None, {})


@pytest.mark.parametrize("code", ["InvalidInstanceID.NotFound", "InvalidInstanceID.Malformed"])
def test_an_id_that_ec2_does_not_know_is_no_instance(stubs: Stubs, instances: Ec2Instances, code: str) -> None:
    stubs.refuse("ec2", "describe_instances", code)

    assert instances.get(INSTANCE) is None


def test_an_empty_answer_is_no_instance(stubs: Stubs, instances: Ec2Instances) -> None:
    stubs.expect("ec2", "describe_instances", {"Reservations": []})

    assert instances.get(INSTANCE) is None


@pytest.mark.parametrize(
    ("code", "status", "expected"),
    [
        ("RequestLimitExceeded", 503, errors.AwsThrottled),
        ("Unavailable", 503, errors.AwsUnavailable),
        ("InternalError", 500, errors.AwsUnavailable),
        ("UnauthorizedOperation", 403, errors.AwsRefused),
    ],
)
def test_a_refusal_is_never_taken_for_no_instance(
    stubs: Stubs, instances: Ec2Instances, code: str, status: int, expected: type[Exception]
) -> None:
    stubs.refuse("ec2", "describe_instances", code, status=status)

    with pytest.raises(expected):
        instances.get(INSTANCE)


def test_running_instances_are_asked_for_by_tags_and_come_oldest_first(stubs: Stubs, instances: Ec2Instances) -> None:
    asked = {
        "Filters": [
            {"Name": "tag:autojoin:cluster", "Values": ["demo"]},
            {"Name": "tag:autojoin:partition", "Values": ["rp1"]},
            {"Name": "tag:autojoin:role", "Values": ["master", "rp"]},
            {"Name": "instance-state-name", "Values": ["pending", "running"]},
        ]
    }
    young, old = described("i-young"), described("i-old", launched=datetime(2026, 1, 1, tzinfo=UTC))
    stubs.expect("ec2", "describe_instances", reservations(young, NextToken="more"), asked)
    stubs.expect("ec2", "describe_instances", reservations(old), {**asked, "NextToken": "more"})

    found = instances.running("demo", "rp1", ("rp", "master"))

    assert [i.instance_id for i in found] == ["i-old", "i-young"]


def test_subnets_are_asked_for_once_each(stubs: Stubs, instances: Ec2Instances) -> None:
    answer = {"Subnets": [{"SubnetId": "subnet-a", "CidrBlock": "10.0.0.0/20"}, {"SubnetId": "subnet-b", "CidrBlock": "10.0.16.0/20"}]}
    stubs.expect("ec2", "describe_subnets", answer, {"SubnetIds": ["subnet-a", "subnet-b"]})

    assert instances.subnet_cidrs({"subnet-b", "subnet-a"}) == {"subnet-a": "10.0.0.0/20", "subnet-b": "10.0.16.0/20"}


def test_only_the_source_destination_check_is_changed(stubs: Stubs, instances: Ec2Instances) -> None:
    stubs.expect("ec2", "modify_instance_attribute", {}, {"InstanceId": INSTANCE, "SourceDestCheck": {"Value": False}})

    instances.switch_off_source_dest_check(INSTANCE)


@pytest.mark.parametrize("code", ["IncorrectInstanceState", "InvalidInstanceID.NotFound"])
def test_a_terminated_instance_is_gone_and_not_a_refusal(stubs: Stubs, instances: Ec2Instances, code: str) -> None:
    stubs.refuse("ec2", "modify_instance_attribute", code, status=400)

    with pytest.raises(errors.InstanceGone):
        instances.switch_off_source_dest_check(INSTANCE)
