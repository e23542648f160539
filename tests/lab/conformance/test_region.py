"""The region: what an operator exports is enough, calls are journalled with their caller, events come as from AWS."""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from lab.region.region import Region
from tests.lab.conformance.conftest import STACK, eventually

pytestmark = pytest.mark.lab


def test_an_operator_needs_only_the_exported_environment(region: Region, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in region.environment().items():
        monkeypatch.setenv(name, value)

    identity = boto3.client("sts").get_caller_identity()

    assert identity["Account"] == region.account


def test_the_region_listens_on_loopback_only_and_writes_below_its_root(region: Region) -> None:
    inodes = {os.readlink(f"/proc/self/fd/{fd}").strip("socket:[]") for fd in os.listdir("/proc/self/fd") if _is_socket(fd)}
    listening = [
        line.split()[1]
        for table in ("tcp", "tcp6")
        for line in open(f"/proc/net/{table}", encoding="ascii").read().splitlines()[1:]  # noqa: SIM115
        if line.split()[3] == "0A" and line.split()[9] in inodes
    ]

    assert [address.split(":")[0] for address in listening] == ["0100007F"]
    assert os.environ["TMPDIR"].startswith(str(region.root))


def _is_socket(fd: str) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{fd}").startswith("socket:")
    except OSError:
        return False


def test_an_unsigned_call_is_refused(region: Region) -> None:
    request = urllib.request.Request(
        region.endpoint_url,
        data=b"{}",
        headers={"X-Amz-Target": "DynamoDB_20120810.ListTables", "Content-Type": "application/x-amz-json-1.0"},
    )

    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10)

    assert refused.value.code in (400, 401, 403)


def test_each_call_is_journalled_with_its_parameters_and_error(region: Region) -> None:
    with pytest.raises(ClientError):
        region.client("ec2").describe_instances(InstanceIds=["i-0123456789abcdef0"])

    call = region.journal.entries("api_call")[-1]
    assert (call["service"], call["operation"], call["principal"]) == ("ec2", "DescribeInstances", "root")
    assert (call["status"], call["error"], call["source"]) == (400, "InvalidInstanceID.NotFound", "http")
    assert call["detail"]["InstanceIds"] == ["i-0123456789abcdef0"]


def test_a_functions_call_is_journalled_as_its_roles(region: Region, invoke: Callable[..., tuple[Any, str | None]]) -> None:
    arn, _ = invoke({"operation": "caller"})

    call = [c for c in region.journal.entries("api_call") if c["operation"] == "GetCallerIdentity"][-1]
    assert call["principal"] == arn
    assert ":assumed-role/" in arn
    assert arn.endswith(f"/{STACK}-greet")


def test_an_item_is_journalled_by_its_key_and_no_more(region: Region) -> None:
    table(region, "journalled")

    region.client("dynamodb").put_item(TableName="journalled", Item={"pk": {"S": "NODE#i-1"}, "token": {"S": "not for a log"}})

    call = [c for c in region.journal.entries("api_call") if c["operation"] == "PutItem"][-1]
    assert call["detail"] == {"TableName": "journalled", "Key": {"pk": "NODE#i-1"}}


def test_an_operator_cannot_publish_as_aws_but_the_region_can(region: Region) -> None:
    events, sqs = region.client("events"), region.client("sqs")
    queue = sqs.create_queue(QueueName="as-aws")["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    policy = (
        '{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Principal":{"Service":"events.amazonaws.com"},'
        f'"Action":"sqs:SendMessage","Resource":"{arn}"}}]}}'
    )
    sqs.set_queue_attributes(QueueUrl=queue, Attributes={"Policy": policy})
    events.put_rule(Name="as-aws", EventPattern='{"source": ["aws.autoscaling"]}')
    events.put_targets(Rule="as-aws", Targets=[{"Id": "q", "Arn": arn}])

    by_hand = events.put_events(Entries=[{"Source": "aws.autoscaling", "DetailType": "x", "Detail": "{}"}])
    region.put_event("aws.autoscaling", "EC2 Instance-launch Lifecycle Action", {"EC2InstanceId": "i-1"}, ["arn:group"])

    assert by_hand["Entries"][0]["ErrorCode"] == "NotAuthorizedForSourceException"
    messages = eventually(lambda: sqs.receive_message(QueueUrl=queue, WaitTimeSeconds=1).get("Messages"))
    assert '"resources": ["arn:group"]' in messages[0]["Body"]
    events.remove_targets(Rule="as-aws", Ids=["q"])
    events.delete_rule(Name="as-aws")


def test_overrides_know_the_caller(region: Region) -> None:
    with region.acting_as("arn:aws:sts::000000000000:assumed-role/x/y"):
        assert region.principal() == "arn:aws:sts::000000000000:assumed-role/x/y"

    assert region.principal() == "root"


def table(region: Region, name: str) -> None:
    region.client("dynamodb").create_table(
        TableName=name,
        KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "pk", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
