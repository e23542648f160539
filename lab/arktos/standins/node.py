"""The stand-ins of a node: kubelet, kube-proxy, flanneld."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

from client import POLL_S, ROOT, Api, fatal, forever, log, now, own_address, parse_flags, server_of

LEASE_S = 1.5
STATUS_S = 5.0


class PodServer:
    """A pod that answers GET with its name and node, as far as the network lets packets through."""

    def __init__(self, pod: str, node: str, address: str, cidr: str) -> None:
        self._pod, self._node, self._cidr = pod, node, cidr
        self._socket = socket.create_server((address, 8080), backlog=64)
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        """End it; connections that are open may finish. The address is free again at once."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, (source, _) = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection, source), daemon=True).start()

    def _answer(self, connection: socket.socket, source: str) -> None:
        with connection:
            why = unreachable(source, self._cidr)
            if why:
                log("dropped", source, why)
                return
            connection.settimeout(5)
            try:
                connection.recv(4096)
                body = json.dumps({"pod": self._pod, "node": self._node}) + "\n"
                head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
                connection.sendall((head + body).encode())
            except OSError:
                return


def unreachable(source: str, cidr: str) -> str | None:
    """Why packets from `source` do not reach the pods of this node; None if they do.

    EC2 drops packets for other addresses than the instance's own while the source/destination check is on; and a source
    node needs a route to the pods' range.
    """
    if source == own_address() or ipaddress.ip_address(source) in ipaddress.ip_network(cidr):
        return None
    if (ROOT / "run/lab/source_dest_check").read_text().strip() == "true":
        return "the source/destination check of this node is on"
    for other in ROOT.parent.iterdir():
        try:
            if (other / "run/lab/address").read_text().strip() != source:
                continue
            routes = json.loads((other / "run/lab/net.json").read_text())["routes"]
        except (OSError, ValueError, NotADirectoryError):
            continue
        if not any(r["dst"] == cidr and (r.get("via") == own_address() or r["dev"] == "flannel.1") for r in routes):
            return f"{source} has no route to {cidr} by {own_address()}"
    return None


class Kubelet:
    """Registers the Node, renews its lease, runs the pods of all TPs in its list. Reads the list once, at its start.

    Without a list it is a TP's own: it speaks to its one API server alone.
    """

    def __init__(self, flags: dict[str, str]) -> None:
        self.name = flags["hostname-override"]
        self._address = flags.get("node-ip", own_address())
        tenants = [t for t in flags.get("tenant-server-kubeconfig", "").split(",") if t]
        try:
            self._own = Api(server_of(flags["kubeconfig"]))
            self._tenants = [Api(server_of(t)) for t in tenants] or [Api(server_of(flags["kubeconfig"]))]
        except OSError as error:
            fatal(f"kubeconfig: {error}")
        if flags.get("client-ca-file") and not Path(flags["client-ca-file"]).is_file():
            fatal(f"client CA file {flags['client-ca-file']} is missing")
        self._pods: dict[str, PodServer] = {}
        self._addresses: dict[str, str] = {}
        self._last = 0
        self._leased = self._told = 0.0
        self._ready: bool | None = None

    def run(self) -> None:
        """Until killed."""
        while not self._register():
            time.sleep(POLL_S)
        forever(self._renew, self._sync_pods)

    def _register(self) -> bool:
        labels = {"kubernetes.io/hostname": self.name, "kubernetes.io/os": "linux"}
        node = {
            "apiVersion": "v1",
            "metadata": {"name": self.name, "labels": labels},
            "spec": {},
            "status": self._status(),
        }
        try:
            status, body = self._own.call("POST", "/api/v1/nodes", node)
        except OSError as error:
            log("E register:", error)
            return False
        log("registered" if status == 201 else f"register: {status} {body}")
        return status in (201, 409)

    def _status(self) -> dict[str, Any]:
        ready = any((ROOT / "etc/cni/net.d").glob("*.conf*"))
        condition = {"type": "Ready", "status": "True" if ready else "False", "lastHeartbeatTime": now()}
        if not ready:
            condition["reason"] = "NetworkPluginNotReady"
        return {
            "addresses": [{"type": "InternalIP", "address": self._address}, {"type": "Hostname", "address": self.name}],
            "conditions": [condition],
        }

    def _renew(self) -> None:
        if time.monotonic() - self._leased < LEASE_S:
            return
        self._leased = time.monotonic()
        lease = {"metadata": {"name": self.name, "namespace": "kube-node-lease"}, "spec": {"renewTime": time.time()}}
        path = "/apis/coordination.k8s.io/v1beta1/namespaces/kube-node-lease/leases"
        if self._own.call("PUT", f"{path}/{self.name}", lease)[0] == 404:
            self._own.call("POST", path, lease)
        status = self._status()
        ready = status["conditions"][0]["status"] == "True"
        if ready != self._ready or time.monotonic() - self._told > STATUS_S:
            code = self._own.call("PUT", f"/api/v1/nodes/{self.name}/status", {"status": status})[0]
            if code == 404:
                log("E the Node is gone; a kubelet registers only at its start")
            if code in (200, 404):
                self._ready, self._told = ready, time.monotonic()

    def _sync_pods(self) -> None:
        code, node = self._own.call("GET", f"/api/v1/nodes/{self.name}")
        cidr = node.get("spec", {}).get("podCIDR") if code == 200 else None
        wanted: dict[str, tuple[Api, dict[str, Any]]] = {}
        answered_all = True
        for tenant in self._tenants:
            try:
                for pod in tenant.items(f"/api/v1/pods?fieldSelector=spec.nodeName%3D{self.name}"):
                    wanted[pod["metadata"]["uid"]] = (tenant, pod)
            except OSError as error:
                answered_all = False
                log("E pods:", error)
        for uid, (tenant, pod) in wanted.items():
            if uid not in self._pods and cidr and self._ready:
                self._start(tenant, pod, cidr)
        if answered_all:
            for uid in [u for u in self._pods if u not in wanted]:
                self._pods.pop(uid).close()
                self._addresses.pop(uid, None)

    def _start(self, tenant: Api, pod: dict[str, Any], cidr: str) -> None:
        meta = pod["metadata"]
        network = ipaddress.IPv4Network(cidr)
        why = self._bridge(network)
        base = f"/api/v1/tenants/{meta.get('tenant', 'system')}/namespaces/{meta.get('namespace', 'default')}/pods/{meta['name']}"
        if why:
            if pod.get("status", {}).get("conditions", [{}])[0].get("message") != why:
                condition = {"type": "Ready", "status": "False", "reason": "ContainerCreating", "message": why}
                tenant.call("PUT", f"{base}/status", {"status": {"phase": "Pending", "conditions": [condition]}})
                log("E pod", meta["name"], why)
            return
        address = self._free(network)
        try:
            self._pods[meta["uid"]] = PodServer(meta["name"], self.name, address, cidr)
        except OSError as error:
            log("E pod", meta["name"], error)
            return
        self._addresses[meta["uid"]] = address
        tenant.call("PUT", f"{base}/status", {"status": {"phase": "Running", "podIP": address, "hostIP": self._address}})
        log("pod", meta["name"], address)

    def _free(self, network: ipaddress.IPv4Network) -> str:
        """The next address, round and round as host-local does; .1 is the bridge's own."""
        taken = set(self._addresses.values())
        while True:
            self._last = self._last % (network.num_addresses - 3) + 1
            address = str(network[self._last + 1])
            if address not in taken:
                return address

    @staticmethod
    def _bridge(network: ipaddress.IPv4Network) -> str | None:
        """Make cni0 for the node's range; why pods cannot be attached if it is there with another address, as in life."""
        wanted = f"{network[1]}/{network.prefixlen}"
        found = json.loads((ROOT / "run/lab/net.json").read_text())["links"].get("cni0")
        if found is None:
            for words in (["link", "add", "cni0", "type", "bridge"], ["addr", "add", wanted, "dev", "cni0"]):
                subprocess.run(["ip", *words], check=False)
            return None
        return None if found == [wanted] else f'failed to set bridge addr: "cni0" already has an IP address different from {wanted}'


class Flanneld:
    """A route to each other node's pods, by `ip`; what the kernel refuses is logged and tried again, and nothing else fails.

    host-gw routes through the other node's address; vxlan through flannel.1, but directly inside the subnet (DirectRouting).
    """

    def __init__(self, flags: dict[str, str]) -> None:
        self._api = Api(flags["kube-api-url"])
        self._name = os.environ["NODE_NAME"]
        self._net = json.loads(Path(flags["net-config-path"]).read_text())
        self._subnet_file = Path(flags["subnet-file"])
        self._backend = self._net.get("Backend", {})
        self._told: dict[str, float] = {}
        self._routes: set[tuple[str, str]] = set()
        self._written = ""

    def run(self) -> None:
        """Until killed."""
        forever(self._sync)

    def _sync(self) -> None:
        nodes = self._api.items("/api/v1/nodes")
        own = next((n for n in nodes if n["metadata"]["name"] == self._name), None)
        cidr = own.get("spec", {}).get("podCIDR") if own else None
        if not cidr:
            return
        if self._written != cidr:
            self._written = cidr
            network = ipaddress.ip_network(cidr)
            lines = [
                f"FLANNEL_NETWORK={self._net['Network']}",
                f"FLANNEL_SUBNET={network[1]}/{network.prefixlen}",
                "FLANNEL_MTU=9001",
                "FLANNEL_IPMASQ=true",
            ]
            self._subnet_file.parent.mkdir(parents=True, exist_ok=True)
            new = self._subnet_file.with_suffix(".new")
            new.write_text("\n".join(lines) + "\n")
            new.replace(self._subnet_file)
            log("wrote", self._subnet_file)
        wanted = set()
        for node in nodes:
            addresses = [a["address"] for a in node.get("status", {}).get("addresses", []) if a["type"] == "InternalIP"]
            other = node.get("spec", {}).get("podCIDR")
            if node["metadata"]["name"] != self._name and other and addresses:
                wanted.add((other, addresses[0]))
        for destination, via in self._routes - wanted:  # before the others: a range may come back behind another node
            subprocess.run(["ip", "-4", "route", "del", destination], capture_output=True)
            self._routes.discard((destination, via))
        for destination, via in wanted - self._routes:
            done = subprocess.run(["ip", "-4", "route", "replace", destination, *self._hop(via)], capture_output=True, text=True)
            if done.returncode == 0:
                self._routes.add((destination, via))
                log("route", destination, via)
            elif time.monotonic() - self._told.get(destination, -99) > 5:
                self._told[destination] = time.monotonic()
                log(f"E Error adding route to {destination} via {via}: {done.stderr.strip().rpartition(': ')[2].lower()}")

    def _hop(self, via: str) -> list[str]:
        """What `ip route` is told of the way to a node."""
        net = json.loads((ROOT / "run/lab/net.json").read_text())
        beside = ipaddress.ip_address(via) in ipaddress.ip_interface(f"{net['address']}/{net['prefix']}").network
        if self._backend.get("Type") == "host-gw" or (self._backend.get("DirectRouting") and beside):
            return ["via", via, "dev", "ens5"]
        if "flannel.1" not in net["links"]:
            subprocess.run(["ip", "link", "add", "flannel.1", "type", "vxlan", "id", "1"], check=False)
        return ["dev", "flannel.1"]


class KubeProxy:
    """ClusterIPs of all TPs in its list, without one of its own, balanced over their pods.

    A node's curl learns of them as its kernel would by iptables.
    """

    def __init__(self, flags: dict[str, str]) -> None:
        config = json.loads(Path(flags["config"]).read_text())
        try:
            peers = config.get("tenantPartitionKubeConfig") or config["clientConnection"]["kubeconfig"]
            self._tenants = [Api(server_of(f)) for f in peers.split(",")]
        except OSError as error:
            fatal(f"kubeconfig: {error}")
        self._listeners: dict[tuple[str, int], int] = {}
        self._backends: dict[tuple[str, int], list[tuple[str, int]]] = {}
        self._fragment = ROOT / "run/lab/curl.d/kube-proxy.conf"

    def run(self) -> None:
        """Until killed."""
        forever(self._sync)

    def _sync(self) -> None:
        backends: dict[tuple[str, int], list[tuple[str, int]]] = {}
        for tenant in self._tenants:
            try:
                endpoints = {_key(e): e for e in tenant.items("/api/v1/endpoints")}
                services = tenant.items("/api/v1/services")
            except OSError as error:
                log("E", error)  # services of a TP that does not answer vanish
                continue
            for service in services:
                found = [a["ip"] for s in endpoints.get(_key(service), {}).get("subsets", []) for a in s["addresses"]]
                for port in service["spec"].get("ports", []):
                    target = int(port.get("targetPort", port["port"]))
                    backends[(service["spec"]["clusterIP"], int(port["port"]))] = [(a, target) for a in found]
        self._backends = backends
        changed = False
        for key in backends:
            if key not in self._listeners:
                listener = socket.create_server((own_address(), 0), backlog=64)
                self._listeners[key] = listener.getsockname()[1]
                threading.Thread(target=self._serve, args=(listener, key), daemon=True).start()
                changed = True
        if changed:
            lines = [f'connect-to = "{ip}:{port}:{own_address()}:{at}"' for (ip, port), at in sorted(self._listeners.items())]
            self._fragment.parent.mkdir(parents=True, exist_ok=True)
            self._fragment.write_text("\n".join(lines) + "\n")
            subprocess.run(["autojoin-lab-names"], check=False)

    def _serve(self, listener: socket.socket, key: tuple[str, int]) -> None:
        turn = 0
        while True:
            connection, _ = listener.accept()
            turn += 1
            threading.Thread(target=self._forward, args=(connection, key, turn), daemon=True).start()

    def _forward(self, connection: socket.socket, key: tuple[str, int], turn: int) -> None:
        with connection:
            choices = self._backends.get(key, [])
            if not choices:
                return
            try:
                with socket.create_connection(choices[turn % len(choices)], 5, source_address=(own_address(), 0)) as pod:
                    connection.settimeout(5)
                    pod.sendall(connection.recv(65536))
                    while data := pod.recv(65536):
                        connection.sendall(data)
            except OSError as error:
                log("E forward:", error)


def _key(item: dict[str, Any]) -> tuple[str, str, str]:
    meta = item["metadata"]
    return meta.get("tenant", "system"), meta.get("namespace", "default"), meta["name"]


def main(process: str, argv: list[str]) -> None:
    """Run one of kubelet, kube-proxy, flanneld."""
    flags = parse_flags(argv)
    if process == "kubelet":
        Kubelet(flags).run()
    elif process == "kube-proxy":
        KubeProxy(flags).run()
    else:
        Flanneld(flags).run()
