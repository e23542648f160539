"""Partitions as the cluster's configuration declares them, and where their API servers are."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from enum import StrEnum

from autojoin import errors


class PartitionKind(StrEnum):
    """A tenant partition, a resource partition, or both in one (scale-up)."""

    TP = "tp"
    RP = "rp"
    MASTER = "master"


SUPPORTED_CNI = ("host-gw", "vxlan")


@dataclass(frozen=True)
class Partition:
    """One declared partition. `pod_cidr` is set for those that have nodes, `service_cidr` for those that have tenants."""

    id: str
    kind: PartitionKind
    pod_cidr: str | None = None
    service_cidr: str | None = None
    cni_backend: str = "host-gw"
    api_target_groups: tuple[str, ...] = ()
    front_door_target_groups: tuple[str, ...] = ()

    def require_supported_cni(self) -> None:
        """Raise CniNotSupported unless the partition's nodes use flannel's host-gw or vxlan."""
        if self.cni_backend not in SUPPORTED_CNI:
            raise errors.CniNotSupported(
                f"partition {self.id} declares cni_backend {self.cni_backend}",
                "one of " + ", ".join(SUPPORTED_CNI),
                "declare host-gw (one subnet) or vxlan (several); bridge has no routes between nodes, mizar needs a patched kernel",
            )


@dataclass(frozen=True)
class Topology:
    """All partitions of a cluster, by the order in which they were declared, the zone of its names, and its canary."""

    zone: str
    partitions: tuple[Partition, ...]
    canary_image: str = "autojoin/canary:1"
    zone_id: str | None = None

    def get(self, partition_id: str) -> Partition | None:
        """The partition of that id, or None."""
        return next((p for p in self.partitions if p.id == partition_id), None)

    def tenant_partitions(self) -> tuple[str, ...]:
        """Ids of the partitions whose pods a node runs, oldest first: kubelet asks the first for reviews of tokens."""
        return tuple(p.id for p in self.partitions if p.kind in (PartitionKind.TP, PartitionKind.MASTER))

    def resource_partitions(self) -> tuple[str, ...]:
        """Ids of the partitions that hold Nodes, oldest first."""
        return tuple(p.id for p in self.partitions if p.kind in (PartitionKind.RP, PartitionKind.MASTER))

    def problem(self) -> str | None:
        """What makes these partitions impossible together, in words: ranges that overlap, a target group of two partitions."""
        ranges = [(p.id, c) for p in self.partitions for c in (p.pod_cidr, p.service_cidr) if c]
        for n, (one, cidr) in enumerate(ranges):
            for other, another in ranges[n + 1 :]:
                if ipaddress.ip_network(cidr).overlaps(ipaddress.ip_network(another)):
                    return f"{cidr} of {one} and {another} of {other} overlap"
        used: dict[str, str] = {}
        for p in self.partitions:
            for arn in {*p.api_target_groups, *p.front_door_target_groups}:
                if used.setdefault(arn, p.id) != p.id:
                    return f"target group {arn} is declared for {used[arn]} and for {p.id}, whose API servers are not the same"
        return None


def client_ca_parameter(cluster: str, partition: str) -> str:
    """Name of the parameter where a partition publishes its client CA (public data)."""
    return f"/autojoin/{cluster}/public/{partition}/client-ca.crt"


def not_adjacent(own_cidr: str, others: dict[str, str]) -> dict[str, str]:
    """Those of `others` (instance id → CIDR of its subnet) that flannel's host-gw cannot reach from `own_cidr`.

    host-gw routes through a neighbour on the same link, and in a VPC a subnet is the link.
    """
    own = ipaddress.ip_network(own_cidr)
    return {i: cidr for i, cidr in others.items() if ipaddress.ip_network(cidr) != own}
