"""What must hold in every run: pure functions from evidence to the sentences that say how it was broken.

The evidence is the lab's journal and the observer's own looks at the world, never Autojoin's word. A function returns one
sentence per violation and an empty list when the invariant holds; its name is the key in the report.
"""

from __future__ import annotations

import json
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


def instance_of(execution: Entry) -> str | None:
    """The instance that an execution is about, from its input."""
    given = execution.get("input")
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError:
            return None
    return str(given["instance_id"]) if isinstance(given, dict) and given.get("instance_id") else None


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
    """At the moment of a CONTINUE of ours the node works, or it is a founder that must be kept.

    A TP's API server is healthy. The RP's own API says of a node: Ready, taint gone, pod CIDR in range; of an RP's master the taint
    may stay while a tenant partition does not answer. Kept: a clean-up runs for it and its etcd is formed.
    """
    broken = []
    for look in evidence.of("look"):
        if _is_kept(look, evidence):
            continue
        where = f"CONTINUE for {look['instance_id']} at {look['t']:.1f}"
        if look.get("role") == "tp":
            if not look["healthy"]:
                broken.append(f"{where}: its API server is not healthy")
            continue
        node = look.get("node")
        if not node:
            broken.append(f"{where}: partition {look.get('partition')} knows no such Node ({look.get('error') or 'absent'})")
            continue
        may_be_tainted = look.get("role") == "rp" and not look.get("tenants")
        if not node["ready"] and not may_be_tainted:
            broken.append(f"{where}: its Node is not Ready")
        if node["tainted"] and not may_be_tainted:
            broken.append(f"{where}: its Node still carries the not-ready taint")
        if not node["pod_cidr_in_range"]:
            broken.append(f"{where}: pod CIDR {node['pod_cidr'] or 'absent'} is not in the range of {look['partition']}")
    return broken


def _is_kept(look: Entry, evidence: Evidence) -> bool:
    """Whether a CONTINUE keeps an instance whose join failed: a clean-up runs for it, and its etcd was seen formed."""
    cleaning: dict[str, str] = {}
    formed = False
    for entry in evidence.entries:
        if entry["t"] > look["t"]:
            break
        if entry["kind"] == "execution" and str(entry["machine"]).endswith("-leave") and instance_of(entry) == look["instance_id"]:
            cleaning[entry["arn"]] = entry["status"]
        if entry["kind"] == "etcd" and entry.get("instance_id") == look["instance_id"]:
            formed = bool(entry.get("formed"))
    return formed and "RUNNING" in cleaning.values()


def nothing_left_of_gone_instances(evidence: Evidence) -> list[str]:
    """Nodes, routes, records, targets, table and etcd name no instance that is gone."""
    return [f"{found.where}: {found.what} still names {found.instance_id}" for found in evidence.leftovers]


def _etcd_by_partition(evidence: Evidence) -> dict[str, list[Entry]]:
    seen: dict[str, list[Entry]] = defaultdict(list)
    for entry in evidence.of("etcd"):
        seen[entry["partition"]].append(entry)
    return seen


def _ends(evidence: Evidence) -> dict[str, float]:
    """When each instance that is gone was gone."""
    ends: dict[str, float] = {}
    for entry in evidence.of("instance"):
        if entry.get("event") in ("killed", "terminated"):
            ends.setdefault(entry["instance_id"], entry["t"])
    return ends


def one_cluster_id_per_partition(evidence: Evidence) -> list[str]:
    """A partition has one etcd: never two ids at a time, never another one once it was formed, never the same one empty again.

    A founder that ended before its etcd was formed leaves the founding to another one, whose id differs.
    """
    broken = []
    ends = _ends(evidence)
    for partition, entries in _etcd_by_partition(evidence).items():
        ids = list(dict.fromkeys(str(e["cluster_id"]) for e in entries))
        seen: dict[str, str] = {}  # instance -> cluster id
        formed: dict[str, None] = {}
        why = ""
        for entry in entries:
            who, now = str(entry.get("instance_id") or ""), str(entry["cluster_id"])
            others = {c for i, c in seen.items() if c != now and (i == who or ends.get(i, entry["t"] + 1) > entry["t"])}
            if others and not why:
                why = "while the other one lived"
            seen[who] = now
            if entry.get("formed"):
                formed[now] = None
            if (formed and now not in formed) or len(formed) > 1:
                why = why or f"although {next(iter(formed))} was formed"
            if entry.get("emptied"):
                broken.append(f"partition {partition}: etcd with id {now} on {who} lost what it held and started empty")
        if why:
            broken.append(f"partition {partition} was seen with {len(ids)} cluster ids: {', '.join(ids)}, {why}")
    return broken


def etcd_members_unchanged(evidence: Evidence) -> list[str]:
    """Nothing changes the members of an etcd in this version; a partition has those with which it first appeared."""
    broken = []
    for partition, entries in _etcd_by_partition(evidence).items():
        first: dict[str, list[str]] = {}
        for entry in entries:
            now = sorted(map(str, entry["members"]))
            if now != first.setdefault(str(entry["cluster_id"]), now):
                broken.append(f"partition {partition} had members {first[str(entry['cluster_id'])]}, then {now}")
                break
    return broken


def last_copy_is_not_destroyed(evidence: Evidence) -> list[str]:
    """No ABANDON and no command of ours ends the only living member of an etcd that was formed."""
    broken = []
    for entry in evidence.of("hook"):
        by = {"principal": entry.get("by")}
        ours = entry["event"] == "completed" and entry.get("result") == "ABANDON" and entry.get("by") != "timer" and _by_autojoin(by)
        if ours and _holds_last_copy(entry["instance_id"], entry["t"], evidence):
            broken.append(f"ABANDON by {entry.get('by')} for {entry['instance_id']}, which holds the only copy of its partition's data")
    for entry in evidence.of("process"):
        if entry["event"] != "exited" or not str(entry["argv0"]).endswith("/etcd") or not entry.get("instance_id"):
            continue
        document = _stopped_by(entry, evidence)
        if document and _holds_last_copy(entry["instance_id"], entry["t"], evidence):
            broken.append(f"{document} stopped etcd on {entry['instance_id']}, which holds the only copy of its partition's data")
    return broken


def _holds_last_copy(instance_id: str, at: float, evidence: Evidence) -> bool:
    """Whether, at a time, the instance's etcd was formed and no other living instance had the same one."""
    ends = _ends(evidence)
    newest = {e["instance_id"]: e for e in evidence.of("etcd") if e["t"] <= at and e.get("instance_id")}
    mine = newest.get(instance_id)
    if mine is None or not any(e.get("formed") for e in evidence.of("etcd") if e["cluster_id"] == mine["cluster_id"] and e["t"] <= at):
        return False
    others = (e for i, e in newest.items() if i != instance_id and ends.get(i, at + 1) > at)
    return not any(e["partition"] == mine["partition"] and e["cluster_id"] == mine["cluster_id"] for e in others)


def _stopped_by(exit_: Entry, evidence: Evidence) -> str:
    """The document whose command ran while a process of a living instance ended and did not start it again; empty if none did."""
    instance_id, at = exit_["instance_id"], exit_["t"]
    if _ends(evidence).get(instance_id, at + 2) <= at + 1:
        return ""
    for command in evidence.of("command"):
        started, ended = command.get("started"), command.get("ended")
        if command["instance_id"] != instance_id or not started or not ended or not float(started) <= at <= float(ended):
            continue
        again = any(
            e["event"] == "started" and e.get("instance_id") == instance_id and e["argv0"] == exit_["argv0"] and at <= e["t"]
            for e in evidence.of("process")
            if e["t"] <= float(ended)
        )
        if not again:
            return str(command.get("document"))
    return ""


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
    if service == "elbv2" and operation == "DeregisterTargets":
        return [str(target).rpartition(":")[0] for target in detail.get("targets") or []]  # <id>:<port>
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
        last_copy_is_not_destroyed,
        deletes_only_what_is_ours,
        foreign_groups_untouched,
        no_private_material_leaks,
    )
}


def judge(evidence: Evidence) -> dict[str, list[str]]:
    """Every invariant's violations by name; an empty list means that it held."""
    return {name: rule(evidence) for name, rule in INVARIANTS.items()}
