"""State machines through the `states` API of the region: what ministack alone does not do as AWS does."""

from __future__ import annotations

import io
import json
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from lab.observer.journal import Journal
from lab.region.region import Region

pytestmark = pytest.mark.lab

CODE = """
import boto3, json, time
states = boto3.client("stepfunctions")
def handler(event, context):
    do = event.get("do")
    if do == "raise":
        class SubnetNotAdjacent(Exception): pass
        raise SubnetNotAdjacent("seen 10.0.0.1")
    if do == "answer":
        states.send_task_success(taskToken=event["token"], output=json.dumps({"answered": True}))
    if do == "fail":
        states.send_task_failure(taskToken=event["token"], error="Busy", cause="lock held")
    return {"echo": event.get("value"), "token": event.get("token")}
"""
TRUST = {
    "Version": "2012-10-17",
    "Statement": [
        {"Effect": "Allow", "Principal": {"Service": ["lambda.amazonaws.com", "states.amazonaws.com"]}, "Action": "sts:AssumeRole"}
    ],
}
FUNCTION = "arn:aws:lambda:us-east-1:000000000000:function:echo"


def task(payload: dict[str, Any], *, callback: bool = False, **more: Any) -> dict[str, Any]:
    """A machine of one task."""
    resource = "arn:aws:states:::lambda:invoke" + (".waitForTaskToken" if callback else "")
    if callback:
        payload = {**payload, "token": "{% $states.context.Task.Token %}"}
    arguments = {"FunctionName": FUNCTION, "Payload": payload}
    state = {"Type": "Task", "Resource": resource, "Arguments": arguments, "TimeoutSeconds": 60, "End": True, **more}
    return {"QueryLanguage": "JSONata", "StartAt": "A", "States": {"A": state}}


def policy(*statements: tuple[str, str]) -> str:
    """A policy document that allows actions on resources."""
    allowed = [{"Effect": "Allow", "Action": a, "Resource": r} for a, r in statements]
    return json.dumps({"Version": "2012-10-17", "Statement": allowed})


@pytest.fixture(scope="module")
def region(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Region]:
    """A region with one function and the roles of function and machines."""
    root: Path = tmp_path_factory.mktemp("region")
    region = Region(root, Journal(root / "journal.jsonl"))
    region.start()
    try:
        iam = region.client("iam")
        for name in ("function", "machine", "powerless", "untrusted"):
            trust = (
                TRUST
                if name != "untrusted"
                else {**TRUST, "Statement": [{**TRUST["Statement"][0], "Principal": {"Service": "ec2.amazonaws.com"}}]}
            )
            iam.create_role(RoleName=name, AssumeRolePolicyDocument=json.dumps(trust))
        iam.put_role_policy(RoleName="function", PolicyName="p", PolicyDocument=policy(("states:SendTask*", "*"), ("logs:*", "*")))
        for name in ("machine", "untrusted"):
            allowed = policy(("lambda:InvokeFunction", FUNCTION), ("states:StartExecution", "arn:aws:states:*:*:stateMachine:child"))
            iam.put_role_policy(RoleName=name, PolicyName="p", PolicyDocument=allowed)
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w") as z:
            z.writestr("app.py", CODE)
        region.client("lambda").create_function(
            FunctionName="echo",
            Runtime="python3.13",
            Handler="app.handler",
            Role="arn:aws:iam::000000000000:role/function",
            Code={"ZipFile": archive.getvalue()},
            Timeout=20,
        )
        yield region
    finally:
        region.stop()


@pytest.fixture
def states(region: Region) -> Any:
    """A client of the `states` API."""
    return region.client("stepfunctions")


@pytest.fixture
def machine(states: Any) -> Callable[..., str]:
    """Makes a machine, or updates it; returns its ARN."""

    def make(name: str, definition: dict[str, Any], role: str = "machine") -> str:
        role_arn = f"arn:aws:iam::000000000000:role/{role}"
        return str(states.create_state_machine(name=name, definition=json.dumps(definition), roleArn=role_arn)["stateMachineArn"])

    return make


def ended(states: Any, arn: str) -> dict[str, Any]:
    """The execution once it has ended."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        shown: dict[str, Any] = states.describe_execution(executionArn=arn)
        if shown["status"] != "RUNNING":
            return shown
        time.sleep(0.02)
    raise AssertionError(f"{arn} did not end")


def test_a_task_gets_what_its_function_returns(states: Any, machine: Callable[..., str]) -> None:
    arn = machine("ok", task({"value": "{% $states.input.v %}"}, Output="{% $states.result.Payload %}"))

    shown = ended(states, states.start_execution(stateMachineArn=arn, name="one", input='{"v": 7}')["executionArn"])

    assert shown["status"] == "SUCCEEDED", shown
    assert (shown["status"], json.loads(shown["output"])) == ("SUCCEEDED", {"echo": 7, "token": None})
    history = states.get_execution_history(executionArn=shown["executionArn"])["events"]
    assert [e["type"] for e in history][0::6] == ["ExecutionStarted", "ExecutionSucceeded"]
    assert [e["previousEventId"] for e in history] == list(range(len(history)))


def test_a_callback_task_gets_what_the_function_sends(states: Any, machine: Callable[..., str]) -> None:
    arn = machine("callback", task({"do": "answer"}, callback=True))

    shown = ended(states, states.start_execution(stateMachineArn=arn)["executionArn"])

    assert json.loads(shown["output"]) == {"answered": True}


def test_a_callback_task_fails_with_what_the_function_sends(states: Any, machine: Callable[..., str]) -> None:
    arn = machine("callback-fail", task({"do": "fail"}, callback=True))

    shown = ended(states, states.start_execution(stateMachineArn=arn)["executionArn"])

    assert (shown["status"], shown["error"], shown["cause"]) == ("FAILED", "Busy", "lock held")


def test_a_function_that_raises_in_a_callback_task_fails_it_at_once(states: Any, machine: Callable[..., str]) -> None:
    arn = machine("callback-raise", task({"do": "raise"}, callback=True))

    shown = ended(states, states.start_execution(stateMachineArn=arn)["executionArn"])

    assert shown["status"] == "FAILED"
    assert "seen 10.0.0.1" in json.loads(shown["cause"])["errorMessage"]


def test_a_closed_token_is_timed_out_and_a_bogus_one_invalid(states: Any, machine: Callable[..., str]) -> None:
    silent = task({"do": "nothing"}, callback=True)
    arn = states.start_execution(stateMachineArn=machine("silent", silent))["executionArn"]
    token = None
    until = time.monotonic() + 60
    while token is None and time.monotonic() < until:
        events = states.get_execution_history(executionArn=arn)["events"]
        outputs = [json.loads(e["taskSubmittedEventDetails"]["output"]) for e in events if e["type"] == "TaskSubmitted"]
        token = outputs[0]["Payload"]["token"] if outputs else None
        time.sleep(0.02)

    states.send_task_heartbeat(taskToken=token)
    states.stop_execution(executionArn=arn, error="Operator", cause="enough")

    with pytest.raises(states.exceptions.TaskTimedOut):
        states.send_task_success(taskToken=token, output="{}")
    with pytest.raises(states.exceptions.InvalidToken):
        states.send_task_success(taskToken="bogus", output="{}")
    shown = states.describe_execution(executionArn=arn)
    assert (shown["status"], shown["error"], shown["cause"]) == ("ABORTED", "Operator", "enough")


def test_starting_twice_by_the_same_name_and_input_is_one_execution(states: Any, machine: Callable[..., str]) -> None:
    wait = {"QueryLanguage": "JSONata", "StartAt": "W", "States": {"W": {"Type": "Wait", "Seconds": 600, "End": True}}}
    arn = machine("idempotent", wait)
    first = states.start_execution(stateMachineArn=arn, name="n", input='{"a": 1}')

    second = states.start_execution(stateMachineArn=arn, name="n", input='{"a": 1}')

    assert second["executionArn"] == first["executionArn"]
    assert len(states.list_executions(stateMachineArn=arn)["executions"]) == 1
    with pytest.raises(states.exceptions.ExecutionAlreadyExists):
        states.start_execution(stateMachineArn=arn, name="n", input='{"a": 2}')
    states.stop_execution(executionArn=first["executionArn"])
    with pytest.raises(states.exceptions.ExecutionAlreadyExists):
        states.start_execution(stateMachineArn=arn, name="n", input='{"a": 1}')


@pytest.mark.parametrize(("name", "text", "code"), [("a b", "{}", "InvalidName"), ("a", "{", "InvalidExecutionInput")])
def test_bad_names_and_inputs_are_refused(states: Any, machine: Callable[..., str], name: str, text: str, code: str) -> None:
    arn = machine("picky", task({}))

    with pytest.raises(ClientError) as refused:
        states.start_execution(stateMachineArn=arn, name=name, input=text)

    assert refused.value.response["Error"]["Code"] == code


def test_a_definition_that_the_interpreter_does_not_know_is_refused(states: Any, machine: Callable[..., str]) -> None:
    with pytest.raises(states.exceptions.InvalidDefinition, match="ResultPath"):
        machine("foreign", task({}, ResultPath="$.x"))


@pytest.mark.parametrize("role", ["powerless", "untrusted"])
def test_the_machines_role_is_needed_to_invoke(states: Any, machine: Callable[..., str], role: str) -> None:
    arn = machine(f"role-{role}", task({}), role)

    shown = ended(states, states.start_execution(stateMachineArn=arn)["executionArn"])

    assert (shown["status"], shown["error"]) == ("FAILED", "Lambda.AWSLambdaException")
    assert "authorized" in shown["cause"]


def test_a_machine_starts_only_the_machines_that_its_role_allows(region: Region, states: Any, machine: Callable[..., str]) -> None:
    child = machine("child", task({"value": 1}))
    other = machine("other", task({"value": 1}))

    def starter(target: str) -> dict[str, Any]:
        arguments = {"StateMachineArn": target, "Name": "of-parent", "Input": {"x": 1}}
        state = {"Type": "Task", "Resource": "arn:aws:states:::states:startExecution", "Arguments": arguments, "End": True}
        return {"QueryLanguage": "JSONata", "StartAt": "S", "States": {"S": state}}

    good = ended(states, states.start_execution(stateMachineArn=machine("parent", starter(child)))["executionArn"])
    again = ended(states, states.start_execution(stateMachineArn=machine("parent2", starter(child)), input="{}")["executionArn"])
    bad = ended(states, states.start_execution(stateMachineArn=machine("parent3", starter(other)))["executionArn"])

    assert json.loads(good["output"])["ExecutionArn"].endswith(":execution:child:of-parent")
    assert ended(states, json.loads(good["output"])["ExecutionArn"])["status"] == "SUCCEEDED"
    assert again["status"] == "SUCCEEDED" or again["error"] == "StepFunctions.ExecutionAlreadyExistsException"
    assert "not authorized to perform: states:StartExecution" in bad["cause"]
    calls = [e for e in region.journal.entries("api_call") if e["source"] == "internal" and e["operation"] == "StartExecution"]
    assert calls[0]["principal"].startswith("arn:aws:sts::000000000000:assumed-role/machine/")


def test_every_end_sends_a_status_event_and_is_journalled(region: Region, states: Any, machine: Callable[..., str]) -> None:
    sqs, events = region.client("sqs"), region.client("events")
    url = sqs.create_queue(QueueName="status")["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    events.put_rule(Name="status", EventPattern=json.dumps({"source": ["aws.states"]}))
    rule = events.describe_rule(Name="status")["Arn"]
    allow = {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Effect": "Allow",
                "Principal": {"Service": "events.amazonaws.com"},
                "Action": "sqs:SendMessage",
                "Resource": arn,
                "Condition": {"ArnEquals": {"aws:SourceArn": rule}},
            }
        ],
    }
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"Policy": json.dumps(allow)})
    events.put_targets(Rule="status", Targets=[{"Id": "q", "Arn": arn}])
    wait = {"Type": "Wait", "Seconds": 600, "End": True}
    base = {"QueryLanguage": "JSONata", "StartAt": "W", "States": {"W": wait}}
    late = states.start_execution(stateMachineArn=machine("late", {**base, "TimeoutSeconds": 1}))["executionArn"]
    stopped = states.start_execution(stateMachineArn=machine("stopped", base))["executionArn"]

    states.stop_execution(executionArn=stopped)
    assert ended(states, late)["status"] == "TIMED_OUT"

    seen: set[tuple[str, str]] = set()
    expected = {(late, "RUNNING"), (late, "TIMED_OUT"), (stopped, "RUNNING"), (stopped, "ABORTED")}
    until = time.monotonic() + 30
    while not expected <= seen and time.monotonic() < until:
        for message in sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=1).get("Messages", []):
            detail = json.loads(message["Body"])["detail"]
            seen.add((detail["executionArn"], detail["status"]))
    assert expected <= seen
    told = {(e["arn"], e["status"]) for e in region.journal.entries("execution")}
    assert expected <= told
    assert {"entered"} == {e["event"] for e in region.journal.entries("state") if e["arn"] == stopped}


def test_a_version_runs_its_own_definition(states: Any, machine: Callable[..., str]) -> None:
    def passing(value: int) -> dict[str, Any]:
        return {"QueryLanguage": "JSONata", "StartAt": "P", "States": {"P": {"Type": "Pass", "Output": value, "End": True}}}

    arn = machine("versions", passing(1))
    version = states.publish_state_machine_version(stateMachineArn=arn)["stateMachineVersionArn"]
    states.update_state_machine(stateMachineArn=arn, definition=json.dumps(passing(2)))

    old = ended(states, states.start_execution(stateMachineArn=version)["executionArn"])
    new = ended(states, states.start_execution(stateMachineArn=arn)["executionArn"])

    assert (old["output"], new["output"]) == ("1", "2")
    shown = states.describe_state_machine_for_execution(executionArn=old["executionArn"])
    assert json.loads(shown["definition"]) == passing(1)


def test_a_template_with_a_yaml_definition_is_checked_and_runs(region: Region, states: Any) -> None:
    s3, cloud_formation = region.client("s3"), region.client("cloudformation")
    s3.create_bucket(Bucket="definitions")
    body = "QueryLanguage: JSONata\nStartAt: P\nStates:\n  P: {Type: Pass, Output: '${Word}', End: true}\n"
    s3.put_object(Bucket="definitions", Key="good", Body=body)
    s3.put_object(Bucket="definitions", Key="bad", Body=body.replace("End: true", "Next: Nowhere"))

    def template(key: str) -> str:
        properties = {
            "StateMachineName": f"from-{key}",
            "RoleArn": "arn:aws:iam::000000000000:role/machine",
            "DefinitionS3Location": {"Bucket": "definitions", "Key": key},
            "DefinitionSubstitutions": {"Word": "hello"},
        }
        return json.dumps({"Resources": {"M": {"Type": "AWS::StepFunctions::StateMachine", "Properties": properties}}})

    def deploy(key: str) -> str:
        cloud_formation.create_stack(StackName=f"stack-{key}", TemplateBody=template(key))
        until = time.monotonic() + 60
        while time.monotonic() < until:
            status = str(cloud_formation.describe_stacks(StackName=f"stack-{key}")["Stacks"][0]["StackStatus"])
            if not status.endswith("IN_PROGRESS"):
                return status
            time.sleep(0.05)
        raise AssertionError("the stack did not settle")

    assert deploy("good") == "CREATE_COMPLETE"
    assert deploy("bad") == "ROLLBACK_COMPLETE"
    arn = "arn:aws:states:us-east-1:000000000000:stateMachine:from-good"
    shown = ended(states, states.start_execution(stateMachineArn=arn)["executionArn"])
    assert shown["output"] == '"hello"'
