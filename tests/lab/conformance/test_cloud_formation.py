"""Templates: lab/region/cloud_formation.py, by the real SAM CLI."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from botocore.exceptions import ClientError

from lab.region.region import Region
from tests.lab.conformance.conftest import STACK, eventually

pytestmark = pytest.mark.lab


def test_sam_builds_and_deploys_the_application(region: Region, outputs: dict[str, str]) -> None:
    stack = region.client("cloudformation").describe_stacks(StackName=STACK)["Stacks"][0]

    assert stack["StackStatus"] == "CREATE_COMPLETE"


def test_a_second_deploy_of_the_same_changes_nothing(deploy: Callable[..., None], region: Region, outputs: dict[str, str]) -> None:
    deploy()

    assert region.client("cloudformation").describe_stacks(StackName=STACK)["Stacks"][0]["StackStatus"] == "CREATE_COMPLETE"


def test_a_definition_in_yaml_runs_and_errors_are_caught_by_their_own_name(region: Region, outputs: dict[str, str]) -> None:
    states = region.client("stepfunctions")

    arn = states.start_execution(stateMachineArn=outputs["MachineArn"], input="{}")["executionArn"]

    def ended() -> dict[str, str] | None:
        found: dict[str, str] = states.describe_execution(executionArn=arn)
        return found if found["status"] != "RUNNING" else None

    execution = eventually(ended)
    assert execution["status"] == "SUCCEEDED", execution
    assert json.loads(execution["output"]) == {"said": "hello world", "error": "QuorumAtRisk"}


def test_a_zone_with_vpcs_is_private(region: Region, outputs: dict[str, str]) -> None:
    zone = region.client("route53").get_hosted_zone(Id=outputs["ZoneId"])

    assert zone["HostedZone"]["Config"]["PrivateZone"] is True
    assert [vpc["VPCRegion"] for vpc in zone["VPCs"]] == ["us-east-1"]


def test_the_range_of_a_vpc_can_be_read(outputs: dict[str, str]) -> None:
    assert outputs["VpcCidr"] == "127.119.0.0/16"


def test_a_reference_to_a_secret_is_its_arn_and_to_a_profile_its_name(outputs: dict[str, str]) -> None:
    assert outputs["SecretRef"].startswith("arn:aws:secretsmanager:")
    assert outputs["ProfileRef"] == f"{STACK}-node"


def test_concurrency_dead_letter_queue_and_vpc_of_a_function_come_from_the_template(region: Region, outputs: dict[str, str]) -> None:
    client = region.client("lambda")

    function = client.get_function_configuration(FunctionName=f"{STACK}-greet")

    assert client.get_function_concurrency(FunctionName=f"{STACK}-greet")["ReservedConcurrentExecutions"] == 50
    assert function["DeadLetterConfig"]["TargetArn"].startswith("arn:aws:sqs:")
    assert function["VpcConfig"]["SecurityGroupIds"] == [outputs["GroupId"]]
    assert function["VpcConfig"]["VpcId"].startswith("vpc-")


def test_a_function_is_in_the_network_that_a_parameter_names_or_in_none(
    region: Region, deploy: Callable[..., None], outputs: dict[str, str]
) -> None:
    client = region.client("lambda")

    def network() -> dict[str, object]:
        found: dict[str, object] = client.get_function_configuration(FunctionName=f"{STACK}-fail").get("VpcConfig") or {}
        return found

    seen = [network()]
    for subnets in (outputs["SubnetId"], '""'):
        deploy("--parameter-overrides", f"FunctionSubnetIds={subnets}")
        seen.append(network())

    assert (seen[0], seen[2]) == ({}, {})
    assert (seen[1]["SubnetIds"], seen[1]["SecurityGroupIds"]) == ([outputs["SubnetId"]], [outputs["GroupId"]])


def test_a_rule_of_its_own_lets_the_members_of_a_group_speak(region: Region, outputs: dict[str, str]) -> None:
    group = region.client("ec2").describe_security_groups(GroupIds=[outputs["GroupId"]])["SecurityGroups"][0]

    rule = group["IpPermissions"][0]
    assert (rule["FromPort"], rule["ToPort"]) == (2379, 2380)
    assert rule["UserIdGroupPairs"][0]["GroupId"] == outputs["GroupId"]


def deploy_text(region: Region, name: str, resources: dict[str, object]) -> str:
    """Deploy a template by the API; the last status."""
    client = region.client("cloudformation")
    body = json.dumps({"Resources": resources})
    try:
        client.update_stack(StackName=name, TemplateBody=body, Capabilities=["CAPABILITY_IAM"])
    except ClientError:
        client.create_stack(StackName=name, TemplateBody=body, Capabilities=["CAPABILITY_IAM"])

    def settled() -> str | None:
        status: str = client.describe_stacks(StackName=name)["Stacks"][0]["StackStatus"]
        return None if status.endswith("IN_PROGRESS") else status

    status: str = eventually(settled)
    return status


def document(text: str, **properties: object) -> dict[str, object]:
    step = {"action": "aws:runShellScript", "name": "run", "inputs": {"runCommand": [text]}}
    content = {"schemaVersion": "2.2", "description": "x", "mainSteps": [step]}
    return {
        "Type": "AWS::SSM::Document",
        "Properties": {"Name": "conformance-doc", "DocumentType": "Command", "Content": content, **properties},
    }


def test_a_document_is_created_updated_as_a_new_default_version_and_deleted(region: Region) -> None:
    ssm = region.client("ssm")

    created = deploy_text(region, "documents", {"Doc": document("echo 1", UpdateMethod="NewVersion")})
    first = ssm.describe_document(Name="conformance-doc")["Document"]
    updated = deploy_text(region, "documents", {"Doc": document("echo 2", UpdateMethod="NewVersion")})
    second = ssm.describe_document(Name="conformance-doc")["Document"]
    content = ssm.get_document(Name="conformance-doc")["Content"]
    region.client("cloudformation").delete_stack(StackName="documents")

    def gone() -> bool:
        try:
            ssm.describe_document(Name="conformance-doc")
        except ssm.exceptions.InvalidDocument:
            return True
        return False

    assert (created, updated) == ("CREATE_COMPLETE", "UPDATE_COMPLETE")
    assert (first["DocumentVersion"], second["DefaultVersion"]) == ("1", "2")
    assert first["Hash"] != second["Hash"]
    assert "echo 2" in content
    assert eventually(gone)


def test_a_named_document_cannot_be_replaced(region: Region) -> None:
    deploy_text(region, "replaced", {"Doc": document("echo 1", Name="conformance-replaced")})

    status = deploy_text(region, "replaced", {"Doc": document("echo 2", Name="conformance-replaced")})

    assert status == "UPDATE_ROLLBACK_COMPLETE"


def test_a_function_whose_role_lambda_cannot_assume_rolls_the_stack_back(region: Region) -> None:
    trust = {"Statement": [{"Effect": "Allow", "Principal": {"Service": "ec2.amazonaws.com"}, "Action": "sts:AssumeRole"}]}
    role = {"Type": "AWS::IAM::Role", "Properties": {"AssumeRolePolicyDocument": {"Version": "2012-10-17", **trust}}}
    function = {
        "Type": "AWS::Lambda::Function",
        "Properties": {
            "Runtime": "python3.13", "Handler": "index.x", "Role": {"Fn::GetAtt": ["Role", "Arn"]}, "Code": {"ZipFile": "x = 1"},
        },
    }  # fmt: skip

    status = deploy_text(region, "untrusted", {"Role": role, "Function": function})

    assert status == "ROLLBACK_COMPLETE"
