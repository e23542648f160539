"""The lab's own state-machine interpreter: a checked subset of the Amazon States Language, on real or virtual time."""

from lab.asl.clock import RealClock, VirtualClock, iso
from lab.asl.definition import Machine, load, parse, substitute, substitutions_in
from lab.asl.engine import Engine
from lab.asl.errors import (
    ApiError,
    DefinitionError,
    ExecutionAlreadyExists,
    ExecutionDoesNotExist,
    InvalidExecutionInput,
    InvalidName,
    InvalidOutput,
    InvalidToken,
    StateMachineDoesNotExist,
    TaskDoesNotExist,
    TaskFailed,
    TaskTimedOut,
)
from lab.asl.execution import Execution
from lab.asl.faults import ABORT, KILL_ANSWER, REPEAT, Delay, FaultPoint

__all__ = [
    "ABORT",
    "KILL_ANSWER",
    "REPEAT",
    "ApiError",
    "DefinitionError",
    "Delay",
    "Engine",
    "Execution",
    "ExecutionAlreadyExists",
    "ExecutionDoesNotExist",
    "FaultPoint",
    "InvalidExecutionInput",
    "InvalidName",
    "InvalidOutput",
    "InvalidToken",
    "Machine",
    "RealClock",
    "StateMachineDoesNotExist",
    "TaskDoesNotExist",
    "TaskFailed",
    "TaskTimedOut",
    "VirtualClock",
    "iso",
    "load",
    "parse",
    "substitute",
    "substitutions_in",
]
