"""Member, Formed: who founds a partition's etcd, and that it is founded for ever. Rules: domain/founding.py, docs/founding.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autojoin import errors
from autojoin.domain import founding
from autojoin.domain.founding import Decision, Holder, Marker, Step
from autojoin.domain.intents import FOUNDING, Intent
from autojoin.domain.lifecycle import is_on_its_way_in_or_out
from autojoin.events.operations.membership import Formed, Founding, Member
from autojoin.events.operations.run import Done, Run
from autojoin.use_cases.run import MASTERS, heartbeat, look_until

if TYPE_CHECKING:
    from autojoin.ports import Ports

HOLDERS = {"pending": Holder.ALIVE, "running": Holder.ALIVE, "terminated": Holder.GONE}


def member(command: Member, ports: Ports) -> Founding:
    """Claim the founding, or say that the node founds or resumes; look again while another claim may still end.

    Raises HookOver, LeaseLost, PartitionNotAdopted, QuorumLost, ReplicasNotSupported.
    """
    heartbeat(command.run, ports)

    def look() -> Founding:
        return _claim(command.run, ports)

    return look_until(look, lambda seen: seen.done, command.until_ms, ports)


def formed(command: Formed, ports: Ports) -> Done:
    """Write `formed` with the cluster id, the witness first: a witness of a claim alone then proves that nothing was served.

    Safe to repeat. Raises HookOver, so that an instance that its group lets go forms nothing; LeaseLost, ClusterIdMismatch,
    PartitionClaimed.
    """
    run = command.run
    heartbeat(run, ports)
    table, decided = read(run.node.cluster, run.node.partition, ports)
    if decided is None or decided.instance_id != run.node.instance_id:
        raise errors.PartitionClaimed(
            f"the founding of {run.node.partition} belongs to {decided.instance_id if decided else 'nobody'} now",
            f"a claim of {run.node.instance_id}",
            "look at the other instance; this one must not serve",
        )
    marker = founding.formed(decided, command.cluster_id, ports.clock.now_ms())
    _intend(run, marker, ports)  # a call that outlived its execution must not write for ever what the clean-up does not know of
    stands = ports.witness.write(marker)
    if stands.is_void:
        raise errors.PartitionClaimed(
            f"the claim of {run.node.instance_id} on {run.node.partition} was taken over, since it was terminated",
            f"a claim of {run.node.instance_id}",
            "look at the other instance; this one must not serve",
        )
    if stands.cluster_id != command.cluster_id:
        raise errors.ClusterIdMismatch(
            f"the witness of {run.node.partition} has another cluster id than {command.cluster_id}",
            "the one with which it was formed",
            "look at the data folder of the node's etcd before anything else; do not start the join again",
        )
    if table != marker and not ports.markers.put(marker, instead_of=table):
        again, _ = read(run.node.cluster, run.node.partition, ports)
        if again is None or again.cluster_id != command.cluster_id:
            raise errors.PartitionClaimed(
                f"the marker of {run.node.partition} changed while it was formed",
                f"formed by {run.node.instance_id}",
                "look at the partition's marker in the table and at its witness",
            )
    ports.telemetry.info("partition formed", cluster_id=command.cluster_id, epoch=marker.epoch)
    return Done()


def read(cluster: str, partition: str, ports: Ports) -> tuple[Marker | None, Marker | None]:
    """The marker of the table, and what was really decided: the greater of it and the witness."""
    table = ports.markers.get(cluster, partition)
    return table, founding.standing(table, ports.witness.read(cluster, partition))


def holds_formed(instance_id: str, cluster: str, partition: str, ports: Ports) -> bool:
    """Whether the partition was formed on this instance, so that it has the only copy of its data."""
    _, decided = read(cluster, partition, ports)
    return decided is not None and decided.state is founding.State.FORMED and decided.instance_id == instance_id


def look_ahead(instance_id: str, cluster: str, partition: str, ports: Ports) -> Decision:
    """What Member would decide now, of an instance that nobody holds. Changes nothing. Raises as member does."""
    _, decided = read(cluster, partition, ports)
    return _decide(instance_id, cluster, partition, decided, ports)


def _claim(run: Run, ports: Ports) -> Founding:
    """One look: heal the table, decide, claim."""
    node = run.node
    table, decided = read(node.cluster, node.partition, ports)
    if decided is not None and decided != table and not ports.markers.put(decided, instead_of=table):
        return Founding(done=False, waits_for="the marker, which changes")
    decision = _decide(node.instance_id, node.cluster, node.partition, decided, ports)
    if decision.step is Step.WAIT:
        return Founding(done=False, waits_for=decision.waits_for)
    marker = decision.marker
    _intend(run, marker, ports)
    if decision.step is Step.CLAIM:
        if decided is not None and not _end(decided, ports):
            return Founding(done=False, waits_for="the witness, which says something else than the marker")
        if not ports.markers.put(marker, instead_of=decided):
            return Founding(done=False, waits_for="another claim, which was faster")
        ports.telemetry.info("founding claimed", epoch=marker.epoch)
    if ports.witness.write(marker).instance_id != node.instance_id:
        return Founding(done=False, waits_for="the witness, which names another claim")
    return Founding(
        done=True,
        mode="resume" if decision.step is Step.RESUME else "found",
        epoch=marker.epoch,
        etcd_token=marker.etcd_token,
        cluster_id=marker.cluster_id,
    )


def _intend(run: Run, marker: Marker, ports: Ports) -> None:
    """The intent before the effect, in one transaction with a check of the lease. Raises LeaseLost."""
    intent = Intent(FOUNDING, run.node.partition, run.execution, str(marker.epoch))
    ports.registry.put_intent(run.node.instance_id, intent, run.execution)


def _end(claimed: Marker, ports: Ports) -> bool:
    """Write down that the claim has ended, so that nobody can hold its epoch or form it any more; False if somebody does, or did."""
    holder = ports.witness.write(claimed)
    return holder.instance_id == claimed.instance_id and ports.witness.write(founding.void(claimed)).is_void


def _decide(instance_id: str, cluster: str, partition: str, decided: Marker | None, ports: Ports) -> Decision:
    holder = _holder(decided.instance_id, ports) if decided else None
    mine = decided is not None and decided.instance_id == instance_id
    not_adopted = () if mine else _not_adopted(instance_id, cluster, partition, ports)
    return founding.decide(cluster, partition, instance_id, decided, holder, not_adopted, ports.clock.now_ms())


def _holder(instance_id: str, ports: Ports) -> Holder:
    instance = ports.instances.get(instance_id)
    return HOLDERS.get(instance.state, Holder.GOING) if instance else Holder.UNKNOWN


def _not_adopted(instance_id: str, cluster: str, partition: str, ports: Ports) -> tuple[str, ...]:
    """Other masters of the partition that run, are not just coming or going in their group, and are not just joining.

    One that joined counts too: where nothing is decided, its partition's decisions were lost.
    """
    found = []
    for other in ports.instances.running(cluster, partition, MASTERS):
        record = ports.registry.record(other.instance_id)
        if other.instance_id == instance_id or (record and record.joined_ms is None):
            continue
        membership = ports.groups.membership(other.instance_id)
        if membership is None or not is_on_its_way_in_or_out(membership.lifecycle_state):
            found.append(other.instance_id)
    return tuple(found)
