"""Operation of the function wait: AwaitAgent."""

from __future__ import annotations

from typing import Literal

from autojoin.events.operations.run import Run, Wire


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
