"""What must hold in every run: pure functions from evidence to the sentences that say how it was broken.

The evidence is the lab's journal and the observer's own looks at the world, never Autojoin's word. A function returns one
sentence per violation and an empty list when the invariant holds; its name is the key in the report.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from lab.observer.journal import Entry

CLOSING_SLACK_S = 5.0
"""How late the lab's own timers may fire, in seconds, on a machine that is busy with a whole region."""

OPERATORS = ("root", "internal", "anonymous")
"""Principals that are not Autojoin: the person at the keyboard, and the region talking to itself."""

_PRIVATE_KEY = re.compile(r"-----BEGIN (?:[A-Z]+ )*PRIVATE" + r" KEY-----")


@dataclass(frozen=True)
class Leftover:
    """Something in the outside world that still names an instance which is gone."""

    where: str  # nodes | routes | dns | targets | table | etcd
    what: str
    instance_id: str


@dataclass(frozen=True)
class Evidence:
    """All that the observer knows about a run.

    entries               journal of the run, oldest first
    leftovers             seen in the world at the end of the run
    ended_at              when the run ended, seconds since the epoch
    may_be_left_waiting   groups whose hooks the scenario expects to find still waiting at the end
    foreign_groups        groups without our tag
    texts                 (where, text) of logs, histories and outputs to search for private material
    task_token_pattern    what the lab's task tokens look like; empty when no machine runs
    """

    entries: Sequence[Entry]
    leftovers: Sequence[Leftover] = ()
    ended_at: float = 0.0
    may_be_left_waiting: frozenset[str] = frozenset()
    foreign_groups: frozenset[str] = frozenset()
    texts: Iterable[tuple[str, str]] = ()
    task_token_pattern: str = ""

    def of(self, kind: str) -> list[Entry]:
        """The entries of one kind, oldest first."""
        return [entry for entry in self.entries if entry["kind"] == kind]


@dataclass
class Hook:
    """One lifecycle action as the journal tells it."""

    token: str
    instance_id: str
    group: str
    name: str
    opened_at: float
    deadline: float | None = None
    completions: list[Entry] = field(default_factory=list)
    timed_out_at: float | None = None
    gone_at: float | None = None

    @property
    def closed_at(self) -> float | None:
        """When it stopped waiting, whatever ended it."""
        ends = [c["t"] for c in self.completions] + [t for t in (self.timed_out_at, self.gone_at) if t is not None]
        return min(ends) if ends else None

    @property
    def result(self) -> str | None:
        """CONTINUE or ABANDON of its first completion."""
        return str(self.completions[0].get("result")) if self.completions else None


def hooks_of(entries: Iterable[Entry]) -> list[Hook]:
    """The lifecycle actions of a journal in the order they were opened. An instance that is gone ends its hooks."""
    hooks: dict[str, Hook] = {}
    for entry in entries:
        if entry["kind"] == "hook":
            token = str(entry.get("token"))
            if entry["event"] == "opened":
                hooks[token] = Hook(token, entry["instance_id"], entry.get("group") or "", entry.get("hook") or "", entry["t"])
            hook = hooks.get(token)
            if hook is None:
                continue
            if entry["event"] in ("opened", "heartbeat") and entry.get("deadline"):
                hook.deadline = float(entry["deadline"])
            elif entry["event"] == "completed":
                hook.completions.append(entry)
            elif entry["event"] == "timed_out" and entry.get("by") in (None, "timer"):
                hook.timed_out_at = entry["t"]
            elif entry["event"] == "timed_out":  # another hook's ABANDON, or the instance was taken out
                hook.gone_at = entry["t"]
        elif entry["kind"] == "instance" and entry.get("event") in ("killed", "terminated"):
            for hook in hooks.values():
                if hook.instance_id == entry["instance_id"] and hook.closed_at is None:
                    hook.gone_at = entry["t"]
    return list(hooks.values())


def gone_instances(entries: Iterable[Entry]) -> set[str]:
    """Ids of the instances that EC2 has terminated."""
    ends = ("killed", "terminated")
    return {e["instance_id"] for e in entries if e["kind"] == "instance" and e.get("event") in ends}


def hook_completed_at_most_once(evidence: Evidence) -> list[str]:
    """A held hook gets at most one completion that was taken."""
    return [
        f"hook {hook.name} of {hook.instance_id} was completed {len(hook.completions)} times: "
        + ", ".join(f"{c.get('result')} by {c.get('by')}" for c in hook.completions)
        for hook in hooks_of(evidence.entries)
        if len(hook.completions) > 1
    ]


def no_hook_outlives_its_deadline(evidence: Evidence) -> list[str]:
    """Each hook is completed or timed out by its deadline, and none is left waiting when the run ends."""
    broken = []
    for hook in hooks_of(evidence.entries):
        closed = hook.closed_at
        if closed is None and hook.group not in evidence.may_be_left_waiting:
            broken.append(f"hook {hook.name} of {hook.instance_id} (group {hook.group}) was left waiting at the end")
        if hook.deadline is not None:
            late = (evidence.ended_at if closed is None else closed) - hook.deadline
            if late > CLOSING_SLACK_S:
                broken.append(f"hook {hook.name} of {hook.instance_id} outlived its deadline by {late:.1f} s")
    return broken


def continue_only_when_the_node_works(evidence: Evidence) -> list[str]:
    """At the moment of a CONTINUE of ours the RP's own API says: Node Ready, taint gone, pod CIDR in range."""
    broken = []
    for look in evidence.of("look"):
        where = f"CONTINUE for {look['instance_id']} at {look['t']:.1f}"
        node = look.get("node")
        if not node:
            broken.append(f"{where}: partition {look.get('partition')} knows no such Node ({look.get('error') or 'absent'})")
            continue
        if not node["ready"]:
            broken.append(f"{where}: its Node is not Ready")
        if node["tainted"]:
            broken.append(f"{where}: its Node still carries the not-ready taint")
        if not node["pod_cidr_in_range"]:
            broken.append(f"{where}: pod CIDR {node['pod_cidr'] or 'absent'} is not in the range of {look['partition']}")
    return broken


def nothing_left_of_gone_instances(evidence: Evidence) -> list[str]:
    """Nodes, routes, records, targets, table and etcd name no instance that is gone."""
    return [f"{found.where}: {found.what} still names {found.instance_id}" for found in evidence.leftovers]


def _etcd_by_partition(evidence: Evidence) -> dict[str, list[Entry]]:
    seen: dict[str, list[Entry]] = defaultdict(list)
    for entry in evidence.of("etcd"):
        seen[entry["partition"]].append(entry)
    return seen


def one_cluster_id_per_partition(evidence: Evidence) -> list[str]:
    """A partition's etcd has one cluster id for ever."""
    broken = []
    for partition, entries in _etcd_by_partition(evidence).items():
        ids = list(dict.fromkeys(str(e["cluster_id"]) for e in entries))
        if len(ids) > 1:
            broken.append(f"partition {partition} was seen with {len(ids)} cluster ids: {', '.join(ids)}")
    return broken


def etcd_members_unchanged(evidence: Evidence) -> list[str]:
    """Workers never change the members of an etcd."""
    broken = []
    for partition, entries in _etcd_by_partition(evidence).items():
        first = sorted(map(str, entries[0]["members"]))
        for entry in entries[1:]:
            now = sorted(map(str, entry["members"]))
            if now != first:
                broken.append(f"partition {partition} had members {first}, then {now}")
                break
    return broken


def _by_autojoin(entry: Entry) -> bool:
    principal = str(entry.get("principal") or "")
    return not any(principal == operator or principal.endswith(":root") for operator in OPERATORS)


class _Timeline:
    """Who was where at a time: addresses and lifecycle states of instances, replayed from the journal."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self.addresses: dict[str, str] = {}
        self._states: dict[str, list[tuple[float, str]]] = defaultdict(list)
        self._gone: dict[str, float] = {}
        self._failed: dict[str, list[float]] = defaultdict(list)
        self.ids: set[str] = set()
        for entry in entries:
            instance_id = entry.get("instance_id")
            if entry["kind"] == "instance" and instance_id:
                self.ids.add(instance_id)
                if entry.get("address"):
                    self.addresses[instance_id] = entry["address"]
                if entry.get("event") in ("killed", "terminated"):
                    self._gone.setdefault(instance_id, entry["t"])
            elif entry["kind"] == "lifecycle" and instance_id:
                self._states[instance_id].append((entry["t"], str(entry["state"])))
            elif entry["kind"] == "execution" and entry.get("status") in ("FAILED", "TIMED_OUT", "ABORTED"):
                given = entry.get("input")
                if isinstance(given, dict) and given.get("instance_id"):
                    self._failed[given["instance_id"]].append(entry["t"])

    def owner(self, text: str) -> str | None:
        """The instance that a target id, set identifier, record value or Node name belongs to."""
        for instance_id in self.ids:
            if instance_id in text:
                return instance_id
        for instance_id, address in self.addresses.items():
            if text == address:
                return instance_id
        return None

    def serves(self, instance_id: str, at: float) -> bool:
        """Whether it was in nobody's way: alive, in service (or in no group), so nothing of it may be deleted."""
        if self._gone.get(instance_id, at + 1) <= at:
            return False
        states = [state for t, state in self._states[instance_id] if t <= at]
        return not states or states[-1] == "InService"


def _deleted_names(entry: Entry) -> list[str]:
    """What an API call takes away, as texts that can name an instance; empty when it deletes nothing of the kind."""
    service, operation = str(entry.get("service")).lower(), str(entry.get("operation"))
    detail: dict[str, Any] = entry.get("detail") or {}
    if service == "route53" and operation == "ChangeResourceRecordSets":
        names: list[Any] = []
        for change in detail.get("changes") or []:
            if change.get("action") == "DELETE":
                identifier = change.get("set")
                names.extend([identifier] if identifier else change.get("values") or [change.get("name") or "?"])
        return [str(name) for name in names]
    if "loadbalancing" in service and operation == "DeregisterTargets":
        return [str(target) for target in detail.get("targets") or []]
    return []


def deletes_only_what_is_ours(evidence: Evidence) -> list[str]:
    """No record, target or Node is deleted that belongs to an instance which serves, or to nobody we know."""
    timeline = _Timeline(evidence.entries)
    broken = []
    for entry in evidence.of("api_call"):
        if int(entry.get("status") or 200) >= 400 or not _by_autojoin(entry):
            continue
        for name in _deleted_names(entry):
            owner = timeline.owner(name)
            if owner is None:
                broken.append(f"{entry['operation']} by {entry.get('principal')} deleted {name}, which is no instance of ours")
            elif timeline.serves(owner, entry["t"]):
                broken.append(f"{entry['operation']} by {entry.get('principal')} deleted {name} of {owner}, which serves")
    before: dict[str, dict[str, str]] = {}
    for entry in evidence.of("nodes"):
        now = dict(entry["nodes"])
        for name in sorted(set(before.get(entry["partition"], {})) - set(now)):
            owner = timeline.owner(name)
            if owner is None or timeline.serves(owner, entry["t"]):
                broken.append(f"Node {name} of partition {entry['partition']} was deleted while its instance serves")
        before[entry["partition"]] = now
    return broken


_TOUCHING = {
    "CompleteLifecycleAction",
    "RecordLifecycleActionHeartbeat",
    "SendCommand",
    "ModifyInstanceAttribute",
    "TerminateInstances",
    "TerminateInstanceInAutoScalingGroup",
    "SetDesiredCapacity",
    "SetInstanceProtection",
    "SuspendProcesses",
    "RegisterTargets",
    "DeregisterTargets",
    "CreateTags",
}


def foreign_groups_untouched(evidence: Evidence) -> list[str]:
    """A group without our tag is never touched: no completion, heartbeat, command, attribute or target of its instances."""
    theirs = {e["instance_id"] for e in evidence.entries if e.get("group") in evidence.foreign_groups and e.get("instance_id")}
    broken = []
    for entry in evidence.of("api_call"):
        if entry.get("operation") not in _TOUCHING or not _by_autojoin(entry):
            continue
        text = str(entry.get("detail") or {})
        touched = [name for name in sorted(theirs | evidence.foreign_groups) if name in text]
        if touched:
            broken.append(f"{entry['operation']} by {entry.get('principal')} named {', '.join(touched)}")
    for entry in evidence.of("hook"):
        by = str(entry.get("by") or "timer")
        taken = entry["event"] in ("completed", "heartbeat") and entry.get("group") in evidence.foreign_groups
        if taken and by != "timer" and _by_autojoin({"principal": by}):
            broken.append(f"hook of foreign instance {entry['instance_id']} got {entry['event']} by {by}")
    return broken


def no_private_material_leaks(evidence: Evidence) -> list[str]:
    """No private key anywhere, and no task token in a log."""
    broken = []
    token = re.compile(evidence.task_token_pattern) if evidence.task_token_pattern else None
    for where, text in evidence.texts:
        if _PRIVATE_KEY.search(text):
            broken.append(f"{where} contains a private key")
        if where.startswith("log") and token and token.search(text):
            broken.append(f"{where} contains a task token")
    return list(dict.fromkeys(broken))


INVARIANTS: dict[str, Callable[[Evidence], list[str]]] = {
    rule.__name__: rule
    for rule in (
        hook_completed_at_most_once,
        no_hook_outlives_its_deadline,
        continue_only_when_the_node_works,
        nothing_left_of_gone_instances,
        one_cluster_id_per_partition,
        etcd_members_unchanged,
        deletes_only_what_is_ours,
        foreign_groups_untouched,
        no_private_material_leaks,
    )
}


def judge(evidence: Evidence) -> dict[str, list[str]]:
    """Every invariant's violations by name; an empty list means that it held."""
    return {name: rule(evidence) for name, rule in INVARIANTS.items()}
