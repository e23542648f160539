"""Lambda functions: lab/region/functions.py."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from lab.region.functions import is_waiting
from lab.region.region import Region
from tests.lab.conformance.conftest import STACK, eventually

pytestmark = pytest.mark.lab
Invoke = Callable[..., tuple[Any, str | None]]


def test_an_exception_is_told_by_its_own_name_with_trace_and_request_id(invoke: Invoke) -> None:
    body, kind = invoke({"operation": "raise"})

    assert kind == "Unhandled"
    assert (body["errorType"], body["errorMessage"]) == ("LookupError", "no such thing")
    assert "lambda_handler" in body["stackTrace"][-1]
    assert len(body["requestId"]) == 36


def test_an_environment_survives_a_handled_exception(invoke: Invoke) -> None:
    before, _ = invoke({"operation": "process"})
    invoke({"operation": "raise"})
    after, _ = invoke({"operation": "process"})

    assert before == after


def test_an_exit_ends_the_environment_and_the_next_call_gets_a_new_one(invoke: Invoke) -> None:
    before, _ = invoke({"operation": "process"})
    body, _ = invoke({"operation": "exit"})
    after, _ = invoke({"operation": "process"})

    assert body["errorType"] == "Runtime.ExitError"
    assert before != after


def test_what_cannot_be_json_is_a_marshal_error(invoke: Invoke) -> None:
    body, _ = invoke({"operation": "unserialisable"})

    assert body["errorType"] == "Runtime.MarshalError"


def test_a_time_out_is_a_sandbox_timedout(region: Region, invoke: Invoke) -> None:
    client = region.client("lambda")
    client.update_function_configuration(FunctionName=f"{STACK}-greet", Timeout=1)

    body, kind = invoke({"operation": "sleep", "s": 30})
    client.update_function_configuration(FunctionName=f"{STACK}-greet", Timeout=10)

    assert kind == "Unhandled"
    assert body["errorType"] == "Sandbox.Timedout"
    assert "Task timed out after 1.00 seconds" in body["errorMessage"]


def test_a_package_that_is_in_no_layer_is_missing(invoke: Invoke) -> None:
    found, _ = invoke({"operation": "packages", "names": ["boto3", "words_package", "typer", "pydantic", "ministack"]})

    assert found == ["boto3", "words_package"]


def test_an_import_error_is_named_as_on_aws(region: Region, invoke: Invoke) -> None:
    client = region.client("lambda")
    layers = client.get_function_configuration(FunctionName=f"{STACK}-greet")["Layers"]
    client.update_function_configuration(FunctionName=f"{STACK}-greet", Layers=[])

    body, kind = invoke({})
    client.update_function_configuration(FunctionName=f"{STACK}-greet", Layers=[layer["Arn"] for layer in layers])
    again, _ = invoke({})

    assert kind == "Unhandled"
    assert body["errorType"] == "Runtime.ImportModuleError"
    assert body["errorMessage"] == "Unable to import module 'app': No module named 'words_package'"
    assert again["said"] == "hello world"


def test_a_missing_handler_is_named_as_on_aws(region: Region, invoke: Invoke) -> None:
    client = region.client("lambda")
    client.update_function_configuration(FunctionName=f"{STACK}-greet", Handler="app.nothing")

    body, _ = invoke({})
    client.update_function_configuration(FunctionName=f"{STACK}-greet", Handler="app.lambda_handler")

    assert body["errorType"] == "Runtime.HandlerNotFound"


def test_the_environment_is_aws_the_functions_own_and_the_way_to_the_region(
    region: Region, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOG_LEVEL", "DEBUG")
    invoke({"operation": "exit"})

    environment, _ = invoke({"operation": "environment"})

    ours = {n for n in environment if not n.startswith(("AWS_", "LAMBDA_", "_", "LC_"))}
    assert ours == {"PATH", "LANG", "TZ", "HOME", "TMPDIR", "GREETING", "AUTOJOIN_LAB_ID"}
    assert environment["AWS_ENDPOINT_URL"] == region.endpoint_url
    assert environment["AWS_LAMBDA_FUNCTION_NAME"] == f"{STACK}-greet"
    assert environment["AWS_SESSION_TOKEN"]
    assert environment["TMPDIR"].startswith(str(region.root))


def test_a_talkative_function_does_not_block(invoke: Invoke) -> None:
    body, _ = invoke({"operation": "much"})

    assert body["said"] == "hello world"


def test_logs_come_in_one_stream_per_environment_between_start_and_report(region: Region, invoke: Invoke) -> None:
    invoke({"operation": "exit"})
    invoke({"operation": "log"})
    invoke({"operation": "log"})

    logs = region.client("logs")
    group = f"/aws/lambda/{STACK}-greet"
    streams = logs.describe_log_streams(logGroupName=group)["logStreams"]
    newest = max(streams, key=lambda s: s.get("lastEventTimestamp", 0))["logStreamName"]
    lines = [e["message"] for e in logs.get_log_events(logGroupName=group, logStreamName=newest, startFromHead=True)["events"]]
    assert [line.split()[0] for line in lines] == ["START", "printed", "[WARNING]", "END", "REPORT"] * 2


def test_an_embedded_metric_becomes_a_metric(region: Region, invoke: Invoke) -> None:
    directive = {"Namespace": "Conformance", "Dimensions": [["role"]], "Metrics": [{"Name": "NodesJoined", "Unit": "Count"}]}
    line = {"_aws": {"Timestamp": 0, "CloudWatchMetrics": [directive]}, "role": "worker", "NodesJoined": 3}

    invoke({"operation": "metric", "line": line})

    metrics = region.client("cloudwatch").list_metrics(Namespace="Conformance")["Metrics"]
    assert [(m["MetricName"], m["Dimensions"]) for m in metrics] == [("NodesJoined", [{"Name": "role", "Value": "worker"}])]


def test_reserved_concurrency_throttles_instead_of_waiting(region: Region, invoke: Invoke) -> None:
    client = region.client("lambda")
    client.put_function_concurrency(FunctionName=f"{STACK}-greet", ReservedConcurrentExecutions=0)

    with pytest.raises(client.exceptions.TooManyRequestsException):
        client.invoke(FunctionName=f"{STACK}-greet", Payload=b"{}")
    client.put_function_concurrency(FunctionName=f"{STACK}-greet", ReservedConcurrentExecutions=50)
    invoke({})


def test_more_calls_than_slots_wait_and_all_succeed_in_no_more_environments_than_slots(region: Region, invoke: Invoke) -> None:
    pids: list[int] = []

    def call() -> None:
        invoke({"operation": "sleep", "s": 0.05})
        pids.append(invoke({"operation": "process"})[0])

    threads = [threading.Thread(target=call) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)

    assert len(pids) == 20
    assert len(set(pids)) <= region.slots


@pytest.mark.parametrize(("name", "waits"), [("autojoin-wait", True), ("autojoin-hook", False)])
def test_functions_that_wait_have_slots_of_their_own(name: str, waits: bool) -> None:
    assert is_waiting(name) is waits


def test_each_invocation_is_journalled(region: Region, invoke: Invoke) -> None:
    invoke({"operation": "raise"})

    entry = eventually(lambda: region.journal.entries("function"))[-1]
    assert (entry["name"], entry["operation"], entry["error"]) == (f"{STACK}-greet", "raise", "LookupError")


def test_a_role_that_lambda_cannot_assume_is_refused(region: Region) -> None:
    trust = {
        "Version": "2012-10-17",
        "Statement": [{"Effect": "Allow", "Principal": {"Service": "ec2.amazonaws.com"}, "Action": "sts:AssumeRole"}],
    }
    role = region.client("iam").create_role(RoleName="not-for-lambda", AssumeRolePolicyDocument=json.dumps(trust))["Role"]["Arn"]
    client = region.client("lambda")

    with pytest.raises(client.exceptions.InvalidParameterValueException, match="cannot be assumed by Lambda"):
        client.create_function(
            FunctionName="refused", Role=role, Runtime="python3.13", Handler="app.x", Code={"ZipFile": b"PK\x05\x06" + bytes(18)}
        )
