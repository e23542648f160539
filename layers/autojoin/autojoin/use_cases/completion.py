"""Complete: the node is proved to work; write it down, let the hook go, give the lease back. After this nothing rolls back."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from autojoin import errors
from autojoin.domain.identity import Role
from autojoin.domain.intents import CANARY, COMMAND, NODE, Intent
from autojoin.events.operations.hook import Complete, Completed
from autojoin.events.operations.run import Run
from autojoin.records import NodeRecord
from autojoin.use_cases.run import held

if TYPE_CHECKING:
    from autojoin.ports import Ports

PASSED = frozenset({"Pending:Proceed", "InService"})


def complete(command: Complete, ports: Ports) -> Completed:
    """Complete the join: joined_at, CONTINUE if a hook is held, release.

    Safe to repeat: a second call finds joined_by and answers the same. Raises LeaseLost, Tombstoned, HookOver.
    """
    run = command.run
    instance_id = run.node.instance_id
    record = ports.registry.record(instance_id)
    lease = ports.registry.lease(instance_id)
    if lease.owner != run.execution:
        if record and record.joined_by == run.execution and record.joined_ms is not None:
            return Completed(hook="continued" if run.hook else "none", joined_ms=record.joined_ms)
        raise errors.LeaseLost(
            f"the lease of {instance_id} is held by {lease.owner or 'nobody'}",
            f"held by {run.execution}",
            "look at the other execution; start the join again if the node is not joined",
        )
    if lease.tombstone_ms is not None or record is None:
        raise errors.Tombstoned(f"a leave of {instance_id} has begun", "no leave", "nothing: the leave ends by itself")
    joined = _joined(record, command, ports)
    ports.registry.put_record(joined, run.execution)
    if run.node.role != Role.TP.value:
        _remember_node(run, joined, ports)
    hook = _continue(run, ports)
    for intent in ports.registry.intents(instance_id):
        if intent.kind in (COMMAND, CANARY):
            ports.registry.delete_intent(instance_id, intent)
    ports.registry.release_lease(instance_id, run.execution)
    ports.telemetry.count("NodesJoined", role=run.node.role)
    return Completed(hook=hook, joined_ms=joined.joined_ms or 0)


def _joined(record: NodeRecord, command: Complete, ports: Ports) -> NodeRecord:
    uid = command.verified.get("node_uid")
    again = record.joined_by == command.run.execution
    return replace(
        record,
        node_uid=str(uid) if uid else record.node_uid,
        joined_ms=record.joined_ms if again else ports.clock.now_ms(),
        joined_by=command.run.execution,
    )


def _remember_node(run: Run, record: NodeRecord, ports: Ports) -> None:
    """The Node outlives this execution: its intent stays, with its uid, for the node's leave."""
    node = Intent(NODE, run.node.instance_id, run.execution, record.node_uid or "", ports.clock.now_ms())
    ports.registry.put_intent(run.node.instance_id, node, run.execution)


def _continue(run: Run, ports: Ports) -> Literal["continued", "none"]:
    if run.hook is None:
        return "none"
    try:
        ports.groups.complete(held(run.hook), run.node.instance_id, "CONTINUE")
    except errors.HookOver:
        membership = ports.groups.membership(run.node.instance_id)
        if membership is None or membership.lifecycle_state not in PASSED:
            raise
        ports.telemetry.info("the hook was continued before", lifecycle_state=membership.lifecycle_state)
    return "continued"
