"""The shipped scripts as the agent would run them, from the rendered documents, and what tests ask of a node."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from lab.arktos.bench import CLUSTER, ZONE, Bench, Node

ROOT = Path(__file__).resolve().parents[2]
CODES: dict[str, int] = {k: v["code"] for k, v in json.loads((ROOT / "documents/exit_codes.json").read_text()).items()}


@dataclass(frozen=True)
class Ended:
    """How a script ended: exit code, the result line, everything before it on stdout, stderr."""

    code: int
    result: dict[str, Any]
    before: str
    stderr: str

    @property
    def error(self) -> str:
        return str(self.result.get("error", ""))


class Scripts:
    """Runs documents on nodes of a bench with good parameters, of which a test changes what it is about."""

    def __init__(self, bench: Bench, folder: Path) -> None:
        self.bench, self._folder = bench, folder
        folder.mkdir(parents=True, exist_ok=True)

    def parameters(self, node: Node, **changed: str) -> dict[str, str]:
        rp = next(p for p in self.bench.partitions if p.kind == "rp")
        tenants = ",".join(p.id for p in self.bench.partitions if p.kind == "tp")
        return {
            "Cluster": CLUSTER,
            "Partition": rp.id,
            "InstanceId": node.instance_id,
            "Zone": ZONE,
            "TenantPartitions": tenants,
            "PodCidr": rp.cidr,
            "CniBackend": "host-gw",
            "ClientCaParameter": f"/autojoin/{CLUSTER}/public/{rp.id}/client-ca.crt",
            "Execution": "launch-e-1",
            "CanaryImage": "registry.internal/canary:1",
            "NodeName": node.instance_id,
            **changed,
        }

    def path(self, name: str) -> Path:
        text = yaml.safe_load((ROOT / f"documents/{name}.yaml").read_text())["mainSteps"][0]["inputs"]["runCommand"]
        path = self._folder / f"{name}.sh"
        path.write_text("\n".join(text))
        path.chmod(0o755)
        return path

    def start(
        self, name: str, node: Node, *, on: Node | None = None, env: dict[str, str] | None = None, **changed: str
    ) -> subprocess.Popen[str]:
        """Begin `name` about `node`, on it or on another."""
        given = {f"SSM_{k}": v for k, v in self.parameters(node, **changed).items()}
        return (on or node).popen([self.path(name)], env={**given, **(env or {})})

    def __call__(self, name: str, node: Node, *, on: Node | None = None, env: dict[str, str] | None = None, **changed: str) -> Ended:
        """Run `name` about `node`, on it or on another, to its end."""
        return ended(self.start(name, node, on=on, env=env, **changed))


def ended(process: subprocess.Popen[str]) -> Ended:
    out, err = process.communicate(timeout=110)
    before, _, last = out.rstrip("\n").rpartition("\n")
    return Ended(process.returncode, json.loads(last), before, err)


def ready(bench: Bench, name: str) -> bool:
    """Whether the Node is Ready, untainted, and has a pod CIDR."""
    found = bench.get("rp1", f"/api/v1/nodes/{name}")
    if not found or found["spec"].get("taints") or not found["spec"].get("podCIDR"):
        return False
    return any(c["type"] == "Ready" and c["status"] == "True" for c in found["status"]["conditions"])


def files(node: Node) -> dict[str, str]:
    """Every file that a join writes, with its text."""
    folders = ("etc/arktos", "etc/systemd/system", "etc/cni")
    found = [p for folder in folders for p in (node.root / folder).rglob("*") if p.is_file()]
    return {str(p.relative_to(node.root)): p.read_text() for p in found}


def wrap(node: Node, program: str, text: str) -> dict[str, str]:
    """An environment in which `program` is another one, for what no lab part does by itself."""
    folder = node.root / "opt/wrapped"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / program).write_text(text)
    (folder / program).chmod(0o755)
    return {"PATH": f"{folder}{os.pathsep}{node.environment['PATH']}"}


Provoke = Callable[[Scripts, Bench, Node], Ended]
