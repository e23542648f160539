"""What a person sees of a running lab: each instance's step, live; then a timeline of each instance.

In a terminal a rich table that changes in place, elsewhere one plain line per change. Both only read the journal.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from lab.observer.invariants import hooks_of, instance_of
from lab.observer.journal import Entry, Journal
from lab.observer.report import join_times

BAR_CHARS = 40
CAUSE_CHARS = 300
REFRESH_PER_S = 4


@dataclass
class Row:
    """One instance as it is now."""

    instance_id: str
    group: str
    since: float
    lifecycle: str = ""
    step: str = ""
    step_since: float = 0.0
    outcome: str = ""


@dataclass
class Progress:
    """Follows the journal; `take` returns the line that a person would be told, or None."""

    started_at: float
    rows: dict[str, Row] = field(default_factory=dict)
    _owners: dict[str, str] = field(default_factory=dict)  # execution ARN -> instance

    def take(self, entry: Entry) -> str | None:
        """Take in one entry."""
        said = self._said(entry)
        if said is None:
            return None
        instance_id, what = said
        row = self.rows.get(instance_id)
        group = row.group if row else ""
        return f"{entry['t'] - self.started_at:7.1f}s  {instance_id:<19} {group:<17} {what}"

    def _row(self, entry: Entry, instance_id: str) -> Row:
        row = self.rows.setdefault(instance_id, Row(instance_id, "", entry["t"]))
        row.group = entry.get("group") or row.group
        return row

    def _said(self, entry: Entry) -> tuple[str, str] | None:
        kind = entry["kind"]
        if kind == "instance":
            row = self._row(entry, entry["instance_id"])
            if entry["event"] in ("killed", "terminated"):
                row.lifecycle = entry["event"]
            return entry["instance_id"], str(entry["event"]).replace("_", " ")
        if kind == "lifecycle":
            row = self._row(entry, entry["instance_id"])
            row.lifecycle = str(entry["state"])
            return entry["instance_id"], str(entry["state"])
        if kind == "hook" and entry["event"] in ("completed", "timed_out"):
            row = self._row(entry, entry["instance_id"])
            row.outcome = str(entry.get("result") or entry["event"])
            return entry["instance_id"], f"hook {entry['event'].replace('_', ' ')}: {entry.get('result') or ''}".rstrip(": ")
        if kind == "execution":
            return self._execution(entry)
        if kind == "state" and entry["event"] in ("entered", "failed"):
            return self._state(entry)
        if kind == "fault":
            return (entry.get("instance_id") or "-"), f"fault {entry['name']} {entry['event']}"
        return None

    def _execution(self, entry: Entry) -> tuple[str, str] | None:
        instance_id = instance_of(entry)
        if instance_id is None:
            return None
        self._owners[entry["arn"]] = instance_id
        row = self._row(entry, instance_id)
        if entry["status"] == "RUNNING":
            return instance_id, f"{entry['machine']} started"
        row.step = ""
        tail = f": {entry['error']}: {str(entry.get('cause'))[:CAUSE_CHARS]}" if entry.get("error") else ""
        return instance_id, f"{entry['machine']} {entry['status']}{tail}"

    def _state(self, entry: Entry) -> tuple[str, str] | None:
        instance_id = self._owners.get(entry["arn"])
        if instance_id is None:
            return None
        row = self._row(entry, instance_id)
        if entry["event"] == "failed":
            return instance_id, f"{entry['state']} failed: {entry.get('error')}"
        row.step, row.step_since = str(entry["state"]), entry["t"]
        return instance_id, str(entry["state"])


@contextlib.contextmanager
def follow(journal: Journal, console: Console | None = None) -> Iterator[Progress]:
    """Show the lab's progress while the block runs."""
    console = console or Console(highlight=False)
    progress = Progress(time.time())
    lock = threading.Lock()
    if not console.is_terminal:

        def tell(entry: Entry) -> None:
            with lock:
                line = progress.take(entry)
                if line:
                    print(line, file=console.file, flush=True)

        journal.subscribe(tell)
        try:
            yield progress
        finally:
            journal.unsubscribe(tell)
        return

    def take(entry: Entry) -> None:
        with lock:
            progress.take(entry)

    class Rows:
        def __rich__(self) -> Table:
            with lock:
                return _table(list(progress.rows.values()))

    journal.subscribe(take)
    try:
        with Live(Rows(), console=console, refresh_per_second=REFRESH_PER_S, transient=False):
            yield progress
    finally:
        journal.unsubscribe(take)


def _table(rows: Iterable[Row]) -> Table:
    now = time.time()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("instance", "group", "lifecycle", "step", "in step", "age", "hook"):
        table.add_column(name, justify="right" if name in ("in step", "age") else "left", no_wrap=True)
    for row in rows:
        in_step = f"{now - row.step_since:.1f} s" if row.step else ""
        colour = {"CONTINUE": "green", "ABANDON": "red"}.get(row.outcome, "")
        outcome = f"[{colour}]{row.outcome}[/]" if colour else row.outcome
        table.add_row(row.instance_id, row.group, row.lifecycle, row.step, in_step, f"{now - row.since:.0f} s", outcome)
    return table


# -- timelines -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Segment:
    """One stretch of an instance's time."""

    what: str
    start: float
    end: float


def segments(entries: Sequence[Entry], instance_id: str) -> list[Segment]:
    """Boot, agent and the states of the machines that worked on one instance, in order; turns of one state are one stretch."""
    at = {e["event"]: e["t"] for e in entries if e["kind"] == "instance" and e["instance_id"] == instance_id}
    found: list[Segment] = []
    if "launched" in at and "booted" in at:
        found.append(Segment("boot", at["launched"], at["booted"]))
    if "booted" in at and "agent_online" in at:
        found.append(Segment("agent", at["booted"], at["agent_online"]))
    owners = {e["arn"]: e["machine"] for e in entries if e["kind"] == "execution" and instance_of(e) == instance_id}
    for arn, machine in owners.items():
        short = "leave." if machine.endswith("leave") else ""
        entered: list[tuple[str, float]] = [
            (str(e["state"]), e["t"]) for e in entries if e["kind"] == "state" and e["arn"] == arn and e["event"] == "entered"
        ]
        ends = [e["t"] for e in entries if e["kind"] == "execution" and e["arn"] == arn and e["status"] != "RUNNING"]
        last = ends[-1] if ends else (entries[-1]["t"] if entries else 0.0)
        for (state, start), end in zip(entered, [*(t for _, t in entered[1:]), last], strict=True):
            name = short + state
            if found and found[-1].what == name.removesuffix("Deadline"):
                found[-1] = Segment(found[-1].what, found[-1].start, end)
            elif found and found[-1].what == name:
                found[-1] = Segment(name, found[-1].start, end)
            else:
                found.append(Segment(name, start, end))
    return sorted((s for s in found if s.end - s.start >= 0.02), key=lambda s: s.start)


def timelines(entries: Sequence[Entry], instance_ids: Iterable[str], console: Console) -> None:
    """Print where each instance's time went."""
    hooks = {hook.instance_id: hook for hook in hooks_of(entries)}
    for instance_id in instance_ids:
        stretches = segments(entries, instance_id)
        if not stretches:
            continue
        begin, end = min(s.start for s in stretches), max(s.end for s in stretches)
        times = join_times(entries, hooks[instance_id]) if instance_id in hooks else None
        console.print()
        if times:
            kind = " (first, cold functions)" if times.cold else ""
            console.print(
                f"{instance_id}: held {times.held_s:.1f} s = boot {times.boot_s:.1f} + agent {times.agent_s:.1f} "
                f"+ scripts {times.scripts_s:.1f} + workflow {times.overhead_s:.1f}{kind}",
                markup=False,
            )
        else:
            console.print(f"{instance_id}: {end - begin:.1f} s", markup=False)
        for stretch in stretches:
            console.print(_bar(stretch, begin, end), markup=False)


def _bar(stretch: Segment, begin: float, end: float) -> str:
    scale = BAR_CHARS / max(end - begin, 0.001)
    left = int((stretch.start - begin) * scale)
    width = max(1, round((stretch.end - stretch.start) * scale))
    bar = (" " * left + "=" * width)[: BAR_CHARS + 1]
    return f"  {stretch.start - begin:6.1f} s  {stretch.what:<22} {bar:<{BAR_CHARS + 1}} {stretch.end - stretch.start:.1f} s"


def summary(report: dict[str, Any], console: Console) -> None:
    """Print the outcome of the invariants and the hooks in a few lines."""
    for name, verdict in report["invariants"].items():
        console.print(f"  {'held  ' if verdict['holds'] else 'BROKEN'}  {name}", markup=False)
        for violation in verdict["violations"]:
            console.print(f"          {violation}", markup=False)
    console.print("  hooks: " + ", ".join(f"{n} {what.replace('_', ' ')}" for what, n in report["hooks"].items()), markup=False)
    overhead = report["overhead"]
    if overhead["warm_s"] or overhead["cold_s"]:
        console.print(
            f"  workflow overhead: warm median {overhead['warm_median_s']} s of {overhead['warm_s']}, cold {overhead['cold_s']}",
            markup=False,
        )
