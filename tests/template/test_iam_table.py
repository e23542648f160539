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
        "autoscaling:DescribeLoadBalancerTargetGroups",
        "autoscaling:DescribeTags",
        "ec2:DescribeInstances",
        "ec2:DescribeSubnets",
        "elasticloadbalancing:DescribeTargetGroups",
        "elasticloadbalancing:DescribeTargetHealth",
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
IN_THE_VPC = {"EtcdFunctionRole": {"service-role/AWSLambdaVPCAccessExecutionRole"}}
"""What SAM adds for a function's network interfaces."""
OF_OPERATORS = {"autojoin-inspect"}
"""Documents that only the operator's command sends."""
TAGGED_AS_OURS = {
    "autoscaling:CompleteLifecycleAction": "autoscaling:ResourceTag/autojoin:cluster",
    "autoscaling:RecordLifecycleActionHeartbeat": "autoscaling:ResourceTag/autojoin:cluster",
    "ec2:ModifyInstanceAttribute": "ec2:ResourceTag/autojoin:cluster",
    "elasticloadbalancing:DeregisterTargets": "aws:ResourceTag/autojoin:cluster",
    "elasticloadbalancing:RegisterTargets": "aws:ResourceTag/autojoin:cluster",
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


@pytest.mark.parametrize("path", ["template.yaml", "examples/workers.yaml", "examples/masters.yaml"])
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

    assert {resolve(r).rpartition("document/")[2] for r in by_document["Resource"]} == documents - OF_OPERATORS
    assert [resolve(r).rpartition(":")[2] for r in by_instance["Resource"]] == ["instance/*"]
    assert by_instance["Condition"] == {"StringLike": {"ssm:resourceTag/autojoin:cluster": "*"}}


def test_every_document_that_is_named_in_a_permission_exists() -> None:
    documents = {resolve(d["Properties"]["Name"]) for d in of_type(raw(), "AWS::SSM::Document").values()}
    named = {resolve(r).rpartition("document/")[2] for _, s in OURS for r in listed(s["Resource"]) if ":document/" in str(resolve(r))}

    assert named == documents - OF_OPERATORS


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
            assert set(condition[1]["dynamodb:LeadingKeys"]) <= {"NODE#*", "COMMAND#*", "PARTITION#*"}
            assert "dynamodb:Scan" not in statement["Action"]


def test_foundings_are_written_by_one_role_and_deleted_by_none() -> None:
    touching = {
        (role, action)
        for role, s in OURS
        for action in s["Action"]
        if "PARTITION#*" in s.get("Condition", {}).get("ForAllValues:StringLike", {}).get("dynamodb:LeadingKeys", [])
    }
    written = {role for role, action in touching if action not in ("dynamodb:GetItem", "dynamodb:ConditionCheckItem")}

    assert {role for role, _ in touching} == {"MembershipFunctionRole", "NodeFunctionRole"}
    assert written == {"MembershipFunctionRole"}
    assert {action for _, action in touching} == {"dynamodb:GetItem", "dynamodb:PutItem", "dynamodb:ConditionCheckItem"}


def test_the_witness_is_written_by_one_role_and_never_over_anything() -> None:
    writing = [(role, s) for role, s in OURS if "ssm:PutParameter" in s["Action"]]

    ((role, statement),) = writing
    assert role == "MembershipFunctionRole"
    assert [resolve(r).rpartition(":parameter")[2] for r in statement["Resource"]] == ["/autojoin/*/witness/*"]
    assert statement["Condition"] == {"StringEquals": {"ssm:Overwrite": "false"}}
    assert not [a for _, s in OURS for a in s["Action"] if a.startswith("ssm:Delete")]


def test_only_records_of_api_servers_are_changed_and_only_one_way() -> None:
    (statement,) = [s for _, s in OURS if "route53:ChangeResourceRecordSets" in s["Action"]]

    assert [resolve(r) for r in statement["Resource"]] == ["arn:aws:route53:::hostedzone/*"]
    assert statement["Condition"] == {
        "ForAllValues:StringEquals": {
            "route53:ChangeResourceRecordSetsRecordTypes": ["A"],
            "route53:ChangeResourceRecordSetsActions": ["UPSERT", "DELETE"],
        },
        "ForAllValues:StringLike": {"route53:ChangeResourceRecordSetsNormalizedRecordNames": ["api.*"]},
    }


def test_the_function_in_the_vpc_has_no_permission_of_its_own() -> None:
    assert "Policies" not in functions()["etcd"]["Properties"]
    assert not [s for role, s in OURS if role == "EtcdFunctionRole"]


def test_roles_have_no_managed_policy_but_those_of_sam() -> None:
    for name, role in of_type(translated(), "AWS::IAM::Role").items():
        attached = {str(resolve(a)).partition(":policy/")[2] for a in role["Properties"].get("ManagedPolicyArns", [])}
        assert attached <= MANAGED | IN_THE_VPC.get(name, set()), name


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


def test_the_role_of_a_master_has_the_keys_of_its_own_partition_and_can_neither_change_nor_delete_them() -> None:
    from tests.template.support import parse_template

    (role,) = of_type(parse_template("examples/masters.yaml"), "AWS::IAM::Role").values()
    found = {s["Sid"]: s for p in role["Properties"]["Policies"] for s in p["PolicyDocument"]["Statement"]}

    starred = {a for s in found.values() if s["Resource"] == "*" for a in listed(s["Action"])}
    keys = [s for s in found.values() if any(a.startswith("secretsmanager:") for a in listed(s["Action"]))]
    writes = [s for s in found.values() if "ssm:PutParameter" in listed(s["Action"])]

    assert starred == OF_AN_AGENT
    assert [sorted(listed(s["Action"])) for s in keys] == [["secretsmanager:CreateSecret", "secretsmanager:GetSecretValue"]]
    assert all("secret:autojoin/${Cluster}/${Partition}/kubernetes-*" in s["Resource"]["Fn::Sub"] for s in keys)
    assert ["/public/${Partition}/*" in s["Resource"]["Fn::Sub"] for s in writes] == [True]
    assert "ManagedPolicyArns" not in role["Properties"]
