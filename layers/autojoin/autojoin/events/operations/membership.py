"""Operations of the function membership: Member, Formed."""

from __future__ import annotations

from typing import Literal

from autojoin.events.operations.run import Run, Wire


class Member(Wire):
    """Decide whether the node founds its partition's etcd or resumes it, and claim the founding."""

    operation: Literal["Member"]
    run: Run
    until_ms: int


class Founding(Wire):
    """Answer of Member. done False: not yet, because of `waits_for`.

    cluster_id  of a formed partition, 16 hexadecimal digits; empty while it is being founded
    """

    done: bool
    mode: Literal["found", "resume"] = "found"
    epoch: int = 0
    etcd_token: str = ""
    cluster_id: str = ""
    waits_for: str = ""


class Formed(Wire):
    """Write down for ever that the partition is formed, before its API server starts."""

    operation: Literal["Formed"]
    run: Run
    cluster_id: str
