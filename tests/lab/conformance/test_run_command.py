"""Systems Manager documents and Run Command by boto3, with real shells on the instances."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from lab.region.region import Region
from tests.lab.fleet.world import World
from tests.lab.fleet.world import world as make_world

pytestmark = pytest.mark.lab


@pytest.fixture(scope="module")
def world(region: Region, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with make_world(region, tmp_path_factory.mktemp("fleet")) as made:
        yield made


@pytest.fixture(scope="module")
def node(world: World) -> str:
    return world.run_instance()


@pytest.fixture
def document(world: World) -> Callable[..., str]:
    """Makes a document that runs a bash script; returns its name."""

    def make(name: str, script: str, **parameters: dict[str, Any]) -> str:
        content = {
            "schemaVersion": "2.2",
            "parameters": {"ExecutionTimeout": {"type": "String", "default": "60", "allowedPattern": "[0-9]+"}, **parameters},
            "mainSteps": [
                {
                    "action": "aws:runShellScript", "name": "run",
                    "inputs": {"timeoutSeconds": "{{ ExecutionTimeout }}", "runCommand": ["#!/bin/bash", *script.split("\n")]},
                }
            ],
        }  # fmt: skip
        world.ssm.create_document(Name=f"{name}-{world.tag}", Content=json.dumps(content), DocumentType="Command", DocumentFormat="JSON")
        return f"{name}-{world.tag}"

    return make


def send(world: World, name: str, node: str, **more: Any) -> str:
    return str(world.ssm.send_command(InstanceIds=[node], DocumentName=name, **more)["Command"]["CommandId"])


def ended(world: World, command: str, node: str) -> dict[str, Any]:
    """The invocation once it is over."""

    def look() -> dict[str, Any] | None:
        try:
            got: dict[str, Any] = world.ssm.get_command_invocation(CommandId=command, InstanceId=node)
        except world.ssm.exceptions.InvocationDoesNotExist:
            return None
        return got if got["Status"] not in ("Pending", "InProgress", "Cancelling") else None

    answer: dict[str, Any] = world.until(look)
    return answer


def refused(call: Any, **given: Any) -> str:
    with pytest.raises(ClientError) as caught:
        call(**given)
    return str(caught.value.response["Error"]["Code"])


def test_a_script_runs_on_the_node_with_its_parameters_in_the_environment(world: World, node: str, document: Callable[..., str]) -> None:
    name = document(
        "greet", 'set -euo pipefail\necho "$SSM_Who {{ Who }} ${BASH_VERSION:+bash}"\nhello\necho "to stderr" >&2',
        Who={"type": "String", "allowedPattern": "^[a-z$;() ]+$", "interpolationType": "ENV_VAR"},
    )  # fmt: skip

    got = ended(world, send(world, name, node, Parameters={"Who": ["$(id); x"]}, Comment="execution/step"), node)

    root = world.fleet.instances[node].root
    assert (got["Status"], got["StatusDetails"], got["ResponseCode"], got["Comment"]) == ("Success", "Success", 0, "execution/step")
    assert got["StandardOutputContent"] == f"$(id); x {{{{ Who }}}} bash\nhello from {root}\n"
    assert got["StandardErrorContent"] == "to stderr\n"


def test_without_a_bash_line_it_is_sh(world: World, node: str) -> None:
    command = send(world, "AWS-RunShellScript", node, Parameters={"commands": ['echo "${BASH_VERSION:-sh}"', "echo second"]})

    assert ended(world, command, node)["StandardOutputContent"] == "sh\nsecond\n"


def test_the_exit_code_comes_back(world: World, node: str, document: Callable[..., str]) -> None:
    got = ended(world, send(world, document("exits", "echo '{\"ok\":false}'; exit 13"), node), node)

    assert (got["Status"], got["StatusDetails"], got["ResponseCode"]) == ("Failed", "Failed", 13)
    assert got["StandardOutputContent"] == '{"ok":false}\n'


def test_an_invocation_does_not_exist_at_once(world: World, node: str, document: Callable[..., str]) -> None:
    command = send(world, document("young", "true"), node)

    assert refused(world.ssm.get_command_invocation, CommandId=command, InstanceId=node) == "InvocationDoesNotExist"
    ended(world, command, node)


def test_the_execution_time_out_kills_the_whole_group(world: World, node: str, document: Callable[..., str]) -> None:
    name = document("hangs", "sleep 300 & echo started $!; wait")

    got = ended(world, send(world, name, node, Parameters={"ExecutionTimeout": ["1"]}), node)

    assert (got["Status"], got["StatusDetails"]) == ("TimedOut", "Execution Timed Out")
    child = got["StandardOutputContent"].split()[1]
    world.until(lambda: _dead(child))


def test_cancelling_kills_the_whole_group(world: World, node: str, document: Callable[..., str]) -> None:
    name = document("long", "sleep 300 & echo $! >$HOME/child; wait")
    command = send(world, name, node)
    mark = world.fleet.instances[node].root / "root/child"
    world.until(lambda: mark.is_file() and mark.read_text(encoding="utf-8").strip())

    world.ssm.cancel_command(CommandId=command, InstanceIds=[node])
    got = ended(world, command, node)

    assert got["Status"] == "Cancelled"
    world.until(lambda: _dead(mark.read_text(encoding="utf-8").strip()))
    assert refused(world.ssm.cancel_command, CommandId="0" * 36) == "InvalidCommandId"


def _dead(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def test_output_is_cut_where_aws_cuts_it(world: World, node: str, document: Callable[..., str]) -> None:
    name = document("loud", "head -c 30000 /dev/zero | tr '\\0' a; head -c 30000 /dev/zero | tr '\\0' b >&2")

    got = ended(world, send(world, name, node), node)

    assert (len(got["StandardOutputContent"]), len(got["StandardErrorContent"])) == (24_000, 8_000)
    assert got["StandardOutputContent"].startswith("aaaa")


def test_a_command_waits_for_an_agent_that_comes_back(world: World, node: str, document: Callable[..., str]) -> None:
    name = document("later", "echo late")
    world.fleet.set_agent(node, online=False)
    lost = world.ssm.describe_instance_information(Filters=[{"Key": "InstanceIds", "Values": [node]}])["InstanceInformationList"][0]
    command = send(world, name, node)
    time.sleep(0.4)
    waiting = world.ssm.get_command_invocation(CommandId=command, InstanceId=node)["Status"]

    world.fleet.set_agent(node, online=True)

    assert (lost["PingStatus"], waiting) == ("ConnectionLost", "Pending")
    assert ended(world, command, node)["StandardOutputContent"] == "late\n"


def test_invocations_are_found_by_instance_and_document_with_their_comment(world: World, node: str, document: Callable[..., str]) -> None:
    name = document("found", "true")
    command = send(world, name, node, Comment="name/step")
    ended(world, command, node)

    listed = world.ssm.list_command_invocations(InstanceId=node, Filters=[{"key": "DocumentName", "value": name}])["CommandInvocations"]

    assert [(one["CommandId"], one["Comment"], one["Status"]) for one in listed] == [(command, "name/step", "Success")]
    assert [one["CommandId"] for one in world.ssm.list_commands(CommandId=command)["Commands"]] == [command]
    with_output = world.ssm.list_command_invocations(CommandId=command, Details=True)["CommandInvocations"][0]
    assert with_output["CommandPlugins"][0]["ResponseCode"] == 0


def test_both_status_events_are_published(world: World, node: str, document: Callable[..., str]) -> None:
    name = document("event", "exit 3")
    sqs, rules = world.region.client("sqs"), world.region.client("events")
    url = sqs.create_queue(QueueName=f"commands-{world.tag}")["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    statement = {"Effect": "Allow", "Principal": {"Service": "events.amazonaws.com"}, "Action": "sqs:SendMessage", "Resource": arn}
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"Policy": json.dumps({"Version": "2012-10-17", "Statement": [statement]})})
    pattern = {"source": ["aws.ssm"], "detail": {"document-name": [name], "status": ["Failed"]}}
    rules.put_rule(Name=f"failed-{world.tag}", EventPattern=json.dumps(pattern))
    rules.put_targets(Rule=f"failed-{world.tag}", Targets=[{"Id": "q", "Arn": arn}])

    command = send(world, name, node)
    bodies: list[dict[str, Any]] = []

    def both() -> bool:
        for message in sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages", []):
            bodies.append(json.loads(message["Body"]))
        return len(bodies) >= 2

    world.until(both)

    one, whole = sorted(bodies, key=lambda body: "instance-id" not in body["detail"])
    assert one["detail-type"] == "EC2 Command Invocation Status-change Notification"
    assert whole["detail-type"] == "EC2 Command Status-change Notification"
    assert one["resources"] == [f"arn:aws:ec2:us-east-1:000000000000:instance/{node}"]
    assert set(one["detail"]) == {"command-id", "document-name", "instance-id", "requested-date-time", "status"}
    assert set(whole["detail"]) == {"command-id", "document-name", "requested-date-time", "status", "expire-after", "parameters"}
    assert one["detail"]["command-id"] == command


def test_output_goes_to_the_log_group_with_the_nodes_own_role(world: World, node: str, document: Callable[..., str]) -> None:
    logs, group = world.region.client("logs"), f"/commands/{world.tag}"
    logs.create_log_group(logGroupName=group)
    name = document("logged", "echo to the log")

    command = send(world, name, node, CloudWatchOutputConfig={"CloudWatchOutputEnabled": True, "CloudWatchLogGroupName": group})

    stream = f"{command}/{node}/run/stdout"
    world.until(lambda: [s for s in logs.describe_log_streams(logGroupName=group)["logStreams"] if s["logStreamName"] == stream])
    said = world.until(lambda: logs.get_log_events(logGroupName=group, logStreamName=stream)["events"])
    assert [event["message"] for event in said] == ["to the log"]


def test_a_document_has_versions_and_a_hash(world: World, node: str, document: Callable[..., str]) -> None:
    name = document("versions", "echo one")
    content = world.ssm.get_document(Name=name)["Content"]
    described = world.ssm.describe_document(Name=name)["Document"]

    world.ssm.update_document(Name=name, Content=content.replace("echo one", "echo two"), DocumentVersion="$LATEST")
    old = ended(world, send(world, name, node, DocumentHash=described["Hash"], DocumentHashType="Sha256"), node)
    world.ssm.update_document_default_version(Name=name, DocumentVersion="2")
    new = ended(world, send(world, name, node), node)

    assert described["Hash"] == hashlib.sha256(content.encode()).hexdigest()
    assert (old["StandardOutputContent"], new["StandardOutputContent"]) == ("one\n", "two\n")
    assert refused(world.ssm.send_command, InstanceIds=[node], DocumentName=name, DocumentHash=described["Hash"]) == "InvalidDocument"
    assert (
        refused(world.ssm.update_document, Name=name, Content=content.replace("echo one", "echo two"), DocumentVersion="$LATEST")
        == "DuplicateDocumentContent"
    )
    own = world.ssm.list_documents(Filters=[{"Key": "Owner", "Values": ["Self"]}, {"Key": "Name", "Values": [name]}])["DocumentIdentifiers"]
    assert [one["Name"] for one in own] == [name]
    world.ssm.delete_document(Name=name)
    assert refused(world.ssm.send_command, InstanceIds=[node], DocumentName=name) == "InvalidDocument"


def test_what_does_not_fit_is_refused(world: World, node: str, document: Callable[..., str]) -> None:
    name = document("strict", "true", Who={"type": "String", "allowedPattern": "^[a-z]+$", "default": "x"})

    assert refused(world.ssm.send_command, InstanceIds=["i-0123456789abcdef0"], DocumentName=name) == "InvalidInstanceId"
    assert refused(world.ssm.send_command, InstanceIds=[node], DocumentName=name, Parameters={"Who": ["A"]}) == "InvalidParameters"
    assert refused(world.ssm.create_document, Name=name, Content="{}", DocumentType="Command") == "InvalidDocumentContent"


def test_managed_instances_are_filtered(world: World, node: str) -> None:
    def seen(key: str, value: str) -> list[str]:
        answer = world.ssm.describe_instance_information(Filters=[{"Key": key, "Values": [value]}])
        return [one["InstanceId"] for one in answer["InstanceInformationList"]]

    assert seen("InstanceIds", node) == [node]
    assert seen("InstanceIds", "i-0123456789abcdef0") == []
    assert node in seen("PingStatus", "Online")
    assert refused(world.ssm.describe_instance_information, Filters=[{"Key": "Bogus", "Values": ["x"]}]) == "InvalidFilterKey"


def test_faults_lose_a_delivery_and_replace_a_script(world: World, node: str, document: Callable[..., str]) -> None:
    name = document("faulty", "echo the real one")
    doing: dict[str, Any] = {"delivery": "lost"}

    def fault(point: str, context: dict[str, Any]) -> object | None:
        return doing.pop(point, None) if context.get("document") == name else None

    world.fleet.interceptors.append(fault)
    lost = send(world, name, node)
    time.sleep(0.4)
    doing["command_script"] = "#!/bin/bash\necho garbage\n"
    replaced = ended(world, send(world, name, node), node)
    world.fleet.interceptors.remove(fault)

    assert world.ssm.get_command_invocation(CommandId=lost, InstanceId=node)["Status"] == "Pending"
    assert replaced["StandardOutputContent"] == "garbage\n"
    world.ssm.cancel_command(CommandId=lost)


def test_an_old_agent_pastes_parameters(world: World, document: Callable[..., str]) -> None:
    def old(point: str, context: dict[str, Any]) -> object | None:
        return "3.2.1.0" if point == "agent_version" else None

    world.fleet.interceptors.append(old)
    node = world.run_instance()
    world.fleet.interceptors.remove(old)
    name = document("pasted", 'echo "{{ Who }} ${SSM_Who:-none}"', Who={"type": "String", "interpolationType": "ENV_VAR"})

    got = ended(world, send(world, name, node, Parameters={"Who": ["bob"]}), node)

    shown = world.ssm.describe_instance_information(Filters=[{"Key": "InstanceIds", "Values": [node]}])["InstanceInformationList"]
    assert shown[0]["AgentVersion"] == "3.2.1.0"
    assert got["StandardOutputContent"] == "bob none\n"
