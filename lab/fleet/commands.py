"""The rules of Run Command: targets, delivery, states, time-outs, rate control, output limits. No wire, no processes.

What holds here, as on AWS: a command goes to managed instances only; it waits for an agent that is away, and its delivery
times out after TimeoutSeconds plus the execution time-out; the execution time-out is the script's own; success is exit code 0
and nothing more; answers hold 24,000 and 8,000 characters of output, empty until the end; an invocation cannot be read in
the first moments; cancelling kills. SendCommand has no client token: sent twice, it runs twice.
"""

from __future__ import annotations

import datetime
import functools
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from lab.fleet import documents
from lab.fleet.documents import Document, DocumentStore, Step, Version
from lab.fleet.timers import Timer, Timers
from lab.fleet.wire import ApiError

STDOUT_CHARS = 24_000
STDERR_CHARS = 8_000
PLUGIN_CHARS = 2_500
CUT_STDOUT = "\n---Output truncated---"
CUT_STDERR = "\n---Error truncated----"
TERMINAL = ("Success", "Failed", "TimedOut", "Cancelled")
DELIVERY_S = 0.1
"""Seconds from SendCommand to the agent of a reachable instance."""
VISIBLE_S = 0.15
"""Seconds for which GetCommandInvocation and the lists do not show a new invocation (AWS: eventually consistent)."""


@dataclass
class Managed:
    """An instance as Systems Manager knows it."""

    instance_id: str
    online: bool
    agent_version: str
    tags: Mapping[str, str]


@dataclass
class Outcome:
    """What an agent reports of one step."""

    step: str
    exit_code: int
    stdout: str = ""
    stderr: str = ""
    timed_out: bool = False
    started_at: float = 0.0
    ended_at: float = 0.0


@dataclass
class Invocation:
    """A command on one instance."""

    command: Command
    instance_id: str
    status: str = "Pending"
    details: str = "Pending"
    started_at: float | None = None
    ended_at: float | None = None
    outcomes: list[Outcome] = field(default_factory=list)
    sent: bool = False
    expiry: Timer | None = None

    @property
    def over(self) -> bool:
        """Whether its status will not change any more."""
        return self.status in TERMINAL

    @property
    def exit_code(self) -> int:
        """Of the first step that failed, else 0; -1 until it is over, as in GetCommandInvocation."""
        if not self.over or not self.outcomes:
            return -1
        return next((outcome.exit_code for outcome in self.outcomes if outcome.exit_code), 0)


@dataclass
class Command:
    """A command as sent."""

    command_id: str
    document: Document
    version: Version
    parameters: dict[str, list[str]]
    values: dict[str, list[str]]
    comment: str
    requested_at: float
    timeout_s: int
    execution_timeout_s: float
    max_concurrency: str
    max_errors: str
    targets: list[dict[str, Any]]
    output: dict[str, Any]
    invocations: dict[str, Invocation] = field(default_factory=dict)
    status: str = "Pending"
    details: str = "Pending"

    @property
    def errors(self) -> int:
        """Instances on which it failed: what MaxErrors is compared with."""
        return sum(one.status in ("Failed", "TimedOut") for one in self.invocations.values())


class Agents(Protocol):
    """The instances' SSM agents."""

    def managed(self) -> list[Managed]:
        """The registered instances."""
        ...

    def lost(self, invocation: Invocation) -> bool:
        """Whether the message never reaches the agent."""
        ...

    def run(self, invocation: Invocation, steps: Sequence[Step], environment: Mapping[str, str]) -> None:
        """Begin to run; each step's end is reported by `Commands.reported`, the whole end by `Commands.finished`."""
        ...

    def kill_invocation(self, invocation: Invocation) -> None:
        """Kill what the invocation runs; its end is still reported by `Commands.finished`."""
        ...


Publish = Callable[[str, dict[str, Any], list[str]], None]
Record = Callable[..., Any]


class Commands:
    """Run Command of a region. Methods may be called from any thread; errors are ApiError."""

    def __init__(self, timers: Timers, store: DocumentStore, publish: Publish, record: Record, *, account: str, region: str) -> None:
        self._timers, self._store, self._publish, self._record = timers, store, publish, record
        self._account, self._region = account, region
        self._lock = threading.RLock()
        self._commands: dict[str, Command] = {}
        self.agents: Agents | None = None
        self.delivery_s = DELIVERY_S
        self.visible_s = VISIBLE_S
        self.delivery_timeout_scale = 1.0
        """Factor on the delivery time-out, for tests that cannot wait for minutes."""

    # -- API -----------------------------------------------------------------------------------------------------------

    def send(self, given: Mapping[str, Any]) -> Command:
        """SendCommand: `given` is its input."""
        document = self._store.get(given["DocumentName"])
        version = document.version(given.get("DocumentVersion"))
        asked_hash = given.get("DocumentHash")
        if asked_hash and given.get("DocumentHashType", "Sha256") != "Sha256":
            raise ApiError("ValidationException", "DocumentHashType: Sha1 hashes are deprecated, the lab takes Sha256")
        if asked_hash and asked_hash != version.hash:
            raise ApiError(
                "InvalidDocument", f"The hash of version {version.number} of {document.name} is not the DocumentHash of the request"
            )
        values = documents.check_parameters(version.parsed, given.get("Parameters") or {})
        comment = given.get("Comment") or ""
        timeout_s = int(given.get("TimeoutSeconds") or 3600)
        if len(comment) > 100:
            raise ApiError(
                "ValidationException",
                f"Value at 'comment' failed to satisfy constraint: Member must have length less than or equal to 100, not {len(comment)}",
            )
        if not 30 <= timeout_s <= 2_592_000:
            raise ApiError(
                "ValidationException", "Value at 'timeoutSeconds' failed to satisfy constraint: Member must be from 30 to 2592000"
            )
        instance_ids = self._targets(given)
        steps, _ = documents.plan(version.parsed, values, "3.3.2746.0")
        with self._lock:
            command = Command(
                command_id=str(uuid.uuid4()), document=document, version=version,
                parameters={k: list(v) if isinstance(v, list | tuple) else [v] for k, v in (given.get("Parameters") or {}).items()},
                values=values, comment=comment, requested_at=self._timers.now(), timeout_s=timeout_s,
                execution_timeout_s=sum(step.timeout_s for step in steps), max_concurrency=str(given.get("MaxConcurrency") or "50"),
                max_errors=str(given.get("MaxErrors") or "0"), targets=list(given.get("Targets") or []),
                output=dict(given.get("CloudWatchOutputConfig") or {}),
            )  # fmt: skip
            command.invocations = {instance_id: Invocation(command, instance_id) for instance_id in instance_ids}
            self._commands[command.command_id] = command
            for invocation in command.invocations.values():
                self._tell(invocation)
                expires_s = (timeout_s + command.execution_timeout_s) * self.delivery_timeout_scale

                def expire(one: Invocation = invocation) -> None:
                    with self._lock:
                        if not one.over:
                            self._set(one, "TimedOut", "Delivery Timed Out")

                invocation.expiry = self._timers.after(expires_s, expire)
            if not instance_ids:
                self._set_command(command, "Success", "No Instances In Tag")
            self._pump(command)
            return command

    def cancel(self, command_id: str, instance_ids: Sequence[str] = ()) -> None:
        """CancelCommand: what waits is cancelled, what runs is killed; what is over stays as it is."""
        with self._lock:
            command = self.command(command_id)
            for instance_id in instance_ids:
                if instance_id not in command.invocations:
                    raise ApiError("InvalidInstanceId", f"Instance {instance_id} is not a target of command {command_id}")
            for invocation in command.invocations.values():
                if invocation.over or (instance_ids and invocation.instance_id not in instance_ids):
                    continue
                if invocation.status == "Pending":
                    self._set(invocation, "Cancelled", "Cancelled")
                elif invocation.status == "InProgress":
                    self._set(invocation, "Cancelling", "Cancelling")
                    assert self.agents is not None
                    self.agents.kill_invocation(invocation)

    def command(self, command_id: str) -> Command:
        """Raises InvalidCommandId."""
        command = self._commands.get(command_id)
        if command is None:
            raise ApiError("InvalidCommandId", f"Command {command_id} does not exist")
        return command

    def invocation(self, command_id: str, instance_id: str) -> Invocation:
        """What GetCommandInvocation sees. Raises InvocationDoesNotExist, also for a very young one."""
        with self._lock:
            command = self._commands.get(command_id)
            invocation = command.invocations.get(instance_id) if command else None
            if invocation is None or not self._visible(invocation.command):
                raise ApiError("InvocationDoesNotExist", "The command ID and managed node ID you specified did not match any invocations.")
            return invocation

    def visible(self) -> list[Command]:
        """Visible commands, newest first."""
        with self._lock:
            return [command for command in reversed(self._commands.values()) if self._visible(command)]

    # -- agents report -----------------------------------------------------------------------------------------------

    def agent_online(self, instance_id: str) -> None:
        """An agent is there (again): it gets what waits for it."""
        with self._lock:
            for command in self._commands.values():
                invocation = command.invocations.get(instance_id)
                if invocation and invocation.sent and invocation.status == "Pending":
                    self._timers.after(self.delivery_s, functools.partial(self._deliver, invocation))

    def reported(self, invocation: Invocation, outcome: Outcome) -> None:
        """A step ended."""
        with self._lock:
            invocation.outcomes.append(outcome)

    def finished(self, invocation: Invocation) -> None:
        """Everything that the invocation runs has ended."""
        with self._lock:
            if invocation.over:
                return
            failed = [outcome for outcome in invocation.outcomes if outcome.exit_code or outcome.timed_out]
            if invocation.status == "Cancelling":
                self._set(invocation, "Cancelled", "Cancelled")
            elif any(outcome.timed_out for outcome in failed):
                self._set(invocation, "TimedOut", "Execution Timed Out")
            elif failed:
                self._set(invocation, "Failed", "Failed")
            else:
                self._set(invocation, "Success", "Success")

    # -- inside (the lock is held) -------------------------------------------------------------------------------------

    def _visible(self, command: Command) -> bool:
        return self._timers.now() >= command.requested_at + self.visible_s

    def _targets(self, given: Mapping[str, Any]) -> list[str]:
        managed = {one.instance_id: one for one in (self.agents.managed() if self.agents else [])}
        ids = list(given.get("InstanceIds") or [])
        if len(set(ids)) != len(ids):
            raise ApiError("DuplicateInstanceId", "You cannot specify an instance ID in more than one association.")
        for target in given.get("Targets") or []:
            key, values = target["Key"], target.get("Values") or []
            if key == "InstanceIds":
                ids += [value for value in values if value not in ids]
            elif key.startswith("tag:"):
                ids += [i for i, one in managed.items() if one.tags.get(key[4:]) in values and i not in ids]
            else:
                raise ApiError("ValidationException", f"the lab does not know the target key {key}")
        if not ids and not given.get("Targets"):
            raise ApiError("InvalidInstanceId", "neither InstanceIds nor Targets are given")
        if len(ids) > 50 and given.get("InstanceIds"):
            raise ApiError(
                "ValidationException",
                "Value at 'instanceIds' failed to satisfy constraint: Member must have length less than or equal to 50",
            )
        strangers = [instance_id for instance_id in ids if instance_id not in managed]
        if strangers:
            raise ApiError("InvalidInstanceId", f"Instances [[{', '.join(strangers)}]] not in a valid state for account {self._account}")
        return ids

    def _pump(self, command: Command) -> None:
        total = len(command.invocations)
        concurrency, errors = _share(command.max_concurrency, total, 1), _share(command.max_errors, total, 0)
        if command.errors > errors:
            for invocation in command.invocations.values():
                if not invocation.sent and not invocation.over:
                    self._set(invocation, "Cancelled", "Terminated")
            return
        busy = sum(one.sent and not one.over for one in command.invocations.values())
        for invocation in command.invocations.values():
            if busy >= concurrency:
                return
            if not invocation.sent and not invocation.over:
                invocation.sent = True
                busy += 1
                self._timers.after(self.delivery_s, functools.partial(self._deliver, invocation))

    def _deliver(self, invocation: Invocation) -> None:
        with self._lock:
            assert self.agents is not None
            if invocation.status != "Pending" or invocation.started_at is not None or self.agents.lost(invocation):
                return
            agent = next((one for one in self.agents.managed() if one.instance_id == invocation.instance_id), None)
            if agent is None or not agent.online:
                return
            command = invocation.command
            steps, environment = documents.plan(command.version.parsed, command.values, agent.agent_version)
            invocation.started_at = self._timers.now()
            self._set(invocation, "InProgress", "InProgress")
            self.agents.run(invocation, steps, environment)

    def _set(self, invocation: Invocation, status: str, details: str) -> None:
        invocation.status, invocation.details = status, details
        if invocation.over:
            invocation.ended_at = self._timers.now()
            if invocation.expiry:
                invocation.expiry.cancel()
        self._tell(invocation)
        command = invocation.command
        event = {**self._event(command), "instance-id": invocation.instance_id, "status": status}
        instance = f"arn:aws:ec2:{self._region}:{self._account}:instance/{invocation.instance_id}"
        self._publish("EC2 Command Invocation Status-change Notification", event, [instance])
        if invocation.over:
            self._pump(command)
        self._set_command(command, *_overall(command))

    def _set_command(self, command: Command, status: str, details: str) -> None:
        if (status, details) == (command.status, command.details):
            return
        command.status, command.details = status, details
        event = {
            **self._event(command),
            "expire-after": iso(self.expires_at(command)),
            "parameters": command.parameters,
            "status": status,
        }
        resources = [f"arn:aws:ec2:{self._region}:{self._account}:instance/{one}" for one in command.invocations]
        self._publish("EC2 Command Status-change Notification", event, resources)

    def expires_at(self, command: Command) -> float:
        """When a command that was never delivered is given up."""
        return command.requested_at + command.timeout_s + command.execution_timeout_s

    def _event(self, command: Command) -> dict[str, Any]:
        return {
            "command-id": command.command_id,
            "document-name": command.document.name,
            "requested-date-time": iso(command.requested_at),
        }

    def _tell(self, invocation: Invocation) -> None:
        command = invocation.command
        self._record(
            "command", command_id=command.command_id, instance_id=invocation.instance_id, document=command.document.name,
            status=invocation.status, status_details=invocation.details, started=invocation.started_at, ended=invocation.ended_at,
            exit_code=invocation.exit_code if invocation.over else None, comment=command.comment,
        )  # fmt: skip


def cut(text: str, limit: int, suffix: str) -> str:
    """What of an output an answer holds: its beginning, and a mark where it was cut."""
    return text if len(text) <= limit else text[: limit - len(suffix)] + suffix


def iso(seconds: float) -> str:
    """A time as AWS writes it in events."""
    at = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03d}Z"


def _overall(command: Command) -> tuple[str, str]:
    states = [one.status for one in command.invocations.values()]
    if not all(state in TERMINAL for state in states):
        if "Cancelling" in states:
            return "Cancelling", "Cancelling"
        return ("Pending", "Pending") if all(state == "Pending" for state in states) else ("InProgress", "InProgress")
    for status in ("Failed", "TimedOut", "Cancelled"):
        found = next((one for one in command.invocations.values() if one.status == status), None)
        if found:
            return status, found.details
    return "Success", "Success"


def _share(text: str, total: int, least: int) -> int:
    return max(least, total * int(text[:-1]) // 100) if text.endswith("%") else int(text)
