"""Fibers, futures and timers: one small scheduler, on virtual or on real time, so that both clocks run the same code.

Not asyncio: its loops open a socket pair each, which tests without sockets forbid, and its time cannot be replaced
without touching private parts. Here everything that happens is an item, items run one at a time, in the order of their
time and then of their making; so a virtual run is the same each time.
"""

from __future__ import annotations

import heapq
import itertools
import queue
import threading
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass, field
from typing import Any

from lab.asl.clock import RealClock, VirtualClock


@dataclass(order=True)
class Timer:
    """Something to do at a time; `cancel` makes it not happen."""

    when: float
    sequence: int
    action: Callable[[], None] | None = field(compare=False)

    def cancel(self) -> None:
        """Forget it. Harmless when it has already happened."""
        self.action = None


class Future:
    """A result to come. The first of `resolve` and `fail` counts, later ones are ignored."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.done = False
        self._value: Any = None
        self._error: BaseException | None = None
        self._waiter: Fiber | None = None

    def resolve(self, value: Any) -> None:
        """Set the result."""
        self._settle(value, None)

    def fail(self, error: BaseException) -> None:
        """Set an exception as the result."""
        self._settle(None, error)

    def _settle(self, value: Any, error: BaseException | None) -> None:
        if self.done:
            return
        self.done, self._value, self._error = True, value, error
        if self._waiter is not None:
            self._scheduler.soon(self._waiter.step)

    def __await__(self) -> Generator[Future, None, Any]:
        if not self.done:
            yield self
        if self._error is not None:
            raise self._error
        return self._value


class Fiber:
    """A coroutine in its turns. `on_done(value, error)` is called once, unless it is cancelled before."""

    def __init__(
        self,
        scheduler: Scheduler,
        coroutine: Coroutine[Future, None, Any],
        on_done: Callable[[Any, BaseException | None], None],
    ) -> None:
        self._coroutine = coroutine
        self._on_done = on_done
        self.over = False
        scheduler.soon(self.step)

    def step(self) -> None:
        """Run to the next wait."""
        if self.over:
            return
        try:
            awaited = self._coroutine.send(None)
        except StopIteration as stop:
            self.over = True
            self._on_done(stop.value, None)
        except Exception as exc:
            self.over = True
            self._on_done(None, exc)
        else:
            awaited._waiter = self
            if awaited.done:
                awaited._scheduler.soon(self.step)

    def cancel(self) -> None:
        """End it where it waits; its `finally` blocks run now. Never to be called from inside the fiber itself."""
        if not self.over:
            self.over = True
            self._coroutine.close()


class Scheduler:
    """What both schedulers share: the list of timers."""

    def __init__(self) -> None:
        self._heap: list[Timer] = []
        self._sequence = itertools.count()
        self.lock = threading.RLock()

    def at(self, when: float, action: Callable[[], None]) -> Timer:
        """Do something at a time, in seconds since the epoch."""
        with self.lock:
            timer = Timer(when, next(self._sequence), action)
            heapq.heappush(self._heap, timer)
            self._wake()
        return timer

    def after(self, seconds: float, action: Callable[[], None]) -> Timer:
        """Do something after so many seconds."""
        return self.at(self.time() + max(0.0, seconds), action)

    def soon(self, action: Callable[[], None]) -> Timer:
        """Do something after all that is already due."""
        return self.at(self.time(), action)

    def future(self) -> Future:
        """A new future."""
        return Future(self)

    def time(self) -> float:
        """Seconds since the epoch."""
        raise TypeError("a scheduler is virtual or real")

    def call(self, work: Callable[[], None]) -> None:
        """Run work that may take long or wait, such as a function's handler."""
        raise TypeError("a scheduler is virtual or real")

    def news(self, tell: Callable[[], None]) -> None:
        """Tell somebody outside, in order, never inside a fiber and never with the lock held on real time."""
        self.soon(tell)

    def _wake(self) -> None:
        """Tell a waiting loop that there is a new timer."""

    def _pop_due(self, until: float) -> Timer | None:
        while self._heap and self._heap[0].action is None:
            heapq.heappop(self._heap)
        return heapq.heappop(self._heap) if self._heap and self._heap[0].when <= until else None


class VirtualScheduler(Scheduler):
    """Runs items in the caller's thread; time jumps to the next one.

    Handlers run inline. When one sleeps, its thread has the handler on its stack, so another thread takes over the
    turn until the sleeper's time has come. Only one of the threads runs at any time: it holds the baton.
    """

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self.clock = clock
        self._home: int | None = None  # the thread that called run
        self._home_baton = threading.Semaphore(0)
        self._home_idle = False  # run's thread waits in its loop for the baton
        self._home_asleep = False  # run's thread is inside a handler that sleeps
        self._sleepers: dict[int, threading.Semaphore] = {}  # batons of handlers that sleep, by their timer's sequence
        self._until = 0.0
        self._crash: BaseException | None = None

    def time(self) -> float:
        """The virtual time."""
        return self.clock.now

    def call(self, work: Callable[[], None]) -> None:
        """As one of the items, so never inside a fiber."""
        self.soon(work)

    def run(self, until: float | None = None) -> None:
        """Until nothing is left to do, or the time is reached (the clock then shows it). Raises what a handler broke on."""
        if self._home is not None:
            raise RuntimeError("the engine runs already; from inside a handler use the clock's sleep")
        self._home = threading.get_ident()
        self._until = float("inf") if until is None else until
        previous, self.clock.sleeper = self.clock.sleeper, self._sleep
        try:
            self._turns()
        finally:
            self.clock.sleeper = previous
            self._home = None
        if self._crash is not None:
            crash, self._crash = self._crash, None
            raise crash
        if until is not None:
            self.clock.now = max(self.clock.now, until)

    def _turns(self) -> None:
        at_home = threading.get_ident() == self._home
        while True:
            if at_home and self._crash is not None:
                return
            timer = self._pop_due(float("inf") if self._home_asleep else self._until)
            if timer is None or timer.action is None:
                if at_home:
                    return
                self._pass_home()
                return
            self.clock.now = max(self.clock.now, timer.when)
            baton = self._sleepers.pop(timer.sequence, None)
            if baton is not None:
                if at_home:
                    self._home_idle = True
                baton.release()
                if not at_home:
                    return
                self._home_baton.acquire()
                self._home_idle = False
                continue
            try:
                timer.action()
            except BaseException as exc:
                self._crash = self._crash or exc
            if not at_home and (self._home_idle or (self._crash and not self._home_asleep)):
                self._pass_home()
                return

    def _pass_home(self) -> None:
        self._home_baton.release()

    def _sleep(self, seconds: float) -> bool:
        if self._home is None:
            return False
        baton = threading.Semaphore(0)
        timer = self.after(seconds, lambda: None)
        self._sleepers[timer.sequence] = baton
        at_home = threading.get_ident() == self._home
        if at_home:
            self._home_asleep = True
        if self._home_idle:
            self._pass_home()
        else:
            threading.Thread(target=self._turns, daemon=True, name="virtual-turns").start()
        baton.acquire()
        if at_home:
            self._home_asleep = False
        return True


class RealScheduler(Scheduler):
    """Runs items in one thread of its own, handlers in at most `workers` others. `close` ends the thread."""

    def __init__(self, clock: RealClock, workers: int) -> None:
        super().__init__()
        self.clock = clock
        self._changed = threading.Condition(self.lock)
        self._closed = False
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._workers = workers
        self._threads = 0
        self._open_jobs = 0
        self._news: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._loop: threading.Thread | None = None
        self.on_crash: Callable[[BaseException], None] = lambda exc: None

    def time(self) -> float:
        """The machine's time."""
        return self.clock.time()

    def start(self) -> None:
        """Start the thread, once."""
        with self.lock:
            if self._loop is None and not self._closed:
                self._loop = threading.Thread(target=self._turns, daemon=True, name="state-machines")
                self._loop.start()
                threading.Thread(target=self._tell, daemon=True, name="state-machines-news").start()

    def close(self) -> None:
        """End the thread; what is not yet done will not be."""
        with self.lock:
            self._closed = True
            self._changed.notify_all()
            threads = self._threads
        self._news.put(None)
        for _ in range(threads):
            self._jobs.put(None)
        if self._loop is not None and self._loop is not threading.current_thread():
            self._loop.join(timeout=5)

    def call(self, work: Callable[[], None]) -> None:
        """In a worker thread; waits in line when all are busy."""
        with self.lock:
            self._open_jobs += 1
            if self._open_jobs > self._threads and self._threads < self._workers:
                self._threads += 1
                threading.Thread(target=self._work, daemon=True, name="function-call").start()
        self._jobs.put(work)

    def news(self, tell: Callable[[], None]) -> None:
        """By a thread of its own."""
        self._news.put(tell)

    def _tell(self) -> None:
        while (tell := self._news.get()) is not None:
            try:
                tell()
            except BaseException as exc:
                self.on_crash(exc)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except BaseException as exc:
                self.on_crash(exc)
            with self.lock:
                self._open_jobs -= 1

    def _wake(self) -> None:
        self._changed.notify()

    def _turns(self) -> None:
        with self.lock:
            while not self._closed:
                timer = self._pop_due(self.time())
                if timer is None:
                    left = (self._heap[0].when - self.time()) / self.clock.speed if self._heap else None
                    self._changed.wait(left)
                elif timer.action is not None:
                    try:
                        timer.action()
                    except BaseException as exc:
                        self.on_crash(exc)
