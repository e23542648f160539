"""Port Commands on Systems Manager Run Command."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from autojoin import errors
from autojoin.adapters.ssm import SsmCommands
from autojoin.domain import budgets
from autojoin.domain.scripts import Invocation
from autojoin.ports import Agent, Pin
from tests.adapters.conftest import Stubs

INSTANCE = "i-0123456789abcdef0"
COMMAND = "11111111-2222-3333-4444-555555555555"
SENT = {
    "DocumentName": "autojoin-verify",
    "InstanceIds": [INSTANCE],
    "Parameters": {"Zone": ["demo.internal"]},
    "Comment": "name/Verify",
    "TimeoutSeconds": budgets.DELIVERY_TIMEOUT_S,
}


@pytest.fixture
def commands(stubs: Stubs) -> SsmCommands:
    return SsmCommands(stubs.client("ssm"), "autojoin", "/autojoin/commands")


def listed(command_id: str, comment: str | None, minute: int) -> dict[str, Any]:
    found = {"CommandId": command_id, "InstanceId": INSTANCE, "RequestedDateTime": datetime(2026, 1, 1, 0, minute, tzinfo=UTC)}
    return found if comment is None else {**found, "Comment": comment}


def test_agents_are_those_that_ever_registered(stubs: Stubs, commands: SsmCommands) -> None:
    online = {"InstanceId": INSTANCE, "PingStatus": "Online", "AgentVersion": "3.3.2746.0"}
    lost = {"InstanceId": "i-0000000000000000a", "PingStatus": "ConnectionLost"}
    asked = {"Filters": [{"Key": "InstanceIds", "Values": ["i-0000000000000000a", INSTANCE]}]}
    stubs.expect("ssm", "describe_instance_information", {"InstanceInformationList": [lost], "NextToken": "more"}, asked)
    stubs.expect("ssm", "describe_instance_information", {"InstanceInformationList": [online]}, {**asked, "NextToken": "more"})

    found = commands.agents([INSTANCE, "i-0000000000000000a"])

    assert found == {
        INSTANCE: Agent(INSTANCE, "Online", "3.3.2746.0"),
        "i-0000000000000000a": Agent("i-0000000000000000a", "ConnectionLost", ""),
    }


def test_a_document_is_pinned_to_its_default_version_and_hash(stubs: Stubs, commands: SsmCommands) -> None:
    stubs.expect("ssm", "describe_document", {"Document": {"DocumentVersion": "3", "Hash": "ab" * 32}}, {"Name": "autojoin-verify"})

    assert commands.pin("verify") == Pin("3", "ab" * 32)


def test_a_command_is_sent_to_one_instance_with_the_pinned_document(stubs: Stubs, commands: SsmCommands) -> None:
    pinned = {"DocumentVersion": "3", "DocumentHash": "ab" * 32, "DocumentHashType": "Sha256"}
    output = {"CloudWatchLogGroupName": "/autojoin/commands", "CloudWatchOutputEnabled": True}
    stubs.expect("ssm", "send_command", {"Command": {"CommandId": COMMAND}}, {**SENT, **pinned, "CloudWatchOutputConfig": output})

    sent = commands.send("verify", INSTANCE, {"Zone": "demo.internal"}, "name/Verify", Pin("3", "ab" * 32))

    assert sent == COMMAND


def test_a_command_without_pin_and_log_group_is_sent_without_them(stubs: Stubs) -> None:
    stubs.expect("ssm", "send_command", {"Command": {"CommandId": COMMAND}}, SENT)

    sent = SsmCommands(stubs.client("ssm"), "autojoin").send("verify", INSTANCE, {"Zone": "demo.internal"}, "name/Verify")

    assert sent == COMMAND


def test_an_instance_that_is_not_taken_is_gone(stubs: Stubs, commands: SsmCommands) -> None:
    stubs.refuse("ssm", "send_command", "InvalidInstanceId", "Instances not in a valid state for account")

    with pytest.raises(errors.InstanceGone, match="not in a valid state"):
        commands.send("verify", INSTANCE, {}, "name/Verify")


@pytest.mark.parametrize(
    ("code", "status", "expected"),
    [
        ("ThrottlingException", 400, errors.AwsThrottled),
        ("InternalServerError", 500, errors.AwsUnavailable),
        ("InvalidParameters", 400, errors.AwsRefused),
        ("InvalidDocumentVersion", 400, errors.AwsRefused),
        ("AccessDeniedException", 400, errors.AwsRefused),
    ],
)
def test_every_other_refusal_to_send_keeps_its_meaning(
    stubs: Stubs, commands: SsmCommands, code: str, status: int, expected: type[Exception]
) -> None:
    stubs.refuse("ssm", "send_command", code, status=status)

    with pytest.raises(expected):
        commands.send("verify", INSTANCE, {}, "name/Verify")


def test_a_command_is_found_again_by_exactly_its_comment_and_the_newest_counts(stubs: Stubs, commands: SsmCommands) -> None:
    asked = {"InstanceId": INSTANCE, "Filters": [{"key": "DocumentName", "value": "autojoin-verify"}]}
    first = [listed("a" * 36, "name/Verify", 1), listed("b" * 36, "name/Verify", 3)]
    second = [listed("c" * 36, "name/Verify2", 4), listed("d" * 36, None, 5), listed("e" * 36, "name/Verify", 2)]
    stubs.expect("ssm", "list_command_invocations", {"CommandInvocations": first, "NextToken": "more"}, asked)
    stubs.expect("ssm", "list_command_invocations", {"CommandInvocations": second}, {**asked, "NextToken": "more"})

    assert commands.find("verify", INSTANCE, "name/Verify") == "b" * 36


def test_a_command_that_was_never_sent_is_not_found(stubs: Stubs, commands: SsmCommands) -> None:
    stubs.expect("ssm", "list_command_invocations", {"CommandInvocations": [listed("d" * 36, None, 5)]})

    assert commands.find("verify", INSTANCE, "name/Verify") is None


def test_an_invocation_is_described_with_its_output(stubs: Stubs, commands: SsmCommands) -> None:
    answer = {
        "CommandId": COMMAND,
        "InstanceId": INSTANCE,
        "DocumentName": "autojoin-verify",
        "Status": "Failed",
        "StatusDetails": "Failed",
        "ResponseCode": 22,
        "StandardOutputContent": "out",
        "StandardErrorContent": "err",
    }
    stubs.expect("ssm", "get_command_invocation", answer, {"CommandId": COMMAND, "InstanceId": INSTANCE})

    found = commands.invocation(COMMAND, INSTANCE)

    assert found == Invocation(COMMAND, INSTANCE, "autojoin-verify", "Failed", "Failed", 22, "out", "err")


def test_an_invocation_that_is_not_visible_yet_is_none(stubs: Stubs, commands: SsmCommands) -> None:
    stubs.refuse("ssm", "get_command_invocation", "InvocationDoesNotExist")

    assert commands.invocation(COMMAND, INSTANCE) is None


def test_a_throttled_look_at_an_invocation_is_not_taken_for_invisible(stubs: Stubs, commands: SsmCommands) -> None:
    stubs.refuse("ssm", "get_command_invocation", "ThrottlingException")

    with pytest.raises(errors.AwsThrottled):
        commands.invocation(COMMAND, INSTANCE)


@pytest.mark.parametrize("code", ["InvalidCommandId", "InvalidInstanceId", "DuplicateInstanceId"])
def test_cancelling_what_cannot_be_cancelled_any_more_is_done(stubs: Stubs, commands: SsmCommands, code: str) -> None:
    stubs.refuse("ssm", "cancel_command", code)

    commands.cancel(COMMAND, INSTANCE)


def test_cancelling_names_the_command_and_the_instance(stubs: Stubs, commands: SsmCommands) -> None:
    stubs.expect("ssm", "cancel_command", {}, {"CommandId": COMMAND, "InstanceIds": [INSTANCE]})

    commands.cancel(COMMAND, INSTANCE)


def test_a_refused_cancellation_is_an_error(stubs: Stubs, commands: SsmCommands) -> None:
    stubs.refuse("ssm", "cancel_command", "AccessDeniedException")

    with pytest.raises(errors.AwsRefused):
        commands.cancel(COMMAND, INSTANCE)
