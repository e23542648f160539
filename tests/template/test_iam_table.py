"""Every permission of every role: no action by wildcard, and a resource `*` only where AWS allows nothing narrower."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.template.support import ROOT, functions, of_type, raw, resolve, translated

NO_NARROWER = frozenset(
    {
        "autoscaling:DescribeAutoScalingInstances",
        "autoscaling:DescribeLifecycleHooks",
        "autoscaling:DescribeTags",
        "ec2:DescribeInstances",
        "ec2:DescribeSubnets",
        "logs:CreateLogDelivery",
        "logs:DeleteLogDelivery",
        "logs:DescribeLogGroups",
        "logs:DescribeResourcePolicies",
        "logs:GetLogDelivery",
        "logs:ListLogDeliveries",
        "logs:PutResourcePolicy",
        "logs:UpdateLogDelivery",
        "ssm:CancelCommand",
        "ssm:DescribeInstanceInformation",
        "ssm:GetCommandInvocation",
        "ssm:ListCommandInvocations",
    }
)
"""Actions without a resource type. Source: Service Authorization Reference; Step Functions, CloudWatch Logs permissions."""
OF_AN_AGENT = frozenset(
    {
        "ec2messages:AcknowledgeMessage",
        "ec2messages:DeleteMessage",
        "ec2messages:FailMessage",
        "ec2messages:GetEndpoint",
        "ec2messages:GetMessages",
        "ec2messages:SendReply",
        "ssm:UpdateInstanceInformation",
        "ssmmessages:CreateControlChannel",
        "ssmmessages:CreateDataChannel",
        "ssmmessages:OpenControlChannel",
        "ssmmessages:OpenDataChannel",
    }
)
"""What an SSM agent calls about itself. Source: Systems Manager, "ec2messages, ssmmessages and other API operations"."""
MANAGED = {"service-role/AWSLambdaBasicExecutionRole", "AWSXRayDaemonWriteAccess", "AWSXrayWriteOnlyAccess"}
"""What SAM adds for logs and tracing."""
TAGGED_AS_OURS = {
    "autoscaling:CompleteLifecycleAction": "autoscaling:ResourceTag/autojoin:cluster",
    "autoscaling:RecordLifecycleActionHeartbeat": "autoscaling:ResourceTag/autojoin:cluster",
    "ec2:ModifyInstanceAttribute": "ec2:ResourceTag/autojoin:cluster",
}


def statements(template: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """(role, statement) of every inline policy of every role."""
    found = []
    for name, role in of_type(template, "AWS::IAM::Role").items():
        for policy in role["Properties"].get("Policies", []):
            found += [(name, s) for s in policy["PolicyDocument"]["Statement"] if not of_sam(s)]
    return found


def of_sam(statement: dict[str, Any]) -> bool:
    """Whether SAM adds this statement by itself: failed events may be sent to their queue."""
    send = {"Action": "sqs:SendMessage", "Effect": "Allow", "Resource": {"Fn::GetAtt": ["FailedEventsQueue", "Arn"]}}
    return statement in (send, {**send, "Action": [send["Action"]]})


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


OURS = statements(translated())


def test_every_statement_is_named_allows_and_says_no_action_by_wildcard() -> None:
    assert OURS
    for role, statement in OURS:
        assert statement["Sid"], role
        assert statement["Effect"] == "Allow"
        assert not statement.keys() & {"NotAction", "NotResource"}
        assert not [a for a in statement["Action"] if "*" in a], f"{role}: {statement['Sid']}"


def test_a_statement_names_each_action_once_and_in_order() -> None:
    for role, statement in OURS:
        assert statement["Action"] == sorted(set(statement["Action"])), f"{role}: {statement['Sid']}"


def test_a_resource_is_a_star_only_for_actions_that_allow_nothing_narrower() -> None:
    starred = {a for _, s in OURS if "*" in listed(s["Resource"]) for a in s["Action"]}

    assert starred == NO_NARROWER & {a for _, s in OURS for a in s["Action"]}
    assert starred == NO_NARROWER


def test_a_star_never_shares_its_statement_with_an_action_that_could_be_narrower() -> None:
    for role, statement in OURS:
        assert ("*" in listed(statement["Resource"])) == (set(statement["Action"]) <= NO_NARROWER), f"{role}: {statement['Sid']}"


@pytest.mark.parametrize("path", ["template.yaml", "examples/workers.yaml"])
def test_every_star_carries_a_comment_that_names_the_api(path: str) -> None:
    lines = (ROOT / path).read_text().splitlines()

    for number, line in enumerate(lines):
        if re.fullmatch(r"""\s*(-|Resource:)\s*['"]\*['"]""", line) and "Resource" in line:
            assert re.match(r"\s*# .*(allow|allows) no narrower", lines[number - 1]), f"{path}:{number + 1}"


@pytest.mark.parametrize(("action", "key"), TAGGED_AS_OURS.items())
def test_what_changes_a_group_or_an_instance_is_bound_to_our_tag(action: str, key: str) -> None:
    found = [s for _, s in OURS if action in s["Action"]]

    assert found
    for statement in found:
        assert statement["Condition"] == {"StringLike": {key: "*"}}


def test_commands_go_only_to_our_instances_and_only_by_our_documents() -> None:
    sending = [s for _, s in OURS if "ssm:SendCommand" in s["Action"]]
    documents = {resolve(d["Properties"]["Name"]) for d in of_type(raw(), "AWS::SSM::Document").values()}

    by_document, by_instance = sorted(sending, key=lambda s: "Condition" in s)

    assert {resolve(r).rpartition("document/")[2] for r in by_document["Resource"]} == documents
    assert [resolve(r).rpartition(":")[2] for r in by_instance["Resource"]] == ["instance/*"]
    assert by_instance["Condition"] == {"StringLike": {"ssm:resourceTag/autojoin:cluster": "*"}}


def test_every_document_that_is_named_in_a_permission_exists() -> None:
    documents = {resolve(d["Properties"]["Name"]) for d in of_type(raw(), "AWS::SSM::Document").values()}
    named = {resolve(r).rpartition("document/")[2] for _, s in OURS for r in listed(s["Resource"]) if ":document/" in str(resolve(r))}

    assert named == documents


def test_every_machine_that_is_named_in_a_permission_or_variable_exists() -> None:
    machines = {resolve(m["Properties"]["Name"]) for m in of_type(raw(), "AWS::Serverless::StateMachine").values()}
    resources = [resolve(r) for _, s in OURS for r in listed(s["Resource"]) if isinstance(resolve(r), str)]
    variables = [resolve(v) for f in functions().values() for v in f["Properties"]["Environment"]["Variables"].values()]

    named = {m[1] for text in (*resources, *variables) for m in re.finditer(r":(?:stateMachine|execution):([\w-]+)", str(text))}

    assert named == machines


def test_every_role_touches_only_its_items_of_the_table() -> None:
    for role, statement in OURS:
        if any(a.startswith("dynamodb:") for a in statement["Action"]):
            (condition,) = statement["Condition"].items()
            assert condition[0] == "ForAllValues:StringLike", role
            assert set(condition[1]["dynamodb:LeadingKeys"]) <= {"NODE#*", "COMMAND#*"}
            assert "dynamodb:Scan" not in statement["Action"]


def test_roles_have_no_managed_policy_but_those_of_sam() -> None:
    for name, role in of_type(translated(), "AWS::IAM::Role").items():
        attached = {str(resolve(a)).partition(":policy/")[2] for a in role["Properties"].get("ManagedPolicyArns", [])}
        assert attached <= MANAGED, name


def test_the_role_of_an_example_instance_reads_public_data_and_logs_and_nothing_else() -> None:
    from tests.template.support import parse_template

    (role,) = of_type(parse_template("examples/workers.yaml"), "AWS::IAM::Role").values()
    found = {s["Sid"]: s for p in role["Properties"]["Policies"] for s in p["PolicyDocument"]["Statement"]}

    starred = {a for s in found.values() if s["Resource"] == "*" for a in listed(s["Action"])}
    narrow = {a for s in found.values() if s["Resource"] != "*" for a in listed(s["Action"])}

    assert starred == OF_AN_AGENT
    assert narrow == {"ssm:GetParameter", "logs:CreateLogStream", "logs:DescribeLogStreams", "logs:PutLogEvents"}
    assert "/public/*" in found["PublicDataOfThePartition"]["Resource"]["Fn::Sub"]
    assert "ManagedPolicyArns" not in role["Properties"]
