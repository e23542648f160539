"""Port Etcd on etcd's JSON gateway: what the versions answer, what is no answer, and a real etcd."""

from __future__ import annotations

import datetime as dt
import ipaddress
import json
import os
import random
import re
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from autojoin.adapters.etcd import PORT, TIMEOUT_S, EtcdGateway
from autojoin.domain import budgets
from autojoin.ports import EtcdView, Member

CLUSTER, ME, LEARNER = 0xCDF818194E3A8C32, 0x8E9E05C52164694D, 0x0000000000000001
Answer = tuple[int, Any]


def address() -> str:
    """One of this machine's own that hardly anybody else uses now."""
    return f"127.{random.randint(80, 250)}.{random.randint(1, 250)}.{random.randint(1, 250)}"


def answers_of(version: str, host: str, **more: Any) -> dict[str, Answer]:
    """What a healthy etcd of one member answers. 64-bit numbers come as text; 3.5 adds fields, and leaves empty ones out as 3.4 does."""
    header = {"cluster_id": str(CLUSTER), "member_id": str(ME), "raft_term": "2"}
    member = {"ID": str(ME), "name": "i-0123456789abcdef0", "peerURLs": [f"http://{host}:2380"], "clientURLs": [f"http://{host}:2379"]}
    status = {
        "header": {**header, "revision": "1"},
        "version": version,
        "dbSize": "20480",
        "leader": str(ME),
        "raftIndex": "4",
        "raftTerm": "2",
    }
    health = {"health": "true"} if version.startswith("3.4") else {"health": "true", "reason": ""}
    made = {
        "/health": (200, health),
        "/v3/maintenance/status": (200, status),
        "/v3/cluster/member/list": (200, {"header": header, "members": [member]}),
    }
    return made | more


@contextmanager
def serving(answer: Callable[[str], Answer | None], host: str, tls: ssl.SSLContext | None = None) -> Iterator[None]:
    """A server on etcd's port. No answer: it hangs until the test is over; status 0: it cuts the connection in its answer."""
    over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer()

        def do_POST(self) -> None:
            asked = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            assert json.loads(asked) == {}
            self._answer()

        def _answer(self) -> None:
            found = answer(self.path)
            if found is None:
                over.wait(30)
                self.close_connection = True
                return
            status, body = found
            raw = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status or 200)
            self.send_header("Content-Length", str(len(raw) + (status == 0)))
            self.end_headers()
            self.wfile.write(raw)
            self.close_connection = status == 0

        def log_message(self, *_: Any) -> None:
            return

    server = ThreadingHTTPServer((host, PORT), Handler)
    server.daemon_threads = True
    if tls:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield
    finally:
        over.set()
        server.shutdown()
        server.server_close()


def view_of(answers: dict[str, Answer | None], timeout_s: float = TIMEOUT_S) -> EtcdView | None:
    host = address()
    with serving(lambda path: answers.get(path, (404, b"404 page not found")), host):
        return EtcdGateway(timeout_s=timeout_s).view(host)


# -- answers ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["3.4.23", "3.5.1"])
def test_a_healthy_etcd_of_one_member_is_seen_with_hexadecimal_ids(version: str) -> None:
    seen = view_of(answers_of(version, "10.0.0.10"))

    member = Member("8e9e05c52164694d", "i-0123456789abcdef0", ("http://10.0.0.10:2380",), ("http://10.0.0.10:2379",))
    assert seen == EtcdView("cdf818194e3a8c32", "8e9e05c52164694d", version, "8e9e05c52164694d", (member,))


def test_a_health_that_is_a_truth_value_counts_as_one() -> None:
    assert view_of(answers_of("3.4.23", "10.0.0.10", **{"/health": (200, {"health": True})})) is not None


def test_a_member_that_never_started_has_no_name_and_no_client_url_and_a_learner_is_one() -> None:
    answers = answers_of("3.5.1", "10.0.0.10")
    learner = {"ID": str(LEARNER), "peerURLs": ["http://10.0.0.11:2380"], "isLearner": True}
    answers["/v3/cluster/member/list"][1]["members"].append(learner)

    seen = view_of(answers)

    assert seen
    assert seen.members[1] == Member("0000000000000001", "", ("http://10.0.0.11:2380",), (), is_learner=True)


@pytest.mark.parametrize("leader", [None, "0"])
def test_an_etcd_without_a_leader_says_so(leader: str | None) -> None:
    answers = answers_of("3.5.1", "10.0.0.10")
    del answers["/v3/maintenance/status"][1]["leader"]
    if leader:
        answers["/v3/maintenance/status"][1]["leader"] = leader

    seen = view_of(answers)

    assert seen
    assert seen.leader == ""


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("/health", (503, {"health": "false"})),
        ("/health", (200, {"health": "false", "reason": "RAFT NO LEADER"})),
        ("/health", (200, {"health": "false"})),
        ("/health", (200, b"")),
        ("/health", (0, b'{"health":"true"}')),
        ("/health", (200, b"ok")),
        ("/health", (200, b"\xff\xfe\x00")),
        ("/health", (200, [])),
        ("/health", (200, b"[" * 100_000)),
        ("/health", (200, b'{"health": "true"' + b" " * (1 << 20) + b"}")),
        ("/v3/maintenance/status", (404, {"error": "Not Found", "code": 5})),
        ("/v3/maintenance/status", (200, {})),
        ("/v3/maintenance/status", (200, {"header": None})),
        ("/v3/maintenance/status", (200, {"header": {"cluster_id": "cdf8", "member_id": "1"}})),
        ("/v3/maintenance/status", (200, {"header": {"cluster_id": "9" * 5000, "member_id": "1"}})),
        ("/v3/cluster/member/list", (500, b"")),
        ("/v3/cluster/member/list", (200, {"header": {}})),
        ("/v3/cluster/member/list", (200, {"members": None})),
        ("/v3/cluster/member/list", (200, {"members": ["i-0123456789abcdef0"]})),
        ("/v3/cluster/member/list", (200, {"members": [{"name": "no id"}]})),
        ("/v3/cluster/member/list", (200, {"members": [{"ID": "1", "peerURLs": None}]})),
    ],
)
def test_what_is_no_healthy_answer_is_no_view(path: str, answer: Answer) -> None:
    assert view_of({**answers_of("3.5.1", "10.0.0.10"), path: answer}) is None


def test_an_address_at_which_nobody_listens_is_no_view() -> None:
    assert EtcdGateway().view(address()) is None


@pytest.mark.parametrize("hangs", ["/health", "/v3/maintenance/status", "/v3/cluster/member/list"])
def test_a_call_that_nobody_ends_is_given_up(hangs: str) -> None:
    began = time.monotonic()

    assert view_of({**answers_of("3.5.1", "10.0.0.10"), hangs: None}, timeout_s=0.3) is None
    assert time.monotonic() - began < 5


def test_a_last_look_ends_before_its_function() -> None:
    calls_of_a_view = 3

    assert budgets.LOOK_FOR_S + calls_of_a_view * TIMEOUT_S < budgets.FUNCTION_TIMEOUT_S["etcd"]


# -- TLS -------------------------------------------------------------------------------------------------------------------


def certificate(host: str, folder: Path) -> tuple[Path, Path]:
    """A self-signed certificate for an address, made now, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "etcd")])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(minutes=5))
        .not_valid_after(now + dt.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    public, private = folder / "server.crt", folder / "server.key"
    public.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
    return public, private


def test_over_tls_only_a_server_that_the_context_trusts_is_asked(tmp_path: Path) -> None:
    host = address()
    public, private = certificate(host, tmp_path)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(public, private)
    answers = answers_of("3.5.1", host)

    with serving(lambda path: answers[path], host, server):
        trusting = EtcdGateway(ssl.create_default_context(cafile=str(public))).view(host)
        strange = EtcdGateway(ssl.create_default_context()).view(host)
        plain = EtcdGateway(timeout_s=0.5).view(host)

    assert trusting is not None
    assert trusting.cluster_id == "cdf818194e3a8c32"
    assert (strange, plain) == (None, None)


# -- a real one ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def real_etcd(tmp_path: Path) -> Iterator[str]:
    """The address of an etcd 3.5 of one member, as start-etcd starts it."""
    host = address()
    client, peer = f"http://{host}:2379", f"http://{host}:2380"
    flags = {
        "name": "i-0123456789abcdef0",
        "data-dir": tmp_path / "etcd",
        "listen-client-urls": client,
        "advertise-client-urls": client,
        "listen-peer-urls": peer,
        "initial-advertise-peer-urls": peer,
        "initial-cluster": f"i-0123456789abcdef0={peer}",
        "initial-cluster-token": "demo.tp1.1.i-0123456789abcdef0",
        "log-level": "error",
    }
    command = [str(Path(sys.executable).with_name("etcd")), *(f"--{name}={value}" for name, value in flags.items())]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    yield host
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(10)


def test_a_real_etcd_is_seen_as_the_one_member_of_its_cluster(real_etcd: str) -> None:
    gateway, give_up = EtcdGateway(), time.monotonic() + 30
    while (seen := gateway.view(real_etcd)) is None or not seen.leader:
        assert time.monotonic() < give_up, "etcd never answered"
        time.sleep(0.05)

    (member,) = seen.members
    assert re.fullmatch("[0-9a-f]{16}", seen.cluster_id)
    assert seen.leader == seen.member_id == member.id
    assert seen.version.startswith("3.5.")
    assert member == Member(seen.member_id, "i-0123456789abcdef0", (f"http://{real_etcd}:2380",), (f"http://{real_etcd}:2379",))
