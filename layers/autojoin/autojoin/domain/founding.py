"""Founding: which one instance may start a partition's etcd as a new cluster, decided once and never by silence.

Two records say what was decided: the marker (one item of the table, changed by conditional writes) and the witness
(parameters that are written once and never changed, owned by no stack). A table that is older than the witness, restored or
made anew, is healed from it. Source of the rules: docs/founding.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

from autojoin import errors

UNKNOWN_IS_GONE_MS = 3_600_000
"""EC2 forgets a terminated instance after about an hour, and does not know one yet in its first moments: an instance that EC2
does not know counts as gone only when its claim is older than this."""


class State(StrEnum):
    """How far a founding is, in this order."""

    CLAIMED = "claimed"
    FORMED = "formed"


class Holder(StrEnum):
    """How the instance of a marker stands in EC2."""

    ALIVE = "alive"
    GOING = "going"
    GONE = "gone"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Marker:
    """The founding of one partition. `cluster_id` is etcd's, 16 hexadecimal digits, once formed; `at_ms` of the claim or the forming."""

    cluster: str
    partition: str
    state: State
    instance_id: str
    epoch: int
    at_ms: int
    cluster_id: str = ""

    @property
    def rank(self) -> tuple[int, bool]:
        """Later decisions are greater."""
        return self.epoch, self.state is State.FORMED

    @property
    def is_void(self) -> bool:
        """Whether it says that its epoch can never be formed any more (`void`)."""
        return self.state is State.FORMED and not self.cluster_id

    @property
    def etcd_token(self) -> str:
        """etcd's initial-cluster-token, another one for every claim, so that two claims can never merge."""
        return f"{self.cluster}.{self.partition}.{self.epoch}.{self.instance_id}"


class Step(StrEnum):
    """What a founder-to-be does now."""

    CLAIM = "claim"
    FOUND = "found"
    RESUME = "resume"
    WAIT = "wait"


class Decision(NamedTuple):
    """`marker`: the one to write (claim) or the one that stands. `waits_for`: of WAIT, in words."""

    step: Step
    marker: Marker
    waits_for: str = ""


def standing(marker: Marker | None, witness: Iterable[Marker]) -> Marker | None:
    """What was decided last: the greatest of marker and witness; of two claims of one epoch the witness, which cannot change."""
    decided = sorted((m for m in witness if not m.is_void), key=lambda m: m.rank)
    latest = decided[-1] if decided else None
    if marker is None or (latest is not None and latest.rank >= marker.rank):
        return latest
    return marker


def decide(
    cluster: str,
    partition: str,
    instance_id: str,
    decided: Marker | None,
    holder: Holder | None,
    not_adopted: Sequence[str],
    now_ms: int,
) -> Decision:
    """What `instance_id` does about the partition's etcd.

    decided      what `standing` says
    holder       how the decided instance stands in EC2; None where nothing was decided
    not_adopted  running instances in service with the partition's tags that nobody recorded, or that joined it
    Raises PartitionNotAdopted, QuorumLost, ReplicasNotSupported.
    """
    if decided is not None and decided.instance_id == instance_id:
        return Decision(Step.RESUME if decided.state is State.FORMED else Step.FOUND, decided)
    if decided is not None and decided.state is State.FORMED:
        raise _formed_elsewhere(decided, holder)
    if decided is not None and not _is_gone(decided, holder, now_ms):
        why = f"{decided.instance_id}, which claimed the founding and is {holder.value if holder else 'unknown'}"
        return Decision(Step.WAIT, decided, why)
    if not_adopted:
        raise errors.PartitionNotAdopted(
            f"{', '.join(sorted(not_adopted))} run with the tags of {partition}, and nobody wrote down that it was formed",
            "no instance of the partition, or a founding that Autojoin knows",
            "if they are the running partition: autojoin adopt; if not: correct their tags or terminate them",
        )
    epoch = decided.epoch + 1 if decided else 1
    return Decision(Step.CLAIM, Marker(cluster, partition, State.CLAIMED, instance_id, epoch, now_ms))


def _is_gone(decided: Marker, holder: Holder | None, now_ms: int) -> bool:
    if holder is Holder.UNKNOWN:
        return now_ms - decided.at_ms > UNKNOWN_IS_GONE_MS
    return holder is Holder.GONE


def _formed_elsewhere(decided: Marker, holder: Holder | None) -> errors.AutojoinError:
    if holder is Holder.ALIVE:
        return errors.ReplicasNotSupported(
            f"{decided.partition} is served by {decided.instance_id}",
            "at most one instance in the partition",
            "set the group to one instance; a second member of a partition is not added by this version",
        )
    return errors.QuorumLost(
        f"{decided.partition} was formed by {decided.instance_id} (cluster id {decided.cluster_id}), which is"
        f" {holder.value if holder else 'unknown'}",
        "the instance that holds the partition's data",
        "never found it again: restore its data, docs/runbook.md#quorumlost",
    )


def void(claimed: Marker) -> Marker:
    """What takes the place of the claim's `formed` in the witness before the claim is taken over.

    Each is written once, so either the claimant formed its epoch, and nobody takes over, or it never can, however late it writes.
    """
    return replace(claimed, state=State.FORMED)


def formed(marker: Marker, cluster_id: str, now_ms: int) -> Marker:
    """The marker once its etcd has answered with `cluster_id`. Raises ClusterIdMismatch if it was formed with another one."""
    if marker.state is State.FORMED and marker.cluster_id != cluster_id:
        raise errors.ClusterIdMismatch(
            f"etcd on {marker.instance_id} answers with cluster id {cluster_id}",
            f"{marker.cluster_id}, with which {marker.partition} was formed",
            "look at the data folder of the node's etcd before anything else; do not start the join again",
        )
    if marker.state is State.FORMED:
        return marker
    return replace(marker, state=State.FORMED, cluster_id=cluster_id, at_ms=now_ms)
