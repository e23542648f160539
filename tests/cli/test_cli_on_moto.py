"""The command on its real adapters, moto in the place of AWS; only the node that answers inspect is a fake."""

from __future__ import annotations

import io
import json
import shlex
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import boto3
import pytest
from moto import mock_aws
from moto.route53 import route53_backends

from autojoin import ports as wanted
from cli import ports as cli_ports
from cli.__main__ import run
from tests.fakes.account import Account, hand_made

GROUP = "demo-rp1-masters"
ADOPT = f"adopt {GROUP} --cluster demo --partition rp1 --role rp"
ENROLL = f"enroll {GROUP} --cluster demo --partition rp1 --role rp"
SOA = "ns-1536.awsdns-00.co.uk. awsdns-hostmaster.amazon.com. 1 7200 900 1209600 86400"
KEYS = [{"AttributeName": "pk", "KeyType": "HASH"}, {"AttributeName": "sk", "KeyType": "RANGE"}]


@pytest.fixture
def region(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    with mock_aws():
        yield


@pytest.fixture
def zone_id(region: None) -> str:
    """A stack's table, a declared cluster with its zone, and a group that may have one instance."""
    keyed = [{"AttributeName": k["AttributeName"], "AttributeType": "S"} for k in KEYS]
    boto3.client("dynamodb").create_table(
        TableName="autojoin-nodes", KeySchema=KEYS, AttributeDefinitions=keyed, BillingMode="PAY_PER_REQUEST"
    )
    template = {"Resources": {"Topic": {"Type": "AWS::SNS::Topic"}}, "Outputs": {"TableName": {"Value": "autojoin-nodes"}}}
    boto3.client("cloudformation").create_stack(StackName="autojoin", TemplateBody=json.dumps(template))
    route53 = boto3.client("route53")
    made = named_as_aws_does(route53.create_hosted_zone(Name="demo.arktos.internal", CallerReference="1")["HostedZone"]["Id"])
    soa = {"Name": "demo.arktos.internal.", "Type": "SOA", "TTL": 900, "ResourceRecords": [{"Value": SOA}]}
    route53.change_resource_record_sets(HostedZoneId=made, ChangeBatch={"Changes": [{"Action": "UPSERT", "ResourceRecordSet": soa}]})
    put("/autojoin/demo/cluster", {"zone": "demo.arktos.internal", "zone_id": made})
    ec2 = boto3.client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.0.0.0/20")["Subnet"]["SubnetId"]
    data = {"ImageId": "ami-12c6146b", "InstanceType": "m5.large", "IamInstanceProfile": {"Name": "node"}}
    ec2.create_launch_template(LaunchTemplateName=GROUP, LaunchTemplateData=data)
    boto3.client("autoscaling").create_auto_scaling_group(
        AutoScalingGroupName=GROUP,
        MinSize=0,
        MaxSize=1,
        DesiredCapacity=0,
        VPCZoneIdentifier=subnet,
        LaunchTemplate={"LaunchTemplateName": GROUP, "Version": "$Latest"},
        NewInstancesProtectedFromScaleIn=True,
    )
    return made


def named_as_aws_does(moto_id: str) -> str:
    """moto's ids of zones begin with any letter, AWS's with Z."""
    zones = route53_backends["123456789012"]["aws"].zones
    zone = zones.pop(moto_id.rpartition("/")[2])
    zone.resource_id = "Z0123456789ABC"
    zones[zone.resource_id] = zone
    return str(zone.resource_id)


def put(name: str, value: object) -> None:
    boto3.client("ssm").put_parameter(Name=name, Value=json.dumps(value), Type="String")


def scale_up() -> str:
    """One instance in service; its address."""
    boto3.client("autoscaling").set_desired_capacity(AutoScalingGroupName=GROUP, DesiredCapacity=1)
    return instance()["PrivateIpAddress"]


def instance() -> dict[str, Any]:
    (reservation,) = boto3.client("ec2").describe_instances()["Reservations"]
    return dict(reservation["Instances"][0])


class Node(Account):
    """The node, which keeps its keys where AWS is."""

    def _store(self, cluster: str, partition: str) -> str:
        boto3.client("secretsmanager").create_secret(Name=f"autojoin/{cluster}/{partition}/kubernetes", SecretString="{}")
        name = f"/autojoin/{cluster}/public/{partition}/client-ca.crt"
        boto3.client("ssm").put_parameter(Name=name, Value=self.answer["client_ca"], Type="String")
        return "created"


def ports_with(node: Account) -> Any:
    class Ports(cli_ports.CommandPorts):
        @cached_property
        def commands(self) -> wanted.Commands:
            return node  # type: ignore[return-value]

    def made(stack: str) -> Ports:
        return Ports(cli_ports.ports_of(stack).settings)

    return made


def said(words: str, ports_of: Any = cli_ports.ports_of) -> dict[str, Any]:
    out = io.StringIO()
    run(shlex.split(f"{words} --json"), ports_of, out, io.StringIO())
    found: dict[str, Any] = json.loads(out.getvalue())
    assert found["refused"] is None, found["refused"]
    return found


def test_a_running_master_is_adopted(zone_id: str) -> None:
    address = scale_up()
    node = Node(answer=hand_made().answer)
    node.answer["etcd"]["members"][0]["peer_urls"] = [f"http://{address}:2380"]
    instance_id = instance()["InstanceId"]
    node.pings[instance_id] = "Online"
    ports_of = ports_with(node)

    applied = said(f"{ADOPT} --apply", ports_of)

    assert {c["done"] for c in applied["changes"]} == {True}
    items = {i["sk"]["S"]: i for i in boto3.client("dynamodb").scan(TableName="autojoin-nodes")["Items"]}
    assert items["MARKER"]["state"]["S"] == "formed"
    assert items["RECORD"]["joined_by"]["S"] == "autojoin adopt"
    assert "owner" not in items["LEASE"]
    ssm = boto3.client("ssm")
    witness = json.loads(ssm.get_parameter(Name="/autojoin/demo/witness/rp1/formed-1")["Parameter"]["Value"])
    assert (witness["instance"], witness["cluster_id"]) == (instance_id, node.answer["etcd"]["cluster_id"])
    assert {"Key": "autojoin:partition", "Value": "rp1"} in instance()["Tags"]

    # moto forgets a hook's metadata, so that it would look like somebody else's.
    boto3.client("autoscaling").delete_lifecycle_hook(AutoScalingGroupName=GROUP, LifecycleHookName="autojoin-launching")
    left = [c["change"] for c in said(ADOPT, ports_of)["changes"]]
    assert left == [f"put launch hook autojoin-launching on group {GROUP}: HeartbeatTimeout 300, DefaultResult ABANDON"]


def test_an_empty_group_is_enrolled(zone_id: str) -> None:
    put("/autojoin/demo/partitions/rp1", {"id": "rp1", "kind": "rp", "pod_cidr": "10.244.0.0/16"})

    applied = said(f"{ENROLL} --apply")

    assert len(applied["changes"]) == 3
    records = boto3.client("route53").list_resource_record_sets(HostedZoneId=zone_id)["ResourceRecordSets"]
    assert [r["ResourceRecords"][0]["Value"] for r in records if r["Type"] == "SOA"] == [SOA.removesuffix("86400") + "10"]
    boto3.client("autoscaling").delete_lifecycle_hook(AutoScalingGroupName=GROUP, LifecycleHookName="autojoin-launching")
    assert len(said(ENROLL)["changes"]) == 1
