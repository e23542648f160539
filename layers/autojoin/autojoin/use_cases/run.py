"""What an operation asks of its run: the instance, the hook, the declaration; and how it waits for what nobody announces."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from autojoin import errors
from autojoin.domain import budgets
from autojoin.domain.identity import Role
from autojoin.domain.lifecycle import HeldHook
from autojoin.domain.partitions import Partition, Topology
from autojoin.events.operations.run import HookRef, Run
from autojoin.records import Instance

if TYPE_CHECKING:
    from autojoin.ports import Ports

Seen = TypeVar("Seen")
LIVE_STATES = frozenset({"pending", "running"})
MASTERS = (Role.TP.value, Role.RP.value, Role.MASTER.value)
"""Roles whose instances run a partition's API server."""
ONLINE = "Online"
"""What Systems Manager says of an agent that takes commands."""


def live_instance(instance_id: str, ports: Ports) -> Instance:
    """The instance, pending or running. Raises UnknownInstance or InstanceGone."""
    instance = ports.instances.get(instance_id)
    if instance is None:
        raise errors.UnknownInstance(
            f"EC2 knows no {instance_id} in this account and region",
            "the id of a running instance",
            "check the id and the region",
        )
    if instance.state not in LIVE_STATES:
        raise errors.InstanceGone(
            f"{instance_id} is {instance.state}", "pending or running", "nothing: its group replaces it if it wants one"
        )
    return instance


def held(hook: HookRef) -> HeldHook:
    """The port's view of a run's hook."""
    return HeldHook(hook.group, hook.name, hook.token)


def heartbeat(run: Run, ports: Ports) -> None:
    """Keep a held hook alive; nothing if none is held. Raises HookOver."""
    if run.hook:
        ports.groups.heartbeat(held(run.hook), run.node.instance_id)


def heartbeat_if_held(run: Run, ports: Ports) -> None:
    """The same for a clean-up, which goes on without its hook."""
    try:
        heartbeat(run, ports)
    except errors.HookOver as error:
        ports.telemetry.info("the hook is over, the clean-up goes on", detail=str(error))


def declared(run: Run, ports: Ports) -> tuple[Topology, Partition]:
    """The configuration as it is now, and the node's partition in it. Raises PartitionNotConfigured."""
    topology = ports.configuration.topology(run.node.cluster)
    partition = topology.get(run.node.partition) if topology else None
    if topology is None or partition is None:
        raise errors.PartitionNotConfigured(
            f"partition {run.node.partition} of cluster {run.node.cluster} is not declared any more",
            "a declaration that stays while nodes join or leave",
            "declare it again and start the execution anew",
        )
    return topology, partition


def look_until(look: Callable[[], Seen], is_enough: Callable[[Seen], bool], until_ms: int, ports: Ports) -> Seen:
    """What `look` sees once it is enough, or last, after LOOK_FOR_S at most and not behind `until_ms`. Looks at least once."""
    stop_ms = min(ports.clock.now_ms() + budgets.LOOK_FOR_S * 1000, until_ms)
    while True:
        seen = look()
        left_s = (stop_ms - ports.clock.now_ms()) / 1000
        if is_enough(seen) or left_s <= 0:
            return seen
        ports.clock.sleep(min(budgets.LOOK_EVERY_S, left_s))
