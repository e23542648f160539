"""Intake: sort what happened into a start of a machine, or into a reason why not. Nothing else changes here."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from autojoin import errors
from autojoin.domain.identity import is_ours
from autojoin.domain.lifecycle import Hook, is_warm
from autojoin.events.eventbridge import JoinEnded, LaunchAction, LifecycleDetail, TestNotification
from autojoin.events.operations.intake import HandedOver, HandOver, Sorted
from autojoin.events.requests import Failure, JoinRequest, LeaveRequest
from autojoin.use_cases.parse import parse

if TYPE_CHECKING:
    from autojoin.ports import Ports

CLEANUP = "-cleanup"
LONGEST_NAME = 72
"""Step Functions takes 80 characters; `<name>-cleanup` has to fit."""
ON_ITS_WAY = frozenset({"Pending", "Pending:Wait"})


def launch_action(event: LaunchAction, ports: Ports) -> Sorted:
    """Start a join for an instance that a hook of ours holds; named by the action's token, so a duplicate starts nothing."""
    detail = event.detail
    reason = "test-notification" if isinstance(detail, TestNotification) else _why_not(detail, ports)
    if reason or isinstance(detail, TestNotification):
        ports.telemetry.info("event ignored", reason=reason, group=detail.AutoScalingGroupName)
        ports.telemetry.count("EventsIgnored", reason=str(reason))
        return Sorted(action="ignored", reason=reason)
    request = JoinRequest(
        instance_id=detail.EC2InstanceId,
        dry_run=False,
        source="event",
        group=detail.AutoScalingGroupName,
        hook=detail.LifecycleHookName,
        token=detail.LifecycleActionToken,
        opened_ms=int(event.time.timestamp() * 1000),
    )
    name = detail.LifecycleActionToken
    started = ports.machines.start_join(name, request.model_dump(mode="json"))
    ports.telemetry.count("JoinsStarted" if started else "DuplicateEvents", source="event")
    return Sorted(action="started" if started else "duplicate", execution=name)


def _why_not(detail: LifecycleDetail, ports: Ports) -> str | None:
    if detail.Destination == "WarmPool":
        return "warm-pool"
    if not is_ours(ports.groups.tags(detail.AutoScalingGroupName)):
        return "foreign-group"
    hook = Hook(
        detail.AutoScalingGroupName,
        detail.LifecycleHookName,
        detail.LifecycleTransition,
        0,
        None,
        detail.NotificationMetadata,
    )
    if not hook.is_ours:
        return "foreign-hook"
    membership = ports.groups.membership(detail.EC2InstanceId)
    if membership is None:
        return "instance-gone"
    if is_warm(membership.lifecycle_state):
        return "warm-pool"
    if membership.lifecycle_state.startswith("Terminat"):
        return "instance-gone"
    if membership.lifecycle_state not in ON_ITS_WAY:
        return "hook-over"
    return None


def join_ended(event: JoinEnded, ports: Ports) -> HandedOver:
    """The finalizer: a join that ended without success is cleaned up, whether or not it could hand itself over."""
    detail = event.detail
    failure = Failure(Error=detail.error or _outside_error(detail.status), Cause=detail.cause or f"the execution {detail.status}")
    try:
        raw = json.loads(detail.input or "{}")
    except ValueError:
        raw = {}
    return _hand_over(detail.executionArn, detail.name, raw, failure, ports)


def hand_over(command: HandOver, ports: Ports) -> HandedOver:
    """Every Catch of a join ends here: start its clean-up. A second start of the same clean-up starts nothing."""
    return _hand_over(command.execution, command.name, command.request, command.failure, ports)


def _hand_over(execution: str, name: str, raw: dict[str, Any], failure: Failure, ports: Ports) -> HandedOver:
    cleanup = _cleanup_name(name)
    try:
        request = parse(JoinRequest, raw, "the failed execution's input")
    except errors.InvalidInput as error:
        ports.telemetry.warning("nothing to clean up: the input was refused", detail=str(error))
        return HandedOver(cleanup=cleanup, started=False)
    if request.dry_run:
        return HandedOver(cleanup=cleanup, started=False)
    leave = LeaveRequest(mode="rollback", instance_id=request.instance_id, from_execution=execution, request=request, failure=failure)
    started = ports.machines.start_leave(cleanup, leave.model_dump(mode="json"))
    return HandedOver(cleanup=cleanup, started=started)


def _cleanup_name(name: str) -> str:
    """`<name>-cleanup`; of a name that leaves no room for it, one that is as much its own."""
    if len(name) > LONGEST_NAME:
        digest = hashlib.sha256(name.encode()).hexdigest()[:12]
        name = f"{name[: LONGEST_NAME - 13]}-{digest}"
    return name + CLEANUP


def _outside_error(status: str) -> str:
    return "ExecutionTimedOut" if status == "TIMED_OUT" else "ExecutionAborted"
