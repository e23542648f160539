"""An execution as the API shows it: status, output, history with AWS's event types and fields."""

from __future__ import annotations

import contextvars
import json
import threading
from dataclasses import dataclass, field
from typing import Any

from lab.asl.definition import Machine

Event = dict[str, Any]


@dataclass(eq=False)
class Execution:
    """One run of a machine. `visited` and `transitions` include the states inside Parallel and Map.

    transitions  states entered plus retries: what AWS bills
    """

    arn: str
    name: str
    machine: Machine
    input: Any
    role_arn: str
    started_at: float
    status: str = "RUNNING"
    stopped_at: float | None = None
    output: Any = None
    error: str | None = None
    cause: str | None = None
    history: list[Event] = field(default_factory=list)
    transitions: int = 0
    visited: list[str] = field(default_factory=list)
    context: contextvars.Context = field(default_factory=contextvars.copy_context, repr=False)
    extra: dict[str, Any] = field(default_factory=dict, repr=False)  # for whoever embeds the engine
    ended: threading.Event = field(default_factory=threading.Event, repr=False)

    def wait(self, timeout_s: float) -> bool:
        """Real clock: block until the end, at most so long. Returns whether it has ended."""
        return self.ended.wait(timeout_s)

    def record(self, when: float, kind: str, details: dict[str, Any] | None, previous: int) -> int:
        """Append an event; returns its id."""
        event: Event = {"timestamp": when, "type": kind, "id": len(self.history) + 1, "previousEventId": previous}
        if details is not None:
            event[_details_key(kind)] = details
        self.history.append(event)
        return int(event["id"])

    def events(self, *kinds: str) -> list[Event]:
        """The history, of these event types if any are given."""
        return [e for e in self.history if not kinds or e["type"] in kinds]


def _details_key(kind: str) -> str:
    """The member of a history event that carries the details of this event type."""
    if kind.endswith("StateEntered"):
        return "stateEnteredEventDetails"
    if kind.endswith("StateExited"):
        return "stateExitedEventDetails"
    return kind[0].lower() + kind[1:] + "EventDetails"


def dumps(value: Any) -> str:
    """JSON text as in states and events."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
