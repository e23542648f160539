"""The clock of the machine."""

from __future__ import annotations

import time


class SystemClock:
    """Port Clock."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        return time.time_ns() // 1_000_000

    def sleep(self, seconds: float) -> None:
        """Wait that long."""
        time.sleep(seconds)
