"""Intents: what an execution is about to make outside itself, written down before the effect so that clean-up knows what is ours."""

from __future__ import annotations

from dataclasses import dataclass

COMMAND = "command"
"""Key: the step. Value: the command's id and the instance that it was sent to; empty until it is sent."""
NODE = "node"
"""Key: the Node's name. Value: its uid, once it is known."""
CANARY = "canary"
"""Key: the execution whose label the canary pods carry."""


FOUNDING = "founding"
"""Key: the partition. Value: the epoch that the node claims or resumes; its etcd's data may be on the node."""


@dataclass(frozen=True)
class Intent:
    """One intent. `value` is filled in once it is known."""

    kind: str
    key: str
    execution: str
    value: str = ""
    effect_ms: int | None = None

    @property
    def command_id(self) -> str:
        """Of a command: its id, empty while it is not known to have been sent."""
        return self.value.partition("@")[0] if self.kind == COMMAND else ""

    @property
    def target(self) -> str:
        """Of a command: the instance that it was sent to, empty while it is not known."""
        return self.value.partition("@")[2] if self.kind == COMMAND else ""


def sent_command(step: str, execution: str, command_id: str, target: str, at_ms: int) -> Intent:
    """The intent of a command that was sent to `target` at `at_ms` (milliseconds since the epoch)."""
    return Intent(COMMAND, step, execution, f"{command_id}@{target}", at_ms)
