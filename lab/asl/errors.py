"""What the interpreter and its API raise; names are those of the Step Functions API where it has one."""

from __future__ import annotations


class DefinitionError(Exception):
    """A definition that the interpreter refuses. `problems` are sentences that name the state and the field."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class TaskFailed(Exception):
    """A state failed: `error` is what Retry and Catch match, `cause` is free text."""

    def __init__(self, error: str, cause: str = "") -> None:
        super().__init__(f"{error}: {cause}" if cause else error)
        self.error = error
        self.cause = cause


class ApiError(Exception):
    """An API call that Step Functions would refuse; the class name is the error code on the wire."""

    @property
    def code(self) -> str:
        """The error code on the wire."""
        return type(self).__name__


class ExecutionAlreadyExists(ApiError):
    """The name is taken by another input, or by an execution that has ended."""


class ExecutionDoesNotExist(ApiError):
    """No execution has this ARN."""


class StateMachineDoesNotExist(ApiError):
    """No state machine has this ARN."""


class InvalidName(ApiError):
    """A name of 0 or more than 80 characters, or with a character that AWS refuses."""


class InvalidExecutionInput(ApiError):
    """The input is not JSON, or is over 262,144 characters."""


class InvalidOutput(ApiError):
    """The output of a task is not JSON, or is over 262,144 characters."""


class InvalidToken(ApiError):
    """Not a task token at all."""


class TaskTimedOut(ApiError):
    """The token was valid once: its task has been answered, has failed, has timed out, or its execution has ended."""


class TaskDoesNotExist(ApiError):
    """Looks like a task token, but no task of this engine ever had it."""
