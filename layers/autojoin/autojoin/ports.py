"""What the use cases ask of the outside world: one Protocol per thing. Adapters fulfil them, tests fake them.

All of them raise AwsThrottled, AwsUnavailable or AwsRefused where AWS does; other errors are named at each method.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from autojoin.domain.intents import Intent as Intent
from autojoin.domain.lifecycle import HeldHook, Hook
from autojoin.domain.partitions import Topology
from autojoin.domain.scripts import Invocation


class Clock(Protocol):
    """Time. The machines' deadlines and ours are of one clock: milliseconds since the epoch."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""

    def sleep(self, seconds: float) -> None:
        """Wait that long."""


@dataclass(frozen=True)
class Instance:
    """An EC2 instance. `state` is EC2's: pending, running, shutting-down, terminated, stopping, stopped."""

    instance_id: str
    state: str
    address: str | None
    subnet_id: str | None
    tags: Mapping[str, str]
    launched_ms: int


class Instances(Protocol):
    """EC2."""

    def get(self, instance_id: str) -> Instance | None:
        """The instance, or None if EC2 does not know the id."""

    def running(self, cluster: str, partition: str, roles: Iterable[str]) -> tuple[Instance, ...]:
        """Pending and running instances with these tags, oldest launch first."""

    def subnet_cidrs(self, subnet_ids: Iterable[str]) -> Mapping[str, str]:
        """CIDR of each subnet."""

    def switch_off_source_dest_check(self, instance_id: str) -> None:
        """Let the instance send and receive for other addresses than its own. Safe to repeat. Raises InstanceGone."""


@dataclass(frozen=True)
class Membership:
    """An instance's place in an Auto Scaling group. `lifecycle_state` may be one that we do not know."""

    group: str
    lifecycle_state: str


class Groups(Protocol):
    """EC2 Auto Scaling."""

    def membership(self, instance_id: str) -> Membership | None:
        """The instance's group and lifecycle state, or None if it is in no group."""

    def tags(self, group: str) -> Mapping[str, str]:
        """The group's tags; empty if there is no such group."""

    def hooks(self, group: str) -> tuple[Hook, ...]:
        """The group's lifecycle hooks."""

    def heartbeat(self, hook: HeldHook, instance_id: str) -> None:
        """Restart the hook's timer. Raises HookOver if the action has ended."""

    def complete(self, hook: HeldHook, instance_id: str, result: str) -> None:
        """Complete the action with CONTINUE or ABANDON. Raises HookOver if it has ended."""


@dataclass(frozen=True)
class Agent:
    """An SSM agent as Systems Manager sees it. `ping` is Online, ConnectionLost or Inactive."""

    instance_id: str
    ping: str
    version: str


@dataclass(frozen=True)
class Pin:
    """One version of a document. Hash is SHA-256, as Systems Manager gives it."""

    version: str
    sha256: str


class Commands(Protocol):
    """Systems Manager: agents and Run Command."""

    def agents(self, instance_ids: Iterable[str]) -> Mapping[str, Agent]:
        """The agents that ever registered, by instance id."""

    def pin(self, document: str) -> Pin:
        """The version of the document (its short name, `join-worker`) that is the default now."""

    def send(self, document: str, instance_id: str, parameters: Mapping[str, str], comment: str, pin: Pin | None = None) -> str:
        """Send the document, of the pinned version if one is given, and return the command id. Not idempotent.

        Raises InstanceGone if Systems Manager does not take the instance.
        """

    def find(self, document: str, instance_id: str, comment: str) -> str | None:
        """The newest command of this document on the instance with exactly this comment, or None."""

    def invocation(self, command_id: str, instance_id: str) -> Invocation | None:
        """How the command stands on the instance; None in the first seconds, when it is not visible yet."""

    def cancel(self, command_id: str, instance_id: str) -> None:
        """Ask to cancel. Safe to repeat, and on commands that have ended."""


class Configuration(Protocol):
    """The declared configuration, in Parameter Store."""

    def topology(self, cluster: str) -> Topology | None:
        """The cluster's zone and partitions; None if nothing is declared. Raises ConfigurationInvalid."""


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


class Registry(Protocol):
    """The table."""

    def lease(self, instance_id: str) -> Lease:
        """The lease as it is; a free one (owner None, fence 0) if there is none."""

    def take_lease(self, instance_id: str, owner: str, *, instead_of: str | None = None) -> Lease | None:
        """Take a free lease, one already mine, or one of `instead_of`; the lease, or None if someone else's or tombstoned."""

    def release_lease(self, instance_id: str, owner: str) -> bool:
        """Give the lease back, keeping its fence; False if it was not mine."""

    def record(self, instance_id: str) -> NodeRecord | None:
        """The node's record, or None."""

    def put_record(self, record: NodeRecord, owner: str) -> None:
        """Write the record if the lease is `owner`'s and there is no tombstone. Raises LeaseLost."""

    def intents(self, instance_id: str) -> tuple[Intent, ...]:
        """All intents of the node."""

    def put_intent(self, instance_id: str, intent: Intent, owner: str) -> None:
        """Write or overwrite an intent, in one transaction with a check that the lease is `owner`'s. Raises LeaseLost."""

    def delete_intent(self, instance_id: str, intent: Intent) -> None:
        """Delete the intent if it is still of the same execution; of a command, also where its token and end met."""

    def forget(self, instance_id: str, owner: str) -> None:
        """Delete everything of the node, the lease last, if it is `owner`'s. Raises LeaseLost."""

    def meet_token(self, command_id: str, instance_id: str, token: str) -> str | None:
        """Leave the task token for whoever brings the command's end; return the end's status if it came earlier."""

    def meet_status(self, command_id: str, instance_id: str, status: str) -> str | None:
        """Leave the command's terminal status; return the task token that waits for it, if one does."""


@dataclass(frozen=True)
class ExecutionState:
    """How an execution stands. `stopped_ms` None while it runs."""

    status: str
    stopped_ms: int | None


class Machines(Protocol):
    """Step Functions: our machines."""

    def start_join(self, name: str, request: Mapping[str, object]) -> bool:
        """Start the join machine; False if an execution of that name exists."""

    def start_leave(self, name: str, request: Mapping[str, object]) -> bool:
        """Start the leave machine; False if an execution of that name exists."""

    def execution(self, arn: str) -> ExecutionState | None:
        """The execution, or None if there is no such one."""


class Callbacks(Protocol):
    """Step Functions: answers to waiting tasks."""

    def succeed(self, token: str, output: Mapping[str, object]) -> bool:
        """Answer the task; False if it does not wait any more."""

    def fail(self, token: str, error: str, cause: str) -> bool:
        """Fail the task; False if it does not wait any more."""


class Telemetry(Protocol):
    """Logs and metrics. Never a task token, a secret or a whole event."""

    def info(self, message: str, **fields: object) -> None:
        """Log a line."""

    def warning(self, message: str, **fields: object) -> None:
        """Log a line that an operator should read."""

    def count(self, metric: str, **dimensions: str) -> None:
        """Count one event of a low-cardinality metric."""


class Ports(Protocol):
    """All of them, each made when first asked for."""

    @property
    def clock(self) -> Clock: ...
    @property
    def instances(self) -> Instances: ...
    @property
    def groups(self) -> Groups: ...
    @property
    def commands(self) -> Commands: ...
    @property
    def configuration(self) -> Configuration: ...
    @property
    def registry(self) -> Registry: ...
    @property
    def machines(self) -> Machines: ...
    @property
    def callbacks(self) -> Callbacks: ...
    @property
    def telemetry(self) -> Telemetry: ...
