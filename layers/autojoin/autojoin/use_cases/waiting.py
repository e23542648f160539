"""AwaitAgent, Synced, and how an operation waits for what nobody announces: it looks, for a while, and answers "not yet"."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autojoin import errors
from autojoin.events.operations.etcd import EtcdSeen, Synced
from autojoin.events.operations.wait import AgentSeen, AwaitAgent
from autojoin.use_cases.run import ONLINE, heartbeat, live_instance, look_until

if TYPE_CHECKING:
    from autojoin.ports import Ports

OLDEST_AGENT = (3, 3, 2746, 0)
"""First agent that passes document parameters as environment variables. Source: Systems Manager, interpolationType ENV_VAR."""


def await_agent(command: AwaitAgent, ports: Ports) -> AgentSeen:
    """Look for the agent until it is online, at most LOOK_FOR_S and not behind until_ms.

    Raises InstanceGone, HookOver, AgentTooOld.
    """
    instance_id = command.run.node.instance_id
    heartbeat(command.run, ports)
    live_instance(instance_id, ports)

    def look() -> AgentSeen:
        agent = ports.commands.agents([instance_id]).get(instance_id)
        if agent and agent.ping == ONLINE:
            _require_recent(instance_id, agent.version)
            return AgentSeen(done=True, ping=agent.ping, version=agent.version)
        return AgentSeen(done=False, ping=agent.ping if agent else "never registered")

    return look_until(look, lambda seen: seen.done, command.until_ms, ports)


def synced(command: Synced, ports: Ports) -> EtcdSeen:
    """Look until etcd on the node answers as the one voter of its cluster. Changes nothing. Raises EtcdDataForeign."""
    node = command.run.node

    def look() -> EtcdSeen:
        view = ports.etcd.view(node.address) if node.address else None
        if view is None or not view.leader:
            return EtcdSeen(done=False)
        urls = [url for member in view.members for url in member.peer_urls]
        if len(view.members) != 1 or not any(f"//{node.address}:" in url for url in urls):
            raise errors.EtcdDataForeign(
                f"etcd on {node.instance_id} has the members {', '.join(urls)}",
                f"one member, {node.address}",
                "look at the data folder of the node's etcd: it belongs to another cluster",
            )
        if view.members[0].is_learner or not view.members[0].client_urls:
            return EtcdSeen(done=False)
        return EtcdSeen(done=True, cluster_id=view.cluster_id, version=view.version)

    return look_until(look, lambda seen: seen.done, command.until_ms, ports)


def _require_recent(instance_id: str, version: str) -> None:
    try:
        numbers = tuple(int(part) for part in version.split("."))
    except ValueError:
        numbers = ()
    if numbers < OLDEST_AGENT:
        raise errors.AgentTooOld(
            f"the SSM agent of {instance_id} is {version or 'of unknown version'}",
            "at least " + ".".join(str(n) for n in OLDEST_AGENT),
            "bake a golden image with a newer amazon-ssm-agent",
        )
