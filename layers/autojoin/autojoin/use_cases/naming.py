"""ApiName, FrontDoor, RemoveNames: records and targets of a node, each an intent first, each removed only as exactly ours."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from autojoin import errors
from autojoin.domain.intents import Intent
from autojoin.domain.naming import API_PORT, RECORD, TARGET, TTL_S, Record, Target, name_of_api
from autojoin.events.operations.names import ApiName, FrontDoor, Placed, RemoveNames
from autojoin.events.operations.run import Done, Run
from autojoin.records import TargetGroup
from autojoin.use_cases.run import declared, heartbeat, heartbeat_if_held, look_until

if TYPE_CHECKING:
    from autojoin.ports import Ports

NOT_IN_USE = "Target.NotInUse"
"""No listener forwards to the group, so its targets never become healthy."""


def api_name(command: ApiName, ports: Ports) -> Placed:
    """Put `api.<partition>.<zone>` of this instance and enter the api target groups. Safe to repeat.

    Raises HookOver, LeaseLost, ZoneNotConfigured, TargetGroupUnusable.
    """
    run = command.run
    heartbeat(run, ports)
    topology, partition = declared(run, ports)
    if topology.zone_id is None or run.node.address is None:
        raise errors.ZoneNotConfigured(
            f"cluster {run.node.cluster} declares zone {topology.zone} without zone_id",
            f"zone_id in /autojoin/{run.node.cluster}/cluster",
            "declare the Route 53 id of the private zone (docs/configuration.md)",
        )
    record = Record(topology.zone_id, name_of_api(partition.id, topology.zone), run.node.instance_id, TTL_S, run.node.address)
    _intend(run, Intent(RECORD, record.name, run.execution, record.value), ports)
    ports.names.put(record)
    return _enter(run, partition.api_target_groups, command.until_ms, ports)


def front_door(command: FrontDoor, ports: Ports) -> Placed:
    """Enter the target groups for clients. Safe to repeat. Raises HookOver, LeaseLost, TargetGroupUnusable."""
    heartbeat(command.run, ports)
    _, partition = declared(command.run, ports)
    return _enter(command.run, partition.front_door_target_groups, command.until_ms, ports)


def remove_names(command: RemoveNames, ports: Ports) -> Done:
    """Take back exactly the records and targets that were made for the node, which does not serve. Safe to repeat."""
    instance_id = command.run.node.instance_id
    heartbeat_if_held(command.run, ports)
    for intent in ports.registry.intents(instance_id):
        if intent.kind == TARGET:
            ports.targets.deregister(Target.of(intent.key, intent.value))
        elif intent.kind == RECORD:
            if not ports.names.delete(Record.of(intent.value)):
                ports.telemetry.info("record was not there, or is another one", name=intent.key)
        else:
            continue
        ports.registry.delete_intent(instance_id, intent)
    return Done()


def _enter(run: Run, arns: Iterable[str], until_ms: int, ports: Ports) -> Placed:
    """Register in those groups that Auto Scaling does not manage for the instance, and wait until each target is healthy."""
    wanted = set(arns)
    if wanted and run.node.group:
        wanted -= ports.groups.target_groups(run.node.group)
    if not wanted:
        return Placed(done=True)
    known = ports.targets.groups(wanted)
    targets = [_target(run, arn, known.get(arn)) for arn in sorted(wanted)]
    for target in targets:
        _intend(run, Intent(TARGET, target.group_arn, run.execution, target.value), ports)
        ports.targets.register(target)

    def look() -> Placed:
        waits_for = []
        for target in targets:
            state, reason = ports.targets.health(target)
            if state == "unused" and reason == NOT_IN_USE:
                ports.telemetry.warning("no listener forwards to the target group", target_group=target.group_arn)
            elif state != "healthy":
                waits_for.append(f"{target.value} in {target.group_arn}: {state} {reason}".rstrip())
        return Placed(done=not waits_for, waits_for="; ".join(waits_for))

    return look_until(look, lambda seen: seen.done, until_ms, ports)


def _target(run: Run, arn: str, group: TargetGroup | None) -> Target:
    if group is None or group.target_type not in ("instance", "ip"):
        raise errors.TargetGroupUnusable(
            f"target group {arn} {'does not exist' if group is None else f'has targets of type {group.target_type}'}",
            "a target group whose targets are instances or addresses",
            f"correct the target groups that partition {run.node.partition} declares",
        )
    target_id = run.node.instance_id if group.target_type == "instance" else run.node.address
    return Target(arn, target_id or "", group.port or API_PORT)


def _intend(run: Run, intent: Intent, ports: Ports) -> None:
    """Write the intent unless it stands with this value; one of an earlier execution stays its own."""
    for known in ports.registry.intents(run.node.instance_id):
        if (known.kind, known.key, known.value) == (intent.kind, intent.key, intent.value):
            return
    ports.registry.put_intent(run.node.instance_id, intent, run.execution)
