"""The ban on sockets in this folder works."""

from __future__ import annotations

import socket

import pytest


def test_a_socket_cannot_be_opened_here() -> None:
    with pytest.raises(AssertionError, match="opened a socket"):
        socket.socket()


def test_a_connection_cannot_be_made_here() -> None:
    with pytest.raises(AssertionError, match="opened a socket"):
        socket.create_connection(("127.0.0.1", 9))
