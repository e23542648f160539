"""IAM: lab/region/authorisation.py. Each case is a policy that is right on AWS, and one just beside it that refuses."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError

from lab.region import authorisation
from lab.region.region import Region
from tests.lab.conformance.conftest import eventually

pytestmark = pytest.mark.lab
Statement = dict[str, Any]
_serial = itertools.count()
DENIED = {"AccessDenied", "AccessDeniedException", "UnauthorizedOperation", "AuthorizationError", "AuthorizationErrorException"}


@pytest.fixture(scope="module")
def as_role(region: Region) -> Callable[..., Any]:
    """A client of a fresh role that has the given statements."""
    iam, sts = region.client("iam"), region.client("sts")
    trust = {"Effect": "Allow", "Principal": {"AWS": f"arn:aws:iam::{region.account}:root"}, "Action": "sts:AssumeRole"}

    def client(service: str, *statements: Statement) -> Any:
        name = f"case-{next(_serial)}"
        document = json.dumps({"Version": "2012-10-17", "Statement": [trust]})
        arn = iam.create_role(RoleName=name, AssumeRolePolicyDocument=document)["Role"]["Arn"]
        policy = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", **s} for s in statements]}
        iam.put_role_policy(RoleName=name, PolicyName="case", PolicyDocument=json.dumps(policy))
        made = sts.assume_role(RoleArn=arn, RoleSessionName="case")["Credentials"]
        return region.client(
            service, aws_access_key_id=made["AccessKeyId"], aws_secret_access_key=made["SecretAccessKey"],
            aws_session_token=made["SessionToken"],
        )  # fmt: skip

    return client


def outcome(call: Callable[[], Any]) -> str:
    """ "denied", or "allowed" whatever else became of the call."""
    try:
        call()
    except ClientError as error:
        code = error.response["Error"]["Code"]
        return "denied" if code in DENIED else "allowed"
    return "allowed"


def arn(region: Region, service: str, resource: str) -> str:
    return f"arn:aws:{service}:{region.name}:{region.account}:{resource}"


@pytest.fixture(scope="module")
def instance(region: Region) -> str:
    """An instance that carries our tag, in EC2's records only."""
    from ministack.services import ec2

    instance_id = "i-0aaaaaaaaaaaaaaa1"
    ec2._tags[instance_id] = [{"Key": "autojoin:cluster", "Value": "demo"}]
    return instance_id


class TestParameters:
    @pytest.mark.parametrize(
        ("granted", "expected"),
        [("parameter/autojoin/*", "allowed"), ("parameter/other/*", "denied"), ("parameter/autojoin", "denied")],
    )
    @pytest.mark.parametrize("operation", ["get_parameter", "get_parameters", "get_parameters_by_path"])
    def test_reading_is_decided_by_the_parameters_arn(
        self, region: Region, as_role: Callable[..., Any], granted: str, expected: str, operation: str
    ) -> None:
        actions = ["ssm:GetParameter", "ssm:GetParameters", "ssm:GetParametersByPath"]
        ssm = as_role("ssm", {"Action": actions, "Resource": arn(region, "ssm", granted)})
        arguments: dict[str, Any] = {
            "get_parameter": {"Name": "/autojoin/demo/cluster"},
            "get_parameters": {"Names": ["/autojoin/demo/cluster", "/autojoin/demo/partitions/rp1"]},
            "get_parameters_by_path": {"Path": "/autojoin/demo/partitions"},
        }[operation]

        assert outcome(lambda: getattr(ssm, operation)(**arguments)) == expected

    def test_one_parameter_that_is_not_granted_refuses_all(self, region: Region, as_role: Callable[..., Any]) -> None:
        ssm = as_role("ssm", {"Action": "ssm:GetParameters", "Resource": arn(region, "ssm", "parameter/a/*")})

        assert outcome(lambda: ssm.get_parameters(Names=["/a/1", "/b/1"])) == "denied"

    @pytest.mark.parametrize(("overwrite", "expected"), [(False, "allowed"), (True, "denied"), (None, "denied")])
    def test_writing_is_decided_by_the_parameters_arn_and_whether_it_may_overwrite(
        self, region: Region, as_role: Callable[..., Any], overwrite: bool | None, expected: str
    ) -> None:
        once = {"StringEquals": {"ssm:Overwrite": "false"}}
        statement = {"Action": "ssm:PutParameter", "Resource": arn(region, "ssm", "parameter/autojoin/*/witness/*"), "Condition": once}
        ssm = as_role("ssm", statement)
        said = {} if overwrite is None else {"Overwrite": overwrite}

        def put(name: str) -> str:
            return outcome(lambda: ssm.put_parameter(Name=name, Type="String", Value="x", **said))

        assert put(f"/autojoin/demo/witness/tp1/{next(_serial)}") == expected
        assert put("/autojoin/demo/cluster") == "denied"

    def test_a_parameter_with_tags_also_needs_to_be_tagged(self, region: Region, as_role: Callable[..., Any]) -> None:
        resource = arn(region, "ssm", "parameter/tagged/*")
        put = {"Type": "String", "Value": "x", "Tags": [{"Key": "a", "Value": "b"}]}
        narrow = as_role("ssm", {"Action": "ssm:PutParameter", "Resource": resource})
        wide = as_role("ssm", {"Action": ["ssm:PutParameter", "ssm:AddTagsToResource"], "Resource": resource})

        assert outcome(lambda: narrow.put_parameter(Name="/tagged/1", **put)) == "denied"
        assert outcome(lambda: wide.put_parameter(Name="/tagged/2", **put)) == "allowed"


class TestSecrets:
    """A secret's name is its path; its ARN ends in six characters of its own."""

    def statement(self, region: Region, *actions: str, resource: str = "autojoin/*", **more: Any) -> Statement:
        named = [f"secretsmanager:{action}" for action in actions]
        return {"Action": named, "Resource": arn(region, "secretsmanager", f"secret:{resource}"), **more}

    @pytest.mark.parametrize(
        ("resource", "allowed_name", "expected"),
        [
            ("autojoin/demo/{}-*", "autojoin/demo/*", "allowed"),
            ("autojoin/demo/{}-??????", "autojoin/demo/*", "allowed"),
            ("autojoin/demo/{}", "autojoin/demo/*", "denied"),
            ("other/*", "autojoin/demo/*", "denied"),
            ("autojoin/demo/{}-*", "autojoin/other/*", "denied"),
        ],
    )
    def test_creation_is_decided_by_the_arn_to_come_and_by_the_name(
        self, region: Region, as_role: Callable[..., Any], resource: str, allowed_name: str, expected: str
    ) -> None:
        name = f"tp{next(_serial)}"
        condition = {"StringLike": {"secretsmanager:Name": allowed_name}}
        client = as_role("secretsmanager", self.statement(region, "CreateSecret", resource=resource.format(name), Condition=condition))

        assert outcome(lambda: client.create_secret(Name=f"autojoin/demo/{name}", SecretString="x")) == expected

    @pytest.mark.parametrize("may_tag", [True, False])
    def test_a_secret_with_tags_also_needs_to_be_tagged(self, region: Region, as_role: Callable[..., Any], may_tag: bool) -> None:
        statement = self.statement(region, "CreateSecret", *(["TagResource"] if may_tag else []))
        client = as_role("secretsmanager", statement)
        tags = [{"Key": "autojoin:cluster", "Value": "demo"}]

        made = outcome(lambda: client.create_secret(Name=f"autojoin/{next(_serial)}", SecretString="x", Tags=tags))

        assert made == ("allowed" if may_tag else "denied")

    def test_a_secret_is_made_once_and_read_by_its_name_or_tag(self, region: Region, as_role: Callable[..., Any]) -> None:
        name, tags = f"autojoin/{next(_serial)}", [{"Key": "autojoin:cluster", "Value": "demo"}]
        client = as_role("secretsmanager", self.statement(region, "CreateSecret", "GetSecretValue", "TagResource"))
        by_tag, by_other_tag = (
            as_role(
                "secretsmanager",
                {
                    "Action": "secretsmanager:GetSecretValue", "Resource": "*",
                    "Condition": {"StringEquals": {"aws:ResourceTag/autojoin:cluster": value}},
                },
            )
            for value in ("demo", "other")
        )  # fmt: skip

        client.create_secret(Name=name, SecretString="x", Tags=tags)
        with pytest.raises(client.exceptions.ResourceExistsException):
            client.create_secret(Name=name, SecretString="y", Tags=tags)

        assert client.get_secret_value(SecretId=name)["SecretString"] == "x"
        assert outcome(lambda: by_tag.get_secret_value(SecretId=name)) == "allowed"
        assert outcome(lambda: by_other_tag.get_secret_value(SecretId=name)) == "denied"
        calls = [one for one in region.journal.entries("api_call") if one["service"] == "secretsmanager"]
        assert {"Name": name} in [one["detail"] for one in calls]
        assert {"SecretId": name} in [one["detail"] for one in calls]
        assert not [one for one in calls if "SecretString" in str(one["detail"])]

    def test_a_secret_that_is_not_there_has_no_arn_but_the_one_that_the_caller_gives(
        self, region: Region, as_role: Callable[..., Any]
    ) -> None:
        client = as_role("secretsmanager", self.statement(region, "GetSecretValue"))
        everything = as_role("secretsmanager", {"Action": "secretsmanager:GetSecretValue", "Resource": "*"})
        whole = arn(region, "secretsmanager", "secret:autojoin/nobody")

        assert outcome(lambda: client.get_secret_value(SecretId="autojoin/nobody")) == "denied"
        for reader, asked in ((client, whole), (everything, "autojoin/nobody"), (everything, whole)):
            with pytest.raises(reader.exceptions.ResourceNotFoundException):
                reader.get_secret_value(SecretId=asked)


class TestSendCommand:
    def statements(self, region: Region, *, document: str = "ours", tag: str = "demo") -> list[Statement]:
        return [
            {"Action": "ssm:SendCommand", "Resource": arn(region, "ssm", f"document/{document}")},
            {
                "Action": "ssm:SendCommand",
                "Resource": arn(region, "ec2", "instance/*"),
                "Condition": {"StringLike": {"ssm:resourceTag/autojoin:cluster": tag}},
            },
        ]

    @pytest.mark.parametrize(
        ("case", "expected"),
        [({}, "allowed"), ({"tag": "*"}, "allowed"), ({"tag": "other"}, "denied"), ({"document": "theirs"}, "denied")],
    )
    def test_both_the_document_and_the_tagged_instance_must_be_allowed(
        self, region: Region, as_role: Callable[..., Any], instance: str, case: dict[str, str], expected: str
    ) -> None:
        ssm = as_role("ssm", *self.statements(region, **case))

        assert outcome(lambda: ssm.send_command(DocumentName="ours", InstanceIds=[instance])) == expected

    def test_one_untagged_instance_refuses_the_command(self, region: Region, as_role: Callable[..., Any], instance: str) -> None:
        ssm = as_role("ssm", *self.statements(region))

        command = {"DocumentName": "ours", "InstanceIds": [instance, "i-0bbbbbbbbbbbbbbb2"]}
        assert outcome(lambda: ssm.send_command(**command)) == "denied"

    def test_the_document_alone_is_not_enough(self, region: Region, as_role: Callable[..., Any], instance: str) -> None:
        ssm = as_role("ssm", self.statements(region)[0])

        assert outcome(lambda: ssm.send_command(DocumentName="ours", InstanceIds=[instance])) == "denied"


class TestDocuments:
    @pytest.mark.parametrize(("granted", "expected"), [("document/ours", "allowed"), ("parameter/ours", "denied")])
    def test_a_document_has_a_documents_arn(self, region: Region, as_role: Callable[..., Any], granted: str, expected: str) -> None:
        ssm = as_role("ssm", {"Action": "ssm:DescribeDocument", "Resource": arn(region, "ssm", granted)})

        assert outcome(lambda: ssm.describe_document(Name="ours")) == expected


class TestInstances:
    @pytest.mark.parametrize(
        ("key", "value", "expected"),
        [
            ("ec2:ResourceTag/autojoin:cluster", "*", "allowed"),
            ("aws:ResourceTag/autojoin:cluster", "demo", "allowed"),
            ("ec2:ResourceTag/autojoin:cluster", "other", "denied"),
            ("ec2:ResourceTag/absent", "*", "denied"),
        ],
    )
    def test_an_attribute_is_modified_by_tag(
        self, region: Region, as_role: Callable[..., Any], instance: str, key: str, value: str, expected: str
    ) -> None:
        statement = {
            "Action": "ec2:ModifyInstanceAttribute",
            "Resource": arn(region, "ec2", "instance/*"),
            "Condition": {"StringLike": {key: value}},
        }
        ec2 = as_role("ec2", statement)

        call = {"InstanceId": instance, "SourceDestCheck": {"Value": False}}
        assert outcome(lambda: ec2.modify_instance_attribute(**call)) == expected

    def test_describing_needs_every_resource(self, region: Region, as_role: Callable[..., Any], instance: str) -> None:
        narrow = as_role("ec2", {"Action": "ec2:DescribeInstances", "Resource": arn(region, "ec2", "instance/*")})
        wide = as_role("ec2", {"Action": "ec2:DescribeInstances", "Resource": "*"})

        assert outcome(lambda: narrow.describe_instances(InstanceIds=[instance])) == "denied"
        assert outcome(lambda: wide.describe_instances(InstanceIds=[instance])) == "allowed"

    def test_tags_are_put_on_a_resource_by_its_arn(self, region: Region, as_role: Callable[..., Any], instance: str) -> None:
        ours = as_role("ec2", {"Action": "ec2:CreateTags", "Resource": arn(region, "ec2", "instance/*")})
        theirs = as_role("ec2", {"Action": "ec2:CreateTags", "Resource": arn(region, "ec2", "volume/*")})
        tags = {"Resources": [instance], "Tags": [{"Key": "autojoin:joined", "Value": "1"}]}

        assert outcome(lambda: ours.create_tags(**tags)) == "allowed"
        assert outcome(lambda: theirs.create_tags(**tags)) == "denied"


@pytest.fixture(scope="module")
def group(region: Region) -> str:
    """A group that carries our tag."""
    region.client("ec2").create_launch_template(LaunchTemplateName="case", LaunchTemplateData={"ImageId": "ami-1"})
    tag = {"Key": "autojoin:cluster", "Value": "demo", "PropagateAtLaunch": True}
    region.client("autoscaling").create_auto_scaling_group(
        AutoScalingGroupName="case", MinSize=0, MaxSize=0, LaunchTemplate={"LaunchTemplateName": "case"},
        AvailabilityZones=["us-east-1a"],
        Tags=[{**tag, "ResourceId": "case", "ResourceType": "auto-scaling-group"}],
    )  # fmt: skip
    return "case"


@pytest.mark.usefixtures("group")
class TestGroups:
    @pytest.mark.parametrize(
        ("key", "value", "expected"),
        [
            ("autoscaling:ResourceTag/autojoin:cluster", "*", "allowed"),
            ("aws:ResourceTag/autojoin:cluster", "demo", "allowed"),
            ("autoscaling:ResourceTag/autojoin:cluster", "other", "denied"),
        ],
    )
    def test_a_hook_is_completed_by_the_groups_tag(
        self, region: Region, as_role: Callable[..., Any], key: str, value: str, expected: str
    ) -> None:
        statement = {
            "Action": "autoscaling:CompleteLifecycleAction",
            "Resource": arn(region, "autoscaling", "autoScalingGroup:*:autoScalingGroupName/*"),
            "Condition": {"StringLike": {key: value}},
        }
        client = as_role("autoscaling", statement)

        def complete() -> None:
            client.complete_lifecycle_action(
                AutoScalingGroupName="case",
                LifecycleHookName="h",
                LifecycleActionResult="CONTINUE",
                InstanceId="i-0ccccccccccccccc3",
            )

        assert outcome(complete) == expected

    def test_describing_needs_every_resource(self, region: Region, as_role: Callable[..., Any]) -> None:
        resource = arn(region, "autoscaling", "autoScalingGroup:*:autoScalingGroupName/*")
        client = as_role("autoscaling", {"Action": "autoscaling:DescribeLifecycleHooks", "Resource": resource})

        assert outcome(lambda: client.describe_lifecycle_hooks(AutoScalingGroupName="case")) == "denied"

    @pytest.mark.parametrize(("value", "expected"), [("demo", "allowed"), ("other", "denied")])
    def test_tags_and_hooks_are_put_by_the_groups_tag(self, region: Region, as_role: Callable[..., Any], value: str, expected: str) -> None:
        statement = {
            "Action": ["autoscaling:CreateOrUpdateTags", "autoscaling:PutLifecycleHook"],
            "Resource": arn(region, "autoscaling", "autoScalingGroup:*:autoScalingGroupName/*"),
            "Condition": {"StringEquals": {"aws:ResourceTag/autojoin:cluster": value}},
        }
        client = as_role("autoscaling", statement)
        tag = {"ResourceId": "case", "ResourceType": "auto-scaling-group", "Key": "other", "Value": "1", "PropagateAtLaunch": False}
        hook = {"LifecycleHookName": "h", "LifecycleTransition": "autoscaling:EC2_INSTANCE_TERMINATING", "HeartbeatTimeout": 60}

        assert outcome(lambda: client.create_or_update_tags(Tags=[tag])) == expected
        assert outcome(lambda: client.put_lifecycle_hook(AutoScalingGroupName="case", **hook)) == expected
        assert outcome(lambda: client.create_or_update_tags(Tags=[tag, {**tag, "ResourceId": "nobody"}])) == "denied"

    @pytest.mark.parametrize("operation", ["describe_auto_scaling_groups", "describe_load_balancer_target_groups"])
    def test_groups_and_their_target_groups_are_described_by_every_resource(self, as_role: Callable[..., Any], operation: str) -> None:
        action = "autoscaling:" + operation.title().replace("_", "")
        client = as_role("autoscaling", {"Action": action, "Resource": "*"})
        named = {"describe_auto_scaling_groups": {}, "describe_load_balancer_target_groups": {"AutoScalingGroupName": "case"}}[operation]

        assert outcome(lambda: getattr(client, operation)(**named)) == "allowed"


@pytest.fixture(scope="module")
def targets(region: Region) -> str:
    """A target group that carries our tag."""
    tag = {"Key": "autojoin:cluster", "Value": "demo"}
    vpc = region.client("ec2").create_vpc(CidrBlock="127.198.0.0/16")["Vpc"]["VpcId"]
    given = {"Name": "authorised", "Protocol": "TCP", "Port": 8080, "VpcId": vpc, "TargetType": "ip", "Tags": [tag]}
    return str(region.client("elbv2").create_target_group(**given)["TargetGroups"][0]["TargetGroupArn"])


class TestTargets:
    @pytest.mark.parametrize(
        ("resource", "value", "expected"),
        [("targetgroup/*", "demo", "allowed"), ("targetgroup/*", "other", "denied"), ("targetgroup/other/*", "demo", "denied")],
    )
    def test_targets_are_changed_by_their_groups_arn_and_tag(
        self, region: Region, as_role: Callable[..., Any], targets: str, resource: str, value: str, expected: str
    ) -> None:
        statement = {
            "Action": ["elasticloadbalancing:RegisterTargets", "elasticloadbalancing:DeregisterTargets"],
            "Resource": arn(region, "elasticloadbalancing", resource),
            "Condition": {"StringEquals": {"aws:ResourceTag/autojoin:cluster": value}},
        }
        client, call = as_role("elbv2", statement), {"TargetGroupArn": targets, "Targets": [{"Id": "127.198.0.9"}]}

        assert outcome(lambda: client.register_targets(**call)) == expected
        assert outcome(lambda: client.deregister_targets(**call)) == expected

    def test_describing_needs_every_resource(self, region: Region, as_role: Callable[..., Any], targets: str) -> None:
        actions = ["elasticloadbalancing:DescribeTargetHealth", "elasticloadbalancing:DescribeTargetGroups"]
        narrow = as_role("elbv2", {"Action": actions, "Resource": arn(region, "elasticloadbalancing", "targetgroup/*")})
        wide = as_role("elbv2", {"Action": actions, "Resource": "*"})

        for client, expected in ((narrow, "denied"), (wide, "allowed")):
            assert outcome(lambda client=client: client.describe_target_health(TargetGroupArn=targets)) == expected
            assert outcome(lambda client=client: client.describe_target_groups(TargetGroupArns=[targets])) == expected


@pytest.fixture(scope="module")
def table(region: Region) -> str:
    """A table with a partition and a sort key."""
    region.client("dynamodb").create_table(
        TableName="authorised",
        KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}, {"AttributeName": "sk", "KeyType": "RANGE"}],
        AttributeDefinitions=[{"AttributeName": n, "AttributeType": "S"} for n in ("pk", "sk")],
        BillingMode="PAY_PER_REQUEST",
    )
    return "authorised"


@pytest.mark.usefixtures("table")
class TestTable:
    @pytest.fixture
    def dynamodb(self, region: Region, as_role: Callable[..., Any]) -> Any:
        actions = ["GetItem", "PutItem", "UpdateItem", "Query", "ConditionCheckItem", "BatchWriteItem"]
        return as_role(
            "dynamodb",
            {
                "Action": [f"dynamodb:{a}" for a in actions],
                "Resource": arn(region, "dynamodb", "table/authorised"),
                "Condition": {"ForAllValues:StringLike": {"dynamodb:LeadingKeys": ["NODE#*"]}},
            },
        )

    @pytest.mark.parametrize(("pk", "expected"), [("NODE#i-1", "allowed"), ("COMMAND#1", "denied")])
    def test_items_are_decided_by_their_partition_key(self, dynamodb: Any, pk: str, expected: str) -> None:
        key = {"pk": {"S": pk}, "sk": {"S": "LEASE"}}
        query = {
            "KeyConditionExpression": "#p = :p AND begins_with(sk, :s)",
            "ExpressionAttributeNames": {"#p": "pk"},
            "ExpressionAttributeValues": {":p": {"S": pk}, ":s": {"S": "INTENT"}},
        }
        put = {"TableName": "authorised", "Item": key}
        calls: list[Callable[[], Any]] = [
            lambda: dynamodb.get_item(TableName="authorised", Key=key),
            lambda: dynamodb.put_item(**put),
            lambda: dynamodb.update_item(TableName="authorised", Key=key),
            lambda: dynamodb.query(TableName="authorised", **query),
            lambda: dynamodb.batch_write_item(RequestItems={"authorised": [{"PutRequest": {"Item": key}}]}),
            lambda: dynamodb.transact_write_items(TransactItems=[{"Put": put}]),
        ]

        assert [outcome(call) for call in calls] == [expected] * len(calls)

    def test_one_foreign_key_refuses_the_transaction(self, dynamodb: Any) -> None:
        items = [
            {"Put": {"TableName": "authorised", "Item": {"pk": {"S": "NODE#1"}, "sk": {"S": "a"}}}},
            {
                "ConditionCheck": {
                    "TableName": "authorised",
                    "Key": {"pk": {"S": "PARTITION#1"}, "sk": {"S": "a"}},
                    "ConditionExpression": "attribute_not_exists(pk)",
                }
            },
        ]

        assert outcome(lambda: dynamodb.transact_write_items(TransactItems=items)) == "denied"


class TestRecords:
    @pytest.mark.parametrize(
        ("name", "kind", "action", "expected"),
        [
            ("api.tp1.demo.example.", "A", "UPSERT", "allowed"),
            ("API.TP1.demo.example", "A", "UPSERT", "allowed"),
            ("api.tp1.other.example.", "A", "UPSERT", "denied"),
            ("api.tp1.demo.example.", "TXT", "UPSERT", "denied"),
            ("api.tp1.demo.example.", "A", "DELETE", "denied"),
        ],
    )
    def test_a_change_is_decided_by_name_type_and_action(
        self, region: Region, as_role: Callable[..., Any], name: str, kind: str, action: str, expected: str
    ) -> None:
        zones = region.client("route53")
        zone = zones.create_hosted_zone(Name="example", CallerReference=str(next(_serial)))["HostedZone"]["Id"].rpartition("/")[2]
        prefix = "route53:ChangeResourceRecordSets"
        client = as_role(
            "route53",
            {
                "Action": prefix,
                "Resource": f"arn:aws:route53:::hostedzone/{zone}",
                "Condition": {
                    "ForAllValues:StringEquals": {f"{prefix}RecordTypes": ["A"], f"{prefix}Actions": ["CREATE", "UPSERT"]},
                    "ForAllValues:StringLike": {f"{prefix}NormalizedRecordNames": ["*.demo.example"]},
                },
            },
        )
        record = {"Name": name, "Type": kind, "TTL": 10, "ResourceRecords": [{"Value": "127.0.0.9" if kind == "A" else '"x"'}]}

        def change() -> None:
            batch = {"Changes": [{"Action": action, "ResourceRecordSet": record}]}
            client.change_resource_record_sets(HostedZoneId=zone, ChangeBatch=batch)

        assert outcome(change) == expected


class TestMachines:
    @pytest.mark.parametrize(("granted", "expected"), [("conformance-machine", "allowed"), ("other", "denied")])
    def test_a_task_is_answered_by_its_machines_arn(
        self, region: Region, outputs: dict[str, str], as_role: Callable[..., Any], granted: str, expected: str
    ) -> None:
        statement = {"Action": "states:SendTask*", "Resource": arn(region, "states", f"stateMachine:{granted}")}
        client = as_role("stepfunctions", statement)

        assert outcome(lambda: client.send_task_success(taskToken="x" * 100, output="{}")) == expected

    def test_a_waiting_task_is_answered_by_the_role_of_its_own_machine_only(
        self, region: Region, outputs: dict[str, str], as_role: Callable[..., Any]
    ) -> None:
        states, iam = region.client("stepfunctions"), region.client("iam")
        trust = {"Effect": "Allow", "Principal": {"Service": "states.amazonaws.com"}, "Action": "sts:AssumeRole"}
        invoking = {"Effect": "Allow", "Action": "lambda:InvokeFunction", "Resource": "*"}
        document = json.dumps({"Version": "2012-10-17", "Statement": [trust]})
        role = iam.create_role(RoleName="waiter", AssumeRolePolicyDocument=document)["Role"]["Arn"]
        policy = json.dumps({"Version": "2012-10-17", "Statement": [invoking]})
        iam.put_role_policy(RoleName="waiter", PolicyName="invoke", PolicyDocument=policy)
        task = {
            "Type": "Task",
            "Resource": "arn:aws:states:::lambda:invoke.waitForTaskToken",
            "Arguments": {
                "FunctionName": "conformance-greet",
                "Payload": {"operation": "log", "token": "{% $states.context.Task.Token %}"},
            },
            "TimeoutSeconds": 60,
            "End": True,
        }
        definition = {"QueryLanguage": "JSONata", "StartAt": "Ask", "States": {"Ask": task}}
        waiting = states.create_state_machine(name="waiting", definition=json.dumps(definition), roleArn=role)["stateMachineArn"]
        execution = states.start_execution(stateMachineArn=waiting, input="{}")["executionArn"]
        token = eventually(lambda: _token_of(states, execution))
        right, wrong = (
            as_role("stepfunctions", {"Action": "states:SendTaskSuccess", "Resource": machine})
            for machine in (waiting, outputs["MachineArn"])
        )

        assert outcome(lambda: wrong.send_task_success(taskToken=token, output="{}")) == "denied"
        described = states.describe_execution(executionArn=execution)
        assert described["status"] == "RUNNING", described
        assert outcome(lambda: right.send_task_success(taskToken=token, output="{}")) == "allowed"
        assert eventually(lambda: states.describe_execution(executionArn=execution)["status"] == "SUCCEEDED")

    def test_an_execution_is_described_by_its_own_arn(self, region: Region, outputs: dict[str, str], as_role: Callable[..., Any]) -> None:
        execution = arn(region, "states", "execution:conformance-machine:x")
        by_execution = as_role("stepfunctions", {"Action": "states:DescribeExecution", "Resource": execution})
        by_machine = as_role("stepfunctions", {"Action": "states:DescribeExecution", "Resource": outputs["MachineArn"]})

        assert outcome(lambda: by_execution.describe_execution(executionArn=execution)) == "allowed"
        assert outcome(lambda: by_machine.describe_execution(executionArn=execution)) == "denied"


class TestMetrics:
    @pytest.mark.parametrize(("namespace", "expected"), [("Autojoin", "allowed"), ("Other", "denied")])
    def test_a_metric_is_put_by_its_namespace(self, as_role: Callable[..., Any], namespace: str, expected: str) -> None:
        condition = {"StringEquals": {"cloudwatch:namespace": "Autojoin"}}
        client = as_role("cloudwatch", {"Action": "cloudwatch:PutMetricData", "Resource": "*", "Condition": condition})

        data = [{"MetricName": "x", "Value": 1}]
        assert outcome(lambda: client.put_metric_data(Namespace=namespace, MetricData=data)) == expected


class TestPassedRoles:
    @pytest.mark.parametrize("may_pass", [True, False])
    def test_a_role_is_handed_to_a_service_only_by_who_may_pass_it(
        self, region: Region, outputs: dict[str, str], as_role: Callable[..., Any], may_pass: bool
    ) -> None:
        role = f"arn:aws:iam::{region.account}:role/starter-of-rules"
        passing = {
            "Action": "iam:PassRole",
            "Resource": role,
            "Condition": {"StringEquals": {"iam:PassedToService": "events.amazonaws.com"}},
        }
        events = as_role("events", {"Action": "events:*", "Resource": "*"}, *([passing] if may_pass else []))
        events.put_rule(Name="passing", EventPattern='{"source": ["none"]}')

        def put() -> None:
            events.put_targets(Rule="passing", Targets=[{"Id": "t", "Arn": outputs["MachineArn"], "RoleArn": role}])

        assert outcome(put) == ("allowed" if may_pass else "denied")


class TestFunctions:
    def test_a_role_that_may_not_log_leaves_no_log(
        self, region: Region, outputs: dict[str, str], invoke: Callable[..., tuple[Any, str | None]]
    ) -> None:
        iam, client, logs = region.client("iam"), region.client("lambda"), region.client("logs")
        trust = {"Effect": "Allow", "Principal": {"Service": "lambda.amazonaws.com"}, "Action": "sts:AssumeRole"}
        document = json.dumps({"Version": "2012-10-17", "Statement": [trust]})
        role = iam.create_role(RoleName="silent", AssumeRolePolicyDocument=document)["Role"]["Arn"]
        bucket, key = _code_of(region)

        client.create_function(
            FunctionName="silent", Role=role, Runtime="python3.13", Handler="app.nothing", Code={"S3Bucket": bucket, "S3Key": key}
        )
        client.invoke(FunctionName="silent", Payload=b"{}")

        groups = logs.describe_log_groups(logGroupNamePrefix="/aws/lambda/silent")["logGroups"]
        assert eventually(lambda: [e for e in region.journal.entries("function") if e["name"] == "silent"])
        assert groups == []

    def test_a_role_that_does_not_exist_may_nothing(self, region: Region) -> None:
        assert authorisation.role_may(f"arn:aws:iam::{region.account}:role/nobody", "sqs:SendMessage", "*") is False


def _code_of(region: Region) -> tuple[str, str]:
    s3 = region.client("s3")
    for bucket in s3.list_buckets()["Buckets"]:
        for found in s3.list_objects_v2(Bucket=bucket["Name"]).get("Contents", []):
            if not found["Key"].endswith((".template", ".yaml", ".json")):
                return bucket["Name"], found["Key"]
    raise AssertionError("the application's code is in no bucket")


def _token_of(states: Any, execution: str) -> str | None:
    """The token that the running task was scheduled with."""
    for event in states.get_execution_history(executionArn=execution)["events"]:
        scheduled = event.get("taskScheduledEventDetails")
        if scheduled:
            token: str = json.loads(scheduled["parameters"])["Payload"]["token"]
            return token
    return None
