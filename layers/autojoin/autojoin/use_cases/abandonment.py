"""Abandon: a failed join is rolled back; its hook is answered, what it wrote is forgotten. The only completer on failure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autojoin import errors
from autojoin.domain.intents import FOUNDING, NODE
from autojoin.domain.lifecycle import is_held
from autojoin.domain.naming import RECORD, TARGET
from autojoin.events.operations.hook import Abandon, Abandoned
from autojoin.events.operations.run import Run
from autojoin.use_cases.run import held

if TYPE_CHECKING:
    from autojoin.ports import Ports


def abandon(command: Abandon, ports: Ports) -> Abandoned:
    """ABANDON the hook that still holds the instance, then forget what the failed join wrote.

    A node that keeps the only copy of a partition's data is let into service instead, not joined: ABANDON would destroy it.
    incomplete  something could not be removed: its intents stay, so that a later sweep knows exactly what is ours
    Safe to repeat: the lease goes last, so a free one says that all is done. Raises LeaseLost if another execution took the node.
    """
    run = command.run
    instance_id = run.node.instance_id
    lease = ports.registry.lease(instance_id)
    if lease.owner != run.execution:
        if lease.owner is None:
            return _abandoned(command, bool(run.hook), ports)
        raise errors.LeaseLost(
            f"the lease of {instance_id} is held by {lease.owner or 'nobody'}",
            f"held by {run.execution}",
            "look at the other execution: it completes the hook",
        )
    completed = _complete(run, "CONTINUE" if command.keeps else "ABANDON", ports)
    # Before the lease is free: once it is, a repeated call counts nothing, and an alarm must not be lost.
    ports.telemetry.count("JoinsRolledBack", reason=command.error)
    if command.incomplete:
        ports.telemetry.count("CleanupsIncomplete")
    if command.keeps:
        ports.telemetry.count("FoundersKept")
    if command.error == "QuorumLost":
        ports.telemetry.count("QuorumLost")
    if command.serves or command.keeps:
        if not command.incomplete:
            for intent in ports.registry.intents(instance_id):
                if intent.kind not in (NODE, FOUNDING, RECORD, TARGET) and intent.execution in (command.from_execution, run.execution):
                    ports.registry.delete_intent(instance_id, intent)
        ports.registry.release_lease(instance_id, run.execution)
    elif command.incomplete:
        ports.registry.release_lease(instance_id, run.execution)
    else:
        ports.registry.forget(instance_id, run.execution)
    return _abandoned(command, completed, ports)


def _complete(run: Run, result: str, ports: Ports) -> bool:
    if run.hook is None:
        return False
    membership = ports.groups.membership(run.node.instance_id)
    if membership is None or not is_held(membership.lifecycle_state, run.hook.token):
        return False
    try:
        ports.groups.complete(held(run.hook), run.node.instance_id, result)
    except errors.HookOver as error:
        ports.telemetry.info("the hook ended before it was completed", detail=str(error))
        return False
    return True


def _abandoned(command: Abandon, completed: bool, ports: Ports) -> Abandoned:
    left = "; its clean-up is incomplete, the intents left in the table name what remains" if command.incomplete else ""
    kept = "; the node served before and still serves" if command.serves else ""
    if command.keeps:
        kept = "; the node was kept, not joined: it holds the only copy of its partition's data; repair it and start its join by hand"
    ports.telemetry.warning("join rolled back", error=command.error, cause=command.cause, serves=command.serves)
    return Abandoned(
        hook=("continued" if command.keeps else "abandoned") if completed else "none",
        error=command.error,
        cause=f"{command.cause} [rolled back from {command.from_execution}{kept}{left}]",
    )
