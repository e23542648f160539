#!/usr/bin/env python3
"""Write the pictures and tables of statemachine/README.md from the definitions beside it, so that they cannot go stale.

.venv/bin/python tools/render_machines.py           write them
.venv/bin/python tools/render_machines.py --check   exit code 1 if they are stale
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

ROOT = Path(__file__).resolve().parents[1]
for folder in (ROOT, ROOT / "layers/autojoin"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from tools.generated_parts import table, write_or_check  # noqa: E402

FOLDER = ROOT / "statemachine"
DOCUMENT = FOLDER / "README.md"
State = dict[str, Any]

SHAPES = {
    "Task": '{0}["{0}"]',
    "Choice": '{0}{{"{0}"}}',
    "Wait": '{0}[/"{0}"/]',
    "Pass": '{0}["{0}"]',
    "Succeed": '{0}(["{0}"])',
    "Fail": '{0}(["{0}"]):::failed',
}
CALLBACK = ".waitForTaskToken"


def picture(machine: dict[str, Any]) -> str:
    """A mermaid flowchart: solid lines are the normal way, dotted ones a Catch."""
    lines = ["```mermaid", "flowchart TD", f"  start(( )) --> {machine['StartAt']}"]
    for name, state in machine["States"].items():
        lines.append("  " + SHAPES[state["Type"]].format(name))
    for name, state in machine["States"].items():
        for arrow, label, target in _edges(state):
            lines.append(f"  {name} {arrow}" + (f'|"{label}"| ' if label else " ") + target)
    lines += [
        "  classDef failed stroke-width: 3px",
        "```",
    ]
    return "\n".join(lines)


def _edges(state: State) -> Iterator[tuple[str, str, str]]:
    for rule in state.get("Choices", []):
        yield "-->", _label(str(rule["Condition"])), rule["Next"]
    if "Default" in state:
        yield "-->", "otherwise", state["Default"]
    if "Next" in state:
        yield "-->", "", state["Next"]
    for catch in state.get("Catch", []):
        if catch["Next"] != state.get("Next"):
            yield "-.->", "" if catch["ErrorEquals"] == ["States.ALL"] else "no answer in this turn", catch["Next"]


def _label(condition: str) -> str:
    """A Choice rule's condition in a word: what it compares with, or what it asks."""
    inside = condition.removeprefix("{%").removesuffix("%}").strip()
    if "$millis()" in inside:
        return "time is up"
    compared = re.fullmatch(r"\$[\w.]*?(\w+) = (?:'(\w+)'|true)", inside)
    return (compared[2] or compared[1]) if compared else inside.replace("$", "").replace('"', "'")


def states(machine: dict[str, Any]) -> str:
    """State → what it does, function, operation, time-out, where its errors go."""
    rows: list[tuple[object, ...]] = []
    for name, state in machine["States"].items():
        payload = state.get("Arguments", {}).get("Payload", {})
        function = re.fullmatch(r"\$\{(\w+)FunctionArn\}", str(state.get("Arguments", {}).get("FunctionName", "")))
        kind = state["Type"] + (" (callback)" if str(state.get("Resource", "")).endswith(CALLBACK) else "")
        rows.append(
            (
                f"`{name}`",
                kind,
                state.get("Comment", "–").replace("<", "&lt;"),
                function[1].lower() if function else "–",
                payload.get("operation", "–"),
                f"{state['TimeoutSeconds']} s" if "TimeoutSeconds" in state else "–",
                _caught(state.get("Catch", [])),
            )
        )
    return table(("state", "type", "what it does", "function", "operation", "time-out", "errors caught"), rows)


def _caught(catches: list[State]) -> str:
    rest = "every error" if len(catches) == 1 else "every other"
    return "; ".join(f"{_names(catch['ErrorEquals'], rest)} → `{catch['Next']}`" for catch in catches) or "–"


def _names(names: list[str], rest: str) -> str:
    return rest if names == ["States.ALL"] else ", ".join(f"`{n}`" for n in names)


class Retrier(NamedTuple):
    """One entry of Retry."""

    errors: tuple[str, ...]
    attempts: int
    interval_s: float
    rate: float
    most_s: float


def retries(machines: dict[str, dict[str, Any]]) -> str:
    """The retriers of all tasks of all machines: each once, with the tasks that have it."""
    from autojoin.domain.budgets import worst_case_s

    tasks = [(f"{m}: {n}", s) for m, machine in machines.items() for n, s in machine["States"].items() if s["Type"] == "Task"]
    having: dict[Retrier, list[str]] = {}
    for task, state in tasks:
        for r in state.get("Retry", []):
            key = Retrier(tuple(r["ErrorEquals"]), r["MaxAttempts"], r["IntervalSeconds"], r["BackoffRate"], r["MaxDelaySeconds"])
            having.setdefault(key, []).append(task)
    rows: list[tuple[object, ...]] = [
        (
            ", ".join(f"`{n}`" for n in retrier.errors),
            retrier.attempts,
            f"{retrier.interval_s} s × {retrier.rate}, at most {retrier.most_s} s",
            f"{worst_case_s(retrier.attempts, retrier.interval_s, retrier.rate, retrier.most_s):g} s",
            "every task" if len(in_tasks) == len(tasks) else ", ".join(in_tasks),
        )
        for retrier, in_tasks in having.items()
    ]
    return table(("errors", "retries", "pause (full jitter)", "pauses together, at most", "where"), rows)


def parts() -> dict[str, str]:
    """All generated parts of statemachine/README.md."""
    machines = {path.name.partition(".")[0]: yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.asl.yaml"))}
    made = {"retries": retries(machines)}
    for name, machine in machines.items():
        made[f"{name} picture"] = picture(machine)
        made[f"{name} states"] = states(machine)
    return made


def main() -> int:
    """Exit code 1 if --check finds stale parts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true")
    return write_or_check(DOCUMENT, parts(), parser.parse_args().check, "tools/render_machines.py")


if __name__ == "__main__":
    sys.exit(main())
