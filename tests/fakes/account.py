"""An account with groups, instances and one hand-made partition, behind the ports of the operator's command.

`writes` lists every effect in its order; `fail_after` makes the effect after so many raise, as if the command were killed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from autojoin import errors
from autojoin.domain.founding import Marker
from autojoin.domain.lifecycle import LAUNCH_TRANSITION, Hook
from autojoin.domain.naming import Record
from autojoin.domain.partitions import Partition, PartitionKind, Topology, client_ca_parameter
from autojoin.domain.scripts import Invocation
from autojoin.events.configuration import PartitionDeclaration
from autojoin.ports import AddressSet, Agent, GroupMember, GroupTag, GroupView, Instance, Intent, Lease, NodeRecord, Zone

OURS = '{"autojoin":1}'
ZONE_ID = "Z0123456789ABC"
SOA = "ns-1536.awsdns-00.co.uk. awsdns-hostmaster.amazon.com. 1 7200 900 1209600 86400"
CLUSTER_ID = "0f1e2d3c4b5a6978"
MASTER = "i-0123456789abcdef0"


class Killed(Exception):
    """The command was killed here."""


@dataclass
class Account:
    """Every port of the command in one object."""

    group_views: dict[str, GroupView] = field(default_factory=dict)
    group_hooks: dict[str, list[Hook]] = field(default_factory=dict)
    ec2: dict[str, Instance] = field(default_factory=dict)
    pings: dict[str, str] = field(default_factory=dict)
    parameters: dict[str, str] = field(default_factory=dict)
    secrets: set[str] = field(default_factory=set)
    zones: dict[str, Zone] = field(default_factory=dict)
    names: dict[str, list[AddressSet]] = field(default_factory=dict)
    declared: Topology | None = None
    marked: dict[tuple[str, str], Marker] = field(default_factory=dict)
    testimony: list[Marker] = field(default_factory=list)
    leases: dict[str, Lease] = field(default_factory=dict)
    records: dict[str, NodeRecord] = field(default_factory=dict)
    intended: dict[tuple[str, str, str], Intent] = field(default_factory=dict)
    answer: dict[str, Any] = field(default_factory=dict)
    ended: dict[str, Any] = field(default_factory=dict)
    sent: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    writes: list[str] = field(default_factory=list)
    fail_after: int | None = None
    time_ms: int = 1_700_000_000_000

    @property
    def port(self) -> Account:
        return self

    clock = instances = groups = commands = configuration = registry = markers = witness = operator = port

    # -- arranging -----------------------------------------------------------------------------------------------------
    def add_group(self, name: str, *, tags: Mapping[str, str] | None = None, **more: Any) -> None:
        view = GroupView(name, 1, True, ("subnet-a",), {k: GroupTag(v, True) for k, v in (tags or {}).items()}, (), True)
        self.group_views[name] = replace(view, **more)
        self.group_hooks[name] = []

    def add_instance(
        self, instance_id: str, group: str | None, *, tags: Mapping[str, str] | None = None, lifecycle_state: str = "InService"
    ) -> Instance:
        address = f"10.0.0.{10 + len(self.ec2)}"
        self.ec2[instance_id] = Instance(instance_id, "running", address, "subnet-a", dict(tags or {}), self.time_ms - 3_600_000)
        self.pings[instance_id] = "Online"
        if group:
            view = self.group_views[group]
            self.group_views[group] = replace(view, members=(*view.members, GroupMember(instance_id, lifecycle_state, True)))
        return self.ec2[instance_id]

    def state(self) -> dict[str, Any]:
        """Everything that a command can leave behind, times and fences aside."""
        return {
            "groups": self.group_views,
            "hooks": self.group_hooks,
            "instances": self.ec2,
            "parameters": self.parameters,
            "secrets": self.secrets,
            "zones": self.zones,
            "names": self.names,
            "declared": self.declared,
            "markers": {k: replace(m, at_ms=0) for k, m in self.marked.items()},
            "witness": [replace(m, at_ms=0) for m in self.testimony],
            "owners": {k: lease.owner for k, lease in self.leases.items()},
            "records": {k: replace(r, joined_ms=0) for k, r in self.records.items()},
            "intents": {k: replace(i, effect_ms=0) for k, i in self.intended.items()},
        }

    def _write(self, what: str) -> None:
        if self.fail_after is not None and len(self.writes) >= self.fail_after:
            raise Killed(what)
        self.writes.append(what)

    # -- Clock, Instances, Groups ----------------------------------------------------------------------------------------
    def now_ms(self) -> int:
        return self.time_ms

    def sleep(self, seconds: float) -> None:
        self.time_ms += round(seconds * 1000)

    def running(self, cluster: str, partition: str, roles: Iterable[str]) -> tuple[Instance, ...]:
        wanted = {("autojoin:cluster", cluster), ("autojoin:partition", partition)}
        return tuple(i for i in self.ec2.values() if wanted <= set(i.tags.items()) and i.tags.get("autojoin:role") in set(roles))

    def hooks(self, group: str) -> tuple[Hook, ...]:
        return tuple(self.group_hooks[group])

    def address_sets(self, zone_id: str, name: str) -> tuple[AddressSet, ...]:
        return tuple(self.names.get(name, ()))

    def put_name(self, record: Record, instead_of: AddressSet | None) -> None:
        self._write("name")
        kept = [s for s in self.names.get(record.name, []) if s not in (instead_of,)]
        assert all(s.identifier for s in kept), "a simple record set stands alone"
        self.names[record.name] = [*kept, AddressSet(record.instance_id, record.ttl_s, (record.address,))]

    # -- Commands: the document inspect -------------------------------------------------------------------------------------
    def agents(self, instance_ids: Iterable[str]) -> Mapping[str, Agent]:
        return {i: Agent(i, self.pings[i], "3.3.2746.0") for i in instance_ids if i in self.pings}

    def send(self, document: str, instance_id: str, parameters: Mapping[str, str], comment: str, pin: Any = None) -> str:
        self.sent.append((document, instance_id, dict(parameters)))
        return str(len(self.sent) - 1)

    def invocation(self, command_id: str, instance_id: str) -> Invocation | None:
        document, target, parameters = self.sent[int(command_id)]
        said = {"ok": True, "step": "inspect", **self.answer}
        if parameters["Store"] == "yes":
            said["stored"] = self._store(parameters["Cluster"], parameters["Partition"])
        shape = {"status": "Success", "exit_code": 0, "stdout": f"{json.dumps(said)}\n", **self.ended}
        return Invocation(command_id, target, f"autojoin-{document}", **shape)

    def _store(self, cluster: str, partition: str) -> str:
        self._write("store")
        secret = f"autojoin/{cluster}/{partition}/kubernetes"
        stored = "no-keys" if not self.answer["keys"] else "exists" if secret in self.secrets else "created"
        if stored == "created":
            self.secrets.add(secret)
        if self.answer["client_ca"]:
            self.parameters[client_ca_parameter(cluster, partition)] = self.answer["client_ca"]
        return stored

    # -- Configuration, Markers, Witness ------------------------------------------------------------------------------------
    def topology(self, cluster: str) -> Topology | None:
        return self.declared

    def read(self, cluster: str, partition: str) -> tuple[Marker, ...]:
        return tuple(m for m in self.testimony if (m.cluster, m.partition) == (cluster, partition))

    def write(self, marker: Marker) -> Marker:
        for stands in self.testimony:
            if (stands.partition, stands.epoch, stands.state) == (marker.partition, marker.epoch, marker.state):
                return stands
        self._write("witness")
        self.testimony.append(marker)
        return marker

    def put(self, marker: Marker, instead_of: Marker | None) -> bool:
        key = (marker.cluster, marker.partition)
        if self.marked.get(key) != instead_of:
            return False
        self._write("marker")
        self.marked[key] = marker
        return True

    def get(self, *key: str) -> Any:
        """Of Instances with one argument, of Markers with two."""
        return self.ec2.get(key[0]) if len(key) == 1 else self.marked.get((key[0], key[1]))

    # -- Registry -------------------------------------------------------------------------------------------------------------
    def lease(self, instance_id: str) -> Lease:
        return self.leases.get(instance_id, Lease(None, 0, None))

    def take_lease(self, instance_id: str, owner: str, *, instead_of: str | None = None) -> Lease | None:
        known = self.lease(instance_id)
        if known.tombstone_ms is not None or known.owner not in (None, owner):
            return None
        self._write("lease")
        self.leases[instance_id] = Lease(owner, known.fence + 1, None)
        return self.leases[instance_id]

    def release_lease(self, instance_id: str, owner: str) -> bool:
        self._write("release")
        self.leases[instance_id] = replace(self.leases[instance_id], owner=None)
        return True

    def record(self, instance_id: str) -> NodeRecord | None:
        return self.records.get(instance_id)

    def put_record(self, record: NodeRecord, owner: str) -> None:
        self._require_mine(record.instance_id, owner)
        self._write("record")
        self.records[record.instance_id] = record

    def put_intent(self, instance_id: str, intent: Intent, owner: str) -> None:
        self._require_mine(instance_id, owner)
        self._write("intent")
        self.intended[(instance_id, intent.kind, intent.key)] = intent

    def _require_mine(self, instance_id: str, owner: str) -> None:
        if self.lease(instance_id).owner != owner:
            raise errors.LeaseLost("another owner", owner, "nothing")

    # -- Operator -------------------------------------------------------------------------------------------------------------
    def group(self, name: str) -> GroupView | None:
        return self.group_views.get(name)

    def tag_group(self, group: str, tags: Mapping[str, str]) -> None:
        self._write("group tags")
        view = self.group_views[group]
        self.group_views[group] = replace(view, tags={**view.tags, **{k: GroupTag(v, True) for k, v in tags.items()}})

    def put_launch_hook(self, group: str, name: str, heartbeat_timeout_s: int, metadata: str) -> None:
        self._write("hook")
        self.group_hooks[group].append(launch_hook(group, name, heartbeat_timeout_s, metadata))

    def tag_instance(self, instance_id: str, tags: Mapping[str, str]) -> None:
        self._write("instance tags")
        self.ec2[instance_id] = replace(self.ec2[instance_id], tags={**self.ec2[instance_id].tags, **tags})

    def parameter(self, name: str) -> str | None:
        return self.parameters.get(name)

    def put_parameter(self, name: str, value: str, *, replace: bool) -> bool:
        if name in self.parameters and not replace:
            return False
        self._write("declaration")
        self.parameters[name] = value
        self._declare(name, value)
        return True

    def _declare(self, name: str, value: str) -> None:
        assert self.declared
        if name.endswith("/cluster"):
            self.declared = replace(self.declared, zone_id=json.loads(value).get("zone_id"))
            return
        said = PartitionDeclaration.model_validate_json(value)
        partition = Partition(said.id, PartitionKind(said.kind), said.pod_cidr, said.service_cidr, said.cni_backend)
        self.declared = replace(self.declared, partitions=(*self.declared.partitions, partition))

    def has_secret(self, name: str) -> bool:
        return name in self.secrets

    def zone(self, zone_id: str) -> Zone | None:
        return self.zones.get(zone_id)

    def put_soa(self, zone: Zone, soa: str) -> None:
        self._write("soa")
        self.zones[zone.zone_id] = replace(zone, soa=soa)


def launch_hook(group: str, name: str = "autojoin-launching", heartbeat_timeout_s: int = 300, metadata: str | None = OURS) -> Hook:
    """A launch hook."""
    return Hook(group, name, LAUNCH_TRANSITION, heartbeat_timeout_s, 30_000, metadata)


def topology(*partitions: Partition, zone_id: str | None = ZONE_ID) -> Topology:
    """A declared cluster."""
    return Topology("demo.arktos.internal", partitions, zone_id=zone_id)


TP1 = Partition("tp1", PartitionKind.TP, service_cidr="10.96.0.0/16")
RP1 = Partition("rp1", PartitionKind.RP, pod_cidr="10.244.0.0/16")


def empty_account() -> Account:
    """A declared cluster with two partitions and its zone, a group for each, and no instance."""
    account = Account(declared=topology(TP1, RP1), zones={ZONE_ID: Zone(ZONE_ID, "demo.arktos.internal", SOA, 900)})
    account.parameters["/autojoin/demo/cluster"] = json.dumps({"zone": "demo.arktos.internal", "zone_id": ZONE_ID})
    account.add_group("demo-rp1-masters")
    account.add_group("demo-rp1-workers", max_size=20)
    return account


def hand_made() -> Account:
    """A running resource partition rp1 that nobody declared, in the group demo-rp1-masters; its Node is named as Autojoin would."""
    account = empty_account()
    account.declared = topology(TP1)
    instance = account.add_instance(MASTER, "demo-rp1-masters")
    member = {"id": "8e9e05c52164694d", "name": "default", "peer_urls": [f"http://{instance.address}:2380"], "client_urls": []}
    account.answer = {
        "etcd": {"cluster_id": CLUSTER_ID, "members": [member], "version": "3.5.1"},
        "healthz": True,
        "kind_hint": "rp",
        "service_cidr": "",
        "pod_cidr": "10.244.0.0/16",
        "nodes": [{"name": MASTER, "uid": "7c1d", "pod_cidr": "10.244.0.0/24", "address": instance.address}],
        "client_ca": "-----BEGIN CERTIFICATE-----",
        "keys": True,
    }
    return account
