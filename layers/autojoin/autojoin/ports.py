"""What the use cases ask of the outside world: one Protocol per thing. Adapters fulfil them, tests fake them.

All of them raise AwsThrottled, AwsUnavailable or AwsRefused where AWS does; other errors are named at each method.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from autojoin.domain.founding import Marker
from autojoin.domain.intents import Intent as Intent
from autojoin.domain.lifecycle import HeldHook, Hook
from autojoin.domain.naming import Record, Target
from autojoin.domain.partitions import Topology
from autojoin.domain.scripts import Invocation
from autojoin.records import (
    Agent as Agent,
)
from autojoin.records import (
    EtcdView as EtcdView,
)
from autojoin.records import (
    ExecutionState as ExecutionState,
)
from autojoin.records import (
    Instance as Instance,
)
from autojoin.records import (
    Lease as Lease,
)
from autojoin.records import (
    Member as Member,
)
from autojoin.records import (
    Membership as Membership,
)
from autojoin.records import (
    NodeRecord as NodeRecord,
)
from autojoin.records import (
    Pin as Pin,
)
from autojoin.records import (
    TargetGroup as TargetGroup,
)


class Clock(Protocol):
    """Time. The machines' deadlines and ours are of one clock: milliseconds since the epoch."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""

    def sleep(self, seconds: float) -> None:
        """Wait that long."""


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


class Groups(Protocol):
    """EC2 Auto Scaling."""

    def membership(self, instance_id: str) -> Membership | None:
        """The instance's group and lifecycle state, or None if it is in no group."""

    def tags(self, group: str) -> Mapping[str, str]:
        """The group's tags; empty if there is no such group."""

    def hooks(self, group: str) -> tuple[Hook, ...]:
        """The group's lifecycle hooks."""

    def target_groups(self, group: str) -> frozenset[str]:
        """ARNs of the target groups that Auto Scaling itself manages for the group."""

    def heartbeat(self, hook: HeldHook, instance_id: str) -> None:
        """Restart the hook's timer. Raises HookOver if the action has ended."""

    def complete(self, hook: HeldHook, instance_id: str, result: str) -> None:
        """Complete the action with CONTINUE or ABANDON. Raises HookOver if it has ended."""


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


class Markers(Protocol):
    """The table: the marker of each partition."""

    def get(self, cluster: str, partition: str) -> Marker | None:
        """The marker as it is, read consistently; None if there is none."""

    def put(self, marker: Marker, instead_of: Marker | None) -> bool:
        """Write the marker if what stands is exactly `instead_of` (None: nothing); False if it is something else."""


class Witness(Protocol):
    """Parameter Store: what was decided, each decision written once and never changed."""

    def read(self, cluster: str, partition: str) -> tuple[Marker, ...]:
        """Every decision about the partition."""

    def write(self, marker: Marker) -> Marker:
        """Write the decision unless one of its epoch and state stands; returns the one that stands."""


class Etcd(Protocol):
    """etcd's API on a node."""

    def view(self, address: str) -> EtcdView | None:
        """Status and members, or None if it does not answer, or not healthily."""


class Names(Protocol):
    """Route 53."""

    def put(self, record: Record) -> None:
        """Make or change the instance's record set. Safe to repeat. Raises ZoneNotConfigured if there is no such zone."""

    def delete(self, record: Record) -> bool:
        """Delete exactly this record set; False if it is not there, or another one."""


class Targets(Protocol):
    """Elastic Load Balancing."""

    def groups(self, arns: Iterable[str]) -> Mapping[str, TargetGroup]:
        """Those of the target groups that exist, by ARN."""

    def register(self, target: Target) -> None:
        """Register the target. Safe to repeat."""

    def deregister(self, target: Target) -> None:
        """Deregister the target. Safe to repeat, and for a group that is gone."""

    def health(self, target: Target) -> tuple[str, str]:
        """State and reason code: healthy, initial, unhealthy, unused, draining, unavailable."""


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

    def begin(self, keys: dict[str, Any], correlation_id: str | None) -> None:
        """Forget the keys of the last invocation and set these."""

    def info(self, message: str, **fields: object) -> None:
        """Log a line."""

    def warning(self, message: str, **fields: object) -> None:
        """Log a line that an operator should read."""

    def count(self, metric: str, **dimensions: str) -> None:
        """Count one event of a low-cardinality metric."""


@dataclass(frozen=True)
class GroupMember:
    """An instance of a group, as the group lists it. `is_protected`: from being scaled in."""

    instance_id: str
    lifecycle_state: str
    is_protected: bool


@dataclass(frozen=True)
class GroupTag:
    """The value of a group's tag, and whether its new instances get it too."""

    value: str
    propagates: bool


@dataclass(frozen=True)
class GroupView:
    """A group as an operator sees it. `has_profile`: of its launch template; None where the group has no launch template."""

    name: str
    max_size: int
    protects_new: bool
    subnet_ids: tuple[str, ...]
    tags: Mapping[str, GroupTag]
    members: tuple[GroupMember, ...]
    has_profile: bool | None


@dataclass(frozen=True)
class Zone:
    """A hosted zone: its name without the last dot, and its SOA record."""

    zone_id: str
    name: str
    soa: str
    soa_ttl_s: int


@dataclass(frozen=True)
class AddressSet:
    """One A record set of a name. `identifier` None: a simple one, which stands alone. An alias has what it leads to as its address."""

    identifier: str | None
    ttl_s: int
    addresses: tuple[str, ...]


class Operator(Protocol):
    """What only the operator's command does, with the operator's own credentials. Each write is safe to repeat."""

    def group(self, name: str) -> GroupView | None:
        """The Auto Scaling group, or None if there is no such one."""

    def tag_group(self, group: str, tags: Mapping[str, str]) -> None:
        """Set these tags on the group, propagated at launch."""

    def put_launch_hook(self, group: str, name: str, heartbeat_timeout_s: int, metadata: str) -> None:
        """Make the launch hook; an instance that it gives up is abandoned."""

    def tag_instance(self, instance_id: str, tags: Mapping[str, str]) -> None:
        """Set these tags on the instance."""

    def parameter(self, name: str) -> str | None:
        """The parameter's value, or None if there is no such one."""

    def put_parameter(self, name: str, value: str, *, replace: bool) -> bool:
        """Write the parameter; False if it exists and is not to be replaced."""

    def has_secret(self, name: str) -> bool:
        """Whether the secret exists and is not being deleted. Its value is never read."""

    def zone(self, zone_id: str) -> Zone | None:
        """The hosted zone, or None if there is no such one."""

    def put_soa(self, zone: Zone, soa: str) -> None:
        """Give the zone's SOA record this value, its TTL unchanged."""

    def address_sets(self, zone_id: str, name: str) -> tuple[AddressSet, ...]:
        """The A record sets of the name."""

    def put_name(self, record: Record, instead_of: AddressSet | None) -> None:
        """Make the instance's record set, in one change with the removal of the simple one that stood there."""


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
    def markers(self) -> Markers: ...
    @property
    def witness(self) -> Witness: ...
    @property
    def etcd(self) -> Etcd: ...
    @property
    def names(self) -> Names: ...
    @property
    def targets(self) -> Targets: ...
    @property
    def machines(self) -> Machines: ...
    @property
    def callbacks(self) -> Callbacks: ...
    @property
    def telemetry(self) -> Telemetry: ...


class OperatorPorts(Ports, Protocol):
    """Ports of the operator's command."""

    @property
    def operator(self) -> Operator: ...
