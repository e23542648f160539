"""The plan of a join: which steps of the fixed graph an instance takes. Dry run returns it, the choices follow it."""

from __future__ import annotations

from dataclasses import dataclass

from autojoin import errors
from autojoin.domain.identity import Role
from autojoin.domain.partitions import Partition, PartitionKind

STEP_ORDER: tuple[str, ...] = (
    "Admit",
    "Preflight",
    "AwaitAgent",
    "Member",
    "StartEtcd",
    "Synced",
    "Formed",
    "StartApi",
    "ApiName",
    "Join",
    "Verify",
    "FrontDoor",
    "Complete",
)
"""Every step, in the order of the graph of statemachine/join.asl.yaml (held by a test)."""

ETCD_STEPS = frozenset({"Member", "StartEtcd", "Synced", "Formed"})
API_STEPS = frozenset({"StartApi", "ApiName"})
FRONT_DOOR_STEPS = frozenset({"FrontDoor"})

KINDS_OF_ROLE: dict[Role, frozenset[PartitionKind]] = {
    Role.TP: frozenset({PartitionKind.TP}),
    Role.RP: frozenset({PartitionKind.RP}),
    Role.MASTER: frozenset({PartitionKind.MASTER}),
    Role.WORKER: frozenset({PartitionKind.RP, PartitionKind.MASTER}),
    Role.ETCD: frozenset({PartitionKind.TP, PartitionKind.RP, PartitionKind.MASTER}),
}
SUPPORTED_ROLES = frozenset({Role.TP, Role.RP, Role.WORKER})


@dataclass(frozen=True)
class Plan:
    """The steps that an instance takes, and the answers that the graph's choices ask for."""

    steps: tuple[str, ...]
    hosts_etcd: bool
    serves_api: bool
    has_front_door: bool


def plan_join(role: Role, partition: Partition) -> Plan:
    """Plan the join of a `role` into `partition`.

    Raises PartitionKindMismatch where the role cannot join such a partition, RoleNotSupported where this version cannot
    join the role, ConfigurationInvalid where the partition lacks what the role needs, CniNotSupported where its nodes use a
    network that Autojoin does not set up.
    """
    kinds = KINDS_OF_ROLE[role]
    if partition.kind not in kinds:
        raise errors.PartitionKindMismatch(
            f"role {role.value} in partition {partition.id}, which is a {partition.kind.value}",
            "a partition of kind " + " or ".join(sorted(k.value for k in kinds)),
            "correct autojoin:partition or autojoin:role of the group",
        )
    if role not in SUPPORTED_ROLES or partition.kind is PartitionKind.MASTER:
        raise errors.RoleNotSupported(
            f"role {role.value} in a partition of kind {partition.kind.value}",
            "role tp, rp or worker in a partition of kind tp or rp",
            "join this node by hand; this version of Autojoin joins tenant and resource partitions and their workers",
        )
    if role is Role.TP and partition.service_cidr is None:
        raise errors.ConfigurationInvalid(
            f"partition {partition.id} declares no service_cidr",
            "the range of its services, which its API server needs",
            "declare service_cidr (docs/configuration.md)",
        )
    if role is not Role.TP:
        partition.require_supported_cni()
    is_master = role in (Role.TP, Role.RP)
    hosts_etcd, serves_api = is_master, is_master
    has_front_door = is_master and bool(partition.front_door_target_groups)
    left_out = frozenset[str]()
    left_out |= frozenset() if hosts_etcd else ETCD_STEPS
    left_out |= frozenset() if serves_api else API_STEPS
    left_out |= frozenset() if has_front_door else FRONT_DOOR_STEPS
    return Plan(tuple(s for s in STEP_ORDER if s not in left_out), hosts_etcd, serves_api, has_front_door)
