"""What scripts expect of systemctl and journalctl, with real processes."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.fleet.service_manager import ServiceManager, parse_unit, span_s


def popen(argv: list[str], **kw: Any) -> subprocess.Popen[Any]:
    return subprocess.Popen(argv, start_new_session=True, **kw)


class Node:
    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "etc/systemd/system").mkdir(parents=True)
        self.manager = ServiceManager(root, {"PATH": "/usr/bin:/bin", "AUTOJOIN_ROOT": str(root)}, popen)

    def unit(self, name: str, service: str, install: str = "[Install]\nWantedBy=multi-user.target\n") -> None:
        path = self.root / f"etc/systemd/system/{name}.service"
        path.write_text(f"[Unit]\nDescription={name}\n\n[Service]\n{service}\n{install}", encoding="utf-8")

    def ctl(self, line: str) -> tuple[int, str, str]:
        return self.manager.systemctl(line.split())

    def state(self, name: str) -> str:
        return self.ctl(f"is-active {name}")[1].strip()

    def show(self, name: str, key: str) -> str:
        return self.ctl(f"show -p {key} --value {name}")[1].strip()

    def until(self, look: Callable[[], Any]) -> Any:
        give_up = time.monotonic() + 20
        while not (found := look()):
            assert time.monotonic() < give_up, self.manager.units()
            time.sleep(0.02)
        return found


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    made.manager.stop()


def test_a_unit_is_started_and_stopped_with_its_whole_process_group(node: Node) -> None:
    node.unit("one", "ExecStart=/bin/sh -c 'sleep 300 & sleep 300'")

    started = node.ctl("start one")
    group = int(node.show("one", "MainPID"))
    active = (node.ctl("is-active one"), node.show("one", "SubState"))
    stopped = node.ctl("stop one.service")

    assert started == (0, "", "")
    assert active == ((0, "active\n", ""), "running")
    assert stopped == (0, "", "")
    assert node.ctl("is-active one") == (3, "inactive\n", "")
    assert not [p for p in Path("/proc").glob("[0-9]*/stat") if _group_of(p) == group]


def _group_of(stat: Path) -> int:
    try:
        fields = stat.read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0
    return 0 if fields[0] == "Z" else int(fields[2])


def test_services_start_from_a_clean_environment_with_their_own_variables(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEAKS", "yes")
    (node.root / "etc/one.env").write_text('FROM_FILE="a b"\n', encoding="utf-8")
    node.unit(
        "one",
        f'Type=oneshot\nEnvironment=A=1 "B=two words"\nEnvironmentFile={node.root}/etc/one.env\nEnvironmentFile=-/nowhere\n'
        "ExecStart=/bin/sh -c 'echo $${A} ${B} $${FROM_FILE} leaks=$${LEAKS:-no}'",
    )

    node.ctl("start one")

    assert node.manager.journalctl(["-u", "one", "-n", "1", "--no-pager"])[1] == "1 two words a b leaks=no\n"


def test_a_failing_pre_command_fails_the_start(node: Node) -> None:
    node.unit("one", "ExecStartPre=-/bin/false\nExecStartPre=/bin/sh -c 'exit 7'\nExecStart=/bin/sleep 300")

    rc, _, err = node.ctl("start one")

    assert rc == 1
    assert err.startswith("Job for one.service failed")
    assert (node.state("one"), node.show("one", "ExecMainStatus")) == ("failed", "7")


def test_a_program_that_is_not_there_fails_with_203(node: Node) -> None:
    node.unit("one", "ExecStart=/nowhere/program --flag")

    rc, _, _ = node.ctl("start one")

    assert (rc, node.state("one"), node.show("one", "ExecMainStatus")) == (1, "failed", "203")
    assert "No such file or directory" in node.manager.journalctl(["-u", "one"])[1]


def test_restart_on_failure_brings_it_back_and_a_clean_exit_does_not(node: Node) -> None:
    node.unit(
        "one",
        "Restart=on-failure\nRestartSec=50ms\nWorkingDirectory=-/tmp\n"
        f"ExecStart=/bin/sh -c 'cd {node.root}; test -e again && exec sleep 300; touch again; exit 1'",
    )
    node.unit("two", "Restart=on-failure\nExecStart=/bin/true")

    node.ctl("start one two")

    node.until(lambda: node.state("one") == "active" and node.show("one", "NRestarts") == "1")
    node.until(lambda: node.state("two") == "inactive")


def test_a_unit_that_dies_all_the_time_is_given_up(node: Node) -> None:
    node.unit("one", "Restart=always\nRestartSec=10ms\nStartLimitBurst=3\nStartLimitIntervalSec=60\nExecStart=/bin/false")

    node.ctl("start one")

    node.until(lambda: node.show("one", "Result") == "start-limit-hit")
    assert node.ctl("is-failed one")[0] == 0
    node.ctl("reset-failed one")
    assert node.state("one") == "inactive"


def test_stopping_ends_the_restarts(node: Node) -> None:
    node.unit("one", "Restart=always\nRestartSec=30\nExecStart=/bin/false")
    node.ctl("start one")
    node.until(lambda: node.show("one", "SubState") == "auto-restart")

    node.ctl("stop one")

    assert node.state("one") == "inactive"


def test_a_changed_file_counts_after_daemon_reload(node: Node) -> None:
    node.unit("one", "Type=oneshot\nExecStart=/bin/echo old")
    node.ctl("start one")
    node.unit("one", "Type=oneshot\nExecStart=/bin/echo new")

    node.ctl("restart one")
    node.ctl("daemon-reload")
    node.ctl("restart one")

    assert node.manager.journalctl(["-u", "one.service"])[1] == "old\nold\nnew\n"


def test_enabling_and_disabling(node: Node) -> None:
    node.unit("one", "ExecStart=/bin/sleep 300")

    assert node.ctl("is-enabled one") == (1, "disabled\n", "")
    node.ctl("enable --now one")
    assert (node.ctl("is-enabled one")[1], node.state("one")) == ("enabled\n", "active")
    node.ctl("disable --now one")
    assert (node.ctl("is-enabled one")[1], node.state("one")) == ("disabled\n", "inactive")


def test_a_boot_starts_what_is_enabled(node: Node) -> None:
    node.unit("one", "ExecStart=/bin/sleep 300")
    node.ctl("enable one")

    node.manager.start_enabled()

    node.until(lambda: node.state("one") == "active")


def test_unknown_units_and_calls_say_so(node: Node) -> None:
    assert node.ctl("start nobody") == (5, "", "Failed to start nobody.service: Unit nobody.service not found.\n")
    assert node.ctl("enable nobody")[0] == 1
    assert node.ctl("is-active nobody") == (3, "inactive\n", "")
    assert node.ctl("edit nobody")[0] == 1
    assert node.ctl("start --user nobody")[0] == 1


def test_list_units_shows_what_is_loaded(node: Node) -> None:
    node.unit("one", "ExecStart=/bin/sleep 300")
    node.ctl("start one")

    assert node.ctl("list-units --plain --no-legend one.service")[1].split() == [
        "one.service",
        "loaded",
        "active",
        "running",
        "one",
    ]


def test_power_off_kills_and_restarts_nothing(node: Node) -> None:
    node.unit("one", "Restart=always\nRestartSec=10ms\nExecStart=/bin/sleep 300")
    node.ctl("start one")
    process = node.manager.units()["one.service"].process
    assert process is not None

    node.manager.stop()

    assert process.wait(timeout=10) == -9
    assert node.manager.units()["one.service"].restarts == 0


def test_unit_files_as_systemd_reads_them() -> None:
    unit = parse_unit("# c\n[Service]\nExecStart=/a \\\n  --b\nExecStartPre=/x\nExecStartPre=\nExecStartPre=/y\n; d\n")

    assert unit == {"Service": {"ExecStart": ["/a  --b"], "ExecStartPre": ["/y"]}}


@pytest.mark.parametrize(("text", "seconds"), [("2", 2), ("100ms", 0.1), ("1min 30s", 90), ("5m", 300), ("infinity", float("inf"))])
def test_time_spans(text: str, seconds: float) -> None:
    assert span_s(text) == seconds
