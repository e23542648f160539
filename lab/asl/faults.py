"""Fault points: before and after every attempt of every state, a test may break the run.

The callback that an engine is given as `faults` gets a FaultPoint and returns what is to happen there:

| return | before | after |
| --- | --- | --- |
| None | nothing | nothing |
| TaskFailed, returned or raised | the attempt fails, its function is never called | the attempt fails, though its function ran |
| KILL_ANSWER | silence until a time-out, the function is never called | silence until a time-out, though it ran |
| REPEAT | the function is called twice in a row (at-least-once delivery) | not allowed |
| ABORT | the execution is stopped here | the same |
| Delay(seconds) | so long nothing happens | the same |

"after" is the moment when the result is known and nothing of it has been used: no Output, no Assign, no next state.
TaskFailed, KILL_ANSWER and REPEAT are for Task states; the others have no effect of their own to lose.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from lab.asl.errors import TaskFailed

KILL_ANSWER: Final = "kill-answer"
REPEAT: Final = "repeat"
ABORT: Final = "abort"


@dataclass(frozen=True)
class Delay:
    """Let this many seconds pass at the fault point."""

    seconds: float


@dataclass(frozen=True)
class FaultPoint:
    """Where a run is: `attempt` counts from 1 within one visit of a state, `visit` counts the visits of the state."""

    execution: str
    arn: str
    machine: str
    state: str
    type: str
    edge: Literal["before", "after"]
    attempt: int = 1
    visit: int = 1


Action = None | TaskFailed | Delay | str
Faults = Callable[[FaultPoint], Action]


def check(point: FaultPoint, action: Action) -> Action:
    """The action, if it is allowed at this point. Raises ValueError otherwise: a fault that cannot fire is a defect."""
    only_tasks = isinstance(action, TaskFailed) or action in (KILL_ANSWER, REPEAT)
    known = action is None or isinstance(action, TaskFailed | Delay) or action in (KILL_ANSWER, REPEAT, ABORT)
    if not known or (only_tasks and point.type != "Task") or (action == REPEAT and point.edge == "after"):
        raise ValueError(f"fault {action!r} is not possible at {point}")
    return action
