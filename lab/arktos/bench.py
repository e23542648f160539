"""A small cluster without a region, for tests of scripts and stand-ins: nodes of the lab's own parts, masters made by hand or by
the shipped documents.

A node here is a folder, an address, metadata, a service manager and a network, as in the fleet, but no API of AWS is served:
an `aws` on the PATH (bench_aws.py) answers for parameters and secrets from folders and for nothing else.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import shutil
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from lab import lifeline
from lab.arktos import masters
from lab.fleet import names
from lab.fleet.control import ControlSocket
from lab.fleet.fleet import FOLDERS, SHIMS
from lab.fleet.metadata import PORT, MetadataService
from lab.fleet.network import Network
from lab.fleet.service_manager import ServiceManager
from lab.lab import bake_image, take_network

CLUSTER, ZONE = "demo", "demo.arktos.internal"
ABSENT = ("tp9", "rp9")
"""Partitions that never answer; no name is asked outside the bench."""
WAIT_S = 60.0
DOCUMENTS = Path(__file__).resolve().parents[2] / "documents"
CERTIFICATE = "-----BEGIN CERTIFICATE-----\nTm90IGEgcmVhbCBvbmU6IG5vIHN0YW5kLWluIHJlYWRzIGl0Lg==\n-----END CERTIFICATE-----\n"


@dataclass(frozen=True)
class Ended:
    """How a document's script ended: exit code, the result line, everything before it on stdout, stderr."""

    code: int
    result: dict[str, Any]
    before: str
    stderr: str

    @property
    def error(self) -> str:
        """The class of the failure, or an empty text."""
        return str(self.result.get("error", ""))


def ended(process: subprocess.Popen[str]) -> Ended:
    """Wait for a script that was started. Raises subprocess.TimeoutExpired."""
    out, err = process.communicate(timeout=110)
    before, _, last = out.rstrip("\n").rpartition("\n")
    return Ended(process.returncode, json.loads(last), before, err)


@dataclass
class Node:
    """One node of the bench. `root` is its AUTOJOIN_ROOT."""

    instance_id: str
    address: str
    subnet: str
    root: Path
    environment: dict[str, str]
    manager: ServiceManager
    network: Network
    _parts: list[Any] = field(default_factory=list)

    def run(
        self, argv: Sequence[str | Path], *, env: Mapping[str, str] | None = None, timeout: float = 120
    ) -> subprocess.CompletedProcess[str]:
        """Run a program on the node. Raises subprocess.TimeoutExpired."""
        process = self.popen(argv, env=env)
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise
        return subprocess.CompletedProcess(list(map(str, argv)), process.returncode, out, err)

    def popen(self, argv: Sequence[str | Path], *, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """Start a program on the node and return at once."""
        return lifeline.popen(
            [str(a) for a in argv], env={**self.environment, **(env or {})}, cwd=self.root, instance_id=self.instance_id,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def systemctl(self, line: str) -> tuple[int, str, str]:
        """`systemctl line` on the node."""
        return self.manager.systemctl(line.split())

    def is_active(self, unit: str) -> bool:
        """Whether the unit is active."""
        return self.systemctl(f"is-active {unit}")[1].strip() == "active"

    def log(self, unit: str) -> str:
        """What the unit wrote so far."""
        path = self.root / f"var/log/{unit}.log"
        return path.read_text(encoding="utf-8") if path.exists() else ""

    def routes(self) -> dict[str, str]:
        """Destination to gateway of every route through another node."""
        return {r["dst"]: r["via"] for r in self.network.read()["routes"] if "via" in r and r["dst"] != "default"}

    def units(self) -> list[str]:
        """The names of our units on the node."""
        return sorted(p.stem for p in (self.root / "etc/systemd/system").glob("arktos-*.service"))

    def pids(self) -> dict[str, str]:
        """Unit to the id of its main process, 0 where none runs."""
        return {unit: self.systemctl(f"show -p MainPID --value {unit}")[1].strip() for unit in self.units()}

    def reboot(self) -> None:
        """End every service, forget what lies in memory, start what is enabled."""
        for unit in self.units():
            self.systemctl(f"stop {unit}")
        for folder in ("run/autojoin", "run/flannel"):
            shutil.rmtree(self.root / folder, ignore_errors=True)
        self.manager.start_enabled()

    def power_off(self) -> None:
        """End everything on the node. Safe to call twice."""
        while self._parts:
            self._parts.pop().stop()


@dataclass
class _Source:
    flat_tree: dict[str, str]
    tokens_required: bool = True
    tags_allowed: bool = False

    def flat(self) -> dict[str, str]:
        return dict(self.flat_tree)

    def role(self) -> str | None:
        return None

    def credentials(self) -> dict[str, Any] | None:
        return None

    def document(self) -> dict[str, Any]:
        return {}


class Bench:
    """Nodes on one 127.N.0.0/16; `with Bench(root) as bench:` takes everything down at its end."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self.nodes: dict[str, Node] = {}
        self.partitions: list[masters.Partition] = []
        self._stack = contextlib.ExitStack()
        self._used = {"a": 9, "b": 9}

    def __enter__(self) -> Bench:
        self.n, lock = take_network()
        self._stack.callback(lock.close)
        lifeline.start(f"bench-{self.n}-{uuid.uuid4().hex[:8]}")
        self._stack.callback(lifeline.stop_all)
        self.subnets = {"a": f"127.{self.n}.0.0/20", "b": f"127.{self.n}.16.0/20"}
        self.pod_cidr, self.service_cidr = f"127.{self.n}.128.0/18", f"127.{self.n}.224.0/20"
        self.image = self.root / "image"
        (self.image / "bin").mkdir(parents=True)
        for folder in ("parameters", "secrets", "scripts"):
            (self.root / folder).mkdir()
        shim = Path(__file__).with_name("bench_aws.py")
        (self.image / "bin/aws").write_text(f'#!/bin/sh\nexec {sys.executable} -IS -B {shim} "$@"\n', encoding="utf-8")
        (self.image / "bin/aws").chmod(0o755)
        bake_image(self.image)
        shims = self.root / "shims"
        shims.mkdir()
        for shim in SHIMS.iterdir():
            if shim.is_file():
                code = shim.read_text(encoding="utf-8").partition("\n")[2]
                (shims / shim.name).write_text(f"#!{sys.executable} -IS\n{code}", encoding="utf-8")
                (shims / shim.name).chmod(0o755)
        return self

    def __exit__(self, *_: object) -> None:
        for node in self.nodes.values():
            node.power_off()
        self._stack.close()

    def put_parameter(self, name: str, value: str) -> None:
        """Publish a parameter."""
        (self.root / "parameters" / name.replace("/", "%")).write_text(value, encoding="utf-8")

    def parameter(self, name: str) -> str | None:
        """A published parameter."""
        path = self.root / "parameters" / name.replace("/", "%")
        return path.read_text(encoding="utf-8") if path.exists() else None

    def secret(self, partition: str) -> Path:
        """The file that is a partition's secret."""
        return self.root / "secrets" / f"autojoin%{CLUSTER}%{partition}%kubernetes"

    def deny(self, *operations: str) -> None:
        """Refuse these operations of AWS (ssm:GetParameter …) from now on, and no others."""
        (self.root / "denied").write_text("\n".join(operations), encoding="utf-8")

    def node(self, subnet: str = "a") -> Node:
        """A booted node in subnet a or b."""
        self._used[subnet] += 1
        cidr = ipaddress.ip_network(self.subnets[subnet])
        address, instance_id = str(cidr[self._used[subnet]]), "i-" + uuid.uuid4().hex[:17]
        root = self.root / "instances" / instance_id
        for folder in FOLDERS:
            (root / folder).mkdir(parents=True, exist_ok=True)
        (root / "opt/arktos/bin").symlink_to(self.image / "bin")
        (root / "run/lab/address").write_text(address, encoding="utf-8")
        (root / "run/lab/source_dest_check").write_text("false", encoding="utf-8")
        environment = {
            "AUTOJOIN_ROOT": str(root),
            "PATH": f"{self.root}/shims:{self.image}/bin:/usr/bin:/bin",
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": f"http://{address}:{PORT}",
            "CURL_HOME": str(root / "root"),
            "HOME": str(root / "root"),
            lifeline.MARKER: lifeline.lab_id(),
            "LC_ALL": "C.UTF-8",
        }
        mac = "02:0a:" + ":".join(f"{int(part):02x}" for part in address.split("."))
        network = Network(root)
        network.set_up(address, str(cidr), mac)
        manager = ServiceManager(root, environment, lambda argv, **kw: lifeline.popen(argv, instance_id=instance_id, **kw))
        node = Node(instance_id, address, str(cidr), root, environment, manager, network)

        def render(_: Sequence[str]) -> tuple[int, str, str]:
            names.render(root)
            return 0, "", ""

        commands = {"systemctl": manager.systemctl, "journalctl": manager.journalctl, "ip": network.run, "autojoin-lab-names": render}
        metadata = {
            "instance-id": instance_id, "local-ipv4": address, "mac": mac, "placement/region": "us-east-1",
            f"network/interfaces/macs/{mac}/subnet-ipv4-cidr-block": str(cidr),
        }  # fmt: skip
        node._parts += [ControlSocket(root, commands), MetadataService(address, _Source(metadata)), manager]
        self.nodes[instance_id] = node
        self._name()
        return node

    def cluster(self, tenants: int = 1, resources: int = 1) -> None:
        """Hand-made masters tp1… and rp1…, each on a node in subnet a, up and healthy; the client CAs published."""
        kinds = [("tp", n) for n in range(1, tenants + 1)] + [("rp", n) for n in range(1, resources + 1)]
        for kind, number in kinds:
            node = self.node()
            third = (224 if kind == "tp" else 128) + 16 * (number - 1)
            cidr = f"127.{self.n}.{third}.0/20" if tenants + resources > 2 else (self.service_cidr if kind == "tp" else self.pod_cidr)
            self.partitions.append(masters.Partition(f"{kind}{number}", kind, cidr, node.instance_id, node.address))
        self._name()
        for partition in self.partitions:
            node = self.master(partition.id)
            for path, text in masters.files(node.root, partition, self.partitions, ZONE, CLUSTER).items():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
            node.systemctl("daemon-reload")
            node.systemctl("start " + " ".join(masters.API_UNITS))
            if partition.kind == "rp":
                self.put_parameter(f"/autojoin/{CLUSTER}/public/{partition.id}/client-ca.crt", CERTIFICATE)
        self.until(lambda: all(self.healthy(p.id) for p in self.partitions), "a healthy API server in every partition")
        for partition in self.partitions:
            node = self.master(partition.id)
            units = sorted(p.name for p in (node.root / "etc/systemd/system").glob("arktos-*.service"))
            node.systemctl("start " + " ".join(units))

    def declare(self, partition: str, kind: str) -> Node:
        """Name a partition whose master the documents make, on a new node in subnet a."""
        node = self.node()
        number = sum(p.kind == kind for p in self.partitions)
        cidr = f"127.{self.n}.{(224 if kind == 'tp' else 128) + 16 * number}.0/20"
        self.partitions.append(masters.Partition(partition, kind, cidr, node.instance_id, node.address))
        self._name()
        return node

    def withdraw(self, partition: str) -> None:
        """End a partition's master and forget its name, secret and public data."""
        self.master(partition).power_off()
        self.partitions = [p for p in self.partitions if p.id != partition]
        self.secret(partition).unlink(missing_ok=True)
        (self.root / "parameters" / f"%autojoin%{CLUSTER}%public%{partition}%client-ca.crt").unlink(missing_ok=True)
        self._name()

    def document(self, name: str) -> Path:
        """The script of a document, as the agent would write it."""
        text = yaml.safe_load((DOCUMENTS / f"{name}.yaml").read_text(encoding="utf-8"))["mainSteps"][0]["inputs"]["runCommand"]
        path = self.root / "scripts" / f"{name}.sh"
        path.write_text("\n".join(text), encoding="utf-8")
        path.chmod(0o755)
        return path

    def start(
        self, document: str, node: Node, parameters: Mapping[str, str], env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Begin a document on a node."""
        return node.popen([self.document(document)], env={**{f"SSM_{k}": v for k, v in parameters.items()}, **(env or {})})

    def parameters(self, partition: str, **changed: str) -> dict[str, str]:
        """What a workflow would send to the master of a partition that it founds."""
        own = next(p for p in self.partitions if p.id == partition)
        return {
            "Cluster": CLUSTER,
            "Partition": own.id,
            "InstanceId": own.instance_id,
            "Zone": ZONE,
            "Kind": own.kind,
            "TenantPartitions": ",".join(p.id for p in self.partitions if p.kind == "tp"),
            "ResourcePartitions": ",".join(p.id for p in self.partitions if p.kind == "rp"),
            "ServiceCidr": own.cidr if own.kind == "tp" else "",
            "PodCidr": own.cidr if own.kind == "rp" else "",
            "CniBackend": own.cni_backend if own.kind == "rp" else "",
            "Mode": "found",
            "Token": f"{CLUSTER}.{own.id}.1.{own.instance_id}",
            "ClusterId": "",
            "Execution": "launch-e-1",
            **changed,
        }

    def send(self, document: str, partition: str, env: Mapping[str, str] | None = None, **changed: str) -> Ended:
        """Run a document on the master of a partition to its end, with the parameters of a founding where not changed."""
        return ended(self.start(document, self.master(partition), self.parameters(partition, **changed), env))

    def form(self, partition: str, **changed: str) -> dict[str, Ended]:
        """Every document of a master's join, in order, up to the first that fails."""
        kind = next(p.kind for p in self.partitions if p.id == partition)
        done: dict[str, Ended] = {}
        for document in ("start-etcd", "start-api", f"join-{kind}", "verify-master"):
            done[document] = self.send(document, partition, **changed)
            if done[document].code != 0:
                break
        return done

    def master(self, partition: str) -> Node:
        """The node that holds a partition."""
        return self.nodes[next(p.instance_id for p in self.partitions if p.id == partition)]

    def healthy(self, partition: str) -> bool:
        """Whether a partition's API server says ok."""
        try:
            return self.api(partition, "GET", "/healthz") == (200, "ok")
        except OSError:
            return False

    def api(self, partition: str, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Status and answer of a partition's API server. Raises OSError when nothing answers."""
        address = next(p.address for p in self.partitions if p.id == partition)
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(
            f"http://{address}:8080{path}", data=data, method=method, headers={"Content-Type": "application/json"}
        )
        try:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10) as answer:
                raw, status = answer.read(), answer.status
        except urllib.error.HTTPError as error:
            raw, status = error.read(), error.code
        try:
            return status, json.loads(raw)
        except ValueError:
            return status, raw.decode()

    def items(self, partition: str, path: str) -> list[dict[str, Any]]:
        """The items of a list."""
        return list(self.api(partition, "GET", path)[1]["items"])

    def get(self, partition: str, path: str) -> dict[str, Any] | None:
        """One object, or None."""
        status, body = self.api(partition, "GET", path)
        return body if status == 200 else None

    def until(self, look: Callable[[], Any], what: str, wait_s: float = WAIT_S) -> Any:
        """What `look` returns once it is true. Raises TimeoutError naming `what`."""
        give_up = time.monotonic() + wait_s
        while not (found := look()):
            if time.monotonic() > give_up:
                raise TimeoutError(f"{what} did not come about within {wait_s:.0f} s")
            time.sleep(0.05)
        return found

    def _name(self) -> None:
        known = {f"api.{p.id}.{ZONE}": [p.address] for p in self.partitions}
        for node in self.nodes.values():
            path = node.root / names.HOSTS
            path.write_text(json.dumps({"names": known}), encoding="utf-8")
            nowhere = [f'resolve = "api.{name}.{ZONE}:8080:{names.NOWHERE}"' for name in ABSENT]
            (node.root / names.FRAGMENTS / "absent.conf").write_text("\n".join(nowhere) + "\n", encoding="utf-8")
            names.render(node.root)


@contextlib.contextmanager
def bench(root: Path, tenants: int = 1, resources: int = 1) -> Iterator[Bench]:
    """A bench with its masters."""
    with Bench(root) as made:
        made.cluster(tenants, resources)
        yield made
