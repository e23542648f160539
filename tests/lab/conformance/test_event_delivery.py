"""Delivery of events and asynchronous invocations: lab/region/event_delivery.py."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from lab.region.event_delivery import read_path
from lab.region.region import Region
from tests.lab.conformance.conftest import STACK, eventually

pytestmark = pytest.mark.lab


def put(region: Region, kind: str, resources: tuple[str, ...] = ()) -> None:
    region.client("events").put_events(
        Entries=[{"Source": "conformance", "DetailType": kind, "Detail": "{}", "Resources": list(resources)}]
    )


def message(region: Region, queue_url: str) -> dict[str, Any]:
    sqs = region.client("sqs")

    def receive() -> list[dict[str, Any]]:
        return sqs.receive_message(QueueUrl=queue_url, MessageAttributeNames=["All"], WaitTimeSeconds=1).get("Messages", [])

    found: dict[str, Any] = eventually(receive)[0]
    sqs.delete_message(QueueUrl=queue_url, ReceiptHandle=found["ReceiptHandle"])
    return found


def failures(region: Region) -> int:
    return sum(entry["name"] == f"{STACK}-fail" for entry in region.journal.entries("function"))


def test_a_failing_function_is_tried_three_times_then_its_event_goes_to_the_failure_destination(
    region: Region, outputs: dict[str, str]
) -> None:
    before = failures(region)

    put(region, "fail", ("arn:the-group",))

    record = json.loads(message(region, outputs["QueueUrl"])["Body"])
    assert failures(region) - before == 3
    assert record["requestContext"]["condition"] == "RetriesExhausted"
    assert record["requestContext"]["approximateInvokeCount"] == 3
    assert record["responsePayload"]["errorType"] == "QuorumAtRisk"
    assert record["requestPayload"] == {"resource": "arn:the-group", "kind": "fail"}


def test_an_event_that_would_be_too_old_on_aws_is_not_tried_again(region: Region, outputs: dict[str, str]) -> None:
    client = region.client("lambda")
    given = client.get_function_event_invoke_config(FunctionName=f"{STACK}-fail", Qualifier="$LATEST")
    settings = {
        "FunctionName": f"{STACK}-fail",
        "Qualifier": "$LATEST",
        "MaximumRetryAttempts": 2,
        "DestinationConfig": given["DestinationConfig"],
    }
    client.put_function_event_invoke_config(**settings, MaximumEventAgeInSeconds=60)
    before = failures(region)

    put(region, "fail", ("arn:the-group",))

    record = json.loads(message(region, outputs["QueueUrl"])["Body"])
    client.put_function_event_invoke_config(**settings, MaximumEventAgeInSeconds=600)
    assert record["requestContext"]["condition"] == "EventAgeExceeded"
    assert failures(region) - before == 1


def test_a_rule_without_permission_does_not_invoke_and_its_event_is_dead_lettered(region: Region, outputs: dict[str, str]) -> None:
    def calls() -> int:
        return sum(entry["name"] == f"{STACK}-greet" for entry in region.journal.entries("function"))

    before = calls()

    put(region, "forbidden")

    dead = message(region, outputs["QueueUrl"])
    attributes = {name: value["StringValue"] for name, value in dead["MessageAttributes"].items()}
    assert attributes["ERROR_CODE"] == "NO_PERMISSIONS"
    assert attributes["TARGET_ARN"].endswith(f":{STACK}-greet")
    assert ":rule/" in attributes["RULE_ARN"]
    assert attributes["RETRY_ATTEMPTS"] == "0"
    assert json.loads(dead["Body"])["detail-type"] == "forbidden"
    assert calls() == before


@pytest.fixture
def rule(region: Region, outputs: dict[str, str]) -> Any:
    """Make a rule whose dead letters go to the application's queue, which allows them; removed afterwards."""
    events, sqs = region.client("events"), region.client("sqs")
    queue = outputs["QueueUrl"]
    read = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["QueueArn", "Policy"])["Attributes"]
    arn = events.put_rule(Name="made", EventPattern='{"source": ["conformance"], "detail-type": ["made"]}')["RuleArn"]
    allowed = {
        "Effect": "Allow", "Principal": {"Service": "events.amazonaws.com"}, "Action": "sqs:SendMessage",
        "Resource": read["QueueArn"], "Condition": {"ArnEquals": {"aws:SourceArn": arn}},
    }  # fmt: skip
    policy = json.loads(read["Policy"])
    widened = {**policy, "Statement": [*policy["Statement"], allowed]}
    sqs.set_queue_attributes(QueueUrl=queue, Attributes={"Policy": json.dumps(widened)})

    def target(**fields: Any) -> None:
        made = {"Id": "t", "DeadLetterConfig": {"Arn": read["QueueArn"]}, **fields}
        events.put_targets(Rule="made", Targets=[made])

    yield target
    events.remove_targets(Rule="made", Ids=["t"])
    events.delete_rule(Name="made")
    sqs.set_queue_attributes(QueueUrl=queue, Attributes={"Policy": read["Policy"]})


@pytest.mark.parametrize("kind", ["lambda:us-east-1:000000000000:function:gone", "sqs:us-east-1:000000000000:gone"])
def test_an_event_for_a_target_that_is_gone_is_dead_lettered(
    region: Region, outputs: dict[str, str], rule: Callable[..., None], kind: str
) -> None:
    rule(Arn=f"arn:aws:{kind}")

    put(region, "made")

    assert message(region, outputs["QueueUrl"])["MessageAttributes"]["ERROR_CODE"]["StringValue"] == "NO_RESOURCE"


def test_a_queue_whose_policy_is_silent_gets_nothing_from_a_rule(
    region: Region, outputs: dict[str, str], rule: Callable[..., None]
) -> None:
    sqs = region.client("sqs")
    closed = sqs.create_queue(QueueName="closed")["QueueUrl"]
    rule(Arn=sqs.get_queue_attributes(QueueUrl=closed, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"])

    put(region, "made")

    assert message(region, outputs["QueueUrl"])["MessageAttributes"]["ERROR_CODE"]["StringValue"] == "NO_PERMISSIONS"
    assert "Messages" not in sqs.receive_message(QueueUrl=closed)


def test_a_rule_starts_a_machine_only_with_a_role_that_may_and_that_it_may_assume(
    region: Region, outputs: dict[str, str], rule: Callable[..., None]
) -> None:
    iam, states = region.client("iam"), region.client("stepfunctions")
    roles = {}
    for name, service in (("starter", "events.amazonaws.com"), ("stranger", "lambda.amazonaws.com")):
        trust = {"Statement": [{"Effect": "Allow", "Principal": {"Service": service}, "Action": "sts:AssumeRole"}]}
        roles[name] = iam.create_role(RoleName=name, AssumeRolePolicyDocument=json.dumps({"Version": "2012-10-17", **trust}))["Role"]["Arn"]
    may = {"Statement": [{"Effect": "Allow", "Action": "states:StartExecution", "Resource": outputs["MachineArn"]}]}
    codes = []

    rule(Arn=outputs["MachineArn"], RoleArn=roles["stranger"])
    put(region, "made")
    codes.append(message(region, outputs["QueueUrl"])["MessageAttributes"]["ERROR_CODE"]["StringValue"])
    rule(Arn=outputs["MachineArn"], RoleArn=roles["starter"])
    put(region, "made")
    codes.append(message(region, outputs["QueueUrl"])["MessageAttributes"]["ERROR_CODE"]["StringValue"])
    iam.put_role_policy(RoleName="starter", PolicyName="start", PolicyDocument=json.dumps({"Version": "2012-10-17", **may}))
    put(region, "made")

    assert codes == ["FAILED_TO_ASSUME_ROLE", "NO_PERMISSIONS"]
    assert eventually(lambda: states.list_executions(stateMachineArn=outputs["MachineArn"])["executions"])


def test_a_schedule_needs_a_role_that_may_invoke_its_target(region: Region, outputs: dict[str, str]) -> None:
    iam, scheduler, sqs = region.client("iam"), region.client("scheduler"), region.client("sqs")
    queue = sqs.get_queue_attributes(QueueUrl=outputs["QueueUrl"], AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    trust = {"Effect": "Allow", "Principal": {"Service": "scheduler.amazonaws.com"}, "Action": "sts:AssumeRole"}
    document = json.dumps({"Version": "2012-10-17", "Statement": [trust]})
    role = iam.create_role(RoleName="schedule", AssumeRolePolicyDocument=document)["Role"]["Arn"]
    sending = {"Effect": "Allow", "Action": "sqs:SendMessage", "Resource": queue}
    iam.put_role_policy(
        RoleName="schedule", PolicyName="send", PolicyDocument=json.dumps({"Version": "2012-10-17", "Statement": [sending]})
    )

    at = (datetime.now(UTC) + timedelta(seconds=1)).strftime("%Y-%m-%dT%H:%M:%S")
    scheduler.create_schedule(
        Name="once",
        ScheduleExpression=f"at({at})",
        FlexibleTimeWindow={"Mode": "OFF"},
        Target={"Arn": outputs["MachineArn"], "RoleArn": role, "Input": "{}", "DeadLetterConfig": {"Arn": queue}},
    )

    dead = message(region, outputs["QueueUrl"])
    assert dead["MessageAttributes"]["ERROR_CODE"]["StringValue"] == "NO_PERMISSIONS"


@pytest.mark.parametrize(
    ("path", "value"),
    [("$.detail.a", 1), ("$.resources[0]", "first"), ("$.detail.list[1].b", 2), ("$.detail['d-e']", 3), ("$.detail.none", None),
     ("$.resources[9]", None), ("$.detail-type", "kind"), ("$", ...)],
)  # fmt: skip
def test_paths_read_what_they_name(path: str, value: object) -> None:
    event = {"resources": ["first"], "detail-type": "kind", "detail": {"a": 1, "list": [{}, {"b": 2}], "d-e": 3}}

    assert read_path(path, event) == (event if value is ... else value)
