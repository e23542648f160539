"""kube-apiserver stand-in: tenants, nodes, pods, services, leases over a real etcd.

Objects live in etcd under /registry/<kind>/… as JSON. As in Arktos: a path with /tenants/<name>/ means that tenant, one without
means tenant system, a list without both means all tenants; a pod or service of a tenant that does not exist is refused; a new Node
gets the not-ready taint. There is no watch: the stand-ins list every few tenths of a second. With a serving certificate it answers
on its secure port, too: /healthz to everybody, the rest to clients with a certificate of the client CA. A file that a flag names
and that is missing ends it, as in life.
"""

from __future__ import annotations

import base64
import http.client
import ipaddress
import json
import re
import ssl
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from client import fatal, log

FILES = (
    "tls-cert-file",
    "tls-private-key-file",
    "client-ca-file",
    "service-account-key-file",
    "requestheader-client-ca-file",
    "proxy-client-cert-file",
    "proxy-client-key-file",
    "kubelet-client-certificate",
    "kubelet-client-key",
)
"""Flags that name files."""
RETRY_S = 0.3
NOT_READY = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
COLLECTIONS = {
    "nodes": "Node",
    "pods": "Pod",
    "services": "Service",
    "endpoints": "Endpoints",
    "leases": "Lease",
    "tenants": "Tenant",
    "namespaces": "Namespace",
}
PATH = re.compile(
    r"^/(?:api/v1|apis/coordination\.k8s\.io/v1(?:beta1)?)"
    r"(?:/tenants/(?P<tenant>[^/]+))?(?:/namespaces/(?P<namespace>[^/]+))?"
    r"/(?P<kind>nodes|pods|services|endpoints|leases|tenants|namespaces)(?:/(?P<name>[^/]+))?(?P<status>/status|/binding)?$"
)


class Etcd:
    """The JSON gateway of one etcd endpoint, over a kept connection per thread."""

    def __init__(self, url: str) -> None:
        self._address = urlsplit(url).netloc
        self._local = threading.local()

    def call(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """The answer as JSON. Raises OSError when etcd does not answer or refuses."""
        data = json.dumps(body).encode() if body is not None else None
        for last in (False, True):
            connection: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
            if connection is None:
                connection = self._local.connection = http.client.HTTPConnection(self._address, timeout=5)
            try:
                connection.request("POST" if data else "GET", path, body=data, headers={"Content-Type": "application/json"})
                answer = connection.getresponse()
                raw = answer.read()
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                self._local.connection = None
                if last or isinstance(error, TimeoutError):
                    raise OSError(f"etcd {self._address}: {error}") from error
                continue
            if answer.status != 200:
                raise OSError(f"etcd {self._address}: HTTP {answer.status} {raw[:200]!r}")
            found: dict[str, Any] = json.loads(raw)
            return found
        raise OSError(self._address)

    def health(self) -> bool:
        """Whether etcd says that it is healthy: it has a leader and serves linearizable reads."""
        try:
            return self.call("/health").get("health") in ("true", True)
        except (OSError, ValueError):
            return False

    def get(self, key: str) -> tuple[dict[str, Any], int] | None:
        found = self.call("/v3/kv/range", {"key": _b64(key)}).get("kvs", [])
        return (json.loads(base64.b64decode(found[0]["value"])), int(found[0]["mod_revision"])) if found else None

    def list(self, prefix: str) -> list[tuple[dict[str, Any], int]]:
        end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
        found = self.call("/v3/kv/range", {"key": _b64(prefix), "range_end": _b64(end)}).get("kvs", [])
        return [(json.loads(base64.b64decode(kv["value"])), int(kv["mod_revision"])) for kv in found]

    def put(self, key: str, value: dict[str, Any], revision: int | None) -> bool:
        """Write if the key's revision is still this one (0: absent; None: whatever it is)."""
        write = {"requestPut": {"key": _b64(key), "value": _b64(json.dumps(value))}}
        return self._if(key, revision, write)

    def delete(self, key: str, revision: int | None) -> bool:
        return self._if(key, revision, {"requestDeleteRange": {"key": _b64(key)}})

    def _if(self, key: str, revision: int | None, write: dict[str, Any]) -> bool:
        compare = [] if revision is None else [{"key": _b64(key), "target": "MOD", "modRevision": str(revision), "result": "EQUAL"}]
        return bool(self.call("/v3/kv/txn", {"compare": compare, "success": [write]}).get("succeeded"))


def _b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


class Store:
    """Objects by kind; every write is a compare-and-swap in etcd."""

    def __init__(self, etcd: Etcd, service_cidr: str | None) -> None:
        self.etcd, self._service_cidr = etcd, service_cidr
        self._lock = threading.Lock()

    @staticmethod
    def prefix(kind: str, tenant: str | None, namespace: str | None) -> str:
        """Where the objects of a kind are: of a namespace, of a tenant (namespace None), or of all tenants (tenant None)."""
        parts = [] if kind in ("nodes", "tenants") else [part for part in (tenant, namespace) if part]
        return "/".join(["/registry", kind, *parts, ""])

    def allocate(self) -> None:
        """What an API server writes before it serves, once etcd answers: from then on a partition lives in this etcd."""
        while True:
            try:
                self.etcd.put("/registry/ranges/serviceips", {"range": self._service_cidr or ""}, 0)
                return
            except OSError as error:
                log("E", error)
                time.sleep(RETRY_S)

    def known_tenant(self, tenant: str) -> bool:
        """Whether the tenant exists; system always does."""
        return tenant == "system" or self.etcd.get(self.prefix("tenants", None, None) + tenant) is not None

    def create(self, kind: str, tenant: str, namespace: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        name = body.get("metadata", {}).get("name")
        if not name:
            return 422, _status(422, "metadata.name is missing")
        if kind in ("pods", "services") and not self.known_tenant(tenant):
            return 404, _status(404, f"tenants {tenant} not found")
        made = {**body, "kind": COLLECTIONS[kind]}
        made["metadata"] = {
            **body["metadata"],
            **({} if kind in ("nodes", "tenants") else {"tenant": tenant, "namespace": namespace}),
            "uid": str(uuid.uuid4()),
            "creationTimestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        if kind == "nodes":
            made["spec"] = {**made.get("spec", {}), "taints": [*made.get("spec", {}).get("taints", []), NOT_READY]}
        if kind == "pods":
            made.setdefault("status", {"phase": "Pending"})
        with self._lock:
            if kind == "services":
                made["spec"] = {**made.get("spec", {}), "clusterIP": made.get("spec", {}).get("clusterIP") or self._cluster_ip()}
            key = self.prefix(kind, tenant, namespace) + name
            if not self.etcd.put(key, made, 0):
                return 409, _status(409, f"{kind} {name} already exists")
        return 201, self._read(key)

    def _read(self, key: str) -> dict[str, Any]:
        found = self.etcd.get(key)
        return _versioned(*found) if found else {}

    def _cluster_ip(self) -> str:
        taken = {o["spec"].get("clusterIP") for o, _ in self.etcd.list("/registry/services/")}
        network = ipaddress.ip_network(self._service_cidr or "127.0.0.0/24")
        return next(str(a) for n, a in enumerate(network.hosts()) if n >= 9 and str(a) not in taken)


def _versioned(value: dict[str, Any], revision: int) -> dict[str, Any]:
    return {**value, "metadata": {**value["metadata"], "resourceVersion": str(revision)}}


def _status(code: int, message: str) -> dict[str, Any]:
    return {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": message}


def _selected(item: dict[str, Any], query: dict[str, list[str]]) -> bool:
    for selector in query.get("labelSelector", []):
        labels = item.get("metadata", {}).get("labels", {})
        for pair in filter(None, selector.split(",")):
            key, _, value = pair.partition("=")
            if labels.get(key) != value.lstrip("="):
                return False
    for selector in query.get("fieldSelector", []):
        for pair in filter(None, selector.split(",")):
            path, _, wanted = pair.partition("=")
            seen: Any = item
            for part in path.split("."):
                seen = seen.get(part, "") if isinstance(seen, dict) else ""
            if str(seen) != wanted.lstrip("="):
                return False
    return True


class Handler(BaseHTTPRequestHandler):
    """One request of the API."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one packet
    disable_nagle_algorithm = True
    store: Store

    def log_message(self, *_: Any) -> None:
        return

    def _answer(self, code: int, body: Any) -> None:
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "text/plain" if isinstance(body, str) else "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _handle(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        raw = self.rfile.read(length) if length else b""
        try:
            body = json.loads(raw) if raw else {}
            self._answer(*self._serve(body))
        except ValueError as error:
            self._answer(400, _status(400, str(error)))
        except OSError as error:
            self._answer(500, _status(500, str(error)))

    do_GET = do_POST = do_PUT = do_DELETE = _handle

    def _serve(self, body: dict[str, Any]) -> tuple[int, Any]:
        url = urlsplit(self.path)
        if url.path in ("/healthz", "/readyz", "/livez"):
            return (200, "ok") if self.store.etcd.health() else (500, "etcd is not healthy")
        if isinstance(self.connection, ssl.SSLSocket) and not self.connection.getpeercert():
            return 401, _status(401, "Unauthorized")
        found = PATH.match(url.path)
        if not found:
            return 404, _status(404, f"no {url.path}")
        kind, name, sub = found["kind"], found["name"], found["status"]
        tenant, namespace = found["tenant"] or "system", found["namespace"]
        if name is None:
            if self.command == "POST":
                return self.store.create(kind, tenant, namespace or "default", body)
            query = parse_qs(url.query)
            prefix = Store.prefix(kind, found["tenant"] or ("system" if namespace else None), namespace)
            items = [_versioned(*pair) for pair in self.store.etcd.list(prefix)]
            return 200, {"kind": COLLECTIONS[kind] + "List", "items": [i for i in items if _selected(i, query)]}
        key = Store.prefix(kind, tenant, namespace or "default") + name
        known = self.store.etcd.get(key)
        if known is None:
            return 404, _status(404, f"{kind} {name} not found")
        value, revision = known
        if self.command == "GET":
            return 200, _versioned(value, revision)
        if self.command == "DELETE":
            uid = body.get("preconditions", {}).get("uid")
            if uid and uid != value["metadata"]["uid"]:
                return 409, _status(409, f"uid is {value['metadata']['uid']}")
            return (200, _versioned(value, revision)) if self.store.etcd.delete(key, revision) else (409, _status(409, "changed"))
        if sub == "/binding":
            if value.get("spec", {}).get("nodeName"):
                return 409, _status(409, f"pod {name} is bound already")
            changed = {**value, "spec": {**value.get("spec", {}), "nodeName": body["target"]["name"]}}
        elif sub == "/status":
            changed = {**value, "status": body.get("status", {})}
        else:
            changed = {**body, "metadata": {**body.get("metadata", {}), "uid": value["metadata"]["uid"]}}
            changed["metadata"].pop("resourceVersion", None)
        wanted = body.get("metadata", {}).get("resourceVersion")
        if wanted and sub != "/binding" and int(wanted) != revision:
            return 409, _status(409, "the object has been modified")
        if not self.store.etcd.put(key, changed, revision):
            return 409, _status(409, "the object has been modified")
        return 200, self.store._read(key)


class Server(ThreadingHTTPServer):
    """Threads end with the process."""

    daemon_threads = True
    request_queue_size = 128


def _serve_securely(flags: dict[str, str]) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(flags["tls-cert-file"], flags["tls-private-key-file"])
    context.load_verify_locations(flags["client-ca-file"])
    context.verify_mode = ssl.CERT_OPTIONAL
    server = Server((flags.get("bind-address", "127.0.0.1"), int(flags.get("secure-port", "6443"))), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)  # each in its own thread
    threading.Thread(target=server.serve_forever, daemon=True).start()


def main(flags: dict[str, str]) -> None:
    """Serve until killed."""
    for flag in FILES:
        if flag in flags and not Path(flags[flag]).is_file():
            fatal(f"--{flag}: {flags[flag]} is missing")
    Handler.store = Store(Etcd(flags["etcd-servers"]), flags.get("service-cluster-ip-range"))
    threading.Thread(target=Handler.store.allocate, daemon=True).start()
    address = flags.get("insecure-bind-address", "127.0.0.1")
    if "tls-cert-file" in flags:
        _serve_securely(flags)
    Server((address, int(flags.get("insecure-port", "8080"))), Handler).serve_forever()
