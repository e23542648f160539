"""What masters touch, behind the ports: foundings, etcd's data on nodes, records, targets. World puts them together.

Each keeps the semantics that the rules lean on: a marker changes only instead of exactly what was read, a parameter of the
witness is written once, a record is deleted only exactly, data stay on a node's disk when its etcd stops.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from autojoin import errors
from autojoin.domain.founding import Marker, State
from autojoin.domain.naming import Record, Target
from autojoin.ports import EtcdView, Member, TargetGroup

Call = Callable[[str], None]
"""Told the method before it runs; may raise what the test wants."""
Note = Callable[[str, object], None]
"""Told what was done."""


@dataclass
class Markers:
    """Port Markers. `items` is the table's."""

    call: Call
    note: Note
    items: dict[tuple[str, str], Marker] = field(default_factory=dict)

    def get(self, cluster: str, partition: str) -> Marker | None:
        self.call("markers.get")
        return self.items.get((cluster, partition))

    def put(self, marker: Marker, instead_of: Marker | None) -> bool:
        self.call("markers.put")
        stands = self.items.get((marker.cluster, marker.partition))
        if _condition(stands) != _condition(instead_of):
            return False
        self.items[(marker.cluster, marker.partition)] = marker
        self.note("marker", marker)
        return True


def _condition(marker: Marker | None) -> tuple[str, str, int] | None:
    return (marker.state.value, marker.instance_id, marker.epoch) if marker else None


@dataclass
class Witness:
    """Port Witness. `parameters` is Parameter Store's."""

    call: Call
    note: Note
    parameters: dict[tuple[str, str, State, int], Marker] = field(default_factory=dict)

    def read(self, cluster: str, partition: str) -> tuple[Marker, ...]:
        self.call("witness.read")
        return tuple(m for m in self.parameters.values() if (m.cluster, m.partition) == (cluster, partition))

    def write(self, marker: Marker) -> Marker:
        self.call("witness.write")
        key = (marker.cluster, marker.partition, marker.state, marker.epoch)
        if key not in self.parameters:
            self.parameters[key] = marker
            self.note("witness", marker)
        return self.parameters[key]


@dataclass
class Disk:
    """etcd's data on one node."""

    token: str
    cluster_id: str
    running: bool = True


@dataclass
class EtcdNodes:
    """Port Etcd, and the etcds themselves: data by address, which outlive a stop and not a termination."""

    call: Call
    note: Note
    disks: dict[str, Disk] = field(default_factory=dict)
    unreachable: bool = False

    def view(self, address: str) -> EtcdView | None:
        self.call("etcd.view")
        disk = self.disks.get(address)
        if disk is None or not disk.running or self.unreachable:
            return None
        member = Member("00000000000000a1", address, (f"http://{address}:2380",), (f"http://{address}:2379",))
        return EtcdView(disk.cluster_id, member.id, "3.5.1", member.id, (member,))

    def start(self, address: str, mode: str, token: str, cluster_id: str) -> Disk:
        """What the script start-etcd does. Raises the error class of its exit code."""
        disk = self.disks.get(address)
        if mode == "resume" and disk is None:
            raise errors.QuorumLost("no data", "the partition's data", "restore them")
        if mode == "found" and disk is not None and disk.token != token:
            raise errors.EtcdDataForeign(f"data of {disk.token}", f"none, or of {token}", "look at them")
        if cluster_id and disk is not None and disk.cluster_id != cluster_id:
            raise errors.ClusterIdMismatch(disk.cluster_id, cluster_id, "look at them")
        if disk is None:
            # As etcd does, from the token and the members.
            disk = Disk(token, hashlib.sha256(f"{token}|{address}".encode()).hexdigest()[:16])
            self.disks[address] = disk
            self.note("etcd founded", disk.cluster_id)
        disk.running = True
        return disk

    def stop(self, address: str) -> None:
        """What the script leave-node does."""
        if address in self.disks and self.disks[address].running:
            self.disks[address].running = False
            self.note("etcd stopped", address)


@dataclass
class Names:
    """Port Names: record sets of the zones that exist."""

    call: Call
    note: Note
    zones: set[str]
    records: dict[tuple[str, str, str], Record] = field(default_factory=dict)

    def put(self, record: Record) -> None:
        self.call("names.put")
        if record.zone_id not in self.zones:
            raise errors.ZoneNotConfigured(f"no zone {record.zone_id}", "one", "declare it")
        self.records[(record.zone_id, record.name, record.instance_id)] = record
        self.note("record", record)

    def delete(self, record: Record) -> bool:
        self.call("names.delete")
        if self.records.get((record.zone_id, record.name, record.instance_id)) != record:
            return False
        del self.records[(record.zone_id, record.name, record.instance_id)]
        self.note("record deleted", record)
        return True


@dataclass
class Targets:
    """Port Targets. `is_served` says whether something answers health checks on the target."""

    call: Call
    note: Note
    now_s: Callable[[], float]
    is_served: Callable[[Target], bool]
    known: dict[str, TargetGroup] = field(default_factory=dict)
    without_listener: set[str] = field(default_factory=set)
    healthy_after_s: float = 20.0
    registered: dict[Target, float] = field(default_factory=dict)

    def add(self, name: str, target_type: str = "instance", port: int = 8080) -> str:
        """A target group of that name; its ARN."""
        arn = f"arn:aws:elasticloadbalancing:eu-central-1:123456789012:targetgroup/{name}/0123456789abcdef"
        self.known[arn] = TargetGroup(arn, port, target_type)
        return arn

    def groups(self, arns: Iterable[str]) -> Mapping[str, TargetGroup]:
        self.call("targets.groups")
        return {arn: self.known[arn] for arn in arns if arn in self.known}

    def register(self, target: Target) -> None:
        self.call("targets.register")
        self.registered.setdefault(target, self.now_s())
        self.note("target", target)

    def deregister(self, target: Target) -> None:
        self.call("targets.deregister")
        if self.registered.pop(target, None) is not None:
            self.note("target deregistered", target)

    def health(self, target: Target) -> tuple[str, str]:
        self.call("targets.health")
        if target not in self.registered:
            return "unused", "Target.NotRegistered"
        if target.group_arn in self.without_listener:
            return "unused", "Target.NotInUse"
        if self.now_s() < self.registered[target] + self.healthy_after_s:
            return "initial", "Elb.RegistrationInProgress"
        return ("healthy", "") if self.is_served(target) else ("unhealthy", "Target.Timeout")
