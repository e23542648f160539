"""Use cases side by side, one call of a port at a time: whoever holds the baton runs until its next call.

A `Process` runs in a thread of its own, but never while another does, so a run is as deterministic as the test that steps it.
It can be crashed before any call, and so between any two.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from autojoin import errors


class Crashed(BaseException):
    """The function died here. No code of ours may catch it."""


class Process:
    """One call of a use case, parked before each call of a port."""

    _here = threading.local()

    def __init__(self, work: Callable[[], Any]) -> None:
        self.answer: Any = None
        self.error: errors.AutojoinError | None = None
        self.ended = False
        self.at = ""
        self._work, self._crash = work, False
        self._go, self._parked = threading.Semaphore(0), threading.Semaphore(0)
        threading.Thread(target=self._run, daemon=True).start()
        self._parked.acquire()

    @classmethod
    def before_call(cls, method: str) -> None:
        """For the ports: park the process that calls, if one does."""
        process = getattr(cls._here, "process", None)
        if process is not None:
            process._park(method)

    def step(self) -> None:
        """Do the call before which it is parked, and run on to the next one, or to its end."""
        self._go.release()
        self._parked.acquire()

    def finish(self) -> None:
        """Run to its end."""
        while not self.ended:
            self.step()

    def crash(self) -> None:
        """End it before the call."""
        self._crash = True
        self.step()

    def _run(self) -> None:
        type(self)._here.process = self
        try:
            self._park("")
            self.answer = self._work()
        except Crashed:
            pass
        except errors.AutojoinError as error:
            self.error = error
        finally:
            self.ended = True
            self._parked.release()

    def _park(self, method: str) -> None:
        self.at = method
        self._parked.release()
        self._go.acquire()
        if self._crash:
            raise Crashed
