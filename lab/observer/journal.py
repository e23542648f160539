"""The lab's journal: what happened, written by the lab itself, so that invariants are judged without asking Autojoin.

Kinds of entries and their fields are listed in docs/lab.md. AWS has no such thing: CloudTrail comes late and knows no processes.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Entry = dict[str, Any]


class Journal:
    """An append-only list of entries, in memory and as JSON lines in a file. Safe to use from any thread."""

    def __init__(self, path: Path | None = None) -> None:
        self._lock = threading.Lock()
        self._entries: list[Entry] = []
        self._subscribers: list[Callable[[Entry], None]] = []
        self._file = path.open("a", encoding="utf-8", buffering=1) if path else None

    def record(self, kind: str, **fields: Any) -> Entry:
        """Append one entry; returns it. `t` is the time in seconds since the epoch."""
        entry: Entry = {"t": time.time(), "kind": kind, **fields}
        with self._lock:
            self._entries.append(entry)
            if self._file:
                self._file.write(json.dumps(entry, default=str) + "\n")
            subscribers = list(self._subscribers)
        for tell in subscribers:
            tell(entry)
        return entry

    def entries(self, kind: str | None = None, since: float = 0.0) -> list[Entry]:
        """The entries so far, oldest first, of one kind if asked, not older than `since` (seconds since the epoch)."""
        with self._lock:
            return [e for e in self._entries if (kind is None or e["kind"] == kind) and e["t"] >= since]

    def subscribe(self, callback: Callable[[Entry], None]) -> None:
        """Call `callback` with each later entry, in the thread that records it."""
        with self._lock:
            self._subscribers.append(callback)

    def unsubscribe(self, callback: Callable[[Entry], None]) -> None:
        """Stop calling `callback`; unknown callbacks are ignored."""
        with self._lock:
            self._subscribers = [s for s in self._subscribers if s != callback]

    def close(self) -> None:
        """Close the file; entries stay readable in memory."""
        with self._lock:
            if self._file:
                self._file.close()
                self._file = None
