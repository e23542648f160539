"""Operation of the function intake: HandOver, and the answers about events."""

from __future__ import annotations

from typing import Any, Literal

from autojoin.events.operations.run import Wire
from autojoin.events.requests import Failure


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
