"""The region itself: ministack embedded in this process, with AUTH on, on one free port of 127.0.0.1.

ministack reads its settings from the environment when it is imported and keeps its state in modules, so one process
holds one region at a time; a later one in the same process starts empty, with every override applied anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import importlib
import json
import logging
import os
import socket
import sys
import tempfile
import threading
import time
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config

from lab import lifeline
from lab.loopback import ask
from lab.observer.journal import Journal
from lab.region import OVERRIDES

ACCOUNT = "000000000000"
NAME = "us-east-1"
READY_S = 60.0
"""Longest time in seconds that the server may take to answer after its start."""

_MODULES = (
    "alb", "autoscaling", "cloudformation.engine", "cloudformation.provisioners", "cloudformation.stacks",
    "cloudwatch", "cloudwatch_logs", "dynamodb", "ec2", "eventbridge", "iam", "kms", "lambda_svc", "route53", "s3",
    "scheduler", "secretsmanager", "sns", "sqs", "ssm", "stepfunctions", "sts",
)  # fmt: skip
"""Services loaded before the overrides, so that what they replace can be put back when the region stops."""

_principal: contextvars.ContextVar[str] = contextvars.ContextVar("lab_principal", default="root")
_port = 0
_running: Region | None = None


class Region:
    """AWS in this process. One at a time; `start` and `stop` it from any thread but the server's."""

    name = NAME
    account = ACCOUNT

    def __init__(self, root: Path, journal: Journal, *, slots: int = 6) -> None:
        """A region whose every file lies under `root`; `slots` functions run at once, and WAITING_SLOTS times as many that only wait."""
        self.root = Path(root).resolve()
        self.journal = journal
        self.slots = slots
        self.endpoint_url = ""
        self._undo: list[Callable[[], None]] = []
        self._at_stop: list[Callable[[], None]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._shutdown: asyncio.Event | None = None
        self._thread: threading.Thread | None = None

    # -- life ----------------------------------------------------------------------------------------------------
    def start(self) -> None:
        """Apply the overrides, serve, and return when the API answers."""
        global _port, _running
        if _running is not None:
            raise RuntimeError("a region is running in this process already: ministack keeps its state in modules")
        _running = self
        try:
            (self.root / "tmp").mkdir(parents=True, exist_ok=True)
            lifeline.attach(self.journal)
            first = _port == 0
            _port = _port or _free_port()
            self.endpoint_url = f"http://127.0.0.1:{_port}"
            self._set_environment()
            _log_to(self.root / "region.log")
            app = importlib.import_module("ministack.app")
            for module in _MODULES:
                importlib.import_module(f"ministack.services.{module}")
            if not first:
                app._reset_all_state()
            self._undo.append(_remember_seams())
            self._apply(app)
            self._serve(app)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the server, the function processes and the region's threads. Safe to call twice."""
        global _running
        if _running is not self:
            return
        for callback in reversed(self._at_stop):
            with contextlib.suppress(Exception):
                callback()
        self._at_stop.clear()
        if self._loop is not None and self._shutdown is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._shutdown.set)
        if self._thread is not None:
            self._thread.join(timeout=15)
        while self._undo:
            self._undo.pop()()
        self._loop = self._shutdown = self._thread = None
        _running = None

    def at_stop(self, callback: Callable[[], None]) -> None:
        """Have an override's `callback` called when the region stops, the latest first, before the server ends."""
        self._at_stop.append(callback)

    # -- use -----------------------------------------------------------------------------------------------------
    def client(self, service: str, **kw: Any) -> Any:
        """A boto3 client as the account's root. `kw` goes to boto3; a `config` of one's own is merged in."""
        config = Config(
            proxies={}, retries={"mode": "standard", "max_attempts": 2}, read_timeout=120, connect_timeout=5,
            max_pool_connections=50, s3={"addressing_style": "path"},
        )  # fmt: skip
        extra = kw.pop("config", None)
        kw.setdefault("aws_access_key_id", "test")
        kw.setdefault("aws_secret_access_key", "test")
        session: Any = boto3.Session()
        return session.client(
            service, region_name=self.name, endpoint_url=self.endpoint_url,
            config=config.merge(extra) if extra else config, **kw,
        )  # fmt: skip

    def environment(self) -> dict[str, str]:
        """What an operator exports to speak to this region with any AWS tool."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint_url,
            "AWS_DEFAULT_REGION": self.name,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
        }

    def put_event(self, source: str, detail_type: str, detail: dict[str, Any], resources: Sequence[str] = ()) -> None:
        """Publish an event on the default bus as AWS itself does, `aws.*` sources included. Returns at once."""
        from ministack.services import eventbridge

        entry = {
            "Source": source, "DetailType": detail_type, "Detail": json.dumps(detail), "Resources": list(resources),
        }  # fmt: skip
        eventbridge._put_events({"Entries": [entry]}, allow_aws_source=True)

    @staticmethod
    def principal() -> str:
        """ARN of the caller of the API call that is being served: "root", or a user's or an assumed role's ARN."""
        return _principal.get()

    @staticmethod
    @contextlib.contextmanager
    def acting_as(arn: str) -> Iterator[None]:
        """Within the block, `principal()` is `arn`: for calls that the region makes on behalf of a role."""
        token = _principal.set(arn)
        try:
            yield
        finally:
            _principal.reset(token)

    # -- inside --------------------------------------------------------------------------------------------------
    def _set_environment(self) -> None:
        settings = {
            **self.environment(),
            "AUTH": "true",
            "GATEWAY_PORT": str(_port),
            "MINISTACK_HOST": "127.0.0.1",
            "MINISTACK_REGION": self.name,
            "MINISTACK_ACCOUNT_ID": self.account,
            "IOT_MTLS_ENABLED": "0",
            "SFTP_ENABLED": "0",
            "S3_DATA_DIR": str(self.root / "s3"),
            "STATE_DIR": str(self.root / "state"),
            "TMPDIR": str(self.root / "tmp"),
            "NO_PROXY": "127.0.0.1",
            "no_proxy": "127.0.0.1",
        }
        before = {name: os.environ.get(name) for name in (*settings, "AWS_SESSION_TOKEN", "AWS_PROFILE")}
        os.environ.update(settings)
        for name in ("AWS_SESSION_TOKEN", "AWS_PROFILE"):
            os.environ.pop(name, None)
        tempdir, tempfile.tempdir = tempfile.tempdir, settings["TMPDIR"]

        def put_back() -> None:
            tempfile.tempdir = tempdir
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value

        self._undo.append(put_back)

    def _apply(self, app: types.ModuleType) -> None:
        reaper = importlib.import_module("ministack.core.container_reaper")
        scheduler = importlib.import_module("ministack.services.scheduler")
        app._docker_socket_present = lambda: False  # type: ignore[attr-defined]
        app._stop_docker_containers = lambda *_, **__: None  # type: ignore[attr-defined]
        reaper.start = lambda *_: None  # type: ignore[attr-defined]
        scheduler._SCHEDULE_TICK_INTERVAL = 1  # type: ignore[attr-defined]
        for name in OVERRIDES:
            importlib.import_module(f"lab.region.{name}").apply(self)

    def _serve(self, app: types.ModuleType) -> None:
        from hypercorn.asyncio import serve
        from hypercorn.config import Config as ServerConfig

        from lab.region.journal_calls import journalled

        config = ServerConfig()
        config.bind = [f"127.0.0.1:{_port}"]
        config.loglevel = "WARNING"
        config.accesslog = None
        config.errorlog = logging.getLogger("lab.region.server")
        config.keep_alive_timeout = 75
        config.graceful_timeout = 0.5
        config.backlog = 1024
        failure: list[BaseException] = []

        async def main() -> None:
            self._loop, self._shutdown = asyncio.get_running_loop(), asyncio.Event()
            await serve(journalled(self, app.app), config, shutdown_trigger=self._shutdown.wait)  # type: ignore[arg-type]

        def run() -> None:
            try:
                asyncio.run(main())
            except BaseException as error:
                failure.append(error)

        self._thread = threading.Thread(target=run, name="region", daemon=True)
        self._thread.start()
        give_up = time.monotonic() + READY_S
        while True:
            if failure:
                raise RuntimeError(f"the region's server did not start: {failure[0]!r}") from failure[0]
            with contextlib.suppress(OSError):
                ask(f"{self.endpoint_url}/_ministack/health")
                return
            if time.monotonic() > give_up:
                raise RuntimeError(f"the region did not answer on {self.endpoint_url} within {READY_S:.0f} s")
            time.sleep(0.02)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _log_to(path: Path) -> None:
    """Keep ministack's own log lines (warnings and worse) out of the terminal: it configures the root logger if empty."""
    root = logging.getLogger()
    if not root.handlers:
        handler = logging.FileHandler(path, encoding="utf-8")
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s [%(name)s] %(message)s"))
        root.addHandler(handler)


def _remember_seams() -> Callable[[], None]:
    """Remember every function, class, number and table of functions in ministack; the result puts them back, in place."""
    modules = [m for n, m in list(sys.modules.items()) if m is not None and n.split(".")[0] == "ministack"]
    names: list[tuple[types.ModuleType, str, Any]] = []
    tables: list[tuple[dict[Any, Any], dict[Any, Any]]] = []
    for module in modules:
        for name, value in list(vars(module).items()):
            if callable(value):
                names.append((module, name, value))
            elif isinstance(value, dict) and any(_is_code(v) for v in value.values()):
                tables.append((value, {k: dict(v) if isinstance(v, dict) else v for k, v in value.items()}))

    def put_back() -> None:
        for module, name, value in names:
            if vars(module).get(name) is not value:
                setattr(module, name, value)
        for table, before in tables:
            table.clear()
            table.update(before)

    return put_back


def _is_code(value: object) -> bool:
    return callable(value) or (isinstance(value, dict) and any(callable(v) for v in value.values()))
