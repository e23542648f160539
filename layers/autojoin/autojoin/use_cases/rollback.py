"""TakeOver: the leave machine in mode rollback begins; what one failed join made is to be removed, then its instance let go.

A node that serves (it joined before, and only a re-join failed) is released, never undone.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from autojoin import errors
from autojoin.domain import budgets
from autojoin.domain.identity import CLUSTER_TAG, PARTITION_TAG, ROLE_TAG, is_ours
from autojoin.domain.intents import CANARY, FOUNDING, NODE
from autojoin.domain.lifecycle import HELD_AT_LAUNCH, LAUNCH_TRANSITION, is_held
from autojoin.domain.naming import RECORD, TARGET
from autojoin.events.operations.node import TakenOver, TakeOver
from autojoin.events.operations.run import HookRef, NodeRef, Run
from autojoin.events.requests import JoinRequest, LeaveRequest
from autojoin.records import Membership, NodeRecord
from autojoin.use_cases.admission import JOINABLE_STATES
from autojoin.use_cases.founding import holds_formed
from autojoin.use_cases.parse import parse
from autojoin.use_cases.run import LIVE_STATES, MASTERS

if TYPE_CHECKING:
    from autojoin.ports import Ports

IN_SERVICE = JOINABLE_STATES - {HELD_AT_LAUNCH}
LOST_STATES = frozenset({"shutting-down", "terminated"})
"""EC2 states of an instance whose data are gone, or go whatever we do; those of a stopped one are still there."""
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
    node = _node(request.instance_id, record, tags, ports)
    is_lost = instance is not None and instance.state in LOST_STATES
    keeps = not serves and not is_lost and _holds_the_only_copy(node, ports)
    may_serve = keeps and hook is None and _is_in_service(membership, alive)
    stays = serves or keeps
    # A master's Node is in its own etcd alone: kept with it, or gone with it.
    made_node = made_node and node.role not in MASTERS
    return TakenOver(
        outcome="undo",
        until_ms=until_ms,
        run=Run(
            execution=command.execution,
            name=command.name,
            node=node,
            hook=hook,
        ),
        serves=serves,
        keeps=keeps,
        remove_names=not (serves or may_serve) and any(i.kind in (RECORD, TARGET) for i in intents),
        stop_node=any(i.kind in (NODE, FOUNDING) for i in intents) and not stays and alive,
        remove_node=(made_node and not stays) or (made_canary and stays),
        scope="canaries" if stays else "node",
        leave_ms=now_ms + budgets.command_budget_s("leave-node") * 1000,
        remove_ms=now_ms + (budgets.command_budget_s("leave-node") + budgets.command_budget_s("remove-node")) * 1000,
        error=request.failure.Error,
        cause=_plain(request.failure.Cause),
    )


def _plain(cause: str) -> str:
    """A function's failure comes as JSON with its stack; people need its message."""
    try:
        parsed = json.loads(cause)
    except ValueError:
        return cause
    return str(parsed["errorMessage"]) if isinstance(parsed, dict) and "errorMessage" in parsed else cause


def _holds_the_only_copy(node: NodeRef, ports: Ports) -> bool:
    """Whether etcd data of a formed partition is, or may be, on this instance alone: what cannot be found out keeps it too."""
    if node.role not in MASTERS:
        return False
    try:
        return holds_formed(node.instance_id, node.cluster, node.partition, ports)
    except errors.RETRYABLE:
        raise
    except errors.AutojoinError as error:
        ports.telemetry.warning("what was decided about the partition cannot be read, so its master is kept", detail=str(error))
        return True


def _serves(record: NodeRecord | None, from_execution: str, membership: Membership | None, alive: bool) -> bool:
    """Whether the node, which no hook holds, went into service: before this execution, or by its own Complete."""
    if record is None or record.joined_ms is None:
        return False
    if record.joined_by != from_execution:
        return True
    return _is_in_service(membership, alive)


def _is_in_service(membership: Membership | None, alive: bool) -> bool:
    """Whether the instance is in service in its group, or runs in none."""
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
