"""AwaitAgent: the SSM agent announces itself to nobody, so somebody has to look."""

from __future__ import annotations

from autojoin import errors
from autojoin.domain import budgets
from autojoin.domain.lifecycle import HeldHook
from autojoin.events.operations import AgentSeen, AwaitAgent, HookRef, Run
from autojoin.ports import Ports
from autojoin.use_cases.admission import live_instance

ONLINE = "Online"
OLDEST_AGENT = (3, 3, 2746, 0)
"""First agent that passes document parameters as environment variables. Source: Systems Manager, interpolationType ENV_VAR."""


def held(hook: HookRef) -> HeldHook:
    """The port's view of a run's hook."""
    return HeldHook(hook.group, hook.name, hook.token)


def heartbeat(run: Run, ports: Ports) -> None:
    """Keep a held hook alive; nothing if none is held. Raises HookOver."""
    if run.hook:
        ports.groups.heartbeat(held(run.hook), run.node.instance_id)


def await_agent(command: AwaitAgent, ports: Ports) -> AgentSeen:
    """Look for the agent until it is online, at most LOOK_FOR_S and not behind until_ms.

    Raises InstanceGone, HookOver, AgentTooOld.
    """
    instance_id = command.run.node.instance_id
    heartbeat(command.run, ports)
    live_instance(instance_id, ports)
    stop_ms = min(ports.clock.now_ms() + budgets.LOOK_FOR_S * 1000, command.until_ms)
    while True:
        agent = ports.commands.agents([instance_id]).get(instance_id)
        if agent and agent.ping == ONLINE:
            _require_recent(instance_id, agent.version)
            return AgentSeen(done=True, ping=agent.ping, version=agent.version)
        left_s = (stop_ms - ports.clock.now_ms()) / 1000
        if left_s <= 0:
            return AgentSeen(done=False, ping=agent.ping if agent else "never registered")
        ports.clock.sleep(min(budgets.LOOK_EVERY_S, left_s))


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
