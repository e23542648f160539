"""A whole world behind the ports: EC2, Auto Scaling, agents, the table, executions, on the interpreter's virtual clock.

The fakes keep the semantics that rules lean on (one condition decides a lease, a completed action is over, a command's end
comes as an event), and they can fail: `world.break_next(method, error)` makes the next call of a port's method raise,
`lose_events` drops events, `fault` breaks a run at a state's edges (lab/asl/faults.py), `hooks_expire` lets a hook that
nobody keeps alive run out.
"""

from __future__ import annotations

import importlib.util
import json
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from autojoin import errors
from autojoin.domain.lifecycle import LAUNCH_TRANSITION, HeldHook, Hook
from autojoin.domain.naming import Target
from autojoin.domain.partitions import Partition, PartitionKind, Topology
from autojoin.domain.scripts import Invocation
from autojoin.entrypoint import Handler
from autojoin.ports import Agent, ExecutionState, Instance, Intent, Lease, Membership, NodeRecord, Pin
from lab import asl
from lab.asl.faults import Faults
from tests.fakes.masters import EtcdNodes, Markers, Names, Targets, Witness

ROOT = Path(__file__).resolve().parents[2]
ACCOUNT = "123456789012"
REGION = "eu-central-1"
OURS = '{"autojoin":1}'
WORKER_TAGS = {"autojoin:cluster": "demo", "autojoin:role": "worker", "autojoin:partition": "rp1"}
MASTER_TAGS = {"autojoin:cluster": "demo", "autojoin:role": "rp", "autojoin:partition": "rp1"}
TP_TAGS = {"autojoin:cluster": "demo", "autojoin:role": "tp", "autojoin:partition": "tp1"}
ZONE_ID = "Z0DEMO"
TOPOLOGY = Topology(
    zone="demo.arktos.internal",
    zone_id=ZONE_ID,
    partitions=(
        Partition("tp1", PartitionKind.TP, service_cidr="10.0.0.0/16"),
        Partition("rp1", PartitionKind.RP, pod_cidr="10.244.0.0/16"),
    ),
)


@dataclass
class Script:
    """How a document behaves: after `takes_s` it ends with this status, exit code and last line. `ends` False: never.

    stdout  None: what the document says when it has done its work
    acts    whether it did its work, whatever it says; None: if it succeeded
    """

    takes_s: float = 5.0
    status: str = "Success"
    status_details: str = "Success"
    exit_code: int = 0
    stdout: str | None = None
    stderr: str = ""
    ends: bool = True
    acts: bool | None = None


def masters_topology(world: World) -> Topology:
    """The default topology, with target groups for its masters: their API servers by address, their front doors by instance."""
    partitions = tuple(
        replace(
            p,
            api_target_groups=(world.targets.add(f"{p.id}-api", "ip"),),
            front_door_target_groups=(world.targets.add(f"{p.id}-door", port=443),),
        )
        for p in TOPOLOGY.partitions
    )
    return replace(TOPOLOGY, partitions=partitions)


def refusal(code: int, error: str) -> Script:
    """A script that ends with an error class of its own."""
    line = json.dumps({"ok": False, "error": error, "seen": "what it saw", "expected": "what it wanted", "todo": "do this"})
    return Script(status="Failed", status_details="Failed", exit_code=code, stdout=line)


@dataclass
class Group:
    """An Auto Scaling group."""

    name: str
    tags: dict[str, str]
    hooks: list[Hook]
    target_groups: frozenset[str] = frozenset()


@dataclass
class Action:
    """A lifecycle action that holds an instance."""

    token: str
    hook: str
    open: bool = True
    result: str | None = None
    heartbeats: int = 0
    touched_at: float | None = None


@dataclass
class Telemetry:
    """Port Telemetry that remembers."""

    lines: list[tuple[str, str, dict[str, object]]] = field(default_factory=list)
    counts: list[tuple[str, dict[str, str]]] = field(default_factory=list)

    def begin(self, keys: dict[str, Any], correlation_id: str | None) -> None:
        self.keys = keys

    def info(self, message: str, **fields: object) -> None:
        self.lines.append(("info", message, fields))

    def warning(self, message: str, **fields: object) -> None:
        self.lines.append(("warning", message, fields))

    def count(self, metric: str, **dimensions: str) -> None:
        self.counts.append((metric, dimensions))


class World:
    """Every port in one object; `engine` runs the machines on `clock_`."""

    def __init__(self) -> None:
        self.time = asl.VirtualClock()
        self.telemetry = Telemetry()
        self.ec2: dict[str, Instance] = {}
        self.dest_check_off: set[str] = set()
        self.subnets = {"subnet-a": "10.0.0.0/20", "subnet-b": "10.0.16.0/20"}
        self.asg: dict[str, Group] = {}
        self.lifecycle: dict[str, Membership] = {}
        self.actions: dict[str, Action] = {}
        self.agents_at: dict[str, tuple[float, str]] = {}
        self.scripts: dict[str, list[Script]] = {}
        self.invocations: dict[str, Invocation] = {}
        self.sent: list[tuple[str, str, dict[str, str], str, str]] = []
        self.cancelled: list[str] = []
        self.declared: Topology | None = TOPOLOGY
        self.leases: dict[str, Lease] = {}
        self.records: dict[str, NodeRecord] = {}
        self.intended: dict[tuple[str, str, str], Intent] = {}
        self.meetings: dict[str, dict[str, str]] = {}
        self.tokens: list[str] = []
        self.lose_events = False
        self.hooks_expire = False
        self.fault: Faults | None = None
        self.completions: list[tuple[str, str]] = []
        self.abandoned_dies_after_s: float | None = None
        self.failures: dict[str, list[Exception]] = {}
        self.calls: list[str] = []
        self.done: list[tuple[int, str, object]] = []
        self.markers = Markers(self._call, self._note)
        self.witness = Witness(self._call, self._note)
        self.etcd = EtcdNodes(self._call, self._note)
        self.names = Names(self._call, self._note, {ZONE_ID})
        self.targets = Targets(self._call, self._note, self.time.time, self._serves)
        self.apis: set[str] = set()
        self.handlers = load_handlers(lambda: self)
        self.engine = asl.Engine(self.time, self._invoke, on_status=self._status, faults=self._fault, region=REGION, account=ACCOUNT)
        self.machines_by_name = {name: machine(name) for name in ("join", "leave")}
        for made in self.machines_by_name.values():
            self.engine.register(made)

    # -- the ports are this object -----------------------------------------------------------------------------------
    @property
    def clock(self) -> World:
        return self

    instances = groups = commands = configuration = registry = machines = callbacks = clock

    # -- arranging -----------------------------------------------------------------------------------------------------
    def add_group(self, name: str = "workers", tags: Mapping[str, str] = WORKER_TAGS, *hooks: Hook) -> Group:
        self.asg[name] = Group(name, dict(tags), list(hooks) or [hook(name)])
        return self.asg[name]

    def add_instance(
        self,
        instance_id: str,
        tags: Mapping[str, str] = WORKER_TAGS,
        *,
        group: str | None = "workers",
        state: str = "running",
        lifecycle_state: str = "Pending:Wait",
        subnet: str = "subnet-a",
        agent_after_s: float | None = 3.0,
        agent_version: str = "3.3.2746.0",
    ) -> Instance:
        address = f"10.0.0.{len(self.ec2) + 10}"
        made = Instance(instance_id, state, address, subnet, dict(tags), self.now_ms())
        self.ec2[instance_id] = made
        if agent_after_s is not None:
            self.agents_at[instance_id] = (self.time.time() + agent_after_s, agent_version)
        if group:
            if group not in self.asg:
                self.add_group(group)
            self.lifecycle[instance_id] = Membership(group, lifecycle_state)
            if lifecycle_state.endswith(":Wait"):
                self.actions[instance_id] = Action(str(uuid.uuid4()), self.asg[group].hooks[0].name, touched_at=self.time.time())
        return made

    def add_master(self, instance_id: str = "i-0000000000000aaaa", **more: Any) -> Instance:
        return self.add_instance(instance_id, MASTER_TAGS, group=None, agent_after_s=0.0, **more)

    def break_next(self, method: str, *raised: Exception) -> None:
        """The next calls of this port method raise, one each."""
        self.failures.setdefault(method, []).extend(raised)

    def add_masters(self, role: str, *hooks: Hook) -> Group:
        """A group of masters of the role's partition."""
        return self.add_group(f"{role}-masters", TP_TAGS if role == "tp" else MASTER_TAGS, *hooks)

    def launch_master(self, role: str, instance_id: str, **more: Any) -> Instance:
        """An instance that its group of masters has launched and its hook holds."""
        if f"{role}-masters" not in self.asg:
            self.add_masters(role)
        return self.add_instance(instance_id, self.asg[f"{role}-masters"].tags, group=f"{role}-masters", **more)

    def terminate(self, instance_id: str, lifecycle_state: str | None = None) -> None:
        """The instance is gone, at any moment, with its disk."""
        self._note("terminated", instance_id)
        self.etcd.disks.pop(self.ec2[instance_id].address or "", None)
        self.apis.discard(instance_id)
        self.ec2[instance_id] = replace(self.ec2[instance_id], state="terminated")
        self.agents_at.pop(instance_id, None)
        self.actions.pop(instance_id, None)
        if lifecycle_state:
            self.lifecycle[instance_id] = Membership(self.lifecycle[instance_id].group, lifecycle_state)
        else:
            self.lifecycle.pop(instance_id, None)

    # -- acting ----------------------------------------------------------------------------------------------------------
    def start(self, machine_name: str, request: Mapping[str, Any], name: str = "test") -> asl.Execution:
        return self.engine.start(self.machines_by_name[machine_name], name, dict(request))

    def join(self, instance_id: str, name: str = "test", *, by_event: bool = True, **more: Any) -> asl.Execution:
        """Start a join (as intake does, with the action's token) and run the world until nothing is left to do."""
        request: dict[str, Any] = {"instance_id": instance_id, **more}
        action = self.actions.get(instance_id)
        if by_event and action:
            held = {"group": self.lifecycle[instance_id].group, "hook": action.hook, "token": action.token}
            request |= {**held, "source": "event", "opened_ms": self.now_ms()}
        execution = self.start("join", request, name)
        self.engine.run()
        return execution

    def execution_named(self, name: str) -> asl.Execution:
        return next(e for e in self.engine.executions.values() if e.name == name)

    def left_of(self, instance_id: str) -> list[str]:
        """Everything in the table that names the instance."""
        found = [f"INTENT#{k}#{key}" for (i, k, key) in self.intended if i == instance_id]
        found += [f"COMMAND#{c}" for c in self.meetings if self.invocations[c].instance_id == instance_id]
        found += ["LEASE"] if instance_id in self.leases else []
        return found + (["RECORD"] if instance_id in self.records else [])

    # -- functions -------------------------------------------------------------------------------------------------------
    def _invoke(self, function_arn: str, payload: Any) -> Any:
        boundary = function_arn.rsplit(":", 1)[-1].removeprefix("autojoin-")
        try:
            return self.handlers[boundary](json.loads(json.dumps(payload)), None)
        except asl.TaskFailed:
            raise
        except Exception as error:
            cause = {"errorType": type(error).__name__, "errorMessage": str(error)}
            raise asl.TaskFailed(type(error).__name__, json.dumps(cause)) from error

    def _fault(self, point: asl.FaultPoint) -> Any:
        return self.fault(point) if self.fault else None

    def _status(self, execution: asl.Execution) -> None:
        if execution.status not in ("FAILED", "TIMED_OUT", "ABORTED") or ":stateMachine:autojoin-join" not in _machine_arn(execution):
            return
        if self.lose_events:
            return
        detail = {
            "executionArn": execution.arn,
            "stateMachineArn": _machine_arn(execution),
            "name": execution.name,
            "status": execution.status,
            "input": json.dumps(execution.input),
            "error": execution.error,
            "cause": execution.cause,
        }
        event = {"source": "aws.states", "detail-type": "Step Functions Execution Status Change", "detail": detail}
        self.engine.call_later(0.1, lambda: self._deliver("intake", event))

    def _deliver(self, boundary: str, event: dict[str, Any], tries: int = 2) -> None:
        """An event, as Lambda delivers it: a failed function is tried once more, a minute later."""
        try:
            self.handlers[boundary](event, None)
        except (errors.AutojoinError, asl.TaskFailed):
            if tries > 1:
                self.engine.call_later(60.0, lambda: self._deliver(boundary, event, tries - 1))

    def _call(self, method: str) -> None:
        self.calls.append(method)
        if self.failures.get(method):
            raise self.failures[method].pop(0)

    def _note(self, what: str, about: object) -> None:
        """Everything that is done to the outside, in its order: (when in ms, what, to what)."""
        self.done.append((self.now_ms(), what, about))

    def done_to(self, what: str) -> list[Any]:
        """To what it was done, in order."""
        return [about for _, did, about in self.done if did == what]

    def _serves(self, target: Target) -> bool:
        """Whether an API server answers on the target."""
        return any(target.target_id in (i, self.ec2[i].address) for i in self.apis)

    # -- Clock -----------------------------------------------------------------------------------------------------------
    def now_ms(self) -> int:
        return round(self.time.time() * 1000)

    def sleep(self, seconds: float) -> None:
        self.time.sleep(seconds)

    # -- Instances -------------------------------------------------------------------------------------------------------
    def get(self, instance_id: str) -> Instance | None:
        self._call("get")
        return self.ec2.get(instance_id)

    def running(self, cluster: str, partition: str, roles: Iterable[str]) -> tuple[Instance, ...]:
        self._call("running")
        wanted = set(roles)
        return tuple(
            i
            for i in self.ec2.values()
            if i.state in ("pending", "running")
            and i.tags.get("autojoin:cluster") == cluster
            and i.tags.get("autojoin:partition") == partition
            and i.tags.get("autojoin:role") in wanted
        )

    def subnet_cidrs(self, subnet_ids: Iterable[str]) -> Mapping[str, str]:
        self._call("subnet_cidrs")
        return {s: self.subnets[s] for s in subnet_ids}

    def switch_off_source_dest_check(self, instance_id: str) -> None:
        self._call("switch_off_source_dest_check")
        self._require_live(instance_id)
        self.dest_check_off.add(instance_id)

    # -- Groups ----------------------------------------------------------------------------------------------------------
    def membership(self, instance_id: str) -> Membership | None:
        self._call("membership")
        self._expire(instance_id)
        return self.lifecycle.get(instance_id)

    def tags(self, group: str) -> Mapping[str, str]:
        self._call("tags")
        return self.asg[group].tags if group in self.asg else {}

    def hooks(self, group: str) -> tuple[Hook, ...]:
        self._call("hooks")
        return tuple(self.asg[group].hooks)

    def target_groups(self, group: str) -> frozenset[str]:
        self._call("target_groups")
        return self.asg[group].target_groups

    def heartbeat(self, held: HeldHook, instance_id: str) -> None:
        self._call("heartbeat")
        action = self._open_action(held, instance_id)
        action.heartbeats, action.touched_at = action.heartbeats + 1, self.time.time()

    def complete(self, held: HeldHook, instance_id: str, result: str) -> None:
        self._call("complete")
        action = self._open_action(held, instance_id)
        action.open, action.result = False, result
        self.completions.append((instance_id, result))
        self._note(result, instance_id)
        if result == "ABANDON" and self.abandoned_dies_after_s is not None:
            self.engine.call_later(self.abandoned_dies_after_s, lambda: self.terminate(instance_id))
        after = "InService" if result == "CONTINUE" else "Terminating:Proceed"
        self.lifecycle[instance_id] = Membership(self.lifecycle[instance_id].group, after)

    def end_action(self, instance_id: str, after: str) -> None:
        """The action ends without us, and the instance goes on to this state."""
        self.actions[instance_id].open = False
        self.lifecycle[instance_id] = Membership(self.lifecycle[instance_id].group, after)

    def _expire(self, instance_id: str) -> None:
        action = self.actions.get(instance_id)
        if not self.hooks_expire or action is None or not action.open or action.touched_at is None:
            return
        waits = {h.name: h.heartbeat_timeout_s for h in self.asg[self.lifecycle[instance_id].group].hooks}
        if self.time.time() >= action.touched_at + waits[action.hook]:
            self.end_action(instance_id, "Terminating:Proceed")

    def _require_live(self, instance_id: str) -> None:
        if self.ec2[instance_id].state not in ("pending", "running"):
            raise errors.InstanceGone(f"{instance_id} is {self.ec2[instance_id].state}", "running", "nothing")

    def _open_action(self, held: HeldHook, instance_id: str) -> Action:
        self._expire(instance_id)
        action = self.actions.get(instance_id)
        if action is None or not action.open or (held.token and held.token != action.token):
            raise errors.HookOver("an action that has ended", "one that waits", "nothing")
        return action

    # -- Commands --------------------------------------------------------------------------------------------------------
    def agents(self, instance_ids: Iterable[str]) -> Mapping[str, Agent]:
        self._call("agents")
        online = {i: v for i, (at, v) in self.agents_at.items() if at <= self.time.time()}
        return {i: Agent(i, "Online", online[i]) for i in instance_ids if i in online}

    def pin(self, document: str) -> Pin:
        self._call("pin")
        return Pin("1", f"sha256-of-{document}")

    def send(self, document: str, instance_id: str, parameters: Mapping[str, str], comment: str, pin: Pin | None = None) -> str:
        self._call("send")
        self._require_live(instance_id)
        command_id = str(uuid.uuid4())
        self.sent.append((document, instance_id, dict(parameters), comment, command_id))
        self._note(f"sent {document}", instance_id)
        self.invocations[command_id] = Invocation(command_id, instance_id, f"autojoin-{document}", "InProgress", "InProgress")
        queue = self.scripts.get(document, [])
        script = queue.pop(0) if len(queue) > 1 else (queue[0] if queue else Script())
        if script.ends:
            self.engine.call_later(script.takes_s, lambda: self._end(command_id, script))
        return command_id

    def _end(self, command_id: str, script: Script) -> None:
        known = self.invocations[command_id]
        if known.is_terminal or (script.status != "Cancelled" and self.ec2[known.instance_id].state == "terminated"):
            return
        acts = script.status == "Success" if script.acts is None else script.acts
        worked = self._work(command_id) if acts else Script(stdout="")
        ended = worked if script.status == "Success" and script.stdout is None else script
        self.invocations[command_id] = replace(
            known,
            status=ended.status,
            status_details=ended.status_details,
            exit_code=ended.exit_code,
            stdout=ended.stdout or "",
            stderr=ended.stderr,
        )
        if not self.lose_events:
            self.tell_end(command_id)

    def _work(self, command_id: str) -> Script:
        """What the document of a command does to its node, and how it ends by itself."""
        document, instance_id, parameters = next((d, i, p) for d, i, p, _, c in self.sent if c == command_id)
        address = self.ec2[instance_id].address or ""
        said: dict[str, object] = {}
        try:
            if document == "start-etcd":
                known = address in self.etcd.disks
                disk = self.etcd.start(address, parameters["Mode"], parameters["Token"], parameters["ClusterId"])
                said = {"cluster_id": disk.cluster_id, "member_id": "00000000000000a1", "version": "3.5.1", "already": known}
            elif document == "start-api":
                said = {"already": instance_id in self.apis, "secret": "created"}
                self.apis.add(instance_id)
                self._note("api started", instance_id)
            elif document == "leave-node":
                self.etcd.stop(address)
                self.apis.discard(instance_id)
        except errors.AutojoinError as error:
            code = next(c for c, raised in errors.BY_EXIT_CODE.items() if raised is type(error))
            return refusal(code, type(error).__name__)
        return Script(stdout=f"log line\n{json.dumps(said_by(document, parameters) | said)}\n")

    def tell_end(self, command_id: str) -> None:
        """Deliver the event of a command's end (again)."""
        known = self.invocations[command_id]
        detail = {
            "command-id": command_id,
            "instance-id": known.instance_id,
            "document-name": known.document,
            "status": known.status,
        }
        event = {"source": "aws.ssm", "detail-type": "EC2 Command Invocation Status-change Notification", "detail": detail}
        self._deliver("answer", event)

    def find(self, document: str, instance_id: str, comment: str) -> str | None:
        self._call("find")
        return next((s[4] for s in reversed(self.sent) if (s[0], s[1], s[3]) == (document, instance_id, comment)), None)

    def invocation(self, command_id: str, instance_id: str) -> Invocation | None:
        self._call("invocation")
        return self.invocations.get(command_id)

    def cancel(self, command_id: str, instance_id: str) -> None:
        self._call("cancel")
        self.cancelled.append(command_id)
        if not self.invocations[command_id].is_terminal:
            self._end(command_id, Script(status="Cancelled", status_details="Cancelled", exit_code=-1, stdout=""))

    # -- Configuration ---------------------------------------------------------------------------------------------------
    def topology(self, cluster: str) -> Topology | None:
        self._call("topology")
        return self.declared

    # -- Registry --------------------------------------------------------------------------------------------------------
    def lease(self, instance_id: str) -> Lease:
        self._call("lease")
        return self.leases.get(instance_id, Lease(None, 0, None))

    def take_lease(self, instance_id: str, owner: str, *, instead_of: str | None = None) -> Lease | None:
        self._call("take_lease")
        known = self.leases.get(instance_id, Lease(None, 0, None))
        if known.tombstone_ms is not None or known.owner not in (None, owner, instead_of):
            return None
        self.leases[instance_id] = Lease(owner, known.fence + 1, None)
        return self.leases[instance_id]

    def release_lease(self, instance_id: str, owner: str) -> bool:
        self._call("release_lease")
        known = self.leases.get(instance_id)
        if known is None or known.owner != owner:
            return False
        self.leases[instance_id] = replace(known, owner=None)
        return True

    def record(self, instance_id: str) -> NodeRecord | None:
        self._call("record")
        return self.records.get(instance_id)

    def put_record(self, record: NodeRecord, owner: str) -> None:
        self._call("put_record")
        self._check(record.instance_id, owner)
        self.records[record.instance_id] = record

    def intents(self, instance_id: str) -> tuple[Intent, ...]:
        self._call("intents")
        return tuple(i for (owner, _, _), i in self.intended.items() if owner == instance_id)

    def put_intent(self, instance_id: str, intent: Intent, owner: str) -> None:
        self._call("put_intent")
        self._check(instance_id, owner)
        self.intended[(instance_id, intent.kind, intent.key)] = intent

    def delete_intent(self, instance_id: str, intent: Intent) -> None:
        self._call("delete_intent")
        known = self.intended.get((instance_id, intent.kind, intent.key))
        self.meetings.pop(intent.value.partition("@")[0], None)
        if known and known.execution == intent.execution:
            del self.intended[(instance_id, intent.kind, intent.key)]

    def forget(self, instance_id: str, owner: str) -> None:
        self._call("forget")
        self._check(instance_id, owner)
        for intent in [i for (node, _, _), i in self.intended.items() if node == instance_id]:
            self.meetings.pop(intent.value.partition("@")[0], None)
        self.intended = {k: v for k, v in self.intended.items() if k[0] != instance_id}
        self.records.pop(instance_id, None)
        self.leases.pop(instance_id, None)

    def meet_token(self, command_id: str, instance_id: str, token: str) -> str | None:
        self._call("meet_token")
        old = dict(self.meetings.get(command_id, {}))
        self.meetings.setdefault(command_id, {})["token"] = token
        self.tokens.append(token)
        return old.get("status")

    def meet_status(self, command_id: str, instance_id: str, status: str) -> str | None:
        self._call("meet_status")
        old = dict(self.meetings.get(command_id, {}))
        self.meetings.setdefault(command_id, {})["status"] = status
        return old.get("token")

    def _check(self, instance_id: str, owner: str) -> None:
        known = self.leases.get(instance_id)
        if known is None or known.owner != owner or known.tombstone_ms is not None:
            raise errors.LeaseLost("another owner", owner, "nothing")

    # -- Machines, Callbacks ---------------------------------------------------------------------------------------------
    def start_join(self, name: str, request: Mapping[str, object]) -> bool:
        self._call("start_join")
        return self._start("join", name, request)

    def start_leave(self, name: str, request: Mapping[str, object]) -> bool:
        self._call("start_leave")
        return self._start("leave", name, request)

    def _start(self, machine_name: str, name: str, request: Mapping[str, object]) -> bool:
        known = {e.name for e in self.engine.executions.values() if f"autojoin-{machine_name}:" in e.arn}
        if name in known:
            return False
        self.engine.call_later(0.0, lambda: self._start_once(machine_name, name, request))
        return True

    def _start_once(self, machine_name: str, name: str, request: Mapping[str, object]) -> None:
        try:
            self.start(machine_name, request, name)
        except asl.ExecutionAlreadyExists:
            return

    def execution(self, arn: str) -> ExecutionState | None:
        self._call("execution")
        known = self.engine.executions.get(arn)
        if known is None:
            return None
        stopped = known.stopped_at
        return ExecutionState(known.status, None if stopped is None else round(stopped * 1000))

    def succeed(self, token: str, output: Mapping[str, object]) -> bool:
        self._call("succeed")
        return self._answer(lambda: self.engine.send_task_success(token, dict(output)))

    def fail(self, token: str, error: str, cause: str) -> bool:
        return self._answer(lambda: self.engine.send_task_failure(token, error, cause))

    @staticmethod
    def _answer(send: Callable[[], None]) -> bool:
        try:
            send()
        except (asl.TaskTimedOut, asl.InvalidToken, asl.TaskDoesNotExist):
            return False
        return True


def hook(group: str, name: str = "autojoin-launching", *, heartbeat_s: int = 300, metadata: str | None = OURS) -> Hook:
    """A launch hook."""
    return Hook(group, name, LAUNCH_TRANSITION, heartbeat_s, min(100 * heartbeat_s, 172_800), metadata)


def said_by(document: str, parameters: Mapping[str, str]) -> dict[str, object]:
    """What a script says that ends well."""
    said: dict[str, object] = {"ok": True, "step": document}
    if document == "verify":
        said |= {"node_uid": "uid-1", "pod_cidr": "10.244.3.0/24", "canaries": ["tp1"]}
    elif document in ("join-tp", "join-rp"):
        said |= {"already": False, "waiting_for": []}
    elif document == "verify-master":
        mine = {"resource_partitions_seen": ["rp1"]} if parameters["Kind"] == "tp" else {"node_uid": "uid-1", "pod_cidr": "10.244.0.0/24"}
        said |= {"waiting_for": [], **mine}
    return said


@cache
def machine(name: str) -> asl.Machine:
    """statemachine/<name>.asl.yaml with the substitutions of a deployment."""
    text = (ROOT / "statemachine" / f"{name}.asl.yaml").read_text()
    functions = ("Intake", "Node", "Wait", "Command", "Hook", "Membership", "Etcd", "Names")
    given = {f"{f}FunctionArn": f"arn:aws:lambda:{REGION}:{ACCOUNT}:function:autojoin-{f.lower()}" for f in functions}
    for key, value in {"Partition": "aws", **given}.items():
        text = text.replace("${" + key + "}", value)
    return asl.parse(text, name=f"autojoin-{name}")


def load_handlers(ports: Callable[[], Any]) -> dict[str, Handler]:
    """The functions' own handlers, their operations unchanged, on other ports."""
    found: dict[str, Handler] = {}
    for path in sorted((ROOT / "functions").glob("*/app.py")):
        spec = importlib.util.spec_from_file_location(f"app_{path.parent.name}", path)
        assert spec
        assert spec.loader
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        found[path.parent.name] = Handler(module.lambda_handler.operations, ports)
    return found


def _machine_arn(execution: asl.Execution) -> str:
    return execution.arn.replace(":execution:", ":stateMachine:").rsplit(":", 1)[0]
