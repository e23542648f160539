"""HTTP to what runs on this machine, past any proxy that the machine is set up with."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def ask(url: str, body: Any = None, *, method: str | None = None, timeout_s: float = 5.0) -> Any:
    """The JSON that `url` answers; None for an empty answer.

    body     sent as JSON, if given
    method   GET without and POST with a body, unless given
    Raises urllib.error.HTTPError for a status of 400 and more, OSError when nothing answers, ValueError for what is no JSON.
    """
    request = urllib.request.Request(
        url, method=method, headers={"Content-Type": "application/json"},
        data=json.dumps(body).encode() if body is not None else None,
    )  # fmt: skip
    with _opener.open(request, timeout=timeout_s) as answer:
        text = answer.read()
    return json.loads(text) if text else None


def is_healthy(address: str, timeout_s: float = 3.0) -> bool:
    """Whether the API server on `address` says ok."""
    try:
        with _opener.open(f"http://{address}:8080/healthz", timeout=timeout_s) as answer:
            return bool(answer.read() == b"ok")
    except OSError:
        return False
