"""Asking a running master what it is, by the document inspect, and whether that is what can be adopted."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from autojoin import errors
from autojoin.domain import budgets
from autojoin.domain.identity import Identity
from autojoin.domain.partitions import Partition, PartitionKind, Topology
from autojoin.domain.scripts import conclude
from autojoin.events.configuration import PartitionDeclaration
from autojoin.events.inspection import Inspection
from autojoin.records import Instance
from autojoin.use_cases.enrolment import Refused
from autojoin.use_cases.parse import parse
from autojoin.use_cases.run import ONLINE

if TYPE_CHECKING:
    from autojoin.ports import OperatorPorts

INSPECT = "inspect"
COMMENT = "autojoin adopt"


def inspect(instance_id: str, identity: Identity, where: Mapping[str, str], ports: OperatorPorts, *, store: bool = False) -> Inspection:
    """Send inspect to a master of `identity`'s partition and wait for its answer.

    where  the document's EtcdUrl and CertDir, where they are not its defaults
    store  the node also puts its keys into the secret, unless that exists, and publishes its client CA; else it changes nothing
    Raises AgentNeverOnline, ScriptTimedOut, Busy, InvalidInput, and what the document's end means.
    """
    agent = ports.commands.agents([instance_id]).get(instance_id)
    if agent is None or agent.ping != ONLINE:
        raise errors.AgentNeverOnline(
            f"the SSM agent of {instance_id} is {agent.ping if agent else 'not registered'}",
            ONLINE,
            "look at the agent, the instance profile and the way to the SSM endpoints",
        )
    parameters = {
        "InstanceId": instance_id,
        "Cluster": identity.cluster,
        "Partition": identity.partition,
        "Store": "yes" if store else "no",
        "ExecutionTimeout": str(budgets.COMMAND_EXECUTION_S[INSPECT]),
        **where,
    }
    command_id = ports.commands.send(INSPECT, instance_id, parameters, COMMENT)
    budget_s = budgets.command_budget_s(INSPECT)
    until_ms = ports.clock.now_ms() + budget_s * 1000
    while True:
        invocation = ports.commands.invocation(command_id, instance_id)
        if invocation and invocation.is_terminal:
            break
        if ports.clock.now_ms() >= until_ms:
            raise errors.ScriptTimedOut(
                f"command {command_id} on {instance_id} has not ended after {budget_s} s",
                "an end",
                "look at the node's SSM agent, then run the command again",
            )
        ports.clock.sleep(budgets.LOOK_EVERY_S)
    result = conclude(invocation)
    if result is None:
        said = invocation.stdout.strip()[-300:]
        raise errors.Busy(f"command {command_id} on {instance_id}: {said}", "an answer", "read what it says, then run the command again")
    return parse(Inspection, result.fields, f"the answer of {INSPECT} on {instance_id}")


def require_own_etcd(seen: Inspection, instance: Instance) -> None:
    """The etcd that answered must be this instance's, and alone. Its name may say anything; its peer URL is where it is.

    Raises ReplicasNotSupported, Refused.
    """
    members = seen.etcd.members
    if len(members) != 1:
        listed = "; ".join(f"{m.id} at {', '.join(m.peer_urls) or 'no URL'}" for m in members) or "none"
        raise errors.ReplicasNotSupported(
            f"the etcd of {instance.instance_id} has {len(members)} members: {listed}",
            "one: a partition has one member in this version",
            "remove the others if they are gone for good (etcdctl member remove), otherwise leave the partition as it is",
        )
    (member,) = members
    if instance.address not in {urlsplit(url).hostname for url in member.peer_urls}:
        raise Refused(
            f"etcd's member {member.id} has the peer URLs {', '.join(member.peer_urls) or 'none'}",
            f"the instance's own address {instance.address} among them",
            f"if it is this instance's: etcdctl member update {member.id} --peer-urls=http://{instance.address}:2380; then again",
        )


def partition_of(seen: Inspection, identity: Identity, topology: Topology) -> Partition:
    """The partition as it is declared, or as it will be, as it runs.

    Raises ConfigurationInvalid where what is declared contradicts what runs, PartitionKindMismatch where the processes do.
    """
    declared_one = topology.get(identity.partition)
    if seen.kind_hint in list(PartitionKind) and seen.kind_hint != identity.role.value:
        raise errors.PartitionKindMismatch(
            f"the processes of the node are those of a {seen.kind_hint}",
            f"those of a {identity.role.value}",
            "correct --role, or the role's tag",
        )
    if declared_one is None:
        return _as_it_runs(identity, topology, seen)
    runs = {"service_cidr": seen.service_cidr, "pod_cidr": seen.pod_cidr}
    for field, running in runs.items():
        said = getattr(declared_one, field)
        if said and running and ipaddress.ip_network(said, strict=False) != ipaddress.ip_network(running, strict=False):
            raise errors.ConfigurationInvalid(
                f"partition {identity.partition} runs with {field} {running}",
                f"{said}, as it is declared",
                f"correct /autojoin/{identity.cluster}/partitions/{identity.partition}: the running partition is what is so",
            )
    return declared_one


def _as_it_runs(identity: Identity, topology: Topology, seen: Inspection) -> Partition:
    kind = PartitionKind(identity.role.value)
    field, running = ("pod_cidr", seen.pod_cidr) if kind is PartitionKind.RP else ("service_cidr", seen.service_cidr)
    where = f"/autojoin/{identity.cluster}/partitions/{identity.partition}"
    if not running:
        raise errors.ConfigurationInvalid(
            f"no flag of a running process says the {field} of {identity.partition}, and {where} does not exist",
            f"{field} in one of both",
            f"declare the partition yourself (docs/configuration.md): {where}",
        )
    values = {"id": identity.partition, "kind": kind.value, field: running}
    parse(PartitionDeclaration, values, f"the declaration of {identity.partition}")
    pods, services = (running, None) if kind is PartitionKind.RP else (None, running)
    partition = Partition(identity.partition, kind, pods, services)
    problem = replace(topology, partitions=(*topology.partitions, partition)).problem()
    if problem:
        raise errors.ConfigurationInvalid(
            f"with {identity.partition} as it runs: {problem}",
            "ranges that are disjoint",
            "correct the declared ranges (docs/configuration.md): Arktos does not route between equal ones",
        )
    return partition
