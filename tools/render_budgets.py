#!/usr/bin/env python3
"""Write the tables of docs/budgets.md from autojoin.domain.budgets, so that no number there can go stale.

    .venv/bin/python tools/render_budgets.py           write them
    .venv/bin/python tools/render_budgets.py --check   exit code 1 if they are stale

A constant of the module without a meaning below, or a meaning without a constant, is an error.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[1]
for folder in (ROOT, ROOT / "layers/autojoin"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from tools.generated_parts import table, write_or_check  # noqa: E402

DOCUMENT = ROOT / "docs/budgets.md"
WIDEST_HEARTBEAT_S = 7200

MEANINGS: dict[str, str] = {
    "FUNCTION_TIMEOUT_S": "Time-out of each function (`Timeout` in `template.yaml`).",
    "LONGEST_FUNCTION_S": "The longest of them: an aborted execution is quiet after this, and only then is it cleaned up.",
    "LOOK_FOR_S": "A waiting function looks again for at most this long, then answers “not yet”.",
    "LOOK_EVERY_S": "Pause between two looks of a waiting function.",
    "TASK_TIMEOUT_S": "`TimeoutSeconds` of a task that calls a function and returns.",
    "WAIT_TASK_TIMEOUT_S": "`TimeoutSeconds` of a task that waits inside its function.",
    "CALLBACK_TIMEOUT_S": "`TimeoutSeconds` of one turn of a command: after it the task looks for itself.",
    "SETTLE_S": "Pause of a clean-up between two looks at an execution that was aborted a moment ago.",
    "DELIVERY_TIMEOUT_S": "For a command to reach the agent (`TimeoutSeconds` of SendCommand).",
    "COMMAND_EXECUTION_S": "For a script to run (`executionTimeout` of the document).",
    "SLACK_S": "Between a command's own end and the deadline by which nobody asks for it any more.",
    "AGENT_S": "For the SSM agent to come online, from the start of the join.",
    "MEMBER_S": "For another instance's claim of a partition's founding to end, until EC2 says that it is terminated.",
    "SYNCED_S": "For etcd to be seen from outside its node, once its own script saw it healthy.",
    "TARGET_S": "For the targets of a master to become healthy; once for its API server, once for its front door.",
    "SHORTEST_HEARTBEAT_S": "Least `HeartbeatTimeout` of a launch hook; a shorter one is refused with HookTooShort.",
    "MAX_HOOK_S": "Most that any hook can hold an instance, a limit of AWS.",
    "MAX_HEARTBEATS": "Most heartbeat time-outs that a hook can hold an instance, a limit of AWS (a count).",
    "JOIN_MACHINE_S": "`TimeoutSeconds` of the join machine.",
    "LEAVE_MACHINE_S": "`TimeoutSeconds` of the leave machine.",
    "ORPHANED_S": "After an execution's end, until a new join may take its lease: the finalizer has come by then, or never comes.",
    "RESERVE_S": "Kept free at the end of a hook, for what runs over a deadline and for the clean-up.",
    "RULE_EVENT_AGE_S": "EventBridge tries to deliver an event for this long, then it goes to the queue of undelivered events.",
    "FUNCTION_EVENT_AGE_S": "Lambda tries to run a function on an event for this long, then it goes to the queue of failed events.",
    "COMMAND_ITEM_TTL_S": "The table's item of a command lives this long.",
}


def limits(budgets: ModuleType) -> str:
    """One row per constant; a constant by function or document has one row each. Raises KeyError for one without a meaning."""
    names = [n for n in vars(budgets) if n.isupper()]
    gone = MEANINGS.keys() - set(names)
    if gone:
        raise KeyError(f"MEANINGS of tools/render_budgets.py explains what is not in budgets: {', '.join(sorted(gone))}")
    rows: list[tuple[object, ...]] = []
    for name in names:
        value = getattr(budgets, name)
        if isinstance(value, dict):
            rows += [(f"`{name}` {key}", _seconds(seconds), MEANINGS[name]) for key, seconds in value.items()]
        else:
            rows.append((f"`{name}`", _seconds(value) if name.endswith("_S") else value, MEANINGS[name]))
    return table(("limit", "value", "what it bounds"), rows)


def commands(budgets: ModuleType) -> str:
    """From sending each document to its last state, at most."""
    rows: list[tuple[object, ...]] = [
        (
            f"`{document}`",
            _seconds(budgets.DELIVERY_TIMEOUT_S),
            _seconds(execution_s),
            _seconds(budgets.SLACK_S),
            _seconds(budgets.command_budget_s(document)),
        )
        for document, execution_s in budgets.COMMAND_EXECUTION_S.items()
    ]
    return table(("document", "delivery", "execution", "slack", "sum"), rows)


def deadlines(budgets: ModuleType, role: str) -> str:
    """The deadlines of a join of this role that starts at 0, without a hook and with hooks that opened at 0."""
    columns: dict[str, int | None] = {"no hook held": None}
    for heartbeat_s in (budgets.SHORTEST_HEARTBEAT_S, 300, WIDEST_HEARTBEAT_S):
        columns[f"heartbeat {_seconds(heartbeat_s)}"] = budgets.hook_total_s(heartbeat_s)
    made = {head: budgets.join_deadlines(role, 0, None if total is None else 0, total) for head, total in columns.items()}
    what = {
        "agent_ms": "the agent is online by",
        "member_ms": "who founds is decided by",
        "start_etcd_ms": "etcd's script has ended by",
        "synced_ms": "etcd is seen by",
        "start_api_ms": "the API server's script has ended by",
        "api_name_ms": "its targets are healthy by",
        "join_ms": "the join script has ended by",
        "verify_ms": "the node is verified by",
        "front_door_ms": "the targets for clients are healthy by",
        "overall_ms": "nothing goes round any more after",
    }
    if role == "worker":
        what = {field: text for field, text in what.items() if field in ("agent_ms", "join_ms", "verify_ms", "overall_ms")}
    rows: list[tuple[object, ...]] = [
        ("the hook itself ends after", *("–" if total is None else _seconds(total) for total in columns.values()))
    ]
    rows += [(text, *(_seconds(getattr(made[head], field) // 1000) for head in columns)) for field, text in what.items()]
    return table(("from the start of the join", *columns), rows)


def parts() -> dict[str, str]:
    """All generated parts of docs/budgets.md."""
    from autojoin.domain import budgets

    made = {f"deadlines of {role}": deadlines(budgets, role) for role in ("worker", "tp", "rp")}
    return {"limits": limits(budgets), "commands": commands(budgets), **made}


def _seconds(value: float) -> str:
    number = f"{value:g}" if isinstance(value, float) else str(value)
    if value >= 3600 and value % 3600 == 0:
        return f"{number} s ({value // 3600} h)"
    return f"{number} s"


def main() -> int:
    """Exit code 1 if --check finds stale tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true")
    return write_or_check(DOCUMENT, parts(), parser.parse_args().check, "tools/render_budgets.py")


if __name__ == "__main__":
    sys.exit(main())
