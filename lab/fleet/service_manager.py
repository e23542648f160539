"""A service manager per node: what `systemctl` and `journalctl` expect of systemd, for the unit files of the shipped scripts.

Known of a unit: Environment, EnvironmentFile, ExecStartPre, ExecStart, ExecStartPost, ExecStop, WorkingDirectory, Type
(simple, exec, oneshot; notify is taken as simple), RemainAfterExit, Restart, RestartSec, StartLimitBurst,
StartLimitIntervalSec, TimeoutStartSec, TimeoutStopSec, KillMode, WantedBy. Ordering and the rest are read and kept, without effect.
As with systemd: services start from a clean environment; a changed file counts after daemon-reload; a unit that dies too
often in too short a time is given up (start-limit-hit); stop ends the whole process group; output goes to the journal, here
<root>/var/log/<unit>.log.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

UNITS = "etc/systemd/system"
LOGS = "var/log"
TIMEOUT_START_S = 90.0
TIMEOUT_STOP_S = 10.0
"""systemd waits 90 s before SIGKILL; a lab is torn down more quickly. A unit's own TimeoutStopSec rules."""

Reply = tuple[int, str, str]
Popen = Callable[..., "subprocess.Popen[Any]"]

_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(us|ms|s|sec|min|m|h|d)?")
_SPAN_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86400.0, None: 1.0}
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_CLEAN_EXIT_SIGNALS = (-signal.SIGHUP, -signal.SIGINT, -signal.SIGTERM, -signal.SIGPIPE)


def parse_unit(text: str) -> dict[str, dict[str, list[str]]]:
    """Sections, keys and values of a unit file; an empty value forgets those before it, as systemd does."""
    sections: dict[str, dict[str, list[str]]] = {}
    section: dict[str, list[str]] = {}
    joined = re.sub(r"\\\n[ \t]*", " ", text)
    for raw in joined.splitlines():
        line = raw.strip()
        if not line or line[0] in "#;":
            continue
        if line.startswith("[") and line.endswith("]"):
            section = sections.setdefault(line[1:-1], {})
        elif "=" in line:
            key, value = (part.strip() for part in line.split("=", 1))
            if value:
                section.setdefault(key, []).append(value)
            else:
                section[key] = []
    return sections


def span_s(text: str) -> float:
    """A time span as systemd writes them, in seconds; `infinity` is infinite."""
    if text.strip() == "infinity":
        return float("inf")
    return sum(float(number) * _SPAN_S[unit or None] for number, unit in _SPAN.findall(text))


@dataclass
class Unit:
    """A loaded service unit and its life so far."""

    name: str
    sections: dict[str, dict[str, list[str]]]
    active: str = "inactive"
    sub: str = "dead"
    result: str = "success"
    restarts: int = 0
    process: subprocess.Popen[Any] | None = None
    exit_code: int = 0
    wanted: int = 0
    """Number of the latest start or stop; a thread that works for an older one gives up."""
    starts: deque[float] = field(default_factory=deque)
    since: float = 0.0
    group: int = 0

    def all(self, key: str) -> list[str]:
        return self.sections.get("Service", {}).get(key, [])

    def one(self, key: str, default: str = "") -> str:
        return (self.all(key) or [default])[-1]

    def in_unit_section(self, key: str, default: str) -> str:
        return (self.sections.get("Unit", {}).get(key) or [self.one(key, default)])[-1]


class ServiceManager:
    """The units of one node."""

    def __init__(self, root: Path, environment: Mapping[str, str], popen: Popen) -> None:
        """`environment` is what every service gets before its own; `popen` starts processes (subprocess.Popen's arguments)."""
        self._root = root
        self._environment = dict(environment)
        self._popen = popen
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._units: dict[str, Unit] = {}
        self._over = False

    # -- commands ------------------------------------------------------------------------------------------------------

    def systemctl(self, argv: Sequence[str]) -> Reply:
        """Carry out `systemctl argv…`."""
        options, words, properties = set(), [], []
        arguments = iter(argv)
        for word in arguments:
            if word in ("-p", "--property"):
                properties += next(arguments, "").split(",")
            elif word.startswith("--property="):
                properties += word.split("=", 1)[1].split(",")
            elif word.startswith("-"):
                options.add({"-q": "--quiet", "-a": "--all"}.get(word, word))
            else:
                words.append(word)
        known = {
            "--now",
            "--quiet",
            "--no-block",
            "--no-pager",
            "--plain",
            "--no-legend",
            "--all",
            "--value",
            "--system",
            "--type=service",
            "--full",
        }
        unknown = [one for one in options if one not in known and not one.startswith("--state=")]
        if unknown or not words:
            return 1, "", f"systemctl: the lab does not know {' '.join(sorted(unknown)) or 'a call without a command'}\n"
        verb, names = words[0], [_service(name) for name in words[1:]]
        if verb == "daemon-reload":
            return self._reload()
        if verb == "list-units":
            return self._list(options, names)
        if verb == "show":
            return self._show(names, [p for p in properties if p], "--value" in options)
        if verb in ("is-active", "is-failed", "is-enabled"):
            return self._ask(verb, names, "--quiet" in options)
        if verb == "reset-failed":
            return self._reset(names)
        if verb == "is-system-running":
            return 0, "running\n", ""
        if verb == "status":
            return self._status(names)
        if verb in ("enable", "disable"):
            rc, out, err = self._enable(names, verb == "enable")
            if rc == 0 and "--now" in options:
                return self._each("start" if verb == "enable" else "stop", names, "--no-block" in options)
            return rc, out, err
        if verb in ("start", "stop", "restart", "try-restart", "reload-or-restart"):
            return self._each(verb, names, "--no-block" in options)
        return 1, "", f"Unknown command verb {verb}.\n"

    def journalctl(self, argv: Sequence[str]) -> Reply:
        """Carry out `journalctl -u UNIT… [-n N] [--no-pager] [-o …]`."""
        units, count = [], None
        arguments = iter(argv)
        for word in arguments:
            if word in ("-u", "--unit"):
                units.append(_service(next(arguments, "")))
            elif word.startswith(("--unit=", "-u")):
                units.append(_service(word.split("=", 1)[1] if "=" in word else word[2:]))
            elif word in ("-n", "--lines"):
                count = next(arguments, "10")
            elif word.startswith(("--lines=", "-n")):
                count = word.split("=", 1)[1] if "=" in word else word[2:]
            elif word in ("-o", "--output"):
                next(arguments, "")
            elif not word.startswith("--output=") and word not in ("--no-pager", "-q", "--quiet", "-b", "--no-hostname", "-e"):
                return 1, "", f"journalctl: the lab does not know {word}\n"
        lines: list[str] = []
        for unit in units:
            with contextlib.suppress(FileNotFoundError):
                lines += self.log(unit).read_text(encoding="utf-8", errors="replace").splitlines()
        if count is not None and count != "all":
            lines = lines[-int(count) :] if int(count) else []
        return 0, "".join(f"{line}\n" for line in lines) or "-- No entries --\n", ""

    def log(self, unit: str) -> Path:
        """The file with a unit's output."""
        return self._root / LOGS / f"{unit.removesuffix('.service')}.log"

    def units(self) -> dict[str, Unit]:
        """The units that were loaded."""
        with self._lock:
            return dict(self._units)

    def start_enabled(self) -> None:
        """What a boot starts: every unit that is wanted by multi-user.target."""
        for link in sorted((self._root / UNITS / "multi-user.target.wants").glob("*.service")):
            self._each("start", [link.name], True)

    def stop(self) -> None:
        """The power is cut: kill every service at once; nothing is restarted."""
        with self._lock:
            self._over = True
            for unit in self._units.values():
                unit.wanted += 1
                _kill(unit.group, signal.SIGKILL)
            self._changed.notify_all()

    # -- reading -------------------------------------------------------------------------------------------------------

    def _path(self, name: str) -> Path:
        return self._root / UNITS / name

    def _load(self, name: str) -> Unit | None:
        with self._lock:
            unit = self._units.get(name)
            if unit is None and self._path(name).is_file():
                unit = self._units[name] = Unit(name, parse_unit(self._path(name).read_text(encoding="utf-8")))
            return unit

    def _reload(self) -> Reply:
        with self._lock:
            for name, unit in list(self._units.items()):
                path = self._path(name)
                if path.is_file():
                    unit.sections = parse_unit(path.read_text(encoding="utf-8"))
                elif unit.active in ("inactive", "failed"):
                    del self._units[name]
        return 0, "", ""

    def _enabled(self, name: str) -> bool:
        return any((folder / name).is_symlink() for folder in (self._root / UNITS).glob("*.wants"))

    def _ask(self, verb: str, names: Sequence[str], quiet: bool) -> Reply:
        out, err, good = "", "", False
        for name in names:
            unit = self._load(name)
            if verb == "is-enabled":
                if unit is None and not self._path(name).is_file():
                    err += f"Failed to get unit file state for {name}: No such file or directory\n"
                    continue
                enabled = self._enabled(name)
                out += "enabled\n" if enabled else "disabled\n"
                good = good or enabled
            else:
                state = unit.active if unit else "inactive"
                out += f"{state}\n"
                good = good or state == ("active" if verb == "is-active" else "failed")
        return (0 if good else 3 if verb == "is-active" else 1), "" if quiet else out, err

    def _properties(self, name: str) -> dict[str, str]:
        unit = self._load(name)
        process = unit.process if unit else None
        return {
            "Id": name,
            "LoadState": "loaded" if unit else "not-found",
            "ActiveState": unit.active if unit else "inactive",
            "SubState": unit.sub if unit else "dead",
            "Result": unit.result if unit else "success",
            "NRestarts": str(unit.restarts if unit else 0),
            "MainPID": str(process.pid if process and process.poll() is None else 0),
            "ExecMainStatus": str(unit.exit_code if unit else 0),
            "UnitFileState": ("enabled" if self._enabled(name) else "disabled") if self._path(name).is_file() else "",
            "FragmentPath": str(self._path(name)) if unit else "",
            "Type": unit.one("Type", "simple") if unit else "",
        }

    def _show(self, names: Sequence[str], properties: Sequence[str], value_only: bool) -> Reply:
        blocks = []
        for name in names:
            known = self._properties(name)
            wanted = [p for p in properties if p in known] if properties else list(known)
            blocks.append("".join(f"{known[p]}\n" if value_only else f"{p}={known[p]}\n" for p in wanted))
        return 0, "\n".join(blocks), ""

    def _list(self, options: set[str], patterns: Sequence[str]) -> Reply:
        states = {state for option in options if option.startswith("--state=") for state in option[8:].split(",")}
        lines = []
        for name, unit in sorted(self.units().items()):
            shown = states & {unit.active, unit.sub} if states else "--all" in options or unit.active != "inactive"
            if shown and (not patterns or any(Path(name).match(pattern) for pattern in patterns)):
                description = (unit.sections.get("Unit", {}).get("Description") or [name])[-1]
                lines.append(f"{name} loaded {unit.active} {unit.sub} {description}\n")
        head = "" if "--no-legend" in options else "UNIT LOAD ACTIVE SUB DESCRIPTION\n"
        tail = "" if "--no-legend" in options else f"{len(lines)} loaded units listed.\n"
        return 0, f"{head}{''.join(lines)}{tail}", ""

    def _status(self, names: Sequence[str]) -> Reply:
        out, rc = "", 0
        for name in names:
            known = self._properties(name)
            if known["LoadState"] == "not-found":
                return 4, out, f"Unit {name} could not be found.\n"
            out += f"{name}\n     Loaded: loaded ({known['FragmentPath']}; {known['UnitFileState']})\n"
            out += f"     Active: {known['ActiveState']} ({known['SubState']})\n   Main PID: {known['MainPID']}\n"
            rc = rc or (0 if known["ActiveState"] == "active" else 3)
        return rc, out, ""

    def _reset(self, names: Sequence[str]) -> Reply:
        with self._lock:
            for name in names or list(self._units):
                unit = self._load(name)
                if unit is None:
                    return 1, "", f"Failed to reset failed state of unit {name}: Unit {name} not loaded.\n"
                unit.starts.clear()
                unit.restarts = 0
                if unit.active == "failed":
                    unit.active, unit.sub, unit.result = "inactive", "dead", "success"
        return 0, "", ""

    def _enable(self, names: Sequence[str], enable: bool) -> Reply:
        said = ""
        for name in names:
            path = self._path(name)
            if not path.is_file():
                if not enable and self._enabled(name):
                    self._unlink(name)
                    continue
                what = "enable" if enable else "disable"
                return 1, "", f"Failed to {what} unit: Unit file {name} does not exist.\n"
            if not enable:
                self._unlink(name)
                continue
            install = parse_unit(path.read_text(encoding="utf-8")).get("Install", {})
            for target in " ".join(install.get("WantedBy", [])).split():
                link = self._root / UNITS / f"{target}.wants" / name
                link.parent.mkdir(parents=True, exist_ok=True)
                if not link.is_symlink():
                    link.symlink_to(path)
                    said += f"Created symlink {link} → {path}.\n"
        return 0, "", said

    def _unlink(self, name: str) -> None:
        for folder in (self._root / UNITS).glob("*.wants"):
            (folder / name).unlink(missing_ok=True)

    # -- running -------------------------------------------------------------------------------------------------------

    def _each(self, verb: str, names: Sequence[str], no_block: bool) -> Reply:
        for name in names:
            unit = self._load(name)
            if unit is None:
                what = "stop" if verb == "stop" else "start" if verb == "start" else "restart"
                return (
                    5,
                    "",
                    f"Failed to {what} {name}: Unit {name} not found.\n"
                    if what != "stop"
                    else f"Failed to stop {name}: Unit {name} not loaded.\n",
                )
        jobs = []
        for name in names:
            unit = self._load(name)
            assert unit is not None
            if verb == "try-restart" and unit.active not in ("active", "activating"):
                continue
            job = threading.Thread(target=self._do, args=(verb, unit), name=f"{verb}-{name}", daemon=True)
            job.start()
            jobs.append((job, unit))
        if no_block:
            return 0, "", ""
        failed = ""
        for job, unit in jobs:
            job.join()
            if verb != "stop" and unit.active == "failed":
                failed += (
                    f"Job for {unit.name} failed because the control process exited with error code.\n"
                    f'See "systemctl status {unit.name}" and "journalctl -xeu {unit.name}" for details.\n'
                )
        return (1 if failed else 0), "", failed

    def _do(self, verb: str, unit: Unit) -> None:
        if verb != "start":
            self._stop(unit)
        if verb != "stop":
            self._start(unit)

    def _start(self, unit: Unit) -> None:
        """Start a unit and return when the job is done: main process running, or for oneshot ended."""
        with self._lock:
            if self._over or unit.active == "active":
                return
            if unit.active in ("activating", "reloading"):
                number = unit.wanted
                while unit.active == "activating" and unit.wanted == number:
                    self._changed.wait(1)
                return
            unit.wanted += 1
            number = unit.wanted
            unit.starts.clear()
        self._run(unit, number)

    def _run(self, unit: Unit, number: int) -> bool:
        """One try to bring the unit up. False when it ended in a failure."""
        with self._lock:
            if unit.wanted != number or self._over:
                return False
            if self._too_often(unit):
                self._set(unit, "failed", "failed", "start-limit-hit")
                self._say(unit, f"{unit.name}: Start request repeated too quickly.")
                return False
            self._set(unit, "activating", "start-pre", "success")
        give_up = time.monotonic() + span_s(unit.one("TimeoutStartSec", str(TIMEOUT_START_S)))
        for line in unit.all("ExecStartPre"):
            if not self._step(unit, number, line, give_up):
                return self._failed(unit, number, "exit-code")
        lines = unit.all("ExecStart")
        if unit.one("Type", "simple") == "oneshot":
            with self._lock:
                self._set(unit, "activating", "start", "success")
            for line in lines:
                if not self._step(unit, number, line, give_up):
                    return self._failed(unit, number, "exit-code")
            with self._lock:
                if unit.wanted == number:
                    remain = unit.one("RemainAfterExit", "no") in ("yes", "true", "1")
                    self._set(unit, *(("active", "exited") if remain else ("inactive", "dead")), "success")
            return True
        if not lines:
            return self._failed(unit, number, "resources")
        try:
            process = self._spawn(unit, lines[-1])
        except OSError as error:
            self._say(unit, f"{unit.name}: Failed at step EXEC spawning {lines[-1].split()[0]}: {error.strerror}")
            unit.exit_code = 203
            return self._failed(unit, number, "exit-code")
        with self._lock:
            unit.process, unit.group = process, process.pid
            if unit.wanted != number or self._over:
                _kill(unit.group, signal.SIGKILL)
                return False
            self._set(unit, "active", "running", "success")
        for line in unit.all("ExecStartPost"):
            self._step(unit, number, line, give_up)
        threading.Thread(target=self._watch, args=(unit, number, process), name=f"watch-{unit.name}", daemon=True).start()
        return True

    def _too_often(self, unit: Unit) -> bool:
        burst = int(unit.in_unit_section("StartLimitBurst", "5"))
        within_s = span_s(unit.in_unit_section("StartLimitIntervalSec", "10"))
        now = time.monotonic()
        while unit.starts and now - unit.starts[0] > within_s:
            unit.starts.popleft()
        unit.starts.append(now)
        return 0 < burst < len(unit.starts) and within_s > 0

    def _watch(self, unit: Unit, number: int, process: subprocess.Popen[Any]) -> None:
        rc = process.wait()
        with self._lock:
            if unit.wanted != number or self._over:
                return
            unit.exit_code = rc if rc >= 0 else -rc
            _kill(unit.group, signal.SIGKILL)
            unit.group = 0
        clean = rc == 0 or rc in _CLEAN_EXIT_SIGNALS
        self._say(unit, f"{unit.name}: Main process exited, {'status' if rc >= 0 else 'signal'}={abs(rc)}")
        policy = unit.one("Restart", "no")
        again = policy == "always" or (policy == "on-success" and clean) or (policy in ("on-failure", "on-abnormal") and not clean)
        if again:
            self._restart(unit, number, "success" if clean else "exit-code")
            return
        with self._lock:
            if unit.wanted == number:
                self._set(
                    unit,
                    *(("inactive", "dead", "success") if clean else ("failed", "failed", "exit-code" if rc >= 0 else "signal")),
                )

    def _failed(self, unit: Unit, number: int, result: str) -> bool:
        """A start went wrong: fail, or try again later if the unit says so."""
        with self._lock:
            if unit.wanted != number or self._over:
                return False
            self._set(unit, "failed", "failed", result)
        if unit.one("Restart", "no") in ("always", "on-failure"):
            threading.Thread(target=self._restart, args=(unit, number, result), name=f"restart-{unit.name}", daemon=True).start()
        return False

    def _restart(self, unit: Unit, number: int, result: str) -> None:
        with self._changed:
            if unit.wanted != number or self._over:
                return
            self._set(unit, "activating", "auto-restart", result)
            until = time.monotonic() + span_s(unit.one("RestartSec", "100ms"))
            while unit.wanted == number and not self._over and time.monotonic() < until:
                self._changed.wait(until - time.monotonic())
            if unit.wanted != number or self._over:
                return
            unit.restarts += 1
        self._run(unit, number)

    def _stop(self, unit: Unit) -> None:
        with self._lock:
            unit.wanted += 1
            number = unit.wanted
            process, group = unit.process, unit.group
            if unit.active in ("inactive", "failed") and (process is None or process.poll() is not None):
                if unit.active == "inactive":
                    return
                self._set(unit, "inactive", "dead", unit.result)
                return
            self._set(unit, "deactivating", "stop-sigterm", "success")
        give_up = time.monotonic() + span_s(unit.one("TimeoutStopSec", str(TIMEOUT_STOP_S)))
        for line in unit.all("ExecStop"):
            self._step(unit, number, line, give_up)
        if unit.one("KillMode", "control-group") == "process" and process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
        else:
            _kill(group, signal.SIGTERM)
        while time.monotonic() < give_up and ((process is not None and process.poll() is None) or _alive(group)):
            time.sleep(0.02)
        _kill(group, signal.SIGKILL)
        if process is not None:
            process.wait()
        with self._lock:
            if unit.wanted == number:
                unit.group = 0
                self._set(unit, "inactive", "dead", "success")

    def _step(self, unit: Unit, number: int, line: str, give_up: float) -> bool:
        """Run one Exec line to its end; a leading dash makes its failure harmless."""
        try:
            process = self._spawn(unit, line)
        except OSError as error:
            self._say(unit, f"{unit.name}: Failed at step EXEC spawning {line.split()[0]}: {error.strerror}")
            unit.exit_code = 203
            return line.startswith("-")
        with self._lock:
            unit.group = process.pid if unit.process is None or unit.process.poll() is not None else unit.group
        while process.poll() is None:
            if time.monotonic() > give_up or unit.wanted != number or self._over:
                _kill(process.pid, signal.SIGKILL)
                process.wait()
                return False
            time.sleep(0.02)
        with self._lock:
            unit.group = 0 if unit.group == process.pid else unit.group
            unit.exit_code = process.returncode
        return process.returncode == 0 or line.startswith("-")

    def _spawn(self, unit: Unit, line: str) -> subprocess.Popen[Any]:
        environment = {**self._environment, **self._unit_environment(unit)}
        argv = self._words(unit, line.lstrip("-@+!:"), environment)
        inside = self._root / argv[0].lstrip("/")
        if argv[0].startswith("/") and not argv[0].startswith(f"{self._root}/") and inside.exists():
            argv[0] = str(inside)
        folder = unit.one("WorkingDirectory").lstrip("-")
        log = self.log(unit.name)
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            return self._popen(
                argv,
                env=environment,
                cwd=folder or str(self._root),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def _unit_environment(self, unit: Unit) -> dict[str, str]:
        found: dict[str, str] = {}
        for line in unit.all("Environment"):
            for word in shlex.split(line):
                key, _, value = word.partition("=")
                found[key] = value
        for name in unit.all("EnvironmentFile"):
            path = Path(name.lstrip("-"))
            if not path.is_file() and (self._root / str(path).lstrip("/")).is_file():
                path = self._root / str(path).lstrip("/")
            if not path.is_file():
                if name.startswith("-"):
                    continue
                raise FileNotFoundError(2, "No such file or directory", str(path))
            for raw in path.read_text(encoding="utf-8").splitlines():
                text = raw.strip()
                if text and text[0] not in "#;" and "=" in text:
                    key, _, value = text.partition("=")
                    found[key.strip()] = " ".join(shlex.split(value)) if value.strip()[:1] in "\"'" else value.strip()
        return found

    @staticmethod
    def _words(unit: Unit, line: str, environment: Mapping[str, str]) -> list[str]:
        line = line.replace("%%", "\0").replace("%n", unit.name).replace("%p", unit.name.removesuffix(".service")).replace("\0", "%")
        words: list[str] = []
        for word in shlex.split(line):
            if re.fullmatch(r"\$[A-Za-z_][A-Za-z0-9_]*", word):
                words += environment.get(word[1:], "").split()
            else:
                filled = _VARIABLE.sub(lambda match: environment.get(match[1], ""), word.replace("$$", "\0"))
                words.append(filled.replace("\0", "$"))
        return words

    def _set(self, unit: Unit, active: str, sub: str, result: str) -> None:
        unit.active, unit.sub, unit.result, unit.since = active, sub, result, time.time()
        self._changed.notify_all()

    def _say(self, unit: Unit, text: str) -> None:
        log = self.log(unit.name)
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a", encoding="utf-8") as output:
            output.write(f"systemd[1]: {text}\n")


def _service(name: str) -> str:
    return name if "." in name or "*" in name else f"{name}.service"


def _kill(group: int, sign: signal.Signals) -> None:
    if group:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, sign)


def _alive(group: int) -> bool:
    if not group:
        return False
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
