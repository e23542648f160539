"""Admit: describe the instance, plan its join, take its lease. Nothing outside the table changes here."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from autojoin import errors
from autojoin.domain import budgets
from autojoin.domain.identity import Identity, Role, identify
from autojoin.domain.lifecycle import BEFORE_ITS_HOOK, HELD_AT_LAUNCH, Hook, hook_of_ours, is_held, is_warm
from autojoin.domain.partitions import Partition, Topology
from autojoin.domain.plan import Plan, plan_join
from autojoin.events.operations.node import Admission, Admit
from autojoin.events.operations.run import HookRef, NodeRef, Run
from autojoin.events.requests import JoinRequest
from autojoin.records import Instance, Membership, NodeRecord
from autojoin.use_cases.founding import look_ahead
from autojoin.use_cases.parse import parse
from autojoin.use_cases.run import live_instance

if TYPE_CHECKING:
    from autojoin.ports import Ports

JOINABLE_STATES = frozenset({BEFORE_ITS_HOOK, HELD_AT_LAUNCH, "Pending:Proceed", "InService", "Standby", "EnteringStandby"})


class Candidate(NamedTuple):
    """What there is to know of an instance before its join."""

    instance: Instance
    group: str | None
    hook: Hook | None
    held: bool
    awaits_event: bool
    identity: Identity
    partition: Partition
    plan: Plan


def admit(command: Admit, ports: Ports) -> Admission:
    """Plan the join and take the lease; returns the plan, the run for every later step, and the deadlines.

    A dry run changes nothing and never fails for what it finds: its refusals stand in the answer.
    Raises InvalidInput and the permanent errors of its checks; Tombstoned if a leave has begun.
    """
    request = parse(JoinRequest, command.request, "execution input")
    try:
        candidate = examine(request, ports)
    except errors.AutojoinError as error:
        if request.dry_run and not isinstance(error, errors.RETRYABLE):
            return Admission(outcome="planned", refusals=(f"{type(error).__name__}: {error}",))
        raise
    run = _run(command, request, candidate)
    deadlines = _deadlines(request, candidate, ports.clock.now_ms())
    answer = Admission(
        outcome="planned",
        plan=candidate.plan,
        run=run,
        deadlines=deadlines,
    )
    if request.dry_run:
        return _with_founding(answer, candidate, ports)
    if candidate.awaits_event:
        ports.telemetry.info("its hook is about to hold the instance; the event of that starts the join")
        return answer.model_copy(update={"outcome": "in_progress"})
    if not _take_lease(request.instance_id, command.execution, ports):
        lease = ports.registry.lease(request.instance_id)
        if lease.tombstone_ms is not None:
            raise errors.Tombstoned(
                f"a leave of {request.instance_id} began at {lease.tombstone_ms} ms",
                "no leave of the instance",
                "nothing: the leave ends by itself",
            )
        ports.telemetry.info("another execution works on the node", owner=lease.owner)
        return answer.model_copy(update={"outcome": "in_progress", "owner": lease.owner})
    _write_record(run, ports)
    return answer.model_copy(update={"outcome": "admitted"})


def _with_founding(planned: Admission, candidate: Candidate, ports: Ports) -> Admission:
    """A dry run's answer with what Member would decide now."""
    if not candidate.plan.hosts_etcd:
        return planned
    try:
        decision = look_ahead(candidate.instance.instance_id, candidate.identity.cluster, candidate.identity.partition, ports)
    except errors.AutojoinError as error:
        if isinstance(error, errors.RETRYABLE):
            raise
        return planned.model_copy(update={"refusals": (f"{type(error).__name__}: {error}",)})
    waits = f" for {decision.waits_for}" if decision.waits_for else ""
    return planned.model_copy(update={"founding": f"{decision.step.value}{waits}"})


def _take_lease(instance_id: str, execution: str, ports: Ports) -> bool:
    """Take a free lease, or one of an execution that ended long enough ago for its own clean-up to have come and gone."""
    if ports.registry.take_lease(instance_id, execution):
        return True
    owner = ports.registry.lease(instance_id).owner
    if owner is None or not _is_long_dead(owner, ports):
        return False
    ports.telemetry.warning("the lease of an execution that ended is taken over", owner=owner)
    return ports.registry.take_lease(instance_id, execution, instead_of=owner) is not None


def _is_long_dead(owner: str, ports: Ports) -> bool:
    """Whether the execution ended ORPHANED_S ago or earlier; Step Functions forgets them after 90 days."""
    execution = ports.machines.execution(owner)
    if execution is None:
        return True
    return execution.stopped_ms is not None and ports.clock.now_ms() >= execution.stopped_ms + budgets.ORPHANED_S * 1000


def examine(request: JoinRequest, ports: Ports) -> Candidate:
    """Read and check everything that a plan needs. Changes nothing. Raises the permanent error of the first failed check."""
    instance = live_instance(request.instance_id, ports)
    membership = ports.groups.membership(request.instance_id)
    subject = f"instance {request.instance_id}" + (f" of group {membership.group}" if membership else "")
    identity = identify(instance.tags, ports.groups.tags(membership.group) if membership else None, subject)
    hook: Hook | None = None
    if membership:
        _check_state(subject, membership.lifecycle_state)
        hook = hook_of_ours(membership.group, ports.groups.hooks(membership.group))
    topology = ports.configuration.topology(identity.cluster)
    partition = _declared(identity, topology)
    plan = plan_join(identity.role, partition)
    _require_peers(identity, topology)
    held = bool(membership and hook and _is_held(membership, hook, request))
    return Candidate(
        instance=instance,
        group=membership.group if membership else None,
        hook=hook,
        held=held,
        awaits_event=bool(membership and not held and membership.lifecycle_state == BEFORE_ITS_HOOK),
        identity=identity,
        partition=partition,
        plan=plan,
    )


def _is_held(membership: Membership, hook: Hook, request: JoinRequest) -> bool:
    """Whether the hook holds the instance. The state decides; one that lags behind the event of this very hook counts as held."""
    told = (request.group, request.hook) == (membership.group, hook.name)
    return is_held(membership.lifecycle_state, request.token if told else None)


def _check_state(subject: str, lifecycle_state: str) -> None:
    if is_warm(lifecycle_state):
        raise errors.InWarmPool(
            f"{subject} is {lifecycle_state}",
            "an instance on its way into service",
            "nothing: it joins when it leaves the pool",
        )
    if lifecycle_state.startswith(("Terminat", "Detach")):
        raise errors.InstanceGone(f"{subject} is {lifecycle_state}", "Pending:Wait or InService", "nothing")
    if lifecycle_state not in JOINABLE_STATES:
        raise errors.StateNotJoinable(
            f"{subject} is {lifecycle_state}",
            "one of " + ", ".join(sorted(JOINABLE_STATES)),
            "start the join again once it is",
        )


def _declared(identity: Identity, topology: Topology | None) -> Partition:
    where = f"/autojoin/{identity.cluster}/partitions/{identity.partition}"
    partition = topology.get(identity.partition) if topology else None
    if partition is None:
        known = ", ".join(p.id for p in topology.partitions) if topology else "none, the cluster has no configuration"
        raise errors.PartitionNotConfigured(
            f"partition {identity.partition} of cluster {identity.cluster}; declared are: {known}",
            f"a parameter {where}",
            "declare the partition (docs/configuration.md), or correct autojoin:partition of the group",
        )
    return partition


def _require_peers(identity: Identity, topology: Topology | None) -> None:
    """Processes read the partitions of the other kind once, at their start; without one they would work for nobody."""
    wants_resources = identity.role is Role.TP
    peers = () if topology is None else topology.resource_partitions() if wants_resources else topology.tenant_partitions()
    kind, word = ("rp", "resource") if wants_resources else ("tp", "tenant")
    if not peers:
        raise errors.PartitionNotConfigured(
            f"cluster {identity.cluster} declares no {word} partition",
            f"at least one parameter of kind {kind} under /autojoin/{identity.cluster}/partitions/",
            f"declare the {word} partitions (docs/configuration.md)",
        )
    if topology is not None and identity.role in (Role.TP, Role.RP) and topology.zone_id is None:
        raise errors.ZoneNotConfigured(
            f"cluster {identity.cluster} declares zone {topology.zone} without zone_id",
            f"zone_id in /autojoin/{identity.cluster}/cluster",
            "declare the Route 53 id of the private zone (docs/configuration.md)",
        )


def _run(command: Admit, request: JoinRequest, candidate: Candidate) -> Run:
    hook: HookRef | None = None
    if candidate.held and candidate.hook and candidate.group:
        mine = request.hook == candidate.hook.name and request.group == candidate.group
        hook = HookRef(group=candidate.group, name=candidate.hook.name, token=request.token if mine else None)
    return Run(
        execution=command.execution,
        name=command.name,
        node=NodeRef(
            instance_id=request.instance_id,
            cluster=candidate.identity.cluster,
            role=candidate.identity.role.value,
            partition=candidate.identity.partition,
            group=candidate.group,
            address=candidate.instance.address,
            subnet_id=candidate.instance.subnet_id,
        ),
        hook=hook,
    )


def _deadlines(request: JoinRequest, candidate: Candidate, now_ms: int) -> budgets.Deadlines:
    role = candidate.identity.role.value
    if not (candidate.held and candidate.hook):
        return budgets.join_deadlines(role, now_ms, None, None)
    total_s = budgets.hook_total_s(candidate.hook.heartbeat_timeout_s, candidate.hook.global_timeout_s)
    opened_ms = request.opened_ms or candidate.instance.launched_ms
    return budgets.join_deadlines(role, now_ms, opened_ms, total_s)


def _write_record(run: Run, ports: Ports) -> None:
    node = run.node
    before = ports.registry.record(node.instance_id)
    ports.registry.put_record(
        NodeRecord(
            instance_id=node.instance_id,
            cluster=node.cluster,
            partition=node.partition,
            role=node.role,
            group=node.group,
            address=node.address,
            node_uid=before.node_uid if before else None,
            joined_ms=before.joined_ms if before else None,
            joined_by=before.joined_by if before else None,
        ),
        run.execution,
    )
