"""docs/golden-image.md and examples/bake-image.sh: what the image carries is what the node scripts want, and baking is safe."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import subprocess
import tarfile
from pathlib import Path

import pytest

from autojoin.use_cases.waiting import OLDEST_AGENT

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "examples/bake-image.sh"
TEXT = SCRIPT.read_text(encoding="utf-8")
PAGE = (ROOT / "docs/golden-image.md").read_text(encoding="utf-8")
BINARIES = re.search(r"^readonly binaries=\((.*)\)$", TEXT, re.MULTILINE)[1].split()  # type: ignore[index]
COMMANDS = re.findall(r"\[([\w-]+)\]=", re.search(r"^declare -Ar packages=\((.*?)\)$", TEXT, re.MULTILINE | re.DOTALL)[1])  # type: ignore[index]
NEW_AGENT = ".".join(map(str, OLDEST_AGENT))


class Machine:
    """A folder that looks like a plain machine, and a folder of placeholder binaries; nothing is real but the script."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "root"
        self.source = folder / "source"
        self.shims = folder / "shims"
        for path in (self.root / "usr/bin", self.root / "etc", self.source, self.shims):
            path.mkdir(parents=True)
        for name in COMMANDS:
            self.program(self.root / "usr/bin" / name, "echo containerd 1.4.2")
        self.program(self.root / "usr/bin/amazon-ssm-agent", f"echo SSM Agent version: {NEW_AGENT}")
        for name in BINARIES:
            self.program(self.source / name, f"echo {name} version 3.5.24")
        (self.root / "etc/os-release").write_text('PRETTY_NAME="Ubuntu 20.04 LTS"\n')
        (self.root / "etc/machine-id").write_text("0" * 32 + "\n")
        (self.root / "etc/fstab").write_text("/dev/xvda1 / ext4 defaults 0 1\n/swapfile none swap sw 0 0\n")
        self.sums()

    @staticmethod
    def program(path: Path, line: str) -> None:
        path.write_text(f"#!/bin/sh\n{line}\n")
        path.chmod(0o755)

    def sums(self) -> None:
        lines = [f"{hashlib.sha256((self.source / n).read_bytes()).hexdigest()}  {n}\n" for n in BINARIES if (self.source / n).exists()]
        (self.source / "SHA256SUMS").write_text("".join(lines))

    def run(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join([str(self.shims), str(ROOT / ".cache/tools/bin"), os.environ["PATH"]])
        environment = {"PATH": path, "AUTOJOIN_ROOT": str(self.root), "LC_ALL": "C.UTF-8"}
        return subprocess.run([SCRIPT, *arguments], env=environment, capture_output=True, text=True, timeout=60, check=False)

    def bake(self, *more: str | Path) -> subprocess.CompletedProcess[str]:
        return self.run("--from", self.source, *more)

    def content(self) -> dict[str, bytes]:
        """Every file of the root."""
        return {str(p.relative_to(self.root)): p.read_bytes() for p in sorted(self.root.rglob("*")) if p.is_file()}


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_plain_machine_is_baked_and_passes_the_check(machine: Machine) -> None:
    baked = machine.bake()
    checked = machine.run("--check")

    assert baked.returncode == 0, baked.stderr
    assert checked.returncode == 0, checked.stderr
    assert all(os.access(machine.root / "opt/arktos/bin" / name, os.X_OK) for name in BINARIES)
    assert (machine.root / "etc/machine-id").read_text() == ""
    assert "net.ipv4.ip_forward = 1" in (machine.root / "etc/sysctl.d/90-autojoin.conf").read_text()
    assert "br_netfilter" in (machine.root / "etc/modules-load.d/autojoin.conf").read_text()
    assert [line for line in (machine.root / "etc/fstab").read_text().splitlines() if "swap" in line and not line.startswith("#")] == []


def test_the_manifest_has_digests_and_versions(machine: Machine) -> None:
    machine.bake()

    manifest = json.loads((machine.root / "opt/arktos/image.json").read_text())
    assert manifest["binaries"].keys() == set(BINARIES)
    assert manifest["binaries"]["etcd"] == {
        "sha256": hashlib.sha256((machine.source / "etcd").read_bytes()).hexdigest(),
        "version": "3.5.24",
    }
    assert (manifest["system"], manifest["ssm_agent"], manifest["containerd"]) == ("Ubuntu 20.04 LTS", NEW_AGENT, "1.4.2")


def test_baking_twice_changes_nothing(machine: Machine) -> None:
    machine.bake()
    before = machine.content()

    again = machine.bake()

    assert again.returncode == 0, again.stderr
    assert machine.content() == before


def test_a_newer_binary_replaces_the_older_one(machine: Machine) -> None:
    machine.bake()
    machine.program(machine.source / "etcd", "echo etcd Version: 3.5.30")
    machine.sums()

    machine.bake()

    assert machine.run("--check").returncode == 0
    assert json.loads((machine.root / "opt/arktos/image.json").read_text())["binaries"]["etcd"]["version"] == "3.5.30"


@pytest.mark.parametrize("inside", ["", "arktos-1.0"])
def test_a_tarball_is_as_good_as_its_folder(machine: Machine, tmp_path: Path, inside: str) -> None:
    archive = tmp_path / "binaries.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(machine.source, arcname=inside or ".")

    baked = machine.run("--from", archive)

    assert baked.returncode == 0, baked.stderr


def test_everything_that_is_wrong_with_the_source_is_named_at_once_and_nothing_changed(machine: Machine) -> None:
    machine.program(machine.source / "hyperkube", "echo not the one that was built")
    (machine.source / "flanneld").unlink()
    sums = machine.source / "SHA256SUMS"
    sums.write_text("".join(line for line in sums.read_text().splitlines(keepends=True) if not line.endswith("  portmap\n")))
    before = machine.content()

    baked = machine.bake()

    assert baked.returncode == 1
    assert "hyperkube has the digest" in baked.stderr
    assert "the source has no flanneld" in baked.stderr
    assert "portmap is not in SHA256SUMS" in baked.stderr
    assert machine.content() == before


def test_an_etcd_that_is_too_old_is_refused(machine: Machine) -> None:
    machine.program(machine.source / "etcd", "echo etcd Version: 3.3.25")
    machine.sums()

    baked = machine.bake()

    assert baked.returncode == 1
    assert "etcd 3.3.25: it has to be 3.4.0 or newer" in baked.stderr


def test_an_etcd_for_another_processor_is_refused(machine: Machine) -> None:
    (machine.source / "etcd").write_bytes(b"\x7fELF of another processor")
    machine.sums()

    baked = machine.bake()

    assert baked.returncode == 1
    assert "etcd tells no version" in baked.stderr


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("var/lib/etcd/member/snap/db", "/var/lib/etcd has data"),
        ("etc/arktos/worker.json", "/etc/arktos has files"),
        ("var/run/kubernetes/client-ca.key", "/var/run/kubernetes has files"),
        ("etc/systemd/system/arktos-kubelet.service", "arktos-kubelet.service is there"),
        ("etc/systemd/system/multi-user.target.wants/etcd.service", "etcd.service starts at boot"),
        ("root/.aws/credentials", "/root/.aws/credentials is there"),
        ("etc/containerd/config.toml", "config.toml disables cri"),
    ],
)
def test_what_was_a_node_or_is_in_its_way_is_refused_and_kept(machine: Machine, path: str, said: str) -> None:
    (machine.root / path).parent.mkdir(parents=True)
    (machine.root / path).write_text('disabled_plugins = ["cri"]')

    baked = machine.bake()

    assert baked.returncode == 1
    assert said in baked.stderr
    assert (machine.root / path).read_text() == 'disabled_plugins = ["cri"]'
    assert not (machine.root / "opt/arktos").exists()


def test_state_of_a_pod_network_and_of_the_builder_goes(machine: Machine) -> None:
    stale = ["etc/cni/net.d/bridge.conf", "var/lib/cni/networks/cbr0/10.88.0.2", "etc/ssh/ssh_host_ed25519_key"]
    for path in stale:
        (machine.root / path).parent.mkdir(parents=True)
        (machine.root / path).write_text("stale")
    machine.program(machine.root / "usr/bin/cloud-init", "true")

    baked = machine.bake()

    assert baked.returncode == 0, baked.stderr
    assert [path for path in stale if (machine.root / path).exists()] == []


def test_missing_commands_are_named_with_their_packages_and_not_installed(machine: Machine) -> None:
    for name in ("jq", "ip", "aws"):
        (machine.root / "usr/bin" / name).unlink()
    before = machine.content()

    baked = machine.bake()

    assert baked.returncode == 1
    assert "install the package jq" in baked.stderr
    assert "install the package iproute2" in baked.stderr
    assert "no command aws" in baked.stderr
    assert machine.content() == before


def test_only_the_missing_packages_are_installed_inside_the_root_when_asked(machine: Machine) -> None:
    for name in ("jq", "ip"):
        (machine.root / "usr/bin" / name).unlink()
    calls = machine.shims / "calls"
    bin_folder = machine.root / "usr/bin"
    machine.program(machine.shims / "chroot", f'echo "$@" >>{calls}; for c in jq ip; do cp {bin_folder}/curl {bin_folder}/$c; done')

    baked = machine.bake("--install-packages")

    assert baked.returncode == 0, baked.stderr
    apt = f"{machine.root} env DEBIAN_FRONTEND=noninteractive apt-get"
    update, install = calls.read_text().splitlines()
    assert update == f"{apt} update"
    assert install.removeprefix(f"{apt} install --yes --no-install-recommends ").split() in (["jq", "iproute2"], ["iproute2", "jq"])


@pytest.mark.parametrize("version", ["3.3.2745.9", "3.2.9999.0", "no number"])
def test_an_old_agent_is_refused(machine: Machine, version: str) -> None:
    machine.program(machine.root / "usr/bin/amazon-ssm-agent", f"echo SSM Agent version: {version}")

    baked = machine.bake()

    assert baked.returncode == 1
    assert f"it has to be {NEW_AGENT} or newer" in baked.stderr


def canary(machine: Machine, holds: str) -> Path:
    """An image archive, containerd's socket, and a ctr that says what it was told and lists one image."""
    archive = machine.source.parent / "canary.tar"
    archive.write_bytes(b"an image")
    machine.program(machine.shims / "ctr", f'echo "$@" >>{machine.shims}/calls; case "$*" in *"ls -q") echo {holds} ;; esac')
    (machine.root / "run/containerd").mkdir(parents=True)
    os.mknod(machine.root / "run/containerd/containerd.sock", stat.S_IFSOCK | 0o600)
    return archive


def test_the_canary_image_is_loaded_where_the_kubelet_looks_for_it(machine: Machine) -> None:
    archive = canary(machine, "docker.io/autojoin/canary:1")

    baked = machine.bake("--canary", archive)

    assert baked.returncode == 0, baked.stderr
    socket = machine.root / "run/containerd/containerd.sock"
    assert f"--address {socket} -n k8s.io images import {archive}" in (machine.shims / "calls").read_text().splitlines()
    assert json.loads((machine.root / "opt/arktos/image.json").read_text())["canary"]["image"] == "autojoin/canary:1"


def test_the_check_misses_a_canary_image_that_containerd_lost(machine: Machine) -> None:
    machine.bake("--canary", canary(machine, "docker.io/autojoin/canary:1"))
    machine.program(machine.shims / "ctr", "true")

    checked = machine.run("--check")

    assert checked.returncode == 1
    assert "containerd has no image docker.io/autojoin/canary:1" in checked.stderr


def test_an_archive_without_the_canary_s_name_is_refused(machine: Machine) -> None:
    baked = machine.bake("--canary", canary(machine, "docker.io/library/something:2"))

    assert baked.returncode == 1
    assert "holds no image docker.io/autojoin/canary:1: containerd has now docker.io/library/something:2" in baked.stderr


def test_the_check_lists_everything_at_once_and_changes_nothing(machine: Machine) -> None:
    machine.bake()
    (machine.root / "opt/arktos/bin/flanneld").unlink()
    (machine.root / "opt/arktos/bin/etcd").write_text("another one")
    (machine.root / "usr/bin/aws").unlink()
    (machine.root / "etc/machine-id").write_text("1" * 32)
    (machine.root / "var/lib/etcd").mkdir(parents=True)
    (machine.root / "var/lib/etcd/member").write_text("data")
    before = machine.content()

    checked = machine.run("--check")

    assert checked.returncode == 1
    wanted = ["bin/flanneld is not there", "bin/etcd is not the file", "no command aws", "/etc/machine-id is set", "/var/lib/etcd has data"]
    assert [text for text in wanted if text not in checked.stderr] == []
    assert machine.content() == before


@pytest.mark.parametrize("arguments", [(), ("--from",), ("--check", "--from", "x"), ("--chekc",)])
def test_a_wrong_call_says_how_to_call_it(machine: Machine, arguments: tuple[str, ...]) -> None:
    run = machine.run(*arguments)

    assert run.returncode == 2
    assert "bake-image.sh --from FOLDER|TARBALL" in run.stderr


def test_no_binary_is_ever_fetched() -> None:
    assert re.findall(r"\b(?:curl|wget|aws|pip|snap|git)\s+(?:-|https?:|get|install|clone|s3)", TEXT) == []


def test_the_image_has_every_binary_that_a_node_script_asks_for() -> None:
    scripts = "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "documents/src").glob("*.sh")))
    plugins = re.search(r"^cni_plugins=\((.*)\)$", scripts, re.MULTILINE)
    asked = re.findall(r"^\s*check_binaries ([\w -]+)", scripts, re.MULTILINE)

    assert plugins
    assert asked
    assert {name for names in [*asked, plugins[1]] for name in names.split()} - set(BINARIES) == set()


def test_the_page_names_every_binary_and_command_of_the_script() -> None:
    names = {*BINARIES, *COMMANDS} - {"ip", "systemctl", "diff", "amazon-ssm-agent"}

    assert sorted(name for name in names if f"`{name}`" not in PAGE) == []


def test_the_oldest_agent_of_the_script_is_the_one_that_the_code_takes() -> None:
    assert set(re.findall(r"\b3\.\d+\.\d+\.\d+\b", TEXT)) == {NEW_AGENT}
