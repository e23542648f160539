"""The leave machine in mode rollback: remove what one failed join made, then let its instance go.

A node that serves (it joined before, and only a re-join failed) is released, never undone.
"""

from __future__ import annotations

import json

from autojoin import errors
from autojoin.domain import budgets
from autojoin.domain.identity import CLUSTER_TAG, PARTITION_TAG, ROLE_TAG, is_ours
from autojoin.domain.intents import CANARY, NODE
from autojoin.domain.lifecycle import HELD_AT_LAUNCH, LAUNCH_TRANSITION, is_held
from autojoin.events.operations import Abandon, Abandoned, HookRef, NodeRef, Run, TakenOver, TakeOver
from autojoin.events.requests import JoinRequest, LeaveRequest
from autojoin.ports import Membership, NodeRecord, Ports
from autojoin.use_cases.admission import JOINABLE_STATES, LIVE_STATES
from autojoin.use_cases.parse import parse
from autojoin.use_cases.waiting import held

IN_SERVICE = JOINABLE_STATES - {HELD_AT_LAUNCH}
KILLED_FROM_OUTSIDE = frozenset({"ABORTED", "TIMED_OUT"})


def take_over(command: TakeOver, ports: Ports) -> TakenOver:
    """Take the failed execution's lease, and say what there is to undo.

    Answers `wait` while the last function of an aborted execution may still run, `nothing` where the node is in other
    hands, is not ours, or holds no hook of ours.
    """
    request = parse(LeaveRequest, command.request, "execution input")
    now_ms = ports.clock.now_ms()
    until_ms = now_ms + budgets.LONGEST_FUNCTION_S * 1000
    failed = ports.machines.execution(request.from_execution)
    if failed and failed.status in KILLED_FROM_OUTSIDE and failed.stopped_ms is not None:
        quiet_ms = failed.stopped_ms + budgets.LONGEST_FUNCTION_S * 1000
        if now_ms < quiet_ms:
            return TakenOver(outcome="wait", until_ms=quiet_ms + budgets.SLACK_S * 1000)
    membership = ports.groups.membership(request.instance_id)
    hook = _held_hook(membership, request.request, ports)
    lease = ports.registry.lease(request.instance_id)
    record = ports.registry.record(request.instance_id)
    ours = lease.owner in (request.from_execution, command.execution) or (lease.owner is None and hook is not None)
    if not ours or not ports.registry.take_lease(request.instance_id, command.execution, instead_of=request.from_execution):
        ports.telemetry.info("nothing to undo", owner=lease.owner, tombstone_ms=lease.tombstone_ms)
        return TakenOver(outcome="nothing", until_ms=until_ms, error=request.failure.Error, cause=_plain(request.failure.Cause))
    intents = ports.registry.intents(request.instance_id)
    made_node = any(i.kind == NODE for i in intents)
    made_canary = any(i.kind == CANARY and i.execution == request.from_execution for i in intents)
    instance = ports.instances.get(request.instance_id)
    alive = bool(instance and instance.state in LIVE_STATES)
    tags = instance.tags if instance else {}
    serves = hook is None and _serves(record, request.from_execution, membership, alive)
    return TakenOver(
        outcome="undo",
        until_ms=until_ms,
        run=Run(
            execution=command.execution,
            name=command.name,
            node=_node(request.instance_id, record, tags, ports),
            hook=hook,
        ),
        serves=serves,
        stop_node=made_node and not serves and alive,
        remove_node=(made_node and not serves) or (made_canary and serves),
        scope="canaries" if serves else "node",
        leave_ms=now_ms + budgets.command_budget_s("leave-node") * 1000,
        remove_ms=now_ms + (budgets.command_budget_s("leave-node") + budgets.command_budget_s("remove-node")) * 1000,
        error=request.failure.Error,
        cause=_plain(request.failure.Cause),
    )


def abandon(command: Abandon, ports: Ports) -> Abandoned:
    """ABANDON the hook that still holds the instance, then forget what the failed join wrote.

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
    completed = _complete_abandon(run, ports)
    if command.serves:
        if not command.incomplete:
            for intent in ports.registry.intents(instance_id):
                if intent.kind != NODE and intent.execution in (command.from_execution, run.execution):
                    ports.registry.delete_intent(instance_id, intent)
        ports.registry.release_lease(instance_id, run.execution)
    elif command.incomplete:
        ports.registry.release_lease(instance_id, run.execution)
    else:
        ports.registry.forget(instance_id, run.execution)
    ports.telemetry.count("JoinsRolledBack", reason=command.error)
    if command.incomplete:
        ports.telemetry.count("CleanupsIncomplete")
    return _abandoned(command, completed, ports)


def _plain(cause: str) -> str:
    """A function's failure comes as JSON with its stack; people need its message."""
    try:
        parsed = json.loads(cause)
    except ValueError:
        return cause
    return str(parsed["errorMessage"]) if isinstance(parsed, dict) and "errorMessage" in parsed else cause


def _complete_abandon(run: Run, ports: Ports) -> bool:
    if run.hook is None:
        return False
    membership = ports.groups.membership(run.node.instance_id)
    if membership is None or not is_held(membership.lifecycle_state, run.hook.token):
        return False
    try:
        ports.groups.complete(held(run.hook), run.node.instance_id, "ABANDON")
    except errors.HookOver as error:
        ports.telemetry.info("the hook ended before it was abandoned", detail=str(error))
        return False
    return True


def _abandoned(command: Abandon, completed: bool, ports: Ports) -> Abandoned:
    left = "; its clean-up is incomplete, the intents left in the table name what remains" if command.incomplete else ""
    kept = "; the node served before and still serves" if command.serves else ""
    ports.telemetry.warning("join rolled back", error=command.error, cause=command.cause, serves=command.serves)
    return Abandoned(
        hook="abandoned" if completed else "none",
        error=command.error,
        cause=f"{command.cause} [rolled back from {command.from_execution}{kept}{left}]",
    )


def _serves(record: NodeRecord | None, from_execution: str, membership: Membership | None, alive: bool) -> bool:
    """Whether the node, which no hook holds, went into service: before this execution, or by its own Complete."""
    if record is None or record.joined_ms is None:
        return False
    if record.joined_by != from_execution:
        return True
    return alive and (membership is None or membership.lifecycle_state in IN_SERVICE)


def _held_hook(membership: Membership | None, request: JoinRequest, ports: Ports) -> HookRef | None:
    """The hook of ours that holds the instance now, read from Auto Scaling; None where none does."""
    if membership is None or not is_held(membership.lifecycle_state, request.token):
        return None
    if not is_ours(ports.groups.tags(membership.group)):
        return None
    ours = [h for h in ports.groups.hooks(membership.group) if h.is_ours and h.transition == LAUNCH_TRANSITION]
    named = [h for h in ours if h.name == request.hook and membership.group == request.group]
    if named:
        return HookRef(group=membership.group, name=named[0].name, token=request.token)
    return HookRef(group=membership.group, name=ours[0].name, token=None) if ours else None


def _node(instance_id: str, record: NodeRecord | None, tags: object, ports: Ports) -> NodeRef:
    """The node as its record says; of a node without one, as far as its instance's tags say."""
    if record:
        return NodeRef(
            instance_id=instance_id,
            cluster=record.cluster,
            role=record.role,
            partition=record.partition,
            group=record.group,
            address=record.address,
            subnet_id=None,
        )
    known = dict(tags) if isinstance(tags, dict) else {}
    return NodeRef(
        instance_id=instance_id,
        cluster=known.get(CLUSTER_TAG, ""),
        role=known.get(ROLE_TAG, ""),
        partition=known.get(PARTITION_TAG, ""),
        group=None,
        address=None,
        subnet_id=None,
    )
