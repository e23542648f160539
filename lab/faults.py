"""Faults by name. Each is armed by a step and tells the journal when it fired; a run in which an armed one never fired fails.

The shipped scripts, the region and Autojoin run unchanged: a fault is a bad image, a dead agent, a lost message, a script that is
not the one that was sent, a power cut. It acts where the fleet lets faults act (lab/fleet/fleet.py, interceptors), on the folder of
a node that has just booted, or as a join enters a state. A broken program leaves a mark when it is run; that mark is how such a
fault knows that it fired.
"""

from __future__ import annotations

import contextlib
import shlex
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lab.asl.faults import Delay, FaultPoint
from lab.observer.invariants import instance_of
from lab.observer.journal import Entry

if TYPE_CHECKING:
    from lab.lab import Lab

WATCH_S = 0.1
POWER_CUT_S = 2.0
"""A power cut takes less, on a busy machine too."""
BIN = "opt/arktos/bin"

LAUNCH_EVENT = "EC2 Instance-launch Lifecycle Action"
COMMAND_EVENT = "EC2 Command Invocation Status-change Notification"
ENDS = ("Success", "Failed", "TimedOut", "Cancelled")


# -- on a node that has just booted; the path is the mark to leave when the fault fires -----------------------------------

Strike = Callable[[Any, Path], None]


def _replace(instance: Any, program: str, script: str | None) -> None:
    """Give one node a bin folder of its own in which `program` is `script`, or is missing."""
    folder: Path = instance.root / BIN
    sources = [path.resolve() for path in folder.resolve().iterdir() if path.name != program]
    names = [path.name for path in folder.resolve().iterdir() if path.name != program]
    if folder.is_symlink():
        folder.unlink()
    folder.mkdir(parents=True, exist_ok=True)
    for name, source in zip(names, sources, strict=True):
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(source)
    target = folder / program
    with contextlib.suppress(FileNotFoundError):
        target.unlink()
    if script is not None:
        target.write_text(f"#!/bin/bash\n{script}\n", encoding="utf-8")
        target.chmod(0o755)


def join_script_fails(instance: Any, mark: Path) -> None:
    """flanneld on the node dies at once: the join script fails after it registered the Node."""
    _replace(instance, "flanneld", f"echo this flanneld cannot start >&2; touch {shlex.quote(str(mark))}; exit 1")


def binaries_absent(instance: Any, mark: Path) -> None:
    """The image lacks hyperkube."""
    _replace(instance, "hyperkube", None)
    mark.touch()


def api_server_broken(instance: Any, mark: Path) -> None:
    """hyperkube on the node runs everything but the API server, which dies at once."""
    real = shlex.quote(str((instance.root / BIN / "hyperkube").resolve()))
    dies = f"touch {shlex.quote(str(mark))}; echo this API server cannot start >&2; exit 1"
    _replace(instance, "hyperkube", f'if [ "$1" = kube-apiserver ]; then {dies}; fi; exec {real} "$@"')


STRIKES: dict[str, Strike] = {strike.__name__: strike for strike in (join_script_fails, binaries_absent, api_server_broken)}


# -- where the fleet asks; the answer is what happens, None is nothing ------------------------------------------------------

Answer = Callable[[Mapping[str, Any]], Any]


def agent_never_online(_: Mapping[str, Any]) -> Any:
    """The SSM agent of the instance never comes."""
    return "never"


def agent_too_old(_: Mapping[str, Any]) -> Any:
    """The SSM agent is one that pastes parameters into scripts."""
    return "3.1.1927.0"


def script_hangs(_: Mapping[str, Any]) -> Any:
    """The script never ends by itself."""
    return "#!/bin/bash\nwhile true; do sleep 1; done\n"


def script_answers_garbage(_: Mapping[str, Any]) -> Any:
    """The script ends well, but its last line is no result."""
    return "#!/bin/bash\necho all is well, believe me\n"


def source_dest_check_stuck(_: Mapping[str, Any]) -> Any:
    """Switching the source/destination check off has no effect."""
    return "stuck"


def launch_event_duplicated(context: Mapping[str, Any]) -> Any:
    """The event of a launch hook is delivered twice."""
    return "duplicate" if context["detail_type"] == LAUNCH_EVENT else None


def answer_lost(context: Mapping[str, Any]) -> Any:
    """The event that tells the end of a command is lost."""
    ends = context["detail_type"] == COMMAND_EVENT and context["detail"].get("status") in ENDS
    return "lost" if ends else None


ANSWERS: dict[str, tuple[str, Answer]] = {
    answer.__name__: (point, answer)
    for point, answer in (
        ("agent", agent_never_online),
        ("agent_version", agent_too_old),
        ("command_script", script_hangs),
        ("command_script", script_answers_garbage),
        ("source_dest_check", source_dest_check_stuck),
        ("event", launch_event_duplicated),
        ("event", answer_lost),
    )
}


# -- when an execution enters a state -----------------------------------------------------------------------------------------


def killed_in_state(lab: Lab, instance_id: str) -> None:
    """Power is cut when the instance's join enters the state `state`, before the state does anything."""
    lab.fleet.kill(instance_id)


FAULTS: dict[str, str] = {
    name: " ".join((does.__doc__ or "").split())
    for name, does in [*STRIKES.items(), *((name, answer) for name, (_, answer) in ANSWERS.items()), ("killed_in_state", killed_in_state)]
}
"""Every fault by name, with what it does."""


@dataclass
class Armed:
    """A fault that waits for its victim. None as group, instance, document or state means any."""

    name: str
    group: str | None
    instance_id: str | None
    document: str | None
    state: str | None
    times: int
    victims: list[str] = field(default_factory=list)
    fired: list[str] = field(default_factory=list)

    def wants(self, instance_id: str | None, group: str | None, document: str | None = None) -> bool:
        """Whether this is a victim still to be taken."""
        if len(self.victims) >= self.times:
            return False
        fits = self.instance_id in (None, instance_id) and self.group in (None, group)
        return fits and (self.document is None or self.document in str(document))


class Faults:
    """The faults of one lab."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._armed: list[Armed] = []
        self._lock = threading.RLock()
        self._over = threading.Event()
        self._watcher: threading.Thread | None = None
        self._joins: dict[str, str | None] = {}  # ARN of an execution -> instance

    def arm(
        self,
        name: str,
        *,
        group: str | None = None,
        instance_id: str | None = None,
        document: str | None = None,
        state: str | None = None,
        times: int = 1,
    ) -> None:
        """Have the fault strike the next `times` victims that fit."""
        armed = Armed(name, group, instance_id, document, state, times)
        self._lab.journal.record("fault", name=name, event="armed", instance_id=instance_id, detail=group or document or state or "")
        with self._lock:
            self._armed.append(armed)
            if self._watcher is None:
                self._over.clear()
                self._lab.journal.subscribe(self._on_entry)
                self._lab.fleet.interceptors.append(self._intercept)
                self._lab.region.state_machines.faults = self._in_state  # type: ignore[attr-defined]
                self._watcher = threading.Thread(target=self._watch, name="faults", daemon=True)
                self._watcher.start()

    def disarm(self) -> None:
        """Forget every fault; what was struck stays struck. Safe to call twice."""
        with self._lock:
            watcher, self._watcher = self._watcher, None
            self._armed.clear()
        if watcher:
            self._lab.journal.unsubscribe(self._on_entry)
            with contextlib.suppress(ValueError):
                self._lab.fleet.interceptors.remove(self._intercept)
            self._lab.region.state_machines.faults = lambda point: None  # type: ignore[attr-defined]
            self._over.set()
            watcher.join(timeout=5)

    def unfired(self) -> list[str]:
        """Names of the faults that were armed and did not fire as often as asked."""
        self._look_for_marks()
        with self._lock:
            return [armed.name for armed in self._armed if len(armed.fired) < armed.times]

    def _intercept(self, point: str, context: dict[str, Any]) -> Any:
        detail = context.get("detail") or {}
        instance_id = context.get("instance_id") or detail.get("EC2InstanceId") or detail.get("instance-id")
        group = context.get("group") or detail.get("AutoScalingGroupName")
        if group is None and instance_id in self._lab.fleet.instances:
            group = self._lab.fleet.instances[instance_id].group
        document = context.get("document") or detail.get("document-name")
        with self._lock:
            for armed in self._armed:
                asked_at, answer = ANSWERS.get(armed.name, ("", None))
                if answer is None or asked_at != point or not armed.wants(instance_id, group, document):
                    continue
                wanted = answer(context)
                if wanted is not None:
                    armed.victims.append(str(instance_id))
                    armed.fired.append(str(instance_id))
                    self._tell_fired(armed.name, instance_id, str(document or point))
                    return wanted
        return None

    def _on_entry(self, entry: Entry) -> None:
        if entry["kind"] == "execution" and str(entry["machine"]).endswith("-join"):
            self._joins[entry["arn"]] = instance_of(entry)
        elif entry["kind"] == "instance" and entry["event"] == "booted":
            self._strike_at_boot(entry)

    def _in_state(self, point: FaultPoint) -> Delay | None:
        """Cut the power of an instance whose join enters a state; the state waits until it is gone."""
        instance = self._lab.fleet.instances.get(self._joins.get(point.arn) or "")
        if instance is None or point.edge != "before":
            return None
        with self._lock:
            wanted = [
                a for a in self._armed
                if a.name == "killed_in_state" and a.state == point.state and a.wants(instance.instance_id, instance.group)
            ]  # fmt: skip
            for armed in wanted:
                armed.victims.append(instance.instance_id)
                armed.fired.append(instance.instance_id)
        if not wanted:
            return None

        def kill() -> None:
            killed_in_state(self._lab, instance.instance_id)
            self._tell_fired("killed_in_state", instance.instance_id, point.state)

        threading.Thread(target=kill, name="power-cut", daemon=True).start()
        return Delay(POWER_CUT_S)

    def _strike_at_boot(self, entry: Entry) -> None:
        instance = self._lab.fleet.instances.get(entry["instance_id"])
        if instance is None:
            return
        with self._lock:
            wanted = [a for a in self._armed if a.name in STRIKES and a.wants(instance.instance_id, instance.group)]
            for armed in wanted:
                armed.victims.append(instance.instance_id)
        for armed in wanted:
            STRIKES[armed.name](instance, self._mark(armed.name, instance.instance_id))

    def _mark(self, name: str, instance_id: str) -> Path:
        folder = self._lab.root / "faults"
        folder.mkdir(exist_ok=True)
        return folder / f"{name}-{instance_id}"

    def _watch(self) -> None:
        while not self._over.wait(WATCH_S):
            self._look_for_marks()

    def _look_for_marks(self) -> None:
        fired = []
        with self._lock:
            for armed in self._armed:
                for victim in armed.victims:
                    if victim not in armed.fired and self._mark(armed.name, victim).exists():
                        armed.fired.append(victim)
                        fired.append((armed.name, victim))
        for name, victim in fired:
            self._tell_fired(name, victim, "")

    def _tell_fired(self, name: str, instance_id: str | None, detail: str) -> None:
        self._lab.journal.record("fault", name=name, event="fired", instance_id=instance_id, detail=detail)
