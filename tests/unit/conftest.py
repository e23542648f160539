"""Rules are pure: whoever opens a socket in tests/unit fails."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings

settings.register_profile("autojoin", deadline=None, database=None)
settings.load_profile("autojoin")


class NoSocket(socket.socket):
    """A socket that cannot be made."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise AssertionError("a unit test opened a socket")


@pytest.fixture(autouse=True, scope="module")
def no_sockets() -> Iterator[None]:
    real = socket.socket
    socket.socket = NoSocket  # type: ignore[misc]
    yield
    socket.socket = real  # type: ignore[misc]
