"""Operation of the function etcd: Synced."""

from __future__ import annotations

from typing import Literal

from autojoin.events.operations.run import Run, Wire


class Synced(Wire):
    """Look until the node's etcd answers as the one member of its cluster."""

    operation: Literal["Synced"]
    run: Run
    until_ms: int


class EtcdSeen(Wire):
    """Answer of Synced. done False: not yet."""

    done: bool
    cluster_id: str = ""
    version: str = ""
