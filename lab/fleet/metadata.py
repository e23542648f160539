"""The instance metadata service, version 2, of each instance: http://<instance address>:8169.

ministack has one metadata endpoint for everybody, with an invented instance and invented credentials. Here each instance
sees itself: identity, network, tags when its launch template allows them, target lifecycle state, and real STS
credentials of its instance profile's role, so that what a script may do is what the role may do.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

PORT = 8169
CREDENTIALS_S = 3600 * 6


class Source(Protocol):
    """What the service tells about one instance; asked anew at every request."""

    tokens_required: bool
    tags_allowed: bool

    def flat(self) -> dict[str, str]:
        """Path below /latest/meta-data/ → text."""
        ...

    def role(self) -> str | None:
        """Name of the instance profile's role."""
        ...

    def credentials(self) -> dict[str, Any] | None:
        """AccessKeyId, SecretAccessKey, Token, Expiration of the role; None if there is none."""
        ...

    def document(self) -> dict[str, Any]:
        """The instance identity document."""
        ...


class MetadataService:
    """Serves one instance until `stop`."""

    def __init__(self, address: str, source: Source, port: int = PORT) -> None:
        self._tokens: dict[str, float] = {}
        self._server = _Server((address, port), _handler(source, self._tokens))
        threading.Thread(target=self._serve, name=f"imds-{address}", daemon=True).start()

    def stop(self) -> None:
        """Close the socket; requests being served end by themselves."""
        with contextlib.suppress(OSError):
            self._server.socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits in accept
        self._server.socket.close()

    def _serve(self) -> None:
        while True:
            try:
                request, client = self._server.get_request()
            except OSError:
                return
            self._server.process_request(request, client)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is no news."""


def _handler(source: Source, tokens: dict[str, float]) -> Callable[..., BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_PUT(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            if length:
                self.rfile.read(length)
            if self.path != "/latest/api/token":
                self._answer(404, "")
                return
            if self.headers.get("X-Forwarded-For"):
                self._answer(403, "")
                return
            try:
                ttl_s = int(self.headers.get("X-aws-ec2-metadata-token-ttl-seconds") or "")
            except ValueError:
                ttl_s = 0
            if not 1 <= ttl_s <= 21600:
                self._answer(400, "")
                return
            token = secrets.token_urlsafe(40)
            tokens[token] = time.monotonic() + ttl_s
            self._answer(200, token, {"X-Aws-Ec2-Metadata-Token-Ttl-Seconds": str(ttl_s)})

        def do_GET(self) -> None:
            token = self.headers.get("X-aws-ec2-metadata-token")
            allowed = not source.tokens_required if token is None else tokens.get(token, 0.0) > time.monotonic()
            if not allowed:
                self._answer(401, "")
                return
            text = _lookup(source, self.path)
            self._answer(404 if text is None else 200, text or "")

        def _answer(self, status: int, text: str, headers: dict[str, str] | None = None) -> None:
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/plain")
            self.send_header("Content-Length", str(len(body)))
            for key, value in (headers or {}).items():
                self.send_header(key, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing is written to the terminal."""

    return Handler


def _lookup(source: Source, path: str) -> str | None:
    path = path.split("?", 1)[0].rstrip("/")
    if path == "/latest/dynamic/instance-identity/document":
        return json.dumps(source.document(), indent=2)
    if path in ("/latest/meta-data", "/latest"):
        path = "/latest/meta-data"
    elif not path.startswith("/latest/meta-data/"):
        return None
    key = path.removeprefix("/latest/meta-data").lstrip("/")
    role = source.role()
    tree = source.flat()
    if role is not None:
        tree["iam/security-credentials"] = role
        if key == f"iam/security-credentials/{role}":
            got = source.credentials()
            if got is None:
                return None
            now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            return json.dumps({"Code": "Success", "LastUpdated": now, "Type": "AWS-HMAC", **got}, indent=2)
    if not source.tags_allowed:
        tree = {name: text for name, text in tree.items() if not name.startswith("tags/")}
    if key in tree:
        return tree[key]
    prefix = f"{key}/" if key else ""
    below = sorted(
        {
            name.removeprefix(prefix).split("/")[0] + ("/" if "/" in name.removeprefix(prefix) else "")
            for name in tree
            if name.startswith(prefix)
        }
    )
    return "\n".join(below) if below else None
