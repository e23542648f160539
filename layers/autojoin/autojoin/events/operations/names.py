"""Operations of the function names: ApiName, FrontDoor, RemoveNames."""

from __future__ import annotations

from typing import Literal

from autojoin.events.operations.run import Run, Wire


class ApiName(Wire):
    """Give the API server its record and its api target groups, and wait for healthy targets."""

    operation: Literal["ApiName"]
    run: Run
    until_ms: int


class FrontDoor(Wire):
    """Enter the target groups for clients, and wait for healthy targets."""

    operation: Literal["FrontDoor"]
    run: Run
    until_ms: int


class Placed(Wire):
    """Answer of ApiName and FrontDoor. done False: not yet, because of `waits_for`."""

    done: bool
    waits_for: str = ""


class RemoveNames(Wire):
    """Remove the records and targets of a node that does not serve."""

    operation: Literal["RemoveNames"]
    run: Run
