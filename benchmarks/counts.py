"""Counts of one join from the lab's journal. Pure functions; the entries are those of one join that had the lab to itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from lab.observer.invariants import hooks_of
from lab.observer.journal import Entry
from lab.observer.report import join_times


class JoinNotMeasured(Exception):
    """The journal does not tell of exactly one join that ended well; the message says what it tells."""


def choices_of(definition: Path) -> frozenset[str]:
    """Names of the Choice states of a machine: a wait that goes round passes its own once a round."""
    states: Mapping[str, Any] = yaml.safe_load(definition.read_text(encoding="utf-8"))["States"]
    return frozenset(name for name, state in states.items() if state["Type"] == "Choice")


def of_join(entries: Sequence[Entry], stack: str, role: str, choices: frozenset[str]) -> dict[str, Any]:
    """Times and counts of the join in `entries` by the machine `<stack>-join`. Raises JoinNotMeasured.

    Times are in seconds; overhead_s is what lab.observer.report says: held - boot - agent - scripts.
    functions     invocations by function, those that events invoke (intake, answer) included
    calls         AWS calls of those functions, by service:operation, refused ones included
    turns         looks that said "not yet" and made a wait go round
    """
    hooks = hooks_of(entries)
    ended = [e for e in entries if e["kind"] == "execution" and e["machine"] == f"{stack}-join" and e["status"] != "RUNNING"]
    times = join_times(entries, hooks[0]) if len(hooks) == 1 and hooks[0].result == "CONTINUE" else None
    if times is None or [e["status"] for e in ended] != ["SUCCEEDED"]:
        hooks_told = ", ".join(f"{h.name} {h.result}" for h in hooks) or "none"
        ended_told = ", ".join(f"{e['status']} {e.get('error') or ''} {e.get('cause') or ''}".strip() for e in ended) or "none"
        raise JoinNotMeasured(f"hooks: {hooks_told}; ended executions of {stack}-join: {ended_told}")
    functions, calls = functions_of(entries, stack), calls_of(entries, stack)
    return {
        "workflow": stack,
        "role": role,
        "cold": times.cold,
        **{name: round(getattr(times, name), 3) for name in ("held_s", "boot_s", "agent_s", "scripts_s", "overhead_s")},
        "transitions": int(ended[0]["transitions"]),
        "invocations": sum(functions.values()),
        "aws_calls": sum(calls.values()),
        "turns": turns_of(entries, ended[0]["arn"], choices),
        "functions": functions,
        "calls": calls,
    }


def functions_of(entries: Iterable[Entry], stack: str) -> dict[str, int]:
    """Invocations of the stack's functions, by their name without the stack's."""
    own = f"{stack}-"
    found = Counter(str(e["name"]).removeprefix(own) for e in entries if e["kind"] == "function" and str(e["name"]).startswith(own))
    return dict(sorted(found.items()))


def calls_of(entries: Iterable[Entry], stack: str) -> dict[str, int]:
    """AWS calls by service:operation whose principal is a function of the stack: a session of a role is named after it."""
    own = f"/{stack}-"
    found: Counter[str] = Counter()
    for entry in entries:
        if entry["kind"] == "api_call" and entry.get("source") == "http":
            role_and_session = str(entry.get("principal")).partition(":assumed-role/")[2]
            if f"/{role_and_session.rpartition('/')[2]}".startswith(own):
                found[f"{entry['service']}:{entry['operation']}"] += 1
    return dict(sorted(found.items()))


def turns_of(entries: Iterable[Entry], execution: str, choices: frozenset[str]) -> int:
    """How often the execution came to a choice again that it had passed before."""
    passed = Counter(
        str(e["state"])
        for e in entries
        if e["kind"] == "state" and e["event"] == "entered" and e["arn"] == execution and e["state"] in choices
    )
    return sum(times - 1 for times in passed.values())
