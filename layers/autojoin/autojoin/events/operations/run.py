"""What every operation is given, and the base of all: unknown fields are refused, values do not change."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Wire(BaseModel):
    """Base of all: unknown fields are refused, values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class NodeRef(Wire):
    """The node that an execution works on."""

    instance_id: str
    cluster: str
    role: str
    partition: str
    group: str | None
    address: str | None
    subnet_id: str | None


class HookRef(Wire):
    """The hook that holds it."""

    group: str
    name: str
    token: str | None


class Run(Wire):
    """What every step after Admit (or TakeOver) is given."""

    execution: str
    name: str
    node: NodeRef
    hook: HookRef | None


class Done(Wire):
    """Answer of an operation that has nothing else to say."""

    done: bool = True


class DocumentPin(Wire):
    """One version of a document, so that a deploy in mid-run cannot switch it. Hash is SHA-256, as Systems Manager gives it."""

    version: str
    sha256: str
