"""A hand-made 1x1: one TP and one RP as an operator would have made them without Autojoin, with an SSM agent on both.

The network is a stack of examples/network.yaml; the masters, their keys and names, the declarations and the RP's published client CA
are made here through the same APIs that an operator would use.
"""

from __future__ import annotations

import datetime as dt
import json
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from lab.arktos.masters import API_UNITS, Partition, files
from lab.fleet.fleet import Fleet
from lab.loopback import is_healthy
from lab.region.region import Region

CLUSTER = "demo"
ZONE = "demo.arktos.internal"
KEYS = "var/run/kubernetes"
"""Where Arktos' own scripts put the keys of a master."""
IMAGE_ID = "ami-0a1b2c3d4e5f60718"
WAIT_S = 60.0


@dataclass(frozen=True)
class HandMade:
    """The two masters."""

    tp: str
    rp: str
    outputs: dict[str, str]


class NotUp(Exception):
    """A part of the hand-made cluster did not come up; the message says which and what its log says."""


def build(fleet: Fleet, region: Region) -> HandMade:
    """Make it with our tags and declarations, and return when both API servers are healthy and the RP's own Node is Ready. Raises NotUp."""
    outputs = _network(region)
    profile = _profile(region)
    tp = _run(region, outputs, profile, "tp", "tp1")
    rp = _run(region, outputs, profile, "rp", "rp1")
    partitions = make_masters(fleet, region, tp, rp)
    _declare(region, partitions, outputs["HostedZoneId"])
    certificate = (fleet.instances[rp].root / KEYS / "client-ca.crt").read_text(encoding="utf-8")
    region.client("ssm").put_parameter(Name=f"/autojoin/{CLUSTER}/public/rp1/client-ca.crt", Value=certificate, Type="String")
    return HandMade(tp, rp, outputs)


def make_masters(fleet: Fleet, region: Region, tp: str, rp: str) -> list[Partition]:
    """Make the masters of tp1 and rp1 out of two bare instances, as `build` does. Nothing is declared. Raises NotUp."""
    _until(lambda: all(fleet.instances[i].agent_online_at is not None for i in (tp, rp)), "the agents of both masters")
    for instance_id in (tp, rp):
        region.client("ec2").modify_instance_attribute(InstanceId=instance_id, SourceDestCheck={"Value": False})
    n = fleet.network
    partitions = [
        Partition("tp1", "tp", f"127.{n}.224.0/20", tp, fleet.instances[tp].address),
        Partition("rp1", "rp", f"127.{n}.128.0/18", rp, fleet.instances[rp].address),
    ]
    addresses = {p.id: p.address for p in partitions}
    _names(region, _network(region)["HostedZoneId"], addresses)
    for partition in partitions:
        _make_keys(fleet.instances[partition.instance_id].root / KEYS, partition.id)
        _write(fleet, partition, partitions)
    _until(lambda: all(is_healthy(address) for address in addresses.values()), "the API servers of both masters")
    for instance in (tp, rp):
        _start_rest(fleet, instance)
    _until(lambda: _node_is_ready(addresses["rp1"], rp), "the RP's own Node")
    return partitions


def _network(region: Region) -> dict[str, str]:
    """Outputs of the stack of examples/network.yaml, which is there before any master."""
    stack = region.client("cloudformation").describe_stacks(StackName=f"{CLUSTER}-network")["Stacks"][0]
    return {o["OutputKey"]: o["OutputValue"] for o in stack["Outputs"]}


def _profile(region: Region) -> str:
    iam = region.client("iam")
    name = f"{CLUSTER}-node"
    trust = {"Effect": "Allow", "Principal": {"Service": "ec2.amazonaws.com"}, "Action": "sts:AssumeRole"}
    iam.create_role(RoleName=name, AssumeRolePolicyDocument=json.dumps({"Version": "2012-10-17", "Statement": [trust]}))
    public = f"arn:aws:ssm:{region.name}:{region.account}:parameter/autojoin/{CLUSTER}/public/*"
    agent = ["ec2messages:*", "ssm:UpdateInstanceInformation", "ssmmessages:*"]
    logs = ["logs:CreateLogStream", "logs:DescribeLogStreams", "logs:PutLogEvents"]
    statements = [
        {"Effect": "Allow", "Action": agent, "Resource": "*"},
        {"Effect": "Allow", "Action": ["ssm:GetParameter", "ssm:PutParameter"], "Resource": public},
        {"Effect": "Allow", "Action": logs, "Resource": "*"},
    ]
    iam.put_role_policy(RoleName=name, PolicyName="node", PolicyDocument=json.dumps({"Version": "2012-10-17", "Statement": statements}))
    iam.create_instance_profile(InstanceProfileName=name)
    iam.add_role_to_instance_profile(InstanceProfileName=name, RoleName=name)
    return name


def _run(region: Region, outputs: dict[str, str], profile: str, role: str, partition: str) -> str:
    tags = {"Name": f"{CLUSTER}-{partition}", "autojoin:cluster": CLUSTER, "autojoin:role": role, "autojoin:partition": partition}
    ec2 = region.client("ec2")
    answer = ec2.run_instances(
        ImageId=IMAGE_ID,
        InstanceType="m5.2xlarge",
        MinCount=1,
        MaxCount=1,
        SubnetId=outputs["SubnetAId"],
        SecurityGroupIds=[outputs["MemberSecurityGroupId"]],
        IamInstanceProfile={"Name": profile},
        MetadataOptions={"HttpTokens": "required"},
        TagSpecifications=[{"ResourceType": "instance", "Tags": [{"Key": k, "Value": v} for k, v in tags.items()]}],
    )
    return str(answer["Instances"][0]["InstanceId"])


def _names(region: Region, zone_id: str, addresses: dict[str, str]) -> None:
    changes = [
        {
            "Action": "UPSERT",
            "ResourceRecordSet": {
                "Name": f"api.{partition}.{ZONE}",
                "Type": "A",
                "TTL": 10,
                "ResourceRecords": [{"Value": address}],
            },
        }
        for partition, address in addresses.items()
    ]
    region.client("route53").change_resource_record_sets(HostedZoneId=zone_id, ChangeBatch={"Changes": changes})


def _declare(region: Region, partitions: list[Partition], zone_id: str) -> None:
    declared = {f"/autojoin/{CLUSTER}/cluster": json.dumps({"zone": ZONE, "zone_id": zone_id})}
    for partition in partitions:
        name = f"/autojoin/{CLUSTER}/partitions/{partition.id}"
        if partition.kind == "tp":
            declared[name] = json.dumps({"id": partition.id, "kind": "tp", "service_cidr": partition.cidr})
        else:
            shape = {"id": partition.id, "kind": "rp", "pod_cidr": partition.cidr, "cni_backend": partition.cni_backend}
            declared[name] = json.dumps(shape)
    for name, value in declared.items():
        region.client("ssm").put_parameter(Name=name, Value=value, Type="String", Overwrite=True)


def _make_keys(folder: Path, partition: str) -> None:
    """Three CAs and the service-account key, made here and now."""
    folder.mkdir(parents=True)
    for ca in ("client-ca", "server-ca", "request-header-ca"):
        key = ec.generate_private_key(ec.SECP256R1())
        _keep(folder / f"{ca}.key", _text_of(key))
        _keep(folder / f"{ca}.crt", _certificate(f"{partition}-{ca}", key))
    _keep(folder / "service-account.key", _text_of(rsa.generate_private_key(65537, 2048)))


def _keep(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o600)


def _text_of(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> str:
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()).decode()


def _certificate(common_name: str, key: ec.EllipticCurvePrivateKey) -> str:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(minutes=5))
        .not_valid_after(now + dt.timedelta(days=3650))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _write(fleet: Fleet, own: Partition, all_partitions: list[Partition]) -> None:
    """Everything of a master; etcd and the API server are started."""
    for path, text in files(fleet.instances[own.instance_id].root, own, all_partitions, ZONE, CLUSTER).items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    _systemctl(fleet, own.instance_id, "daemon-reload")
    _systemctl(fleet, own.instance_id, "enable", "--now", *(f"{unit}.service" for unit in API_UNITS))


def _start_rest(fleet: Fleet, instance_id: str) -> None:
    units = sorted(p.name for p in (fleet.instances[instance_id].root / "etc/systemd/system").glob("arktos-*.service"))
    _systemctl(fleet, instance_id, "enable", "--now", *units)


def _systemctl(fleet: Fleet, instance_id: str, *words: str) -> None:
    done = fleet.run_on(instance_id, ["systemctl", *words])
    if done.returncode != 0:
        raise NotUp(f"systemctl {' '.join(words)} on {instance_id}: {done.stderr or done.stdout}")


def _node_is_ready(address: str, name: str) -> bool:
    try:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://{address}:8080/api/v1/nodes/{name}", timeout=3) as answer:
            node = json.loads(answer.read())
    except (OSError, ValueError):
        return False
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"]["conditions"])
    return ready and not node["spec"].get("taints") and bool(node["spec"].get("podCIDR"))


def _until(look: Callable[[], Any], what: str) -> Any:
    give_up = time.monotonic() + WAIT_S
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > give_up:
            raise NotUp(f"{what} did not come up within {WAIT_S:.0f} s")
        time.sleep(0.1)
