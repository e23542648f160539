"""Inputs and outputs of the operations that the state machines call. operation = state = use case by name."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from autojoin.events.requests import Failure


class Wire(BaseModel):
    """Base of all: unknown fields are refused, values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class NodeRef(Wire):
    """The node that an execution works on."""

    instance_id: str
    cluster: str
    role: str
    partition: str
    group: str | None
    address: str | None
    subnet_id: str | None


class HookRef(Wire):
    """The hook that holds it."""

    group: str
    name: str
    token: str | None


class Run(Wire):
    """What every step after Admit (or TakeOver) is given."""

    execution: str
    name: str
    node: NodeRef
    hook: HookRef | None


# -- join ---------------------------------------------------------------------------------------------------------------


class Admit(Wire):
    """Describe, plan, take the lease."""

    operation: Literal["Admit"]
    execution: str
    name: str
    request: dict[str, Any]


class PlanView(Wire):
    """The plan, as the choices of the graph and a dry run read it."""

    steps: tuple[str, ...]
    hosts_etcd: bool
    serves_api: bool
    has_front_door: bool


class DeadlinesView(Wire):
    """Until when each wait may go round, milliseconds since the epoch."""

    agent_ms: int
    join_ms: int
    verify_ms: int
    overall_ms: int


class Admission(Wire):
    """Answer of Admit.

    outcome   planned: a dry run, nothing was changed; in_progress: another execution (`owner`) works on the node, or will
              (`owner` None) once its hook's event comes
    refusals  of a dry run: why a real one would be refused; plan, run and deadlines are then absent
    """

    outcome: Literal["admitted", "planned", "in_progress"]
    plan: PlanView | None = None
    run: Run | None = None
    deadlines: DeadlinesView | None = None
    owner: str | None = None
    refusals: tuple[str, ...] = ()


class Preflight(Wire):
    """AWS-side checks and the source/destination check."""

    operation: Literal["Preflight"]
    run: Run


class Done(Wire):
    """Answer of an operation that has nothing else to say."""

    done: bool = True


class DocumentPin(Wire):
    """One version of a document, so that a deploy in mid-run cannot switch it. Hash is SHA-256, as Systems Manager gives it."""

    version: str
    sha256: str


class Preflighted(Wire):
    """Answer of Preflight: the documents that this run will send."""

    join: DocumentPin
    verify: DocumentPin


class AwaitAgent(Wire):
    """Wait for the SSM agent."""

    operation: Literal["AwaitAgent"]
    run: Run
    until_ms: int


class AgentSeen(Wire):
    """Answer of AwaitAgent. done False: not yet."""

    done: bool
    ping: str
    version: str | None = None


class Join(Wire):
    """Send the join script, or look for its end."""

    operation: Literal["Join"]
    run: Run
    document: DocumentPin
    token: str


class Verify(Wire):
    """Send the verify script, or look for its end."""

    operation: Literal["Verify"]
    run: Run
    document: DocumentPin
    token: str


class Complete(Wire):
    """Write joined_at, CONTINUE a held hook, release."""

    operation: Literal["Complete"]
    run: Run
    verified: dict[str, Any]


class Completed(Wire):
    """Answer of Complete."""

    hook: Literal["continued", "none"]
    joined_ms: int


class HandOver(Wire):
    """Start the clean-up of a failed join."""

    operation: Literal["HandOver"]
    execution: str
    name: str
    request: dict[str, Any]
    failure: Failure


class HandedOver(Wire):
    """Answer of HandOver."""

    cleanup: str
    started: bool


class Sorted(Wire):
    """What became of an event: started (the machine's execution), duplicate, or ignored with a reason."""

    action: str
    reason: str | None = None
    execution: str | None = None


# -- leave, mode rollback -----------------------------------------------------------------------------------------------


class TakeOver(Wire):
    """Take the failed execution's lease and say what there is to undo."""

    operation: Literal["TakeOver"]
    execution: str
    name: str
    request: dict[str, Any]


class TakenOver(Wire):
    """Answer of TakeOver.

    outcome  wait: the failed execution's last function may still run; nothing: no lease and no hook of ours to care for;
             undo: remove what it made
    scope    what remove-node removes: the Node with its canaries, or of a node that serves only the canaries
    leave_ms, remove_ms  until when the leave script and the removal may go round, milliseconds since the epoch
    error, cause  the failed join's, for the Fail state
    """

    outcome: Literal["wait", "nothing", "undo"]
    until_ms: int
    run: Run | None = None
    serves: bool = False
    stop_node: bool = False
    remove_node: bool = False
    scope: Literal["node", "canaries"] = "node"
    leave_ms: int = 0
    remove_ms: int = 0
    error: str = "Unknown"
    cause: str = ""


class StopCommands(Wire):
    """Cancel the failed join's commands that still run."""

    operation: Literal["StopCommands"]
    run: Run
    from_execution: str


class LeaveNode(Wire):
    """Send the leave script to the node itself, or look for its end."""

    operation: Literal["LeaveNode"]
    run: Run
    token: str


class RemoveNode(Wire):
    """Send remove-node to a master of the RP, or look for its end."""

    operation: Literal["RemoveNode"]
    run: Run
    token: str
    scope: Literal["node", "canaries"]


class Abandon(Wire):
    """Forget what the failed join wrote and ABANDON the hook that still holds the instance."""

    operation: Literal["Abandon"]
    run: Run
    from_execution: str
    serves: bool
    incomplete: bool
    error: str
    cause: str


class Abandoned(Wire):
    """Answer of Abandon: what the Fail state says."""

    hook: Literal["abandoned", "none"]
    error: str
    cause: str
