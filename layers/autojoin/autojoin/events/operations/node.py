"""Operations of the function node: Admit, Preflight, TakeOver."""

from __future__ import annotations

from typing import Any, Literal

from autojoin.domain.budgets import Deadlines
from autojoin.domain.plan import Plan
from autojoin.events.operations.run import DocumentPin, Run, Wire


class Admit(Wire):
    """Describe, plan, take the lease."""

    operation: Literal["Admit"]
    execution: str
    name: str
    request: dict[str, Any]


class Admission(Wire):
    """Answer of Admit.

    outcome   planned: a dry run, nothing was changed; in_progress: another execution (`owner`) works on the node, or will
              (`owner` None) once its hook's event comes
    founding  of a master's dry run: claim, found, resume, or what it would wait for
    refusals  of a dry run: why a real one would be refused; plan, run and deadlines are absent if nothing could be planned
    """

    outcome: Literal["admitted", "planned", "in_progress"]
    plan: Plan | None = None
    run: Run | None = None
    deadlines: Deadlines | None = None
    owner: str | None = None
    founding: str | None = None
    refusals: tuple[str, ...] = ()


class Preflight(Wire):
    """AWS-side checks and the source/destination check."""

    operation: Literal["Preflight"]
    run: Run


class Preflighted(Wire):
    """Answer of Preflight: the documents that this run will send."""

    join: DocumentPin
    verify: DocumentPin
    start_etcd: DocumentPin | None = None
    start_api: DocumentPin | None = None


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
    keeps    the node holds the only copy of a formed partition's data: its hook is continued, nothing on it is stopped
    scope    what remove-node removes: the Node with its canaries, or of a node that serves only the canaries
    leave_ms, remove_ms  until when the leave script and the removal may go round, milliseconds since the epoch
    error, cause  the failed join's, for the Fail state
    """

    outcome: Literal["wait", "nothing", "undo"]
    until_ms: int
    run: Run | None = None
    serves: bool = False
    keeps: bool = False
    remove_names: bool = False
    stop_node: bool = False
    remove_node: bool = False
    scope: Literal["node", "canaries"] = "node"
    leave_ms: int = 0
    remove_ms: int = 0
    error: str = "Unknown"
    cause: str = ""
