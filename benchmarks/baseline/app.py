"""The baseline's only function: what a polling sample does by itself, through the product's own ports.

Operations: Prepare, LookAtAgent, Send, LookAtCommand, Answer (states of benchmarks/baseline.asl.yaml). Not part of the product.
"""

from typing import Any, Literal

from autojoin import errors
from autojoin.bootstrap import ports
from autojoin.domain import budgets
from autojoin.domain.lifecycle import HeldHook
from autojoin.domain.partitions import client_ca_parameter
from autojoin.entrypoint import handler_for
from autojoin.events.operations.run import Done, Wire
from autojoin.ports import Ports
from autojoin.use_cases.admission import live_instance

ONLINE = "Online"


class Prepare(Wire):
    """Read what the scripts must be told, and let the node forward for its pods."""

    operation: Literal["Prepare"]
    instance_id: str
    execution: str


class Prepared(Wire):
    """Parameters of both scripts."""

    join: dict[str, str]
    verify: dict[str, str]


class LookAtAgent(Wire):
    """One look at the SSM agent."""

    operation: Literal["LookAtAgent"]
    instance_id: str


class Send(Wire):
    """Send one of the product's documents."""

    operation: Literal["Send"]
    document: str
    instance_id: str
    parameters: dict[str, str]


class Sent(Wire):
    """The command."""

    command_id: str


class LookAtCommand(Wire):
    """One look at a command (GetCommandInvocation)."""

    operation: Literal["LookAtCommand"]
    command_id: str
    instance_id: str


class Looked(Wire):
    """Run Command's status, and whether it will not change any more."""

    status: str
    ended: bool


class Answer(Wire):
    """Complete the lifecycle action that the event told of."""

    operation: Literal["Answer"]
    action: dict[str, Any]
    result: Literal["CONTINUE", "ABANDON"]


def prepare(command: Prepare, ports: Ports) -> Prepared:
    """Returns the parameters of join-worker and verify for the instance's tags. Raises PartitionNotConfigured."""
    instance = live_instance(command.instance_id, ports)
    cluster, partition_id = instance.tags["autojoin:cluster"], instance.tags["autojoin:partition"]
    topology = ports.configuration.topology(cluster)
    partition = topology.get(partition_id) if topology else None
    if topology is None or partition is None:
        raise errors.PartitionNotConfigured(
            f"partition {partition_id} of cluster {cluster} is not declared", "its declaration", "declare it (docs/configuration.md)"
        )
    ports.instances.switch_off_source_dest_check(command.instance_id)
    both = {
        "Cluster": cluster,
        "Partition": partition.id,
        "InstanceId": command.instance_id,
        "Zone": topology.zone,
        "TenantPartitions": ",".join(topology.tenant_partitions()),
        "PodCidr": partition.pod_cidr or "",
        "CniBackend": partition.cni_backend,
    }
    return Prepared(
        join={**both, "ClientCaParameter": client_ca_parameter(cluster, partition.id)},
        verify={**both, "Execution": command.execution, "CanaryImage": topology.canary_image},
    )


def look_at_agent(command: LookAtAgent, ports: Ports) -> Done:
    """Whether the agent is online now."""
    agent = ports.commands.agents([command.instance_id]).get(command.instance_id)
    return Done(done=agent is not None and agent.ping == ONLINE)


def send(command: Send, ports: Ports) -> Sent:
    """Send the document; nothing finds the command again if this answer is lost, as in the samples."""
    timeout = {"ExecutionTimeout": str(budgets.COMMAND_EXECUTION_S[command.document])}
    comment = f"baseline {command.document}"
    return Sent(command_id=ports.commands.send(command.document, command.instance_id, {**command.parameters, **timeout}, comment))


def look_at_command(command: LookAtCommand, ports: Ports) -> Looked:
    """How the command stands now."""
    invocation = ports.commands.invocation(command.command_id, command.instance_id)
    if invocation is None:
        return Looked(status="Pending", ended=False)
    return Looked(status=invocation.status, ended=invocation.is_terminal)


def answer(command: Answer, ports: Ports) -> Done:
    """CONTINUE or ABANDON."""
    action = command.action
    hook = HeldHook(action["AutoScalingGroupName"], action["LifecycleHookName"], action["LifecycleActionToken"])
    ports.groups.complete(hook, action["EC2InstanceId"], command.result)
    return Done()


lambda_handler = handler_for(
    {Prepare: prepare, LookAtAgent: look_at_agent, Send: send, LookAtCommand: look_at_command, Answer: answer}, ports
)
