"""Process hygiene: lab/lifeline.py. A small lab runs in a process of its own and is killed in every way."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab import lifeline
from tests.lab.conformance.conftest import eventually

pytestmark = pytest.mark.lab
REPOSITORY = Path(__file__).resolve().parents[3]
GONE_S = 5.0
"""Seconds after which nothing of a killed lab may be left: the lab's promise."""

LAB = textwrap.dedent(
    """
    import io, json, sys, time, zipfile
    from pathlib import Path
    from lab import lifeline
    from lab.observer.journal import Journal
    from lab.region.region import Region

    lab_id, root = sys.argv[1], Path(sys.argv[2])
    journal = Journal(root / "journal.jsonl")
    lifeline.start(lab_id, journal)
    region = Region(root, journal)
    region.start()
    shell = "setsid sleep 600 & trap '' TERM HUP INT; while true; do sleep 1; done"
    lifeline.popen(["bash", "-c", shell], instance_id="i-1")
    trust = {"Effect": "Allow", "Principal": {"Service": "lambda.amazonaws.com"}, "Action": "sts:AssumeRole"}
    document = json.dumps({"Version": "2012-10-17", "Statement": [trust]})
    role = region.client("iam").create_role(RoleName="r", AssumeRolePolicyDocument=document)["Role"]["Arn"]
    code = io.BytesIO()
    source = "import os, time\\ndef work(event, context):\\n    time.sleep(event)\\n    return os.getpid()\\n"
    with zipfile.ZipFile(code, "w") as archive:
        archive.writestr("app.py", source)
    functions = region.client("lambda")
    functions.create_function(
        FunctionName="f", Role=role, Runtime="python3.13", Handler="app.work", Timeout=600, Code={"ZipFile": code.getvalue()}
    )
    pid = int(functions.invoke(FunctionName="f", Payload=b"0")["Payload"].read())
    functions.invoke(FunctionName="f", Payload=b"500", InvocationType="Event")
    port = int(region.endpoint_url.rpartition(":")[2])
    print(json.dumps({"port": port, "function": pid, "watchdog": lifeline._watchdog.pid}), flush=True)
    if len(sys.argv) > 3:
        region.stop()
        lifeline.stop_all()
        sys.exit(0)
    while True:
        time.sleep(1)
    """
)


class SmallLab:
    """A lab in a subprocess."""

    def __init__(self, root: Path, *arguments: str) -> None:
        self.lab_id = f"small-{uuid.uuid4().hex[:8]}"
        self.process = subprocess.Popen(
            [sys.executable, "-c", LAB, self.lab_id, str(root), *arguments],
            stdout=subprocess.PIPE, text=True, cwd=REPOSITORY, env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        )  # fmt: skip
        assert self.process.stdout is not None
        told = json.loads(self.process.stdout.readline())
        self.port, self.function, self.watchdog = told["port"], told["function"], told["watchdog"]

    def left(self) -> list[str]:
        """What is still there of it."""
        found = [f"process {pid}" for pid in lifeline.pids_of(self.lab_id)]
        if _alive(self.watchdog):
            found.append("the watchdog")
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                found.append(f"port {self.port}")
        return found


def _alive(pid: int) -> bool:
    try:
        return Path("/proc", str(pid), "stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def small_lab(tmp_path: Path) -> Iterator[SmallLab]:
    lab = SmallLab(tmp_path)
    yield lab
    if lab.process.poll() is None:
        lab.process.kill()
    lab.process.wait()
    lifeline.kill_all(lab.lab_id)


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_nothing_is_left_of_a_lab_that_was_killed(small_lab: SmallLab, sign: signal.Signals) -> None:
    before = len(list(lifeline.pids_of(small_lab.lab_id)))

    small_lab.process.send_signal(sign)
    small_lab.process.wait(timeout=10)

    eventually(lambda: small_lab.left() == [], GONE_S)
    assert before >= 4


def test_a_lab_whose_watchdog_dies_ends_and_leaves_nothing(small_lab: SmallLab) -> None:
    os.kill(small_lab.watchdog, signal.SIGKILL)
    small_lab.process.wait(timeout=15)

    eventually(lambda: small_lab.left() == [], GONE_S)


def test_an_orderly_stop_leaves_nothing(tmp_path: Path) -> None:
    lab = SmallLab(tmp_path, "stop")

    rc = lab.process.wait(timeout=30)

    assert rc == 0
    assert lab.left() == []


def test_processes_are_journalled_from_start_to_end(small_lab: SmallLab, tmp_path: Path) -> None:
    entries = [json.loads(line) for line in (tmp_path / "journal.jsonl").read_text(encoding="utf-8").splitlines()]

    started = [e for e in entries if e["kind"] == "process" and e["event"] == "started"]
    assert [(e["argv0"], e["instance_id"]) for e in started] == [("bash", "i-1")]
