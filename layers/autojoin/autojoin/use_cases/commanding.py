"""StartEtcd, StartApi, Join, Verify, LeaveNode, RemoveNode: send a document once, find it again after a crash, answer when it has ended.

Each is a turn: the task waits for its token, and this function or the answering rule, whichever comes second, brings the
end. Both meet on one item of the table, so an event that is early, late or lost costs at most a turn.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from autojoin import errors
from autojoin.domain import budgets
from autojoin.domain.identity import Role
from autojoin.domain.intents import CANARY, COMMAND, NODE, Intent, sent_command
from autojoin.domain.partitions import Partition, Topology, client_ca_parameter
from autojoin.domain.scripts import conclude
from autojoin.events.operations.command import Join, LeaveNode, RemoveNode, StartApi, StartEtcd, StopCommands, Verify
from autojoin.events.operations.run import DocumentPin, Done, Run
from autojoin.records import Pin
from autojoin.use_cases.answering import output_of
from autojoin.use_cases.run import MASTERS, ONLINE, declared, heartbeat, heartbeat_if_held

if TYPE_CHECKING:
    from autojoin.ports import Ports

DOCUMENTS = {
    "StartEtcd": "start-etcd",
    "StartApi": "start-api",
    "LeaveNode": "leave-node",
    "RemoveNode": "remove-node",
}


def document_of(step: str, role: str) -> str:
    """The document that a step sends for a role."""
    if step == "Join":
        return f"join-{role}"
    if step == "Verify":
        return "verify" if role == Role.WORKER.value else "verify-master"
    return DOCUMENTS[step]


def start_etcd(command: StartEtcd, ports: Ports) -> Done:
    """Send start-etcd to the node, or look for its end. What may be founded was decided by Member."""
    run, founding = command.run, command.founding
    heartbeat(run, ports)
    parameters = {
        **_own_parameters(run),
        "Mode": founding.mode,
        "Token": founding.etcd_token,
        "ClusterId": founding.cluster_id,
    }
    return _turn(run, "StartEtcd", run.node.instance_id, parameters, command.token, ports, _pin(command.document))


def start_api(command: StartApi, ports: Ports) -> Done:
    """Send start-api to the node, or look for its end."""
    run = command.run
    heartbeat(run, ports)
    topology, partition = declared(run, ports)
    parameters = {
        **_own_parameters(run),
        "Zone": topology.zone,
        "Kind": run.node.role,
        "ServiceCidr": partition.service_cidr or "",
    }
    return _turn(run, "StartApi", run.node.instance_id, parameters, command.token, ports, _pin(command.document))


def join(command: Join, ports: Ports) -> Done:
    """Send the role's join script to the node, or look for its end. The Node that kubelet will register is an intent first."""
    run = command.run
    heartbeat(run, ports)
    topology, partition = declared(run, ports)
    if run.node.role != Role.TP.value:
        _intend(run, Intent(NODE, run.node.instance_id, run.execution), ports)
    parameters = _node_parameters(run, topology, partition) | _join_parameters(run, topology, partition)
    return _turn(run, "Join", run.node.instance_id, parameters, command.token, ports, _pin(command.document))


def verify(command: Verify, ports: Ports) -> Done:
    """Send the role's verify script to the node, or look for its end. Canary pods of a worker are an intent first."""
    run = command.run
    heartbeat(run, ports)
    topology, partition = declared(run, ports)
    parameters = {**_node_parameters(run, topology, partition), "Execution": run.name}
    if run.node.role == Role.WORKER.value:
        _intend(run, Intent(CANARY, run.name, run.execution), ports)
        parameters |= _network_parameters(partition) | {"CanaryImage": topology.canary_image}
    else:
        has_nodes = run.node.role == Role.RP.value
        network = _network_parameters(partition) if has_nodes else {"PodCidr": "", "CniBackend": ""}
        parameters |= network | {"Kind": run.node.role, "ResourcePartitions": ",".join(topology.resource_partitions())}
    return _turn(run, "Verify", run.node.instance_id, parameters, command.token, ports, _pin(command.document))


def leave_node(command: LeaveNode, ports: Ports) -> Done:
    """Stop our units on a node that failed to join. Best effort: the machine goes on whatever comes of it."""
    run = command.run
    heartbeat_if_held(run, ports)
    agent = ports.commands.agents([run.node.instance_id]).get(run.node.instance_id)
    if not agent or agent.ping != ONLINE:
        ports.callbacks.succeed(command.token, {"done": True, "skipped": "agent not online"})
        return Done()
    return _turn(run, "LeaveNode", run.node.instance_id, {"InstanceId": run.node.instance_id}, command.token, ports)


def remove_node(command: RemoveNode, ports: Ports) -> Done:
    """Delete the Node and its canary pods, from a master of its RP. Raises NoMasterOnline."""
    run = command.run
    heartbeat_if_held(run, ports)
    topology, partition = declared(run, ports)
    record = ports.registry.record(run.node.instance_id)
    master = _recorded_target(run, "RemoveNode", ports) or _online_master(run, ports)
    parameters = {
        "Partition": partition.id,
        "Zone": topology.zone,
        "TenantPartitions": ",".join(topology.tenant_partitions()),
        "NodeName": run.node.instance_id,
        "NodeUid": (record.node_uid if record else None) or "",
        "Scope": command.scope,
    }
    return _turn(run, "RemoveNode", master, parameters, command.token, ports)


def stop_commands(command: StopCommands, ports: Ports) -> Done:
    """Cancel every command of the failed execution, those that it could not record any more included."""
    heartbeat_if_held(command.run, ports)
    instance_id = command.run.node.instance_id
    from_name = command.from_execution.rsplit(":", 1)[-1]
    for intent in ports.registry.intents(instance_id):
        if intent.kind != COMMAND or intent.execution != command.from_execution:
            continue
        target = intent.target or instance_id
        command_id = intent.command_id
        if not command_id:
            document = document_of(intent.key, command.run.node.role)
            command_id = ports.commands.find(document, target, _comment(from_name, intent.key)) or ""
        if command_id:
            ports.commands.cancel(command_id, target)
    return Done()


def _turn(
    run: Run,
    step: str,
    target: str,
    parameters: Mapping[str, str],
    token: str,
    ports: Ports,
    pin: Pin | None = None,
) -> Done:
    """One turn of a command. Returns at once; raises the script's error if it has ended with one."""
    document = document_of(step, run.node.role)
    intent = _own_intent(run, step, ports)
    command_id = intent.command_id if intent else ""
    if intent and not command_id:
        command_id = ports.commands.find(document, target, _comment(run.name, step)) or ""
    invocation = ports.commands.invocation(command_id, target) if command_id else None
    if not command_id or (invocation and invocation.is_terminal and conclude(invocation) is None):
        if intent:
            ports.registry.delete_intent(run.node.instance_id, intent)
        command_id = _send(run, step, document, target, parameters, ports, pin)
        invocation = None
    elif intent and not intent.command_id:
        _record(run, step, command_id, target, ports)
    status = ports.registry.meet_token(command_id, target, token)
    if status and not (invocation and invocation.is_terminal):
        invocation = ports.commands.invocation(command_id, target)
    if invocation and invocation.is_terminal:
        ports.callbacks.succeed(token, output_of(invocation))
    return Done()


def _node_parameters(run: Run, topology: Topology, partition: Partition) -> dict[str, str]:
    """What the join and verify scripts of every role are told."""
    return {**_own_parameters(run), "Zone": topology.zone, "TenantPartitions": ",".join(topology.tenant_partitions())}


def _join_parameters(run: Run, topology: Topology, partition: Partition) -> dict[str, str]:
    """What the join script of this role is told besides."""
    if run.node.role == Role.WORKER.value:
        return _network_parameters(partition) | {"ClientCaParameter": client_ca_parameter(run.node.cluster, partition.id)}
    resources = {"ResourcePartitions": ",".join(topology.resource_partitions())}
    if run.node.role == Role.TP.value:
        return resources | {"ServiceCidr": partition.service_cidr or ""}
    return resources | _network_parameters(partition)


def _own_parameters(run: Run) -> dict[str, str]:
    return {"Cluster": run.node.cluster, "Partition": run.node.partition, "InstanceId": run.node.instance_id}


def _network_parameters(partition: Partition) -> dict[str, str]:
    return {"PodCidr": partition.pod_cidr or "", "CniBackend": partition.cni_backend}


def _pin(document: DocumentPin) -> Pin:
    return Pin(document.version, document.sha256)


def _send(run: Run, step: str, document: str, target: str, parameters: Mapping[str, str], ports: Ports, pin: Pin | None) -> str:
    _intend(run, Intent(COMMAND, step, run.execution), ports)
    timeout = {"ExecutionTimeout": str(budgets.COMMAND_EXECUTION_S[document])}
    command_id = ports.commands.send(document, target, {**parameters, **timeout}, _comment(run.name, step), pin)
    _record(run, step, command_id, target, ports)
    ports.telemetry.info("command sent", document=document, target=target, command_id=command_id)
    return command_id


def _comment(execution_name: str, step: str) -> str:
    return f"{execution_name}/{step}"


def _record(run: Run, step: str, command_id: str, target: str, ports: Ports) -> None:
    sent = sent_command(step, run.execution, command_id, target, ports.clock.now_ms())
    ports.registry.put_intent(run.node.instance_id, sent, run.execution)


def _own_intent(run: Run, step: str, ports: Ports) -> Intent | None:
    return next(
        (i for i in ports.registry.intents(run.node.instance_id) if i.kind == COMMAND and i.key == step and i.execution == run.execution),
        None,
    )


def _recorded_target(run: Run, step: str, ports: Ports) -> str | None:
    intent = _own_intent(run, step, ports)
    return intent.target or None if intent else None


def _intend(run: Run, intent: Intent, ports: Ports) -> None:
    """Write the intent unless it stands already; one of an earlier execution becomes ours, its value kept."""
    for known in ports.registry.intents(run.node.instance_id):
        if (known.kind, known.key) == (intent.kind, intent.key):
            if known.execution == intent.execution and intent.kind != COMMAND:
                return
            if intent.kind == NODE:
                return
    ports.registry.put_intent(run.node.instance_id, replace(intent, effect_ms=None), run.execution)


def _online_master(run: Run, ports: Ports) -> str:
    masters = [m.instance_id for m in ports.instances.running(run.node.cluster, run.node.partition, MASTERS)]
    agents = ports.commands.agents(masters) if masters else {}
    online = [m for m in masters if m in agents and agents[m].ping == ONLINE]
    if not online:
        raise errors.NoMasterOnline(
            f"masters of {run.node.partition}: {', '.join(masters) or 'none'}; online: none",
            f"one {Role.RP.value} or {Role.MASTER.value} instance with an online SSM agent",
            "bring a master's agent back; then delete the Node by hand, or start the clean-up again",
        )
    return online[0]
