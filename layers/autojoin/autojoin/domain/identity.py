"""Who an instance is: ids, roles, and what the tags of group and instance say together."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple, NewType

from autojoin import errors

InstanceId = NewType("InstanceId", str)
PartitionId = NewType("PartitionId", str)
ClusterName = NewType("ClusterName", str)

CLUSTER_TAG = "autojoin:cluster"
ROLE_TAG = "autojoin:role"
PARTITION_TAG = "autojoin:partition"


class Role(StrEnum):
    """What an instance is."""

    TP = "tp"
    RP = "rp"
    MASTER = "master"
    WORKER = "worker"
    ETCD = "etcd"


class Identity(NamedTuple):
    """An instance's place: its cluster, role and partition."""

    cluster: ClusterName
    role: Role
    partition: PartitionId


def is_ours(tags: Mapping[str, str]) -> bool:
    """Whether these tags make a group (or a lone instance) Autojoin's."""
    return bool(tags.get(CLUSTER_TAG))


def identify(instance_tags: Mapping[str, str], group_tags: Mapping[str, str] | None, subject: str) -> Identity:
    """Read who an instance is. The group's tags rule, the instance's must agree; a lone instance has only its own.

    group_tags  None for an instance without a group
    subject     how to name the instance (and group) in an error
    Raises NotOurs, TagsMissing, TagsContradict, UnknownRole.
    """
    ruling = instance_tags if group_tags is None else group_tags
    if not is_ours(ruling):
        raise errors.NotOurs(
            f"{subject} has no tag {CLUSTER_TAG}",
            f"{CLUSTER_TAG}, {ROLE_TAG} and {PARTITION_TAG} on what Autojoin shall join",
            "tag the group (propagated at launch) if its nodes belong to a cluster; otherwise nothing",
        )
    for name in (ROLE_TAG, PARTITION_TAG):
        if not ruling.get(name):
            raise errors.TagsMissing(
                f"{subject} has {CLUSTER_TAG}={ruling[CLUSTER_TAG]} but no {name}",
                f"all of {CLUSTER_TAG}, {ROLE_TAG}, {PARTITION_TAG}",
                f"add the tag {name} to the group, propagated at launch",
            )
    if group_tags is not None:
        for name in (CLUSTER_TAG, ROLE_TAG, PARTITION_TAG):
            if instance_tags.get(name) != group_tags[name]:
                raise errors.TagsContradict(
                    f"{subject}: the instance has {name}={instance_tags.get(name, '(none)')}, its group {group_tags[name]}",
                    "the same value on both",
                    "set PropagateAtLaunch on the group's tag, or remove the tag that someone set on the instance",
                )
    role = ruling[ROLE_TAG]
    if role not in [r.value for r in Role]:
        raise errors.UnknownRole(
            f"{subject} has {ROLE_TAG}={role}",
            "one of " + ", ".join(r.value for r in Role),
            f"correct the tag {ROLE_TAG} of the group",
        )
    return Identity(ClusterName(ruling[CLUSTER_TAG]), Role(role), PartitionId(ruling[PARTITION_TAG]))
