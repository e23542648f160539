"""autojoin adopt: write down a running partition that was made by hand, so that Autojoin never founds it again beside itself.

Nothing that runs is touched or restarted: the node is only asked (document inspect), and puts its own keys into the secret.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from autojoin import errors
from autojoin.domain import founding
from autojoin.domain.founding import Marker, State
from autojoin.domain.identity import CLUSTER_TAG, PARTITION_TAG, ROLE_TAG, ClusterName, Identity, PartitionId, Role
from autojoin.domain.intents import NODE, Intent
from autojoin.domain.naming import RECORD, TTL_S, Record, name_of_api
from autojoin.domain.partitions import Partition, Topology, client_ca_parameter
from autojoin.domain.plan import SUPPORTED_ROLES, plan_join
from autojoin.events.configuration import ClusterDeclaration
from autojoin.events.inspection import Inspection, NodeSeen
from autojoin.ports import GroupMember, GroupView, OperatorPorts
from autojoin.records import Instance, NodeRecord
from autojoin.use_cases.enrolment import Change, Planned, Refused, declared, described, mark, notes_on, seen_of, tags_of, zone_named
from autojoin.use_cases.inspection import COMMENT, inspect, partition_of, require_own_etcd
from autojoin.use_cases.parse import parse
from autojoin.use_cases.run import MASTERS, ONLINE, live_instance

OWNER = COMMENT
"""Who holds a node's lease while its record is written, and by whom it joined."""


@dataclass(frozen=True)
class Claim:
    """What the operator says; None: as the tags of the group or its instances say, or the document's default."""

    cluster: str | None = None
    partition: str | None = None
    role: str | None = None
    zone_id: str | None = None
    etcd_url: str | None = None
    cert_dir: str | None = None

    @property
    def where(self) -> dict[str, str]:
        """Where the master's etcd and keys are, as the document inspect takes it."""
        found = {"EtcdUrl": self.etcd_url, "CertDir": self.cert_dir}
        return {k: v for k, v in found.items() if v}


def adopt(name: str, claim: Claim, ports: OperatorPorts) -> Planned:
    """Plan to adopt the group `name` and its instances. Asks a node by the document inspect, which changes nothing.

    Raises Refused, errors of the closed set, and those of the document.
    """
    group = described(name, ports)
    members = _members(group)
    instances = [live_instance(m.instance_id, ports) for m in members]
    identity = _identity(group, instances, claim)
    if identity.role is Role.WORKER:
        return _adopt_workers(group, instances, identity, claim, ports)
    return _adopt_master(group, instances, identity, claim, ports)


def _members(group: GroupView) -> tuple[GroupMember, ...]:
    staying = tuple(m for m in group.members if not m.lifecycle_state.startswith("Terminat"))
    if not staying:
        raise Refused(
            f"group {group.name} has no instances in service",
            "instances that were made members of the cluster by hand",
            f"enroll the empty group: autojoin enroll {group.name}",
        )
    moving = [f"{m.instance_id} is {m.lifecycle_state}" for m in staying if m.lifecycle_state != "InService"]
    if moving:
        raise Refused(
            f"group {group.name}: {', '.join(moving)}", "all InService", "wait, or remove what does not come into service; then again"
        )
    return staying


def _identity(group: GroupView, instances: Sequence[Instance], claim: Claim) -> Identity:
    """Who the group's instances are, by all that say it. Raises TagsContradict, TagsMissing, RoleNotSupported."""
    sources: dict[str, Mapping[str, str | None]] = {
        "the command's options": {CLUSTER_TAG: claim.cluster, PARTITION_TAG: claim.partition, ROLE_TAG: claim.role},
        f"group {group.name}": {k: t.value for k, t in group.tags.items()},
        **{i.instance_id: dict(i.tags) for i in instances},
    }
    cluster, partition, role = (_agreed(key, sources) for key in (CLUSTER_TAG, PARTITION_TAG, ROLE_TAG))
    if role not in list(SUPPORTED_ROLES):
        raise errors.RoleNotSupported(f"group {group.name} is of role {role}", "tp, rp or worker", "leave this group as it is")
    return Identity(ClusterName(cluster), Role(role), PartitionId(partition))


def _agreed(key: str, sources: Mapping[str, Mapping[str, str | None]]) -> str:
    """The one value of the tag `key` in these sources."""
    said = {source: value for source, tags in sources.items() if (value := tags.get(key))}
    if not said:
        raise errors.TagsMissing(
            f"neither the group nor its instances have {key}",
            "cluster, partition and role",
            f"say it with --{key.removeprefix('autojoin:')}",
        )
    if len(set(said.values())) > 1:
        listed = ", ".join(f"{value} by {source}" for source, value in said.items())
        raise errors.TagsContradict(f"{key} is {listed}", "the same everywhere", "correct the option or the tag; nothing was changed")
    return next(iter(said.values()))


# -- a master -------------------------------------------------------------------------------------------------------------


def _adopt_master(group: GroupView, instances: Sequence[Instance], identity: Identity, claim: Claim, ports: OperatorPorts) -> Planned:
    if len(instances) != 1:
        raise errors.ReplicasNotSupported(
            f"group {group.name} has {len(instances)} instances in service: {', '.join(i.instance_id for i in instances)}",
            "one: a partition has one master in this version",
            "adopt a group of one instance; partitions with more members stay as they are",
        )
    (instance,) = instances
    _require_alone(instance, identity, ports)
    topology = _cluster(identity, claim, ports)
    seen = inspect(instance.instance_id, identity, claim.where, ports)
    require_own_etcd(seen, instance)
    if not seen.healthz:
        raise errors.ApiUnreachable(
            f"the API server of {instance.instance_id} does not answer ok at http://{instance.address}:8080/healthz",
            "a partition that works",
            "repair it, then run the command again",
        )
    partition = partition_of(seen, identity, topology)
    known = topology.get(identity.partition) is not None
    plan_join(identity.role, partition)
    node = _node_of(instance, seen.nodes)
    changes = [
        *_founding(instance, identity, seen.etcd.cluster_id, ports),
        *_record(group, instance, identity, node, ports),
        *(() if known else _declaration(partition, identity, ports)),
        *_zone_id(topology, identity, claim, ports),
        *_keys(instance, identity, claim, seen, ports),
        *_name(instance, identity, topology, claim, ports),
        *_instance_tags(instance, identity, ports),
        *mark(group, identity, ports),
    ]
    (member,) = seen.etcd.members
    lines = (
        seen_of(group),
        f"instance {instance.instance_id}: InService, {instance.address}",
        f"etcd {seen.etcd.version}: cluster id {seen.etcd.cluster_id}, one member {member.id} at {', '.join(member.peer_urls)}",
        f"API server: ok, {_flags(seen)}, Nodes: {seen.nodes_in_all or len(seen.nodes)}",
        f"partition {partition.id} of {identity.cluster}: {'declared' if known else 'not declared'}",
    )
    return Planned(lines, (*_notes(topology, claim, seen, instance, node), *notes_on(group, identity, partition, ports)), tuple(changes))


def _require_alone(instance: Instance, identity: Identity, ports: OperatorPorts) -> None:
    others = [
        i.instance_id
        for i in ports.instances.running(identity.cluster, identity.partition, MASTERS)
        if i.instance_id != instance.instance_id
    ]
    if others:
        raise errors.ReplicasNotSupported(
            f"{', '.join(others)} run with the tags of {identity.partition} too",
            f"{instance.instance_id} alone",
            "correct the tags of those that are no masters of the partition, or terminate them",
        )


def _cluster(identity: Identity, claim: Claim, ports: OperatorPorts) -> Topology:
    topology = ports.configuration.topology(identity.cluster)
    if topology is None:
        name = f"/autojoin/{identity.cluster}/cluster"
        zone = ports.operator.zone(claim.zone_id) if claim.zone_id else None
        value = json.dumps({"zone": zone.name if zone else "ZONE", "zone_id": zone.zone_id if zone else "ZONE_ID"})
        raise errors.PartitionNotConfigured(
            f"cluster {identity.cluster} is not declared",
            f"the parameter {name}",
            f"aws ssm put-parameter --type String --name {name} --value '{value}'",
        )
    return topology


def _founding(instance: Instance, identity: Identity, cluster_id: str, ports: OperatorPorts) -> list[Change]:
    """The witness and the marker say `formed` by this instance. Raises ClusterIdMismatch, PartitionClaimed."""
    cluster, partition = identity.cluster, identity.partition
    testimony = ports.witness.read(cluster, partition)
    table = ports.markers.get(cluster, partition)
    decided = founding.standing(table, testimony)
    marker = decided or Marker(cluster, partition, State.CLAIMED, instance.instance_id, 1, ports.clock.now_ms())
    if (marker.state, marker.instance_id) == (State.CLAIMED, instance.instance_id):
        marker = founding.formed(marker, cluster_id, ports.clock.now_ms())
    _require_same(marker, instance.instance_id, cluster_id)
    claim = replace(marker, state=State.CLAIMED, cluster_id="")
    words = f"{partition} was formed by {instance.instance_id} with cluster id {cluster_id}, epoch {marker.epoch}"

    def witness() -> None:
        holder = ports.witness.write(claim)  # so that nobody else can hold its epoch
        if holder.instance_id != instance.instance_id:
            _require_same(holder, instance.instance_id, cluster_id)
        _require_same(ports.witness.write(marker), instance.instance_id, cluster_id)

    def mark_it() -> None:
        if not ports.markers.put(marker, instead_of=table):
            raise errors.PartitionClaimed(
                f"the marker of {partition} changed in the meantime",
                "nobody else's decision",
                "run the command again and read what it says",
            )

    changes = []
    if marker not in testimony:
        changes.append(Change(f"write the witness: {words}", witness))
    if table != marker:
        changes.append(Change(f"write the marker: {words}", mark_it))
    return changes


def _require_same(marker: Marker, instance_id: str, cluster_id: str) -> None:
    if (marker.state, marker.instance_id) != (State.FORMED, instance_id):
        raise errors.PartitionClaimed(
            f"{marker.partition} was {marker.state.value} by {marker.instance_id} (epoch {marker.epoch})",
            f"no decision, or formed by {instance_id}",
            "find out which of both is the partition; a decision is never taken back by this command",
        )
    if marker.cluster_id != cluster_id:
        raise errors.ClusterIdMismatch(
            f"etcd on {instance_id} answers with cluster id {cluster_id}",
            f"{marker.cluster_id}, with which {marker.partition} was formed",
            "look at the data folder of the node's etcd: it is not the partition's",
        )


def _declaration(partition: Partition, identity: Identity, ports: OperatorPorts) -> list[Change]:
    name = f"/autojoin/{identity.cluster}/partitions/{identity.partition}"
    fields = {"id": partition.id, "kind": partition.kind.value, "pod_cidr": partition.pod_cidr, "service_cidr": partition.service_cidr}
    value = json.dumps({k: v for k, v in fields.items() if v})

    def declare() -> None:
        ports.operator.put_parameter(name, value, replace=False)

    return [Change(f"declare the partition: {name} {value}", declare)]


def _zone_id(topology: Topology, identity: Identity, claim: Claim, ports: OperatorPorts) -> list[Change]:
    """The cluster's declaration gets the zone id that the operator names, if it has none."""
    name = f"/autojoin/{identity.cluster}/cluster"
    if claim.zone_id is None:
        return []
    if topology.zone_id not in (None, claim.zone_id):
        raise errors.ZoneNotConfigured(
            f"{name} says zone_id {topology.zone_id}", claim.zone_id, "leave --zone-id out, or correct the declaration"
        )
    zone_named(claim.zone_id, topology.zone, name, ports)
    if topology.zone_id:
        return []

    def declare() -> None:
        fields = json.loads(ports.operator.parameter(name) or "{}") | {"zone_id": claim.zone_id}
        parse(ClusterDeclaration, fields, name)
        ports.operator.put_parameter(name, json.dumps(fields), replace=True)

    return [Change(f"declare the zone: zone_id {claim.zone_id} in {name}", declare)]


def _keys(instance: Instance, identity: Identity, claim: Claim, seen: Inspection, ports: OperatorPorts) -> list[Change]:
    """The node puts its keys into the secret and publishes its client CA. What exists is left alone."""
    secret = f"autojoin/{identity.cluster}/{identity.partition}/kubernetes"
    public = client_ca_parameter(identity.cluster, identity.partition)
    published = ports.operator.parameter(public)
    if published is not None and seen.client_ca and published.strip() != seen.client_ca.strip():
        raise Refused(
            f"{public} is another certificate than the client CA of {instance.instance_id}",
            "the same, or no such parameter",
            "find out which one the workers' kubelets trust, and put that one in both places",
        )
    store = seen.keys and not ports.operator.has_secret(secret)
    publish = bool(seen.client_ca) and published is None
    words = [f"put its keys into the secret {secret}"] if store else []
    words += [f"publish its client CA as {public}"] if publish else []

    def keep() -> None:
        stored = inspect(instance.instance_id, identity, claim.where, ports, store=True).stored
        if store and stored == "no-keys":
            raise errors.SecretMissing(f"{instance.instance_id} found no keys any more", "those that it had", "look into its key folder")

    return [Change(f"let {instance.instance_id} {' and '.join(words)}", keep)] if words else []


def _notes(topology: Topology, claim: Claim, seen: Inspection, instance: Instance, node: NodeSeen | None) -> Iterable[str]:
    if topology.zone_id is None and claim.zone_id is None:
        yield "the cluster declares no zone_id: masters join only with one; name it with --zone-id"
    if not seen.keys:
        yield "the node's CA and service-account keys were not found: nothing keeps them if the instance is lost"
    if not seen.client_ca:
        yield "the node's client CA was not found: workers need it published (docs/configuration.md#client-ca)"
    yield from _misnamed(instance, node)


def _flags(seen: Inspection) -> str:
    ranges = {"pods": seen.pod_cidr, "services": seen.service_cidr}
    return ", ".join(f"{k} {v}" for k, v in ranges.items() if v) or "no ranges in its flags"


# -- workers --------------------------------------------------------------------------------------------------------------


def _adopt_workers(group: GroupView, instances: Sequence[Instance], identity: Identity, claim: Claim, ports: OperatorPorts) -> Planned:
    _, partition = declared(identity, ports)
    plan_join(identity.role, partition)
    unknown = [i for i in instances if ports.registry.record(i.instance_id) is None]
    nodes: dict[str, NodeSeen | None] = {}
    lines = [seen_of(group)]
    of_all = ""
    if unknown:
        master = _online_master(identity, ports)
        seen = inspect(master, identity, claim.where, ports)
        of_all = f"{len(seen.nodes)} Nodes" + (f", the first of {seen.nodes_in_all}," if seen.nodes_in_all else "")
        lines.append(f"master {master}: {of_all}")
        nodes = {i.instance_id: _node_of(i, seen.nodes) for i in unknown}
    strangers = [i for i, node in nodes.items() if node is None]
    if strangers:
        raise Refused(
            f"{', '.join(strangers)}: none of the {of_all} has their address",
            "members of the partition",
            "terminate them; once the group is enrolled, instances in their place join by themselves",
        )
    notes: list[str] = []
    changes: list[Change] = []
    for instance in instances:
        node = nodes.get(instance.instance_id)
        if node:
            lines.append(f"instance {instance.instance_id}: InService, {instance.address}, Node {node.name} with uid {node.uid}")
        notes += _misnamed(instance, node)
        changes += _record(group, instance, identity, node, ports)
    for instance in instances:
        changes += _instance_tags(instance, identity, ports)
    changes += mark(group, identity, ports)
    return Planned(tuple(lines), (*notes, *notes_on(group, identity, partition, ports)), tuple(changes))


def _online_master(identity: Identity, ports: OperatorPorts) -> str:
    masters = [i.instance_id for i in ports.instances.running(identity.cluster, identity.partition, MASTERS)]
    agents = ports.commands.agents(masters) if masters else {}
    online = [m for m in masters if m in agents and agents[m].ping == ONLINE]
    if not online:
        raise errors.NoMasterOnline(
            f"masters of {identity.partition}: {', '.join(masters) or 'none tagged'}, none with an online agent",
            "one that can say which Nodes the partition has",
            "adopt the partition's master first, and look at its SSM agent",
        )
    return online[0]


# -- both -----------------------------------------------------------------------------------------------------------------


def _node_of(instance: Instance, nodes: Iterable[NodeSeen]) -> NodeSeen | None:
    return next((n for n in nodes if n.address and n.address == instance.address), None)


def _misnamed(instance: Instance, node: NodeSeen | None) -> list[str]:
    if node is None or node.name == instance.instance_id:
        return []
    return [f"the Node of {instance.instance_id} is named {node.name}: Autojoin names Nodes by instance id and will not delete this one"]


def _record(group: GroupView, instance: Instance, identity: Identity, node: NodeSeen | None, ports: OperatorPorts) -> list[Change]:
    """The node's record, and what a leave needs to know of its Node. Raises Refused for a record of something else."""
    before = ports.registry.record(instance.instance_id)
    if before:
        _require_joined(before, identity)
        if ports.registry.lease(instance.instance_id).owner != OWNER:
            return []
    record = before or NodeRecord(
        instance_id=instance.instance_id,
        cluster=identity.cluster,
        partition=identity.partition,
        role=identity.role.value,
        group=group.name,
        address=instance.address,
        node_uid=node.uid if node else None,
        joined_ms=ports.clock.now_ms(),
        joined_by=OWNER,
    )

    def write() -> None:
        _take_lease(instance, ports)
        if node and node.name == instance.instance_id:
            ports.registry.put_intent(instance.instance_id, Intent(NODE, node.name, OWNER, node.uid, record.joined_ms), OWNER)
        ports.registry.put_record(record, OWNER)
        ports.registry.release_lease(instance.instance_id, OWNER)

    uid = f", Node uid {node.uid}" if node else ""
    return [Change(f"record {instance.instance_id} as a joined {identity.role.value} of {identity.partition}{uid}", write)]


def _name(instance: Instance, identity: Identity, topology: Topology, claim: Claim, ports: OperatorPorts) -> list[Change]:
    """The API server's record as a join makes it; a simple one with the same address gives way. Raises Refused for another address."""
    zone_id = topology.zone_id or claim.zone_id
    if zone_id is None or instance.address is None:
        return []
    record = Record(zone_id, name_of_api(identity.partition, topology.zone), instance.instance_id, TTL_S, instance.address)
    sets = ports.operator.address_sets(zone_id, record.name)
    others = [a for s in sets for a in s.addresses if a != record.address]
    if others:
        raise Refused(
            f"{record.name} leads to {', '.join(others)}",
            f"to {record.address} or nowhere",
            "correct the name's records; workers and peers find the partition by it",
        )
    if any(s.identifier == instance.instance_id for s in sets):
        return []
    simple = next((s for s in sets if s.identifier is None), None)

    def name_it() -> None:
        _take_lease(instance, ports)
        ports.registry.put_intent(instance.instance_id, Intent(RECORD, record.name, OWNER, record.value), OWNER)
        ports.registry.release_lease(instance.instance_id, OWNER)
        ports.operator.put_name(record, simple)

    instead = " instead of the simple record" if simple else ""
    return [Change(f"name {instance.instance_id}: {record.name} A {record.address}, one record set per instance{instead}", name_it)]


def _take_lease(instance: Instance, ports: OperatorPorts) -> None:
    if not ports.registry.take_lease(instance.instance_id, OWNER):
        raise errors.LeaseLost(
            f"the lease of {instance.instance_id} is held by {ports.registry.lease(instance.instance_id).owner or 'a leave'}",
            "a free one",
            "look at that execution; run the command again when it has ended",
        )


def _require_joined(record: NodeRecord, identity: Identity) -> None:
    is_same = (record.cluster, record.partition, record.role) == (identity.cluster, identity.partition, identity.role.value)
    if is_same and record.joined_ms is not None:
        return
    raise Refused(
        f"the table has {record.instance_id} as {record.role} of {record.partition} in {record.cluster},"
        f" {'joined' if record.joined_ms is not None else 'whose join has not ended well'}",
        f"no record, or a joined {identity.role.value} of {identity.partition}",
        "look at the executions of the join machine for this instance (docs/runbook.md)",
    )


def _instance_tags(instance: Instance, identity: Identity, ports: OperatorPorts) -> list[Change]:
    missing = {k: v for k, v in tags_of(identity).items() if instance.tags.get(k) != v}
    if not missing:
        return []
    words = ", ".join(f"{k}={v}" for k, v in missing.items())
    return [Change(f"tag instance {instance.instance_id}: {words}", lambda: ports.operator.tag_instance(instance.instance_id, missing))]
