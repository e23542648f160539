"""The programs of a node's PATH, called as a script calls them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.fleet.control import ControlSocket
from lab.fleet.metadata import MetadataService
from lab.fleet.network import Network
from lab.fleet.service_manager import ServiceManager

SHIMS = Path(__file__).resolve().parents[3] / "lab/fleet/bin"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Path]:
    """A node whose root has a longer path than a socket's name may have."""
    root = tmp_path / ("deep" * 40)
    (root / "etc/systemd/system").mkdir(parents=True)
    network = Network(root)
    network.set_up("127.20.0.10", "127.20.0.0/20", "02:0a:7f:14:00:0a")
    manager = ServiceManager(root, {"PATH": "/usr/bin:/bin"}, subprocess.Popen)

    def broken(_: object) -> tuple[int, str, str]:
        raise OSError("planted")

    commands = {"systemctl": manager.systemctl, "journalctl": manager.journalctl, "ip": network.run, "autojoin-lab-names": broken}
    control = ControlSocket(root, commands)
    yield root
    control.stop()


def run(root: Path, *argv: str) -> tuple[int, str, str]:
    environment = {"AUTOJOIN_ROOT": str(root), "PATH": f"{SHIMS}:{os.environ['PATH']}"}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=30)
    return done.returncode, done.stdout, done.stderr


def test_exit_code_and_both_outputs_come_back(node: Path) -> None:
    assert run(node, "systemctl", "is-active", "nobody") == (3, "inactive\n", "")
    assert run(node, "ip", "link", "show", "cni0") == (1, "", 'Device "cni0" does not exist.\n')
    assert run(node, "journalctl", "-u", "nobody")[0] == 0


def test_arguments_arrive_as_they_are(node: Path) -> None:
    (node / "etc/systemd/system/one.service").write_text("[Service]\nType=oneshot\nExecStart=/bin/echo two  words\n", encoding="utf-8")

    assert run(node, "systemctl", "start", "one.service") == (0, "", "")
    assert run(node, "journalctl", "-u", "one", "-n", "1", "--no-pager")[1] == "two words\n"


def test_a_call_that_fails_inside_is_a_failed_program(node: Path) -> None:
    assert run(node, "autojoin-lab-names") == (1, "", "autojoin-lab-names: OSError: planted\n")


def test_without_a_manager_the_programs_say_so(tmp_path: Path) -> None:
    rc, _, err = run(tmp_path, "systemctl", "daemon-reload")

    assert rc == 1
    assert "does not answer" in err


def test_a_stopped_metadata_service_gives_its_address_back() -> None:
    class Nobody:
        tokens_required, tags_allowed = True, False

        def flat(self) -> dict[str, str]:
            return {}

        def role(self) -> None:
            return None

        def credentials(self) -> None:
            return None

        def document(self) -> dict[str, str]:
            return {}

    for _ in range(3):
        service = MetadataService("127.0.0.1", Nobody(), port=0)
        port = service._server.server_address[1]
        service.stop()

    assert port > 0
