"""What the end of a command means: a result, "send it again", or an error of the closed set."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from autojoin import errors

TERMINAL = frozenset({"Success", "Failed", "TimedOut", "Cancelled"})


@dataclass(frozen=True)
class Invocation:
    """One command on one instance, as Run Command describes it. `status` is Run Command's, details without spaces."""

    command_id: str
    instance_id: str
    document: str
    status: str
    status_details: str = ""
    exit_code: int = -1
    stdout: str = ""
    stderr: str = ""

    @property
    def is_terminal(self) -> bool:
        """Whether it will not change any more."""
        return self.status in TERMINAL


@dataclass(frozen=True)
class ScriptResult:
    """A script's own words: the JSON object of its last line."""

    ok: bool
    fields: dict[str, Any] = field(default_factory=dict)


def last_line(stdout: str) -> ScriptResult | None:
    """The result in a script's output, or None if its last line is none."""
    lines = [line for line in stdout.splitlines() if line.strip()]
    if not lines:
        return None
    try:
        parsed = json.loads(lines[-1])
    except (ValueError, RecursionError):
        return None
    if not isinstance(parsed, dict) or not isinstance(parsed.get("ok"), bool):
        return None
    return ScriptResult(parsed["ok"], parsed)


def conclude(invocation: Invocation) -> ScriptResult | None:
    """The result of an ended command; None when the same script may be sent again (errors.SEND_AGAIN).

    Raises the error class of the exit code, ScriptUndelivered, ScriptTimedOut, ScriptCancelled, ScriptAnswerInvalid,
    ScriptFailed. Never called on a command that is not terminal.
    """
    where = f"command {invocation.command_id} ({invocation.document}) on {invocation.instance_id}"
    look = f"aws ssm get-command-invocation --command-id {invocation.command_id} --instance-id {invocation.instance_id}"
    details = invocation.status_details.replace(" ", "")
    said = last_line(invocation.stdout)
    if invocation.status == "Success":
        if said is None or not said.ok:
            raise errors.ScriptAnswerInvalid(
                f"{where} ended with exit code 0 and the last line {_tail(invocation.stdout)!r}",
                'one JSON line {"ok":true,…}',
                f"look at its output: {look}",
            )
        return said
    if details in ("DeliveryTimedOut", "Undeliverable", "Terminated", "InvalidPlatform", "AccessDenied"):
        raise errors.ScriptUndelivered(
            f"{where}: {invocation.status_details}",
            "the agent to take the command",
            "look at the instance's SSM agent, its instance profile and its way to the SSM endpoints",
        )
    if invocation.status == "TimedOut":
        raise errors.ScriptTimedOut(f"{where}: {invocation.status_details or 'TimedOut'}", "an end within its execution time-out", look)
    if invocation.status == "Cancelled":
        raise errors.ScriptCancelled(f"{where} was cancelled", "an end by itself", f"start the join again; {look}")
    cls = errors.BY_EXIT_CODE.get(invocation.exit_code, errors.ScriptFailed)
    if cls in errors.SEND_AGAIN:
        return None
    fields = said.fields if said else {}
    raise cls(
        f"{fields.get('seen') or _tail(invocation.stderr) or _tail(invocation.stdout) or 'no output'} "
        f"[{where}, exit code {invocation.exit_code}]",
        str(fields.get("expected") or "exit code 0"),
        f"{fields.get('todo') or 'look at the output'}; {look}",
    )


def _tail(text: str, characters: int = 300) -> str:
    return text.strip()[-characters:]
