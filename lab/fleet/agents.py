"""The SSM agents: they run the steps of commands as real processes on their instances.

A script runs as the agent of AWS runs it: written to the orchestration folder, started by `sh -c` so that its own first line
chooses the interpreter, in its own process group, which a time-out or a cancellation kills as a whole.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lab import lifeline
from lab.fleet.commands import Invocation, Managed, Outcome
from lab.fleet.documents import Step
from lab.fleet.instance import Instance

if TYPE_CHECKING:
    from lab.fleet.fleet import Fleet

ORCHESTRATION = "var/lib/amazon/ssm/{instance}/document/orchestration/{command}/{step}"
_log = logging.getLogger(__name__)


class Agents:
    """The agents of one fleet; `lab.fleet.commands` tells them what to do, with its lock held."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._lock = threading.Lock()
        self._running: dict[tuple[str, str], subprocess.Popen[Any]] = {}
        self._cancelled: set[tuple[str, str]] = set()
        self._clients: dict[str, Any] = {}

    def managed(self) -> list[Managed]:
        """The instances that Systems Manager knows."""
        return [
            Managed(one.instance_id, one.agent_online, one.agent_version, one.tags)
            for one in list(self._fleet.instances.values())
            if one.agent_registered and one.alive
        ]

    def lost(self, invocation: Invocation) -> bool:
        """Whether a fault swallows the message."""
        return self._fleet.intercept("delivery", **self._context(invocation)) == "lost"

    def run(self, invocation: Invocation, steps: Sequence[Step], environment: Mapping[str, str]) -> None:
        """Run the steps in a thread of their own."""
        name = f"command-{invocation.command.command_id[:8]}"
        threading.Thread(target=self._run_steps, args=(invocation, steps, environment), name=name, daemon=True).start()

    def kill_invocation(self, invocation: Invocation) -> None:
        """Kill the process group that an invocation runs."""
        key = (invocation.command.command_id, invocation.instance_id)
        with self._lock:
            self._cancelled.add(key)
            process = self._running.get(key)
        if process is not None:
            kill_group(process)

    def _context(self, invocation: Invocation) -> dict[str, Any]:
        instance = self._fleet.instances[invocation.instance_id]
        return {
            "instance_id": invocation.instance_id,
            "group": instance.group,
            "command_id": invocation.command.command_id,
            "document": invocation.command.document.name,
        }

    def _run_steps(self, invocation: Invocation, steps: Sequence[Step], environment: Mapping[str, str]) -> None:
        instance = self._fleet.instances[invocation.instance_id]
        for step in steps:
            try:
                outcome = self._run_step(instance, invocation, step, environment)
            except OSError as error:
                outcome = Outcome(step.name, 1, stderr=f"failed to run commands: {error}")
            if instance.off or self._fleet.stopped:
                return
            self._fleet.commands.reported(invocation, outcome)
            if (outcome.exit_code and not step.go_on_after_failure) or outcome.timed_out or self._is_cancelled(invocation):
                break
        self._fleet.commands.finished(invocation)
        if invocation.command.output.get("CloudWatchOutputEnabled"):
            self._write_to_logs(instance, invocation)

    def _is_cancelled(self, invocation: Invocation) -> bool:
        return (invocation.command.command_id, invocation.instance_id) in self._cancelled

    def _run_step(self, instance: Instance, invocation: Invocation, step: Step, environment: Mapping[str, str]) -> Outcome:
        key = (invocation.command.command_id, invocation.instance_id)
        folder = instance.root / ORCHESTRATION.format(instance=instance.instance_id, command=key[0], step=step.name)
        folder.mkdir(parents=True)
        script = folder / "_script.sh"
        wanted = self._fleet.intercept("command_script", **self._context(invocation), step=step.name, script=step.script)
        script.write_text(wanted if isinstance(wanted, str) else step.script, encoding="utf-8")
        script.chmod(0o700)
        outcome = Outcome(step.name, -1, started_at=self._fleet.timers.now())
        with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
            with self._lock:
                if key in self._cancelled or instance.off:
                    return outcome
                process = self._running[key] = lifeline.popen(
                    ["/bin/sh", "-c", str(script)],
                    env={**self._fleet.environment(instance), **environment},
                    cwd=step.working_directory or folder,
                    instance_id=instance.instance_id,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                )
            try:
                process.wait(timeout=step.timeout_s)
            except subprocess.TimeoutExpired:
                outcome.timed_out = True
                kill_group(process)
                process.wait()
            with self._lock:
                del self._running[key]
        outcome.exit_code = process.returncode if process.returncode >= 0 else 128 - process.returncode
        outcome.ended_at = self._fleet.timers.now()
        outcome.stdout = (folder / "stdout").read_text(encoding="utf-8", errors="replace")
        outcome.stderr = (folder / "stderr").read_text(encoding="utf-8", errors="replace")
        return outcome

    def _write_to_logs(self, instance: Instance, invocation: Invocation) -> None:
        """As the agent does, with the instance's own role: it needs leave to write to the log group."""
        command = invocation.command
        group = command.output.get("CloudWatchLogGroupName") or f"/aws/ssm/{command.document.name}"
        try:
            logs = self._client(instance, "logs")
            for outcome in invocation.outcomes:
                step = outcome.step.replace(":", "-")
                for kind, text in (("stdout", outcome.stdout), ("stderr", outcome.stderr)):
                    lines = [line for line in text.splitlines() if line.strip()]
                    if not lines:
                        continue
                    stream = f"{command.command_id}/{instance.instance_id}/{step}/{kind}"
                    logs.create_log_stream(logGroupName=group, logStreamName=stream)
                    at = int(time.time() * 1000)
                    events = [{"timestamp": at, "message": line} for line in lines]
                    for first in range(0, len(events), 1000):
                        logs.put_log_events(logGroupName=group, logStreamName=stream, logEvents=events[first : first + 1000])
        except Exception as error:  # as on AWS: the command's own result does not change
            _log.warning("command %s: its output did not reach %s: %s", command.command_id, group, error)

    def _client(self, instance: Instance, service: str) -> Any:
        got = self._fleet.identities.credentials(instance)
        if got is None:
            raise PermissionError(f"{instance.instance_id} has no role")
        with self._lock:
            if instance.instance_id not in self._clients:
                self._clients[instance.instance_id] = self._fleet.region.client(
                    service, aws_access_key_id=got["AccessKeyId"], aws_secret_access_key=got["SecretAccessKey"],
                    aws_session_token=got["Token"],
                )  # fmt: skip
            return self._clients[instance.instance_id]


def kill_group(process: subprocess.Popen[Any]) -> None:
    """Kill a process that leads its group, and the group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
