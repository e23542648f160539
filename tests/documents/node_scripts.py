"""The shipped scripts as the agent would run them, from the rendered documents, and what tests ask of a node."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from lab.arktos.bench import CLUSTER, ZONE, Bench, Ended, Node, ended

__all__ = ["Ended", "ended"]

HELD = ("arktos-kube-scheduler", "arktos-kube-controller-manager")
"""What a TP's master starts only when its resource partitions answer."""
NOT_READY = "node.kubernetes.io/not-ready"
ROOT = Path(__file__).resolve().parents[2]
CODES: dict[str, int] = {k: v["code"] for k, v in json.loads((ROOT / "documents/exit_codes.json").read_text()).items()}


class Scripts:
    """Runs documents on nodes of a bench with good parameters, of which a test changes what it is about."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench

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

    def start(
        self, name: str, node: Node, *, on: Node | None = None, env: dict[str, str] | None = None, **changed: str
    ) -> subprocess.Popen[str]:
        """Begin `name` about `node`, on it or on another."""
        return self.bench.start(name, on or node, self.parameters(node, **changed), env)

    def __call__(self, name: str, node: Node, *, on: Node | None = None, env: dict[str, str] | None = None, **changed: str) -> Ended:
        """Run `name` about `node`, on it or on another, to its end."""
        return ended(self.start(name, node, on=on, env=env, **changed))


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


@contextlib.contextmanager
def founder(bench: Bench, partition: str = "tp5", kind: str = "tp") -> Iterator[Node]:
    """The instance that is to found a partition beside those of the bench; gone, with all that it published, at the end."""
    try:
        yield bench.declare(partition, kind)
    finally:
        bench.withdraw(partition)


def formed(bench: Bench, partition: str, **changed: str) -> dict[str, dict[str, Any]]:
    """The results of a join that went well."""
    done = bench.form(partition, **changed)
    assert all(d.code == 0 for d in done.values()), [(name, d.result, d.stderr) for name, d in done.items() if d.code]
    assert len(done) == 4
    return {name: d.result for name, d in done.items()}


def proved(bench: Bench, partition: str) -> bool:
    done = bench.send("verify-master", partition)
    return done.code == 0 and done.result["waiting_for"] == []


def tainted(bench: Bench, partition: str) -> bool:
    node = bench.get(partition, f"/api/v1/nodes/{bench.master(partition).instance_id}")
    return node is not None and any(t["key"] == NOT_READY for t in node["spec"].get("taints", []))


def state(node: Node, unit: str) -> str:
    return node.systemctl(f"is-active {unit}")[1].strip()


def etcd_env(node: Node) -> dict[str, str]:
    lines = (node.root / "etc/arktos/etcd/etcd.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines)
