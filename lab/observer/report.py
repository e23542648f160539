"""The report of a run: what the observer saw, put together from the journal and one last look at the world. Pure functions."""

from __future__ import annotations

import itertools
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lab.observer.invariants import OPERATORS, Hook, hooks_of
from lab.observer.journal import Entry
from lab.observer.leftovers import World


@dataclass(frozen=True)
class Member:
    """An instance of the lab as the fleet knows it at the end."""

    instance_id: str
    group: str | None
    role: str | None
    partition: str | None
    lifecycle_state: str | None
    gone: bool


@dataclass(frozen=True)
class JoinTimes:
    """Where the time went while a launch hook was held, in seconds."""

    held_s: float
    boot_s: float
    agent_s: float
    scripts_s: float
    cold: bool

    @property
    def overhead_s(self) -> float:
        """What the workflow itself cost: held - boot - agent - scripts."""
        return self.held_s - self.boot_s - self.agent_s - self.scripts_s


def join_times(entries: Sequence[Entry], hook: Hook) -> JoinTimes | None:
    """Times of one held launch, or None while nobody has completed it.

    boot and agent lie inside the held time, since the hook opens at launch. A join is cold when a function started cold in it.
    """
    if not hook.completions:
        return None
    opened, completed = hook.opened_at, hook.completions[0]["t"]
    at = {e["event"]: e["t"] for e in entries if e["kind"] == "instance" and e["instance_id"] == hook.instance_id and e["t"] <= completed}
    launched = at.get("launched", opened)
    booted = at.get("booted", launched)
    online = at.get("agent_online", booted)
    ends: dict[str, tuple[float, float]] = {}
    for entry in entries:
        if entry["kind"] == "command" and entry["instance_id"] == hook.instance_id:
            started, ended = entry.get("started"), entry.get("ended")
            if started and ended and opened <= float(started) and float(ended) <= completed + 0.001:
                ends[str(entry["command_id"])] = (float(started), float(ended))
    cold = any(e["kind"] == "function" and e.get("cold") and opened <= e["t"] <= completed for e in entries)
    return JoinTimes(
        held_s=completed - opened,
        boot_s=booted - launched,
        agent_s=online - booted,
        scripts_s=sum(ended - started for started, ended in ends.values()),
        cold=cold,
    )


def overheads(entries: Sequence[Entry]) -> dict[str, list[float]]:
    """Workflow overhead in seconds of the joins that ended in CONTINUE, cold ones apart, in the order of their launch."""
    found: dict[str, list[float]] = {"cold": [], "warm": []}
    for hook in hooks_of(entries):
        times = join_times(entries, hook) if hook.result == "CONTINUE" else None
        if times:
            found["cold" if times.cold else "warm"].append(round(times.overhead_s, 2))
    return found


def hook_counts(entries: Iterable[Entry]) -> dict[str, int]:
    """How the hooks of a run ended: completed (CONTINUE), abandoned (ABANDON), timed_out, left_waiting."""
    counts = {"completed": 0, "abandoned": 0, "timed_out": 0, "left_waiting": 0}
    for hook in hooks_of(entries):
        if hook.result == "CONTINUE":
            counts["completed"] += 1
        elif hook.result:
            counts["abandoned"] += 1
        elif hook.timed_out_at is not None:
            counts["timed_out"] += 1
        elif hook.closed_at is None:
            counts["left_waiting"] += 1
    return counts


def node_rows(entries: Sequence[Entry], members: Iterable[Member], world: World) -> list[dict[str, Any]]:
    """One row per instance of the cluster."""
    ready = {node.name for node in world.nodes if node.ready and not node.tainted}
    by_instance = {hook.instance_id: hook for hook in hooks_of(entries)}
    rows = []
    for member in members:
        hook = by_instance.get(member.instance_id)
        times = join_times(entries, hook) if hook else None
        rows.append(
            {
                "instance_id": member.instance_id,
                "group": member.group,
                "role": member.role,
                "partition": member.partition,
                "lifecycle_state": "Terminated" if member.gone else member.lifecycle_state,
                "ready": member.instance_id in ready,
                "held_s": round(times.held_s, 2) if times else None,
                "boot_s": round(times.boot_s, 2) if times else None,
                "agent_s": round(times.agent_s, 2) if times else None,
                "scripts_s": round(times.scripts_s, 2) if times else None,
                "overhead_s": round(times.overhead_s, 2) if times else None,
                "cold": times.cold if times else None,
            }
        )
    return rows


def api_calls(entries: Iterable[Entry]) -> dict[str, dict[str, int]]:
    """Calls by service and operation of everybody who has a role: functions, machines and nodes; the operator's are left out."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for entry in entries:
        if entry["kind"] == "api_call" and str(entry.get("principal")) not in OPERATORS:
            counts[str(entry["service"])][str(entry["operation"])] += 1
    return {service: dict(sorted(counts[service].items())) for service in sorted(counts)}


def state_transitions(entries: Iterable[Entry]) -> dict[str, int]:
    """Transitions by execution, as `machine/name`; of one that still runs, the states entered so far."""
    names: dict[str, str] = {}
    counts: Counter[str] = Counter()
    ended: dict[str, int] = {}
    for entry in entries:
        if entry["kind"] == "execution":
            names[entry["arn"]] = f"{entry['machine']}/{entry['name']}"
            if entry["status"] != "RUNNING":
                ended[entry["arn"]] = int(entry.get("transitions") or 0)
        elif entry["kind"] == "state" and entry["event"] == "entered":
            counts[entry["arn"]] += 1
    return {name: ended.get(arn, counts[arn]) for arn, name in names.items()}


def etcd_summary(entries: Iterable[Entry]) -> dict[str, dict[str, Any]]:
    """What each partition's etcd was seen with: cluster ids, the first and the last member list, number of changes."""
    seen: dict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        if entry["kind"] == "etcd":
            seen[entry["partition"]].append(entry)
    return {
        partition: {
            "cluster_ids": list(dict.fromkeys(str(e["cluster_id"]) for e in views)),
            "members_first": list(views[0]["members"]),
            "members_last": list(views[-1]["members"]),
            "changes": sum(sorted(a["members"]) != sorted(b["members"]) for a, b in itertools.pairwise(views)),
        }
        for partition, views in sorted(seen.items())
    }


def assemble(
    *, entries: Sequence[Entry], members: Iterable[Member], world: World, invariants: Mapping[str, Sequence[str]],
    leftovers: Iterable[Any],
) -> dict[str, Any]:  # fmt: skip
    """The report, ready for JSON."""
    found = overheads(entries)
    return {
        "invariants": {name: {"holds": not violations, "violations": list(violations)} for name, violations in invariants.items()},
        "nodes": node_rows(entries, members, world),
        "overhead": {
            "cold_s": found["cold"],
            "warm_s": found["warm"],
            "warm_median_s": round(statistics.median(found["warm"]), 2) if found["warm"] else None,
        },
        "hooks": hook_counts(entries),
        "etcd": etcd_summary(entries),
        "dns": [{"name": r["name"], "type": r["type"], "set": r["set"], "values": r["values"]} for r in world.records],
        "targets": list(world.targets),
        "leftovers": [{"where": f.where, "what": f.what, "instance_id": f.instance_id} for f in leftovers],
        "api_calls": api_calls(entries),
        "state_transitions": state_transitions(entries),
    }
