"""Port Etcd on etcd's JSON gateway, plain http or TLS. Its 64-bit numbers come as decimal text; ids are hexadecimal here."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Mapping
from typing import Any

from autojoin.records import EtcdView, Member

PORT = 2379
TIMEOUT_S = 3.0
"""Of one call: the gateway itself sets no deadline, so a call that nobody ends would hang for ever. A last look of three calls
still ends before its function times out."""
LONGEST_ANSWER = 1 << 20


class EtcdGateway:
    """etcd on a node. Reads only."""

    def __init__(self, tls: ssl.SSLContext | None = None, timeout_s: float = TIMEOUT_S) -> None:
        self._tls, self._timeout_s = tls, timeout_s

    def view(self, address: str) -> EtcdView | None:
        """Status and members as this endpoint knows them, or None if it does not answer, or says that it is not healthy."""
        connection = self._connection(address)
        try:
            if _json(connection, "GET", "/health").get("health") not in ("true", True):
                return None
            status = _json(connection, "POST", "/v3/maintenance/status")
            listed = _json(connection, "POST", "/v3/cluster/member/list")
            return EtcdView(
                cluster_id=_id(status["header"]["cluster_id"]),
                member_id=_id(status["header"]["member_id"]),
                version=str(status.get("version", "")),
                leader=_id(status["leader"]) if int(status.get("leader", 0)) else "",
                members=tuple(_member(m) for m in listed["members"]),
            )
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError, RecursionError):
            return None
        finally:
            connection.close()

    def _connection(self, address: str) -> http.client.HTTPConnection:
        if self._tls is None:
            return http.client.HTTPConnection(address, PORT, timeout=self._timeout_s)
        return http.client.HTTPSConnection(address, PORT, timeout=self._timeout_s, context=self._tls)


def _json(connection: http.client.HTTPConnection, method: str, path: str) -> Mapping[str, Any]:
    """The answer of one call. Raises OSError, HTTPException, ValueError."""
    connection.request(method, path, body=None if method == "GET" else "{}", headers={"Content-Type": "application/json"})
    answer = connection.getresponse()
    raw = answer.read(LONGEST_ANSWER)
    if answer.status != http.HTTPStatus.OK:
        raise OSError(f"{path}: HTTP {answer.status}")
    parsed = json.loads(raw)
    if not isinstance(parsed, dict):
        raise ValueError(f"{path}: no JSON object")
    return parsed


def _id(decimal: Any) -> str:
    return f"{int(decimal):016x}"


def _member(described: Mapping[str, Any]) -> Member:
    return Member(
        id=_id(described["ID"]),
        name=str(described.get("name", "")),
        peer_urls=tuple(described.get("peerURLs", ())),
        client_urls=tuple(described.get("clientURLs", ())),
        is_learner=bool(described.get("isLearner", False)),
    )
