"""Process hygiene: no process of a lab outlives it, however the lab ends.

Every process of a lab carries its id in the environment (AUTOJOIN_LAB_ID). A watchdog, in a session of its own, holds
the reading end of a pipe: when the main process dies in any way, kill -9 included, it kills every process that carries
the id, looks again until none is left, and ends. If the watchdog itself dies, the main process stops the lab.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

MARKER = "AUTOJOIN_LAB_ID"
GRACE_S = 1.0
"""Time in seconds that a process gets between SIGTERM and SIGKILL when the lab stops in an orderly way."""
QUIET_SCANS = 3
"""Empty looks at /proc in a row before nothing is left: a process may be between fork and exec during one."""

_lab_id: str | None = None
_watchdog: subprocess.Popen[bytes] | None = None
_stopping = threading.Event()
_record: Callable[..., Any] | None = None


def start(lab_id: str, journal: Any = None) -> None:
    """Begin the lab's life: start its watchdog. Repeating it with the same id does nothing.

    journal   written with one `process` entry per start and end of a process (see `popen`), if given
    Raises RuntimeError when this process already is another lab.
    """
    global _lab_id, _watchdog
    if journal is not None:
        attach(journal)
    if _lab_id == lab_id and _watchdog is not None and _watchdog.poll() is None:
        return
    if _lab_id is not None and _lab_id != lab_id and not _stopping.is_set():
        raise RuntimeError(f"this process is lab {_lab_id}, it cannot become lab {lab_id}; stop it first")
    _stopping.clear()
    _lab_id = lab_id
    watchdog = subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, lab_id, str(os.getpid())],
        stdin=subprocess.PIPE,
        start_new_session=True,
        env={"LC_ALL": "C.UTF-8"},
        cwd="/",
    )
    _watchdog = watchdog
    threading.Thread(target=_end_with, args=(watchdog,), name="lifeline", daemon=True).start()


def attach(journal: Any) -> None:
    """Record starts and ends of processes in `journal` from now on."""
    global _record
    _record = journal.record


def lab_id() -> str:
    """The id of the running lab. Raises RuntimeError before `start`."""
    if _lab_id is None:
        raise RuntimeError("no lab is running in this process: call lifeline.start(lab_id) first")
    return _lab_id


def mark(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment with the lab's marker added, for a process started in some other way than by `popen`."""
    return {**environment, MARKER: lab_id()}


def popen(
    argv: Sequence[str | os.PathLike[str]],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    instance_id: str | None = None,
    **kw: Any,
) -> subprocess.Popen[Any]:
    """Start a process that dies with the lab, in a session of its own, and record its start and its end.

    env           complete environment of the process, os.environ when None; the marker is added
    instance_id   the instance that the process runs on, for the journal
    Other arguments are those of subprocess.Popen.
    """
    marked = mark(os.environ if env is None else env)
    process = subprocess.Popen(argv, env=marked, cwd=cwd, start_new_session=True, **kw)
    argv0 = os.fspath(argv[0]) if len(argv) else ""
    _tell(pid=process.pid, argv0=argv0, instance_id=instance_id, event="started", rc=None)
    threading.Thread(target=_await_end, args=(process, argv0, instance_id), name=f"end-of-{process.pid}", daemon=True).start()
    return process


def stop_all(grace_s: float = GRACE_S) -> None:
    """Stop every process of the lab (SIGTERM, after `grace_s` SIGKILL), then the watchdog. Safe to call twice."""
    global _lab_id, _watchdog
    if _lab_id is None:
        return
    _stopping.set()
    spared = {os.getpid(), _watchdog.pid if _watchdog else 0}
    _signal_all(_lab_id, spared, signal.SIGTERM)
    give_up = time.monotonic() + grace_s
    while time.monotonic() < give_up and list(pids_of(_lab_id, spared)):
        time.sleep(0.05)
    kill_all(_lab_id, spared)
    if _watchdog is not None:
        with contextlib.suppress(OSError):
            _watchdog.stdin.close()  # type: ignore[union-attr]
        with contextlib.suppress(subprocess.TimeoutExpired):
            _watchdog.wait(timeout=10)
        _watchdog = None
    _lab_id = None


def pids_of(lab_id: str, spared: Iterable[int] = ()) -> Iterable[int]:
    """Ids of the living processes that carry the lab's marker, read from /proc."""
    wanted = f"{MARKER}={lab_id}".encode()
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) in spared:
            continue
        try:
            environment = Path("/proc", entry, "environ").read_bytes()
        except OSError:
            continue
        if wanted in environment.split(b"\0"):
            yield int(entry)


def kill_all(lab_id: str, spared: Iterable[int] = (), give_up_s: float = 5.0) -> bool:
    """SIGKILL whatever carries the marker until nothing does; False if something was still there after `give_up_s`."""
    give_up = time.monotonic() + give_up_s
    quiet = 0
    while quiet < QUIET_SCANS:
        quiet = 0 if _signal_all(lab_id, spared, signal.SIGKILL) else quiet + 1
        if time.monotonic() > give_up:
            return False
        time.sleep(0.03)
    return True


def _signal_all(lab_id: str, spared: Iterable[int], sign: signal.Signals) -> int:
    count = 0
    for pid in pids_of(lab_id, spared):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, sign)
            count += 1
    return count


def _tell(**fields: Any) -> None:
    if _record is not None:
        with contextlib.suppress(Exception):
            _record("process", **fields)


def _await_end(process: subprocess.Popen[Any], argv0: str, instance_id: str | None) -> None:
    rc = process.wait()
    _tell(pid=process.pid, argv0=argv0, instance_id=instance_id, event="exited", rc=rc)


def _end_with(watchdog: subprocess.Popen[bytes]) -> None:
    watchdog.wait()
    if _stopping.is_set() or watchdog is not _watchdog:
        return
    print("lab: the watchdog died, the lab stops", file=sys.stderr, flush=True)
    if _lab_id is not None:
        kill_all(_lab_id, {os.getpid()})
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(5)
    os._exit(70)


def _watch(lab_id: str, main: int) -> None:
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    while os.getppid() == main:
        readable, _, _ = select.select([0], [], [], 0.25)
        if readable and not os.read(0, 1):
            break
    kill_all(lab_id, {os.getpid()}, give_up_s=30)


if __name__ == "__main__":
    _watch(sys.argv[1], int(sys.argv[2]))
