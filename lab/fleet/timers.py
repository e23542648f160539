"""Timers: the one place where the fleet's rules meet time, so that the rules can be tested with a hand-moved clock."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

Action = Callable[[], None]


class Timer:
    """One call to come. `cancel` it any time; a call that has begun is not stopped."""

    def __init__(self, due_s: float, action: Action) -> None:
        self.due_s = due_s
        self.action = action
        self.cancelled = False

    def cancel(self) -> None:
        """Make sure that the call does not begin any more."""
        self.cancelled = True


class Timers(Protocol):
    """A clock that also calls back."""

    def now(self) -> float:
        """Seconds since the epoch."""
        ...

    def after(self, delay_s: float, action: Action) -> Timer:
        """Call `action` once, `delay_s` seconds from now, in a thread of the clock's choice."""
        ...


class ManualTimers:
    """A clock that stands still until `advance`; calls happen inside `advance`, in the order in which they are due."""

    def __init__(self, now_s: float = 1_800_000_000.0) -> None:
        self._now_s = now_s
        self._order = itertools.count()
        self._heap: list[tuple[float, int, Timer]] = []

    def now(self) -> float:
        return self._now_s

    def after(self, delay_s: float, action: Action) -> Timer:
        timer = Timer(self._now_s + max(0.0, delay_s), action)
        heapq.heappush(self._heap, (timer.due_s, next(self._order), timer))
        return timer

    def advance(self, seconds: float) -> None:
        """Move the clock, making every call that becomes due on the way, those that calls ask for included."""
        end_s = self._now_s + seconds
        while self._heap and self._heap[0][0] <= end_s:
            due_s, _, timer = heapq.heappop(self._heap)
            self._now_s = max(self._now_s, due_s)
            if not timer.cancelled:
                timer.action()
        self._now_s = end_s


class RealTimers:
    """Wall-clock timers on one thread. Actions must be short; a failing one is logged and does not stop the others."""

    def __init__(self) -> None:
        self._wake = threading.Condition()
        self._order = itertools.count()
        self._heap: list[tuple[float, int, Timer]] = []
        self._over = False
        self._thread = threading.Thread(target=self._run, name="fleet-timers", daemon=True)
        self._thread.start()

    def now(self) -> float:
        return time.time()

    def after(self, delay_s: float, action: Action) -> Timer:
        timer = Timer(time.time() + max(0.0, delay_s), action)
        due = time.monotonic() + max(0.0, delay_s)
        with self._wake:
            heapq.heappush(self._heap, (due, next(self._order), timer))
            self._wake.notify()
        return timer

    def stop(self) -> None:
        """Drop what has not begun and end the thread. Safe to call twice, and from a timer."""
        with self._wake:
            self._over = True
            self._heap.clear()
            self._wake.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=10)

    def _run(self) -> None:
        while True:
            with self._wake:
                while not self._over and (not self._heap or self._heap[0][0] > time.monotonic()):
                    self._wake.wait(self._heap[0][0] - time.monotonic() if self._heap else None)
                if self._over:
                    return
                timer = heapq.heappop(self._heap)[2]
            if not timer.cancelled:
                try:
                    timer.action()
                except Exception:
                    logging.getLogger(__name__).exception("a timer's action failed")
