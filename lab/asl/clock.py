"""The two clocks: the same interpreter runs on real time in the lab and on virtual time in tests."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime


class RealClock:
    """The computer's clock; never goes back while it is in use. `speed` 1000 makes a second of it a millisecond."""

    def __init__(self, speed: float = 1.0) -> None:
        self.speed = speed
        self._epoch, self._start = time.time(), time.monotonic()

    def time(self) -> float:
        """Seconds since the epoch."""
        return self._epoch + (time.monotonic() - self._start) * self.speed

    def sleep(self, seconds: float) -> None:
        """Block the calling thread."""
        time.sleep(seconds / self.speed)


class VirtualClock:
    """Time that moves only when somebody waits for it.

    A handler that an engine calls may use `sleep`: the rest of that engine goes on meanwhile, then the handler
    continues at its later time. Outside of an engine `sleep` just moves the time.
    """

    def __init__(self, start_epoch_s: float = 1_800_000_000.0) -> None:
        self.now = start_epoch_s
        self.sleeper: Callable[[float], bool] | None = None  # set by the engine's scheduler; False: not inside a handler

    def time(self) -> float:
        """Seconds since the epoch."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let `seconds` pass."""
        if self.sleeper is None or not self.sleeper(seconds):
            self.now += seconds


Clock = RealClock | VirtualClock


def iso(epoch_s: float) -> str:
    """A time as Step Functions prints it: UTC with milliseconds and Z."""
    moment = datetime.fromtimestamp(epoch_s, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"
