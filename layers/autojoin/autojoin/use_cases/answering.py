"""A command ended: answer the task that waits for it. The other half of a turn is in commanding.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autojoin import errors
from autojoin.domain.scripts import Invocation, conclude
from autojoin.events.operations.run import Done

if TYPE_CHECKING:
    from autojoin.events.eventbridge import CommandEnded
    from autojoin.ports import Ports


def command_ended(event: CommandEnded, ports: Ports) -> Done:
    """A command reached its last state: answer the task that waits for it, or leave the news for its next turn."""
    detail = event.detail
    token = ports.registry.meet_status(detail.command_id, detail.instance_id, detail.status)
    if token is None:
        return Done(done=False)
    invocation = ports.commands.invocation(detail.command_id, detail.instance_id)
    if invocation is None or not invocation.is_terminal:
        return Done(done=False)
    try:
        output = output_of(invocation)
    except errors.AutojoinError as error:
        return Done(done=ports.callbacks.fail(token, type(error).__name__, str(error)))
    return Done(done=ports.callbacks.succeed(token, output))


def output_of(invocation: Invocation) -> dict[str, object]:
    """What the waiting task gets: the script's result, or `done` False when it may be sent again. Raises the script's error."""
    said = conclude(invocation)
    if said is None:
        return {"done": False, "command_id": invocation.command_id}
    return {"done": True, "command_id": invocation.command_id, "result": said.fields}
