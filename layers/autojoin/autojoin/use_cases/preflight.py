"""Preflight: what AWS can tell before anything runs on the node, and the source/destination check switched off."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autojoin import errors
from autojoin.domain.identity import Role
from autojoin.domain.partitions import not_adjacent
from autojoin.events.operations.node import Preflight, Preflighted
from autojoin.events.operations.run import DocumentPin
from autojoin.use_cases.run import MASTERS, declared

if TYPE_CHECKING:
    from autojoin.ports import Ports


def preflight(command: Preflight, ports: Ports) -> Preflighted:
    """Refuse a subnet that host-gw cannot route, then let the node forward for its pods. Returns the documents' versions.

    Raises SubnetNotAdjacent, PartitionNotConfigured. The script on the node checks again, with addresses and masks.
    """
    node = command.run.node
    _, partition = declared(command.run, ports)
    has_pods = node.role != Role.TP.value
    if has_pods and partition.cni_backend == "host-gw" and node.subnet_id:
        _require_one_subnet(command, ports)
    if has_pods:
        ports.instances.switch_off_source_dest_check(node.instance_id)
    if node.role == Role.WORKER.value:
        return Preflighted(join=_pin("join-worker", ports), verify=_pin("verify", ports))
    return Preflighted(
        start_etcd=_pin("start-etcd", ports),
        start_api=_pin("start-api", ports),
        join=_pin(f"join-{node.role}", ports),
        verify=_pin("verify-master", ports),
    )


def _pin(document: str, ports: Ports) -> DocumentPin:
    pin = ports.commands.pin(document)
    return DocumentPin(version=pin.version, sha256=pin.sha256)


def _require_one_subnet(command: Preflight, ports: Ports) -> None:
    node = command.run.node
    roles = MASTERS if node.role == Role.WORKER.value else (*MASTERS, Role.WORKER.value)
    others = [m for m in ports.instances.running(node.cluster, node.partition, roles) if m.instance_id != node.instance_id]
    subnets = {m.instance_id: m.subnet_id for m in others if m.subnet_id}
    if not subnets or node.subnet_id is None:
        return
    cidrs = ports.instances.subnet_cidrs({node.subnet_id, *subnets.values()})
    own = cidrs[node.subnet_id]
    far = not_adjacent(own, {instance: cidrs[subnet] for instance, subnet in subnets.items()})
    if far:
        raise errors.SubnetNotAdjacent(
            f"{node.instance_id} ({node.address}) is in {own}; other nodes of {node.partition} are elsewhere: "
            + ", ".join(f"{instance} in {cidr}" for instance, cidr in sorted(far.items())),
            "all nodes of a host-gw partition in one subnet: flannel routes through a neighbour on the same link",
            f"give the groups of {node.partition} one subnet, or declare cni_backend vxlan for {node.partition}",
        )
