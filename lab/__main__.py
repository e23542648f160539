"""The lab's commands: `python -m lab up | down | run FILE | demo | faults`.

A lab ends with its command, except after `up` and a demo with KEEP=1: those stay until `down`.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

REPOSITORY = Path(__file__).resolve().parent.parent
KEPT = REPOSITORY / ".lab/kept"
"""Folder of the lab that outlives its command; holds `pid` and, once it is up, `exports`."""
DOWN_S = 20

app = typer.Typer(add_completion=False, no_args_is_help=True, help="A whole AWS region with an Arktos cluster, on this machine.")
console = Console(highlight=False, soft_wrap=True)


def _scratch(name: str) -> Path:
    folder = REPOSITORY / ".lab/runs"
    folder.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=folder))


@app.command()
def run(
    file: Annotated[Path, typer.Argument(help="A scenario, see lab/scenarios/.")],
    report: Annotated[Path | None, typer.Option(help="Where to write the report as JSON.")] = None,
    keep_folder: Annotated[bool, typer.Option(help="Keep the lab's folder, for its logs and its journal.")] = False,
) -> None:
    """Run a scenario; exits 0 only if every expectation and every invariant holds, 2 if the file is no scenario."""
    from lab import scenario, view
    from lab.lab import Lab, LabError

    try:
        loaded = scenario.load(file)
    except scenario.ScenarioError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None
    folder = _scratch(loaded.name)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    console.print(f"{loaded.name}: {loaded.about}", markup=False)
    passed = False
    try:
        with Lab(folder, say=_say, **loaded.lab) as lab, view.follow(lab.journal, console):
            outcome = scenario.run(loaded, lab)
            passed = outcome.passed
    except LabError as error:
        typer.echo(str(error), err=True)
        typer.echo(f"the lab's folder: {folder}", err=True)
        raise typer.Exit(3) from None
    view.timelines(outcome.entries, [row["instance_id"] for row in outcome.report["nodes"]], console)
    console.print()
    view.summary(outcome.report, console)
    for failure in outcome.failures:
        console.print(f"  FAILED  {failure}", markup=False)
    if report:
        report.parent.mkdir(parents=True, exist_ok=True)
        report.write_text(json.dumps(outcome.report, indent=2, default=str) + "\n", encoding="utf-8")
        console.print(f"  report: {report}", markup=False)
    if keep_folder:
        console.print(f"  the lab's folder: {folder}", markup=False)
    else:
        shutil.rmtree(folder, ignore_errors=True)
    console.print("passed" if passed else "FAILED", markup=False)
    raise typer.Exit(0 if passed else 1)


@app.command()
def demo() -> None:
    """A cluster comes up from three empty groups, a worker re-joins by hand, one fails and is replaced. KEEP=1 keeps the region up."""
    if os.environ.get("KEEP", "") not in ("", "0"):
        raise typer.Exit(_detached("demo"))
    from lab.demo import play

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder = _scratch("demo")
    seen_all = play(folder, console)
    if seen_all:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        console.print(f"the lab's folder: {folder}", markup=False)
    raise typer.Exit(0 if seen_all else 1)


@app.command()
def up() -> None:
    """Bring a region with Autojoin and a hand-made 1x1 up, in the background, and print what to export."""
    raise typer.Exit(_detached("up"))


@app.command()
def down() -> None:
    """End the region that `up` or a demo with KEEP=1 left running."""
    pid = _kept_pid()
    if pid is None:
        console.print("no region is kept up")
        return
    os.kill(pid, signal.SIGTERM)
    give_up = time.monotonic() + DOWN_S
    while _alive(pid):
        if time.monotonic() > give_up:
            os.kill(pid, signal.SIGKILL)  # the watchdog ends the rest
            break
        time.sleep(0.1)
    shutil.rmtree(KEPT, ignore_errors=True)
    console.print("the region is down")


@app.command()
def faults() -> None:
    """List the faults that a scenario can arm and the plants that break an invariant."""
    from lab.faults import FAULTS
    from lab.plants import PLANTS

    for name, about in sorted(FAULTS.items()):
        console.print(f"fault  {name:<26} {about}", markup=False)
    for name, plant in sorted(PLANTS.items()):
        console.print(f"plant  {name:<26} {' '.join((plant.__doc__ or '').split())}", markup=False)


@app.command()
def conformance() -> None:
    """Run the conformance suite: one test per semantic of AWS that Autojoin relies on."""
    argv = [sys.executable, "-m", "pytest", "-q", "-m", "", str(REPOSITORY / "tests/lab/conformance")]
    raise typer.Exit(subprocess.run(argv, cwd=REPOSITORY, check=False).returncode)


def _say(line: str) -> None:
    console.print(f"  {line}", markup=False)


# -- a lab that outlives its command -----------------------------------------------------------------------------------


def _detached(what: str) -> int:
    """Run `what` in a process of its own that stays; returns its exit code once it says that it is done."""
    if _kept_pid() is not None:
        typer.echo("a region is kept up already; `python -m lab down` ends it", err=True)
        return 1
    shutil.rmtree(KEPT, ignore_errors=True)
    KEPT.mkdir(parents=True)
    done_read, done_write = os.pipe()
    sys.stdout.flush()
    process = subprocess.Popen(
        [sys.executable, "-m", "lab", "stay", what, str(done_write)],
        cwd=REPOSITORY, stdin=subprocess.DEVNULL, pass_fds=(done_write,), start_new_session=True,
    )  # fmt: skip
    (KEPT / "pid").write_text(f"{process.pid}\n", encoding="utf-8")
    os.close(done_write)
    try:
        with os.fdopen(done_read) as done:
            answer = done.read().strip()
    except KeyboardInterrupt:
        process.terminate()
        process.wait(timeout=DOWN_S)
        answer = "130"
    code = int(answer) if answer else process.wait(timeout=DOWN_S) or 1
    exports = KEPT / "exports"
    if exports.exists():
        typer.echo("\nThe region stays up. To look at it with the aws CLI:\n")
        typer.echo(exports.read_text(encoding="utf-8"))
        typer.echo("It ends with `make lab-down` (python -m lab down).")
    else:
        shutil.rmtree(KEPT, ignore_errors=True)
    return code


@app.command(hidden=True)
def stay(what: str, done: int) -> None:
    """Inside of `up` and KEEP=1: play, say that it is done, hold the lab until a signal."""
    from lab.demo import play
    from lab.lab import Lab, LabError

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    # What the lab starts inherits the log, not the terminal or pipe of the command, which ends before them.
    told = os.fdopen(os.dup(1), "w", buffering=1)
    log = os.open(KEPT / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    shown = Console(file=told, highlight=False, soft_wrap=True)

    def hold(lab: Lab, seen_all: bool) -> None:
        lines = [f"export {name}={value}" for name, value in lab.region.environment().items()]
        (KEPT / "exports").write_text("\n".join(lines) + "\n", encoding="utf-8")
        told.flush()
        os.dup2(log, told.fileno())
        os.write(done, b"0" if seen_all else b"1")
        os.close(done)
        while True:
            signal.pause()

    folder = KEPT / "lab"
    if what == "demo":
        play(folder, shown, then=hold)
        return
    try:
        with Lab(folder, say=lambda line: shown.print(f"  {line}", markup=False)) as lab:
            hold(lab, True)
    except LabError as error:
        shown.print(f"the lab did not come up: {error}", markup=False)


def _kept_pid() -> int | None:
    try:
        pid = int((KEPT / "pid").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return pid if _alive(pid) else None


def _alive(pid: int) -> bool:
    """Whether the process is there and is a lab of ours; a number that was given anew is not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
        return state != "Z" and b"\0lab\0" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


if __name__ == "__main__":
    app()
