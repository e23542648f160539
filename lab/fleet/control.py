"""The socket <root>/run/lab/manager.sock of a node, behind its systemctl, journalctl, ip and autojoin-lab-names."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

Reply = tuple[int, str, str]
Command = Callable[[Sequence[str]], Reply]


class ControlSocket:
    """Answers the shims of one node until `stop`. `commands`: name of the program → what it does with its arguments."""

    def __init__(self, root: Path, commands: dict[str, Command]) -> None:
        self._commands = commands
        folder = root / "run/lab"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "manager.sock").unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        handle = os.open(folder, os.O_PATH)
        try:
            self._socket.bind(f"/proc/self/fd/{handle}/manager.sock")  # the path itself may be too long for a socket's name
        finally:
            os.close(handle)
        self._socket.listen(64)
        self._thread = threading.Thread(target=self._accept, name=f"control-{root.name}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Take no more calls; those under way end by themselves."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                link, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(link,), name="control-call", daemon=True).start()

    def _serve(self, link: socket.socket) -> None:
        with link, contextlib.suppress(OSError):
            received = b""
            while not received.endswith(b"\n"):
                chunk = link.recv(65536)
                if not chunk:
                    return
                received += chunk
            argv = json.loads(received)["argv"]
            command = self._commands.get(argv[0])
            try:
                rc, out, err = command(argv[1:]) if command else (127, "", f"{argv[0]}: unknown to the lab\n")
            except Exception as error:  # the caller sees it, as it would see a crash of the real program
                rc, out, err = 1, "", f"{argv[0]}: {type(error).__name__}: {error}\n"
            link.sendall(json.dumps({"rc": rc, "out": out, "err": err}).encode())
