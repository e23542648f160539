"""What the ports answer: plain data of the outside world. Apart from ports.py, so that a function loads no protocol."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class Instance:
    """An EC2 instance. `state` is EC2's: pending, running, shutting-down, terminated, stopping, stopped."""

    instance_id: str
    state: str
    address: str | None
    subnet_id: str | None
    tags: Mapping[str, str]
    launched_ms: int


class Membership(NamedTuple):
    """An instance's place in an Auto Scaling group. `lifecycle_state` may be one that we do not know."""

    group: str
    lifecycle_state: str


class Agent(NamedTuple):
    """An SSM agent as Systems Manager sees it. `ping` is Online, ConnectionLost or Inactive."""

    instance_id: str
    ping: str
    version: str


class Pin(NamedTuple):
    """One version of a document. Hash is SHA-256, as Systems Manager gives it."""

    version: str
    sha256: str


@dataclass(frozen=True)
class Lease:
    """A node's lease: who may change things for it. `tombstone_ms` is set once a leave began."""

    owner: str | None
    fence: int
    tombstone_ms: int | None


@dataclass(frozen=True)
class NodeRecord:
    """What we know of a node. `joined_ms` None: it never joined; `joined_by` is the execution of its last join."""

    instance_id: str
    cluster: str
    partition: str
    role: str
    group: str | None
    address: str | None
    node_uid: str | None = None
    joined_ms: int | None = None
    joined_by: str | None = None


class Member(NamedTuple):
    """A member of an etcd. It has started once it has client URLs."""

    id: str
    name: str
    peer_urls: tuple[str, ...]
    client_urls: tuple[str, ...]
    is_learner: bool = False


class EtcdView(NamedTuple):
    """One etcd as one endpoint sees it. Ids are 16 hexadecimal digits; `leader` is empty where it knows none."""

    cluster_id: str
    member_id: str
    version: str
    leader: str
    members: tuple[Member, ...]


class TargetGroup(NamedTuple):
    """A target group. `target_type` is instance, ip, lambda or alb."""

    arn: str
    port: int
    target_type: str


class ExecutionState(NamedTuple):
    """How an execution stands. `stopped_ms` None while it runs."""

    status: str
    stopped_ms: int | None
