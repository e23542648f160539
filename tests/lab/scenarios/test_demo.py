"""The demo and the life of a lab (make verify)."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from lab.demo import Demo
from lab.lab import REPOSITORY, Lab

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]


def running_under(folder: Path) -> list[int]:
    """Processes that have `folder` in their environment, as everything on a node and every function has."""
    found = []
    for entry in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if entry.isdigit() and str(folder).encode() in Path("/proc", entry, "environ").read_bytes():
                found.append(int(entry))
    return found


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with Lab(tmp_path_factory.mktemp("demo"), partitions="empty") as lab:
        yield lab


def test_the_demo_fails_when_a_source_destination_check_stays_on(lab: Lab) -> None:
    # Given
    lab.faults.arm("source_dest_check_stuck", group=lab.workers)
    shown = io.StringIO()

    # When
    seen_all = Demo(lab, Console(file=shown, width=200), check_s=15).play()
    fired = lab.faults.unfired() == []
    lab.faults.disarm()

    # Then
    assert fired
    assert not seen_all
    assert "NOT SEEN  each pod answers from every other node" in shown.getvalue()


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_lab_that_is_ended_leaves_no_process(sign: signal.Signals, tmp_path: Path) -> None:
    # Given
    script = "import sys, time; from pathlib import Path; from lab.lab import Lab\n" + (
        "with Lab(Path(sys.argv[1]), stack='none') as lab: print('up', flush=True); time.sleep(300)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "up"
    assert running_under(tmp_path)

    # When
    process.send_signal(sign)
    process.wait(timeout=30)

    # Then
    give_up = time.monotonic() + 5
    while running_under(tmp_path) and time.monotonic() < give_up:
        time.sleep(0.1)
    assert running_under(tmp_path) == []
