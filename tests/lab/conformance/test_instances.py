"""EC2 instances by boto3, and what an instance is from the inside."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from lab.region.region import Region
from tests.lab.fleet.world import IMAGE_ID, World
from tests.lab.fleet.world import world as make_world

pytestmark = pytest.mark.lab


@pytest.fixture(scope="module")
def world(region: Region, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with make_world(region, tmp_path_factory.mktemp("fleet")) as made:
        yield made


@pytest.fixture(scope="module")
def node(world: World) -> str:
    """An instance that is up, launched from the template."""
    return world.run_instance(
        LaunchTemplate={"LaunchTemplateName": world.template},
        TagSpecifications=[{"ResourceType": "instance", "Tags": [{"Key": "name", "Value": "one"}]}],
    )


def shell(world: World, node: str, script: str) -> tuple[int, str, str]:
    done = world.fleet.run_on(node, ["/bin/bash", "-c", script])
    return done.returncode, done.stdout, done.stderr


def found(world: World, *filters: tuple[str, str]) -> list[str]:
    answer = world.ec2.describe_instances(Filters=[{"Name": name, "Values": [value]} for name, value in filters])
    return [one["InstanceId"] for reservation in answer["Reservations"] for one in reservation["Instances"]]


def refused(call: Any, **given: Any) -> str:
    with pytest.raises(ClientError) as caught:
        call(**given)
    return str(caught.value.response["Error"]["Code"])


def test_address_and_zone_come_from_the_subnet(world: World) -> None:
    instance_id = world.run_instance(SubnetId=world.subnets[1])

    shown = world.ec2.describe_instances(InstanceIds=[instance_id])["Reservations"][0]["Instances"][0]

    assert shown["PrivateIpAddress"] == f"127.{world.network}.16.10"
    assert (shown["SubnetId"], shown["VpcId"], shown["State"]["Name"]) == (world.subnets[1], world.vpc_id, "running")
    assert shown["Placement"]["AvailabilityZone"] == "us-east-1b"
    interface = shown["NetworkInterfaces"][0]
    assert (interface["PrivateIpAddress"], interface["SubnetId"], interface["SourceDestCheck"]) == (
        shown["PrivateIpAddress"], world.subnets[1], True,
    )  # fmt: skip
    assert shown["IamInstanceProfile"]["Arn"].endswith(f":instance-profile/{world.profile}")


def test_no_address_is_used_twice(world: World) -> None:
    first = world.run_instance()
    address = world.fleet.instances[first].address
    world.ec2.terminate_instances(InstanceIds=[first])
    world.until(lambda: world.fleet.instances[first].state == "terminated")

    second = world.run_instance()

    assert world.fleet.instances[second].address != address


def test_filters_select_and_unknown_ones_are_refused(world: World, node: str) -> None:
    address = world.fleet.instances[node].address
    mac = world.fleet.instances[node].mac

    for name, value in [
        ("instance-id", node), ("private-ip-address", address), ("tag:name", "one"), ("tag:name", "o*"), ("tag-key", "name"),
        ("network-interface.addresses.private-ip-address", address), ("network-interface.mac-address", mac),
    ]:  # fmt: skip
        assert found(world, (name, value)) == [node], name
    assert node in found(world, ("vpc-id", world.vpc_id), ("subnet-id", world.subnets[0]), ("instance-state-name", "running"))
    assert found(world, ("private-ip-address", "127.0.0.99")) == []
    assert found(world, ("vpc-id", "vpc-nobody")) == []
    assert refused(world.ec2.describe_instances, Filters=[{"Name": "bogus", "Values": ["x"]}]) == "InvalidParameterValue"


def test_unknown_and_malformed_ids(world: World) -> None:
    assert refused(world.ec2.describe_instances, InstanceIds=["i-0123456789abcdef0"]) == "InvalidInstanceID.NotFound"
    assert refused(world.ec2.describe_instances, InstanceIds=["instance"]) == "InvalidInstanceID.Malformed"
    assert refused(world.ec2.terminate_instances, InstanceIds=["i-0123456789abcdef0"]) == "InvalidInstanceID.NotFound"


def test_the_tags_of_the_template_and_of_the_call_come_together(world: World, node: str) -> None:
    shown = world.ec2.describe_instances(InstanceIds=[node])["Reservations"][0]["Instances"][0]

    assert {"from": "template", "name": "one"}.items() <= {tag["Key"]: tag["Value"] for tag in shown["Tags"]}.items()
    assert shown["MetadataOptions"]["HttpTokens"] == "required"


def test_termination_passes_through_shutting_down(world: World) -> None:
    instance_id = world.run_instance()

    change = world.ec2.terminate_instances(InstanceIds=[instance_id])["TerminatingInstances"][0]
    world.until(lambda: found(world, ("instance-id", instance_id), ("instance-state-name", "terminated")))
    shown = world.ec2.describe_instances(InstanceIds=[instance_id])["Reservations"][0]["Instances"][0]

    assert (change["PreviousState"]["Name"], change["CurrentState"]["Name"]) == ("running", "shutting-down")
    assert "PrivateIpAddress" not in shown
    assert shown["NetworkInterfaces"] == []


def test_the_source_destination_check_is_switched_and_the_node_knows(world: World, node: str) -> None:
    mark = world.fleet.instances[node].root / "run/lab/source_dest_check"
    before = mark.read_text(encoding="utf-8")

    world.ec2.modify_instance_attribute(InstanceId=node, SourceDestCheck={"Value": False})

    assert (before, mark.read_text(encoding="utf-8")) == ("true", "false")
    assert world.ec2.describe_instance_attribute(InstanceId=node, Attribute="sourceDestCheck")["SourceDestCheck"]["Value"] is False
    assert node in found(world, ("source-dest-check", "false"))
    assert (
        refused(world.ec2.modify_instance_attribute, InstanceId=node, InstanceType={"Value": "m5.large"}) == "InvalidParameterCombination"
    )


def test_a_fault_can_make_the_check_stick(world: World) -> None:
    instance_id = world.run_instance()

    def stuck(point: str, context: dict[str, Any]) -> object | None:
        return "stuck" if point == "source_dest_check" and context["instance_id"] == instance_id else None

    world.fleet.interceptors.append(stuck)
    world.ec2.modify_instance_attribute(InstanceId=instance_id, SourceDestCheck={"Value": False})
    world.fleet.interceptors.remove(stuck)

    assert world.ec2.describe_instance_attribute(InstanceId=instance_id, Attribute="sourceDestCheck")["SourceDestCheck"]["Value"] is True


def test_the_environment_of_a_node_is_exactly_this(world: World, node: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEAKS", "yes")
    root = world.fleet.instances[node].root

    names = set(shell(world, node, "env -u _ -u SHLVL -u PWD | cut -d= -f1")[1].split())

    assert names == {
        "AUTOJOIN_ROOT", "PATH", "AWS_EC2_METADATA_SERVICE_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_DEFAULT_REGION", "CURL_HOME", "HOME",
        "AUTOJOIN_LAB_ID", "LC_ALL",
    }  # fmt: skip
    assert shell(world, node, "hello; readlink $AUTOJOIN_ROOT/opt/arktos/bin")[1].splitlines() == [
        f"hello from {root}", str(world.fleet.image / "bin"),
    ]  # fmt: skip


def test_metadata_takes_version_two_only(world: World, node: str) -> None:
    rc, out, _ = shell(
        world, node,
        "e=$AWS_EC2_METADATA_SERVICE_ENDPOINT; curl -s -o /dev/null -w '%{http_code}\\n' $e/latest/meta-data/instance-id; "
        "t=$(curl -sSf -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 60' $e/latest/api/token); "
        "get() { curl -sSf -H \"X-aws-ec2-metadata-token: $t\" $e/latest/meta-data/$1; echo; }; "
        "get instance-id; get local-ipv4; m=$(get mac); get network/interfaces/macs/$m/subnet-ipv4-cidr-block; "
        "get network/interfaces/macs/$m/vpc-id; get placement/region; get placement/availability-zone; "
        "get iam/security-credentials/; get tags/instance/name; get nothing",
    )  # fmt: skip

    instance = world.fleet.instances[node]
    assert out.split() == [
        "401", node, instance.address, f"127.{world.network}.0.0/20", world.vpc_id, "us-east-1", "us-east-1a", world.role, "one",
    ]  # fmt: skip
    assert rc == 0


def test_the_credentials_of_a_node_are_those_of_its_role(world: World, node: str) -> None:
    for name in (f"/{world.tag}/public/ca", f"/{world.tag}/secret"):
        world.ssm.put_parameter(Name=name, Type="String", Value="text")
    script = (
        "import boto3, sys\nfrom botocore.exceptions import ClientError\n"
        "print(boto3.client('sts').get_caller_identity()['Arn'])\n"
        "ssm = boto3.client('ssm')\n"
        "for name in sys.argv[1:]:\n"
        "    try:\n        print(ssm.get_parameter(Name=name)['Parameter']['Value'])\n"
        "    except ClientError as error:\n        print(error.response['Error']['Code'])\n"
    )

    done = world.fleet.run_on(node, [sys.executable, "-c", script, f"/{world.tag}/public/ca", f"/{world.tag}/secret"])

    assert done.stdout.split() == [f"arn:aws:sts::000000000000:assumed-role/{world.role}/{node}", "text", "AccessDeniedException"]


def test_a_node_makes_and_reads_only_the_secrets_of_its_role(world: World, node: str) -> None:
    iam, name = world.region.client("iam"), f"autojoin/{world.tag}/kubernetes"
    statement = {
        "Effect": "Allow", "Action": ["secretsmanager:CreateSecret", "secretsmanager:GetSecretValue"],
        "Resource": f"arn:aws:secretsmanager:us-east-1:000000000000:secret:{name}-*",
    }  # fmt: skip
    policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
    iam.put_role_policy(RoleName=world.role, PolicyName="secret", PolicyDocument=policy)
    script = (
        "import boto3, sys\nfrom botocore.exceptions import ClientError\n"
        "secrets = boto3.client('secretsmanager')\n"
        "for name in sys.argv[1:]:\n"
        "    for call in (lambda: secrets.create_secret(Name=name, SecretString='x'), lambda: secrets.get_secret_value(SecretId=name)):\n"
        "        try:\n            call()\n            print('done')\n"
        "        except ClientError as error:\n            print(error.response['Error']['Code'])\n"
    )

    done = world.fleet.run_on(node, [sys.executable, "-c", script, name, name, f"autojoin/{world.tag}/other"])

    assert done.stdout.split() == ["done", "done", "ResourceExistsException", "done", "AccessDeniedException", "AccessDeniedException"]


def test_names_of_the_private_zone_resolve_for_curl(world: World, node: str) -> None:
    address = world.fleet.instances[node].address
    route53 = world.region.client("route53")
    zone = f"{world.tag}.arktos.internal"
    zone_id = route53.create_hosted_zone(Name=zone, CallerReference=world.tag, VPC={"VPCId": world.vpc_id, "VPCRegion": "us-east-1"})[
        "HostedZone"
    ]["Id"]
    unit = world.fleet.instances[node].root / "etc/systemd/system/web.service"
    unit.write_text(f"[Service]\nExecStart={sys.executable} -m http.server --bind {address} --directory ${{AUTOJOIN_ROOT}}/etc 8080\n")
    shell(world, node, "systemctl start web")

    record = {"Name": f"api.{zone}", "Type": "A", "TTL": 30, "ResourceRecords": [{"Value": address}]}
    route53.change_resource_record_sets(HostedZoneId=zone_id, ChangeBatch={"Changes": [{"Action": "CREATE", "ResourceRecordSet": record}]})

    world.until(lambda: shell(world, node, f"curl -sSf http://api.{zone}:8080/")[0] == 0)
    seen = world.fleet.instances[node].root / "var/log/web.log"
    world.until(lambda: f"{address} - - [" in seen.read_text(encoding="utf-8"))
    assert shell(world, node, "systemctl is-active web; journalctl -u web -n 1 --no-pager")[1].splitlines()[0] == "active"


def test_power_off_leaves_no_process_behind(world: World) -> None:
    instance_id = world.run_instance()
    instance = world.fleet.instances[instance_id]
    unit = instance.root / "etc/systemd/system/one.service"
    unit.write_text("[Service]\nRestart=always\nRestartSec=10ms\nExecStart=/bin/sleep 300\n", encoding="utf-8")
    shell(world, instance_id, "systemctl start one; setsid sleep 301 >/dev/null 2>&1 &")
    world.until(lambda: len(_processes(instance.root)) >= 2)

    world.fleet.kill(instance_id)

    assert _processes(instance.root) == []
    assert instance.state == "terminated"
    events = [e["event"] for e in world.region.journal.entries("instance") if e["instance_id"] == instance_id]
    assert events[-1] == "killed"
    with pytest.raises(RuntimeError):
        world.fleet.run_on(instance_id, ["true"])


def _processes(root: Path) -> list[str]:
    mine = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if f"AUTOJOIN_ROOT={root}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                mine.append(entry.name)
        except OSError:
            continue
    return mine


def test_an_instance_without_a_profile_never_has_an_agent(world: World) -> None:
    answer = world.ec2.run_instances(MinCount=1, MaxCount=1, ImageId=IMAGE_ID, SubnetId=world.subnets[0])
    instance = world.fleet.instances[answer["Instances"][0]["InstanceId"]]

    world.until(lambda: instance.booted_at)
    time.sleep(0.3)

    assert not instance.agent_online
    code, _, _ = shell(world, instance.instance_id, "hello")
    assert code == 0


def test_a_missing_profile_or_subnet_is_refused(world: World) -> None:
    given: dict[str, Any] = {"MinCount": 1, "MaxCount": 1, "ImageId": IMAGE_ID}

    assert (
        refused(world.ec2.run_instances, **given, SubnetId=world.subnets[0], IamInstanceProfile={"Name": "nobody"})
        == "InvalidParameterValue"
    )
    assert refused(world.ec2.run_instances, **given, SubnetId="subnet-nobody") == "InvalidSubnetID.NotFound"
    assert json.dumps(found(world, ("subnet-id", "subnet-nobody"))) == "[]"
