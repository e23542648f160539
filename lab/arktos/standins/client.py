"""How stand-ins speak to API servers: by kubeconfig, through the node's own names, from the node's own address."""

from __future__ import annotations

import http.client
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

sys.path.append(str(Path(__file__).resolve().parents[3]))
from lab.fleet.names import Resolver

ROOT = Path(os.environ.get("AUTOJOIN_ROOT", "/"))
_names = Resolver(ROOT)


def log(*words: object) -> None:
    """A line in the unit's log."""
    print(time.strftime("%H:%M:%S"), *words, flush=True)


def fatal(message: str) -> None:
    """Say why and end, as the real process does."""
    log("F", message)
    sys.exit(1)


def parse_flags(argv: list[str]) -> dict[str, str]:
    """--name=value and --name as a dictionary."""
    flags = {}
    for word in argv:
        name, _, value = word.removeprefix("--").partition("=")
        flags[name] = value or "true"
    return flags


def own_address() -> str:
    """The node's address."""
    return (ROOT / "run/lab/address").read_text().strip()


def resolve(name: str) -> str:
    """The address of a name, as the node sees it. Raises OSError if there is none."""
    found = _names.resolve(name)
    if not found:
        raise OSError(f"no such name: {name}")
    return found[0]


def server_of(kubeconfig: str) -> str:
    """The server of a kubeconfig (JSON, which is YAML). Raises OSError if the file is missing."""
    return str(json.loads(Path(kubeconfig).read_text())["clusters"][0]["cluster"]["server"])


class Api:
    """One API server over a kept connection."""

    def __init__(self, server: str) -> None:
        self.server = server
        url = urlsplit(server)
        self._host, self._port = url.hostname or "", url.port or 80
        self._connection: http.client.HTTPConnection | None = None

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """(status, JSON). Raises OSError when nothing answers."""
        data = json.dumps(body) if body is not None else None
        for fresh in (False, True):
            try:
                if self._connection is None or fresh:
                    self._connection = http.client.HTTPConnection(
                        resolve(self._host), self._port, timeout=5, source_address=(own_address(), 0)
                    )
                self._connection.request(method, path, body=data, headers={"Content-Type": "application/json"})
                answer = self._connection.getresponse()
                raw = answer.read()
                try:
                    return answer.status, json.loads(raw)
                except ValueError:
                    return answer.status, raw.decode(errors="replace")
            except (TimeoutError, http.client.HTTPException, ConnectionError) as error:
                if self._connection is not None:
                    self._connection.close()
                self._connection = None
                if fresh:
                    raise OSError(f"{self.server}: {error}") from error
        raise OSError(self.server)

    def items(self, path: str) -> list[dict[str, Any]]:
        """The items of a list. Raises OSError when the answer is no list."""
        status, body = self.call("GET", path)
        if status != 200 or not isinstance(body, dict):
            raise OSError(f"{self.server}{path}: HTTP {status}")
        return list(body.get("items", []))

    def healthy(self) -> bool:
        """Whether /healthz says ok."""
        try:
            return self.call("GET", "/healthz") == (200, "ok")
        except OSError:
            return False


def now() -> str:
    """The time as the API writes it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


POLL_S = 0.4
"""Between two rounds of a process: stand-ins look again where the real ones watch."""


def forever(*rounds: Callable[[], None]) -> NoReturn:
    """Do the rounds, again and again until killed; an API server that does not answer is logged and asked again."""
    while True:
        try:
            for one in rounds:
                one()
        except OSError as error:
            log("E", error)
        time.sleep(POLL_S)
