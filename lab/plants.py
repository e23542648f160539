"""Plants: each breaks one invariant on purpose, so that a run proves that the observer sees it.

They act on the lab as somebody would who does it wrong; none of them is ever part of an ordinary scenario.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lab import lifeline
from lab.loopback import ask
from lab.observer import leftovers

if TYPE_CHECKING:
    from lab.lab import Lab

Plant = Callable[["Lab", str | None, str | None], None]
INTRUDER = "planted-intruder"
SEEN_S = 2.0
"""Longest time in seconds that the observer may need to see an etcd that answers."""
ZONE = "demo.arktos.internal"


def _hook(lab: Lab, instance_id: str) -> dict[str, Any]:
    opened = [e for e in lab.journal.entries("hook") if e["instance_id"] == instance_id and e["event"] == "opened"]
    return opened[-1]


def _needed(instance_id: str | None) -> str:
    if instance_id is None:
        raise ValueError("this plant needs an instance")
    return instance_id


def _intruder(lab: Lab, service: str) -> Any:
    """A client of somebody with a role of his own, who may do what Autojoin may, and more."""
    iam, sts = lab.region.client("iam"), lab.region.client("sts")
    trust = {
        "Version": "2012-10-17",
        "Statement": [{"Effect": "Allow", "Principal": {"AWS": f"arn:aws:iam::{lab.region.account}:root"}, "Action": "sts:AssumeRole"}],
    }
    may = {
        "Version": "2012-10-17",
        "Statement": [{"Effect": "Allow", "Action": ["autoscaling:*", "route53:*"], "Resource": "*"}],
    }
    if INTRUDER not in [role["RoleName"] for role in iam.list_roles()["Roles"]]:
        iam.create_role(RoleName=INTRUDER, AssumeRolePolicyDocument=json.dumps(trust))
        iam.put_role_policy(RoleName=INTRUDER, PolicyName="may", PolicyDocument=json.dumps(may))
    got = sts.assume_role(RoleArn=f"arn:aws:iam::{lab.region.account}:role/{INTRUDER}", RoleSessionName="planted")["Credentials"]
    return lab.region.client(
        service, aws_access_key_id=got["AccessKeyId"], aws_secret_access_key=got["SecretAccessKey"],
        aws_session_token=got["SessionToken"],
    )  # fmt: skip


def _complete(client: Any, hook: dict[str, Any], result: str) -> None:
    client.complete_lifecycle_action(
        AutoScalingGroupName=hook["group"], LifecycleHookName=hook["hook"], LifecycleActionToken=hook["token"],
        LifecycleActionResult=result, InstanceId=hook["instance_id"],
    )  # fmt: skip


def hook_completed_twice(lab: Lab, instance_id: str | None, _: str | None) -> None:
    """A group that takes a second answer to the same action, as no group should."""
    hook = _hook(lab, _needed(instance_id))
    lab.journal.record(
        "hook", instance_id=hook["instance_id"], group=hook["group"], hook=hook["hook"], token=hook["token"],
        event="completed", result="ABANDON", by="root", deadline=None,
    )  # fmt: skip


def continue_too_early(lab: Lab, instance_id: str | None, _: str | None) -> None:
    """CONTINUE for an instance that has not joined anything."""
    _complete(lab.region.client("autoscaling"), _hook(lab, _needed(instance_id)), "CONTINUE")


def record_left_behind(lab: Lab, instance_id: str | None, _: str | None) -> None:
    """A record that names an instance which is gone."""
    _change_record(lab.region.client("route53"), "UPSERT", f"{_needed(instance_id)}.{ZONE}", "192.0.2.1")


def second_cluster(lab: Lab, instance_id: str | None, _: str | None) -> None:
    """Another etcd in a partition that was founded long ago: a real one on another instance, which the observer must see by itself."""
    instance = lab.fleet.instances[_needed(instance_id)]
    seen = _etcd(lab, instance.address, lab.fleet.environment(instance))
    give_up = time.monotonic() + SEEN_S
    while not any(e["cluster_id"] == seen.cluster_id for e in lab.journal.entries("etcd")):
        if time.monotonic() > give_up:
            raise TimeoutError(f"the observer did not see {seen.cluster_id} on {instance_id} within {SEEN_S:.0f} s")
        time.sleep(0.05)


def last_copy_abandoned(lab: Lab, instance_id: str | None, _: str | None) -> None:
    """ABANDON for an instance whose etcd the witness calls formed and of which there is no other member."""
    instance = lab.fleet.instances[_needed(instance_id)]
    partition = instance.tags["autojoin:partition"]
    seen = _etcd(lab, instance.address, lab.fleet.environment(instance))
    said = {"instance": instance_id, "cluster_id": seen.cluster_id, "at_ms": int(time.time() * 1000)}
    lab.region.client("ssm").put_parameter(
        Name=f"/autojoin/demo/witness/{partition}/formed-1", Type="String", Value=json.dumps(said), Overwrite=False
    )
    lab.observer.poll()
    _complete(_intruder(lab, "autoscaling"), _hook(lab, _needed(instance_id)), "ABANDON")


def _etcd(lab: Lab, address: str, environment: dict[str, str]) -> leftovers.EtcdView:
    """Start an etcd of one member on an address and look at it once it answers."""
    folder = lab.root / f"planted-{time.monotonic_ns()}"
    folder.mkdir()
    with (folder / "log").open("wb") as log:
        lifeline.popen(
            [
                str(Path(sys.prefix) / "bin/etcd"), "--name", "planted", "--data-dir", str(folder / "data"),
                "--listen-client-urls", f"http://{address}:2379", "--advertise-client-urls", f"http://{address}:2379",
                "--listen-peer-urls", f"http://{address}:2380", "--initial-advertise-peer-urls", f"http://{address}:2380",
                "--initial-cluster", f"planted=http://{address}:2380",
            ],
            env={**os.environ, **environment}, stdout=log, stderr=subprocess.STDOUT,
        )  # fmt: skip
    give_up = time.monotonic() + 30
    while True:
        try:
            return leftovers.etcd_of(address)
        except (OSError, KeyError):
            if time.monotonic() > give_up:
                raise
            time.sleep(0.2)


def member_added(lab: Lab, _: str | None, __: str | None) -> None:
    """A learner that nobody asked for in the RP's etcd, seen, and taken away again."""
    address = lab.observer.addresses(frozenset({"rp"}))["rp1"]
    added = ask(f"http://{address}:2379/v3/cluster/member/add", {"peerURLs": ["http://192.0.2.9:2380"], "isLearner": True})
    lab.observer.poll()
    ask(f"http://{address}:2379/v3/cluster/member/remove", {"ID": added["member"]["ID"]})


def record_of_another_deleted(lab: Lab, instance_id: str | None, _: str | None) -> None:
    """A record of an instance that serves, deleted by somebody who is not its owner."""
    address = lab.fleet.instances[_needed(instance_id)].address
    _change_record(lab.region.client("route53"), "UPSERT", f"planted.{ZONE}", address)
    _change_record(_intruder(lab, "route53"), "DELETE", f"planted.{ZONE}", address)


def foreign_hook_completed(lab: Lab, instance_id: str | None, _: str | None) -> None:
    """The hook of a group without our tag, completed by a role."""
    _complete(_intruder(lab, "autoscaling"), _hook(lab, _needed(instance_id)), "CONTINUE")


def private_key_logged(lab: Lab, _: str | None, __: str | None) -> None:
    """A private key, made for this, in a log."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    text = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()).decode()
    _log(lab, text)


def task_token_logged(lab: Lab, _: str | None, __: str | None) -> None:
    """What looks like a task token of this lab, in a log."""
    from lab.asl.engine import TOKEN_PREFIX

    _log(lab, "answered with " + TOKEN_PREFIX + "0" * 64)


def _log(lab: Lab, text: str) -> None:
    logs = lab.region.client("logs")
    group = f"/planted/{time.monotonic_ns()}"
    logs.create_log_group(logGroupName=group)
    logs.create_log_stream(logGroupName=group, logStreamName="planted")
    logs.put_log_events(logGroupName=group, logStreamName="planted", logEvents=[{"timestamp": int(time.time() * 1000), "message": text}])


def _change_record(route53: Any, action: str, name: str, value: str) -> None:
    zones = [z for z in route53.list_hosted_zones()["HostedZones"] if z["Name"].rstrip(".") == ZONE]
    record = {"Name": name, "Type": "A", "TTL": 30, "ResourceRecords": [{"Value": value}]}
    route53.change_resource_record_sets(
        HostedZoneId=zones[0]["Id"], ChangeBatch={"Changes": [{"Action": action, "ResourceRecordSet": record}]}
    )


PLANTS: dict[str, Plant] = {
    plant.__name__: plant
    for plant in (
        hook_completed_twice,
        continue_too_early,
        record_left_behind,
        second_cluster,
        last_copy_abandoned,
        member_added,
        record_of_another_deleted,
        foreign_hook_completed,
        private_key_logged,
        task_token_logged,
    )
}
