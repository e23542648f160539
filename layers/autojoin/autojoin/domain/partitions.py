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

    def get(self, partition_id: str) -> Partition | None:
        """The partition of that id, or None."""
        return next((p for p in self.partitions if p.id == partition_id), None)

    def tenant_partitions(self) -> tuple[str, ...]:
        """Ids of the partitions whose pods a node runs, oldest first: kubelet asks the first for reviews of tokens."""
        return tuple(p.id for p in self.partitions if p.kind in (PartitionKind.TP, PartitionKind.MASTER))


def client_ca_parameter(cluster: str, partition: str) -> str:
    """Name of the parameter where a partition publishes its client CA (public data)."""
    return f"/autojoin/{cluster}/public/{partition}/client-ca.crt"


def not_adjacent(own_cidr: str, others: dict[str, str]) -> dict[str, str]:
    """Those of `others` (instance id → CIDR of its subnet) that flannel's host-gw cannot reach from `own_cidr`.

    host-gw routes through a neighbour on the same link, and in a VPC a subnet is the link.
    """
    own = ipaddress.ip_network(own_cidr)
    return {i: cidr for i, cidr in others.items() if ipaddress.ip_network(cidr) != own}
