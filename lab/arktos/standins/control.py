"""The stand-ins of a control plane: kube-controller-manager of RP and TP, kube-scheduler and arktos-network-controller of TP.

Each reads its list of peers once, at its start. A missing tenant file ends an RP's controller-manager; a missing file of a
resource provider is only a warning, after which the TP's processes see their own cluster alone: as in life.
"""

from __future__ import annotations

import ipaddress
import time
from typing import Any

from client import POLL_S, Api, fatal, forever, log, parse_flags, server_of

GRACE_S = 10.0
"""A Node whose lease is older is not ready (40 s in life)."""
COLLECT_S = 2.0
"""Between two rounds of the pod collector (20 s in life)."""
NOT_READY = "node.kubernetes.io/not-ready"
LEASES = "/apis/coordination.k8s.io/v1beta1/namespaces/kube-node-lease/leases"


def _ready(node: dict[str, Any]) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in node.get("status", {}).get("conditions", []))


class RpControllerManager:
    """nodeipam and nodelifecycle. The latter waits until every TP has answered once."""

    def __init__(self, flags: dict[str, str]) -> None:
        self._own = Api(server_of(flags["kubeconfig"]))
        try:
            self._tenants = [Api(server_of(t)) for t in flags.get("tenant-server-kubeconfig", "").split(",") if t]
        except OSError as error:
            fatal(f"tenant server kubeconfig: {error}")
        self._range = ipaddress.ip_network(flags["cluster-cidr"])
        self._synced = False

    def run(self) -> None:
        """Until killed."""
        forever(self._round)

    def _round(self) -> None:
        nodes = self._own.items("/api/v1/nodes")
        taken = {n["spec"].get("podCIDR") for n in nodes}
        for node in nodes:
            if not node["spec"].get("podCIDR"):
                free = next(str(s) for s in self._range.subnets(new_prefix=24) if str(s) not in taken)
                taken.add(free)
                node["spec"]["podCIDR"] = free
                self._own.call("PUT", f"/api/v1/nodes/{node['metadata']['name']}", node)
        if not self._synced:
            self._synced = all(t.healthy() for t in self._tenants)
            if not self._synced:
                log("W waiting for the caches of all tenant partitions")
                return
        leases = {lease["metadata"]["name"]: lease for lease in self._own.items(LEASES)}
        for node in self._own.items("/api/v1/nodes"):
            self._judge(node, leases.get(node["metadata"]["name"]))

    def _judge(self, node: dict[str, Any], lease: dict[str, Any] | None) -> None:
        fresh = lease is not None and time.time() - lease["spec"]["renewTime"] < GRACE_S
        taints = [t for t in node["spec"].get("taints", []) if t["key"] != NOT_READY]
        changed = False
        if not fresh and _ready(node):
            node["status"]["conditions"] = [{"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}]
            changed = True
        if not (fresh and _ready(node)):
            taints.append({"key": NOT_READY, "effect": "NoSchedule"})
        if changed or taints != node["spec"].get("taints", []):
            node["spec"]["taints"] = taints
            self._own.call("PUT", f"/api/v1/nodes/{node['metadata']['name']}", node)


class _WithResourceProviders:
    name = "Controller manager"

    def __init__(self, flags: dict[str, str]) -> None:
        self._own = Api(server_of(flags["kubeconfig"]))
        self._providers: list[Api] = []
        for path in [p for p in flags.get("resource-providers", "").split(",") if p]:
            try:
                self._providers.append(Api(server_of(path)))
            except OSError as error:
                log("W resource provider:", error)
        if not self._providers:
            log("W no resource provider; using the local cluster")
            self._providers = [self._own]
        log(f"{self.name} started with resource provider number={len(self._providers)}")

    def _nodes(self) -> list[dict[str, Any]]:
        found = []
        for provider in self._providers:
            try:
                found += provider.items("/api/v1/nodes")
            except OSError as error:
                log("E nodes:", error)
        return found


class TpControllerManager(_WithResourceProviders):
    """Collects pods of nodes that it cannot see, and keeps endpoints."""

    def run(self) -> None:
        """Until killed."""
        collected = 0.0
        while True:
            try:
                if time.monotonic() - collected > COLLECT_S:
                    collected = time.monotonic()
                    self._collect()
                self._endpoints()
            except OSError as error:
                log("E", error)
            time.sleep(POLL_S)

    def _collect(self) -> None:
        seen = {n["metadata"]["name"] for n in self._nodes()}
        for pod in self._own.items("/api/v1/pods"):
            node = pod.get("spec", {}).get("nodeName")
            if node and node not in seen:
                log("W deleting orphan", pod["metadata"]["name"], "of", node)
                self._own.call("DELETE", _path("pods", pod))

    def _endpoints(self) -> None:
        pods = self._own.items("/api/v1/pods")
        known = {_path("endpoints", e): e for e in self._own.items("/api/v1/endpoints")}
        for service in self._own.items("/api/v1/services"):
            selector = service["spec"].get("selector") or {}
            addresses = sorted(
                p["status"]["podIP"]
                for p in pods
                if p.get("status", {}).get("podIP")
                and selector.items() <= (p["metadata"].get("labels") or {}).items()
                and p["metadata"].get("tenant", "system") == service["metadata"].get("tenant", "system")
            )
            path = _path("endpoints", service)
            meta = {k: service["metadata"][k] for k in ("name", "namespace", "tenant") if k in service["metadata"]}
            subsets = [{"addresses": [{"ip": address} for address in addresses]}] if addresses else []
            if path not in known:
                self._own.call("POST", path.rpartition("/")[0], {"metadata": meta, "subsets": subsets})
            elif known[path].get("subsets") != subsets:
                self._own.call("PUT", path, {"metadata": meta, "subsets": subsets})


class Scheduler(_WithResourceProviders):
    """Binds pending pods to Ready, untainted nodes of all RPs."""

    name = "Scheduler"

    def run(self) -> None:
        """Until killed."""
        forever(self._round)

    def _round(self) -> None:
        pods = self._own.items("/api/v1/pods")
        pending = [p for p in pods if not p.get("spec", {}).get("nodeName")]
        if not pending:
            return
        load: dict[str, int] = {}
        for pod in pods:
            load[pod.get("spec", {}).get("nodeName", "")] = load.get(pod.get("spec", {}).get("nodeName", ""), 0) + 1
        nodes = [n for n in self._nodes() if _ready(n) and not n["spec"].get("taints") and not n["spec"].get("unschedulable")]
        for pod in pending:
            wanted = (pod.get("spec", {}).get("nodeSelector") or {}).items()
            fit = [n["metadata"]["name"] for n in nodes if wanted <= (n["metadata"].get("labels") or {}).items()]
            if not fit:
                continue
            node = min(fit, key=lambda n: (load.get(n, 0), n))
            load[node] = load.get(node, 0) + 1
            self._own.call("POST", _path("pods", pod) + "/binding", {"target": {"name": node}})


class NetworkController:
    """Of each tenant's network it does nothing here but ask for its API server; a missing kubeconfig ends it."""

    def __init__(self, flags: dict[str, str]) -> None:
        try:
            self._own = Api(server_of(flags["kubeconfig"]))
        except OSError as error:
            fatal(f"kubeconfig: {error}")
        log("network controller with salt", flags.get("resource-name-salt", ""))

    def run(self) -> None:
        """Until killed."""
        forever(self._round)

    def _round(self) -> None:
        self._own.items("/api/v1/tenants")


def _path(kind: str, item: dict[str, Any]) -> str:
    meta = item["metadata"]
    tenant, namespace = meta.get("tenant", "system"), meta.get("namespace", "default")
    return f"/api/v1/tenants/{tenant}/namespaces/{namespace}/{kind}/{meta['name']}"


def main(process: str, argv: list[str]) -> None:
    """Run arktos-network-controller, kube-scheduler or kube-controller-manager; a controller-manager with --cluster-cidr is an RP's."""
    flags = parse_flags(argv)
    if process == "arktos-network-controller":
        NetworkController(flags).run()
    elif process == "kube-scheduler":
        Scheduler(flags).run()
    elif "cluster-cidr" in flags:
        RpControllerManager(flags).run()
    else:
        TpControllerManager(flags).run()
