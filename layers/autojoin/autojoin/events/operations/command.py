"""Operations of the function command: StartEtcd, StartApi, Join, Verify, StopCommands, LeaveNode, RemoveNode."""

from __future__ import annotations

from typing import Literal

from autojoin.events.operations.membership import Founding
from autojoin.events.operations.run import DocumentPin, Run, Wire


class StartEtcd(Wire):
    """Send the script that starts etcd, or look for its end."""

    operation: Literal["StartEtcd"]
    run: Run
    document: DocumentPin
    founding: Founding
    token: str


class StartApi(Wire):
    """Send the script that starts the API server, or look for its end."""

    operation: Literal["StartApi"]
    run: Run
    document: DocumentPin
    token: str


class Join(Wire):
    """Send the join script, or look for its end."""

    operation: Literal["Join"]
    run: Run
    document: DocumentPin
    token: str


class Verify(Wire):
    """Send the verify script, or look for its end."""

    operation: Literal["Verify"]
    run: Run
    document: DocumentPin
    token: str


class StopCommands(Wire):
    """Cancel the failed join's commands that still run."""

    operation: Literal["StopCommands"]
    run: Run
    from_execution: str


class LeaveNode(Wire):
    """Send the leave script to the node itself, or look for its end."""

    operation: Literal["LeaveNode"]
    run: Run
    token: str


class RemoveNode(Wire):
    """Send remove-node to a master of the RP, or look for its end."""

    operation: Literal["RemoveNode"]
    run: Run
    token: str
    scope: Literal["node", "canaries"]
