"""autojoin enroll: make an empty group Autojoin's, so that its instances join from the first one on.

A use case of the operator's command plans first: it reads, refuses or says what it would change. Applying is doing these
changes in their order; a run that was cut off is repeated, and finds done what is done.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autojoin import errors
from autojoin.domain.identity import CLUSTER_TAG, PARTITION_TAG, ROLE_TAG, Identity, Role
from autojoin.domain.lifecycle import LAUNCH_TRANSITION, hook_of_ours
from autojoin.domain.partitions import Partition, Topology, client_ca_parameter
from autojoin.domain.plan import plan_join
from autojoin.ports import GroupTag, GroupView, OperatorPorts, Zone

HOOK = "autojoin-launching"
HEARTBEAT_TIMEOUT_S = 300
METADATA = '{"autojoin":1}'
NEGATIVE_TTL_S = 10
"""How long a resolver may remember that a name is missing: as long as an API server's record lives (domain/naming.py).

Source: RFC 2308: the lesser of the SOA's TTL and its last field; Route 53 makes them 900 and 86400.
"""


@dataclass(frozen=True)
class Change:
    """One change: what it does, in words after "would" and "done:", and the doing. Safe to repeat."""

    says: str
    do: Callable[[], None]


@dataclass(frozen=True)
class Planned:
    """What was seen, what an operator should know, and what there is to change, in this order."""

    seen: tuple[str, ...]
    notes: tuple[str, ...]
    changes: tuple[Change, ...]


class Refused(errors.AutojoinError):
    """The command does not do this. No state machine ever sees it."""


def enroll(name: str, identity: Identity, ports: OperatorPorts) -> Planned:
    """Plan to enroll the group `name` as `identity`.

    Raises Refused, TagsContradict, PartitionNotConfigured, ZoneNotConfigured, SubnetNotAdjacent, and what plan_join and
    hook_of_ours raise.
    """
    group = described(name, ports)
    topology, partition = declared(identity, ports)
    plan_join(identity.role, partition)
    if _lacks_its_one_subnet(group, identity, partition):
        raise errors.SubnetNotAdjacent(
            f"group {group.name} has {len(group.subnet_ids)} subnets: {', '.join(group.subnet_ids) or 'none named'}",
            f"one, since the nodes of {partition.id} route through neighbours (cni_backend host-gw)",
            "give the group one subnet, that of the partition's other nodes, or declare cni_backend vxlan",
        )
    seen = [seen_of(group), f"partition {partition.id} of {identity.cluster}: {partition.kind.value}, {_ranges(partition)}"]
    changes = list(mark(group, identity, ports))
    if group.members and changes:
        raise _has_instances(group, identity)
    if identity.role is not Role.WORKER:
        zone = _zone(topology, identity, ports)
        minimum_s = int(zone.soa.split()[-1])
        remembered_s = min(minimum_s, zone.soa_ttl_s)
        seen.append(f"zone {zone.zone_id} ({zone.name}): a missing name may be remembered for {remembered_s} s")
        if remembered_s > NEGATIVE_TTL_S:
            changes.insert(0, _shorten(zone, minimum_s, ports))
    return Planned(tuple(seen), notes_on(group, identity, partition, ports), tuple(changes))


def described(name: str, ports: OperatorPorts) -> GroupView:
    """The group. Raises Refused if there is none."""
    group = ports.operator.group(name)
    if group is None:
        raise Refused(
            f"no Auto Scaling group {name} in this account and region",
            "an existing group",
            "make it first (examples/masters.yaml, examples/workers.yaml), or check the name and the region",
        )
    return group


def declared(identity: Identity, ports: OperatorPorts) -> tuple[Topology, Partition]:
    """The cluster's configuration and the partition in it. Raises PartitionNotConfigured."""
    topology = ports.configuration.topology(identity.cluster)
    partition = topology.get(identity.partition) if topology else None
    if topology is None or partition is None:
        known = ", ".join(p.id for p in topology.partitions) if topology else "nothing"
        raise errors.PartitionNotConfigured(
            f"partition {identity.partition} of cluster {identity.cluster}; declared is: {known}",
            f"the parameters /autojoin/{identity.cluster}/cluster and /autojoin/{identity.cluster}/partitions/{identity.partition}",
            "declare them (docs/configuration.md)",
        )
    return topology, partition


def seen_of(group: GroupView) -> str:
    """The group in one line."""
    subnets = ", ".join(group.subnet_ids) or "no subnet named"
    return f"group {group.name}: {len(group.members)} of at most {group.max_size} instances, {subnets}"


def mark(group: GroupView, identity: Identity, ports: OperatorPorts) -> tuple[Change, ...]:
    """Changes that make the group Autojoin's: its tags, then the launch hook. Raises TagsContradict and as hook_of_ours does."""
    wanted = tags_of(identity)
    for key, value in wanted.items():
        if key in group.tags and group.tags[key].value != value:
            raise errors.TagsContradict(
                f"group {group.name} has {key}={group.tags[key].value}",
                f"{key}={value}, or no such tag",
                "name the values that the group has, or remove its tag if nothing of the other cluster is in the group",
            )
    changes = []
    missing = {k: v for k, v in wanted.items() if group.tags.get(k) != GroupTag(v, True)}
    if missing:
        words = ", ".join(f"{k}={v}" for k, v in missing.items())
        says = f"tag group {group.name}, propagated at launch: {words}"
        changes.append(Change(says, lambda: ports.operator.tag_group(group.name, missing)))
    hooks = ports.groups.hooks(group.name)
    if any(h.is_ours and h.transition == LAUNCH_TRANSITION for h in hooks):
        hook_of_ours(group.name, hooks)
        return tuple(changes)
    if any(h.name == HOOK for h in hooks):
        raise Refused(
            f"group {group.name} has a hook {HOOK} that is no launch hook with NotificationMetadata {METADATA}",
            "that name free, or a launch hook of ours",
            "delete that hook if nothing else uses it: aws autoscaling delete-lifecycle-hook",
        )
    words = f"put launch hook {HOOK} on group {group.name}: HeartbeatTimeout {HEARTBEAT_TIMEOUT_S}, DefaultResult ABANDON"
    changes.append(Change(words, lambda: ports.operator.put_launch_hook(group.name, HOOK, HEARTBEAT_TIMEOUT_S, METADATA)))
    return tuple(changes)


def tags_of(identity: Identity) -> dict[str, str]:
    """The tags of a group, and of its instances."""
    return {CLUSTER_TAG: identity.cluster, ROLE_TAG: identity.role.value, PARTITION_TAG: identity.partition}


def notes_on(group: GroupView, identity: Identity, partition: Partition, ports: OperatorPorts) -> tuple[str, ...]:
    """What is allowed, but will disappoint."""
    notes = []
    if group.has_profile is False:
        notes.append("the launch template gives no instance profile: instances need one for Systems Manager (docs/iam.md)")
    if _lacks_its_one_subnet(group, identity, partition):
        notes.append(f"the group has {len(group.subnet_ids)} subnets: new nodes of {partition.id} join only in one (cni_backend host-gw)")
    if identity.role is Role.WORKER:
        name = client_ca_parameter(identity.cluster, identity.partition)
        if ports.operator.parameter(name) is None:
            notes.append(f"{name} does not exist: no worker joins before the partition's master has published it")
        return tuple(notes)
    if group.max_size > 1:
        notes.append(f"MaxSize is {group.max_size}: a partition has one master, a second instance is refused; set it to 1")
    if not (group.protects_new and all(m.is_protected for m in group.members)):
        notes.append("instances are not protected from scale-in, and one holds the only copy of the partition's data")
    return tuple(notes)


def _lacks_its_one_subnet(group: GroupView, identity: Identity, partition: Partition) -> bool:
    """host-gw routes through neighbours, so the partition's nodes share one subnet."""
    return identity.role is not Role.TP and partition.cni_backend == "host-gw" and len(group.subnet_ids) != 1


def _has_instances(group: GroupView, identity: Identity) -> Refused:
    members = ", ".join(m.instance_id for m in group.members)
    named = f"--cluster {identity.cluster} --partition {identity.partition} --role {identity.role.value}"
    return Refused(
        f"group {group.name} has instances: {members}",
        "none before it is enrolled",
        f"if they are members of the cluster, made by hand: autojoin adopt {group.name} {named}; if not: scale the group to 0 first",
    )


def _ranges(partition: Partition) -> str:
    ranges = [f"pods {partition.pod_cidr}"] if partition.pod_cidr else []
    ranges += [f"services {partition.service_cidr}"] if partition.service_cidr else []
    return ", ".join([*ranges, *([f"cni {partition.cni_backend}"] if partition.pod_cidr else [])])


def _zone(topology: Topology, identity: Identity, ports: OperatorPorts) -> Zone:
    where = f"/autojoin/{identity.cluster}/cluster"
    if topology.zone_id is None:
        raise errors.ZoneNotConfigured(
            f"cluster {identity.cluster} declares zone {topology.zone} without zone_id",
            f"zone_id in {where}",
            "declare the Route 53 id of the private zone (docs/configuration.md)",
        )
    return zone_named(topology.zone_id, topology.zone, where, ports)


def zone_named(zone_id: str, name: str, where: str, ports: OperatorPorts) -> Zone:
    """The hosted zone, if it has that name. Raises ZoneNotConfigured."""
    zone = ports.operator.zone(zone_id)
    if zone is None or zone.name != name:
        raise errors.ZoneNotConfigured(
            f"hosted zone {zone_id} {'does not exist' if zone is None else f'is {zone.name}'}",
            f"the private zone {name}, as {where} names it",
            "correct zone_id or zone there (docs/configuration.md)",
        )
    return zone


def _shorten(zone: Zone, minimum_s: int, ports: OperatorPorts) -> Change:
    soa = " ".join([*zone.soa.split()[:-1], str(NEGATIVE_TTL_S)])
    says = f"let a missing name of zone {zone.zone_id} ({zone.name}) be forgotten sooner: SOA minimum {minimum_s} to {NEGATIVE_TTL_S} s"
    return Change(says, lambda: ports.operator.put_soa(zone, soa))
