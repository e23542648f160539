"""Lambda functions run as on AWS: bare environment, AWS's error bodies, processes that survive an exception, real logs.

ministack differs: every error is a Runtime.HandlerError without stack trace, a handled exception kills the process, an
import error has no name, functions run on the server's own Python with its packages and its whole environment, a silent
function costs 50 ms, the number of processes is unbounded, each has a copy of code and layers, each call a log stream
of its own, embedded metrics (EMF) stay log lines and only Invoke counts in AWS/Lambda.

Made true: an execution environment is a process of the bare Python `.cache/runtime/bin/python` (only boto3) with the
variables that AWS sets, the function's own, the endpoint and the lab's marker; code and layers are unpacked once per
content; failures carry the exception's name, message, request id and stack trace; import errors are
Runtime.ImportModuleError, an exit is Runtime.ExitError, a time-out Sandbox.Timedout; one log stream per environment,
written only if the function's role may; EMF lines become metrics. Instead of throttling, what exceeds the slots waits:
functions whose name contains "wait" have slots of their own, so they never starve the others.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import selectors
import shutil
import signal
import subprocess
import threading
import time
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lab import lifeline

if TYPE_CHECKING:
    from lab.region.region import Region

Config = dict[str, Any]

REPOSITORY = Path(__file__).resolve().parents[2]
PYTHON = REPOSITORY / ".cache" / "runtime" / "bin" / "python"
RUNTIME = Path(__file__).with_name("function_runtime.py")
INIT_S = 60.0
"""Time in seconds for loading a function; AWS gives 10 s, this machine may be busy."""
WAITING_SLOTS = 4
"""Slots of functions that only wait, in multiples of the slots of the others: they sleep, so they cost memory only."""
IDLE_KEPT = 16
"""Idle execution environments that are kept beyond the slots; the one idle for longest goes first."""
MARK = b"\x1e"


class RuntimeMissing(RuntimeError):
    """The bare Python of the functions is not there."""


@dataclass
class Environment:
    """One execution environment: a process that has loaded one version of a function."""

    key: str
    fingerprint: str
    process: subprocess.Popen[bytes]
    answers: int
    log_stream: str
    folder: Path
    last_used: float = 0.0
    _rest: dict[int, bytes] = field(default_factory=dict)

    def alive(self) -> bool:
        """Whether the process can take an invocation."""
        return self.process.poll() is None

    def send(self, message: dict[str, Any]) -> None:
        """Write one line to the runtime."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()

    def receive(self, mark: str, timeout_s: float) -> tuple[dict[str, Any] | None, str]:
        """The answer and the log up to `mark`; no answer when the process ended, TimeoutError when it took too long.

        The time-out's log is in the exception's second argument.
        """
        assert self.process.stdout is not None
        log_fd = self.process.stdout.fileno()
        wanted = MARK + mark.encode()
        answer: bytes | None = None
        lines: list[bytes] = []
        marked = False
        open_fds = {self.answers, log_fd}
        deadline = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            for fd in open_fds:
                selector.register(fd, selectors.EVENT_READ)
            while open_fds and not (answer is not None and marked):
                ready = selector.select(max(0.0, deadline - time.monotonic()))
                if not ready:
                    raise TimeoutError("no answer", _text(lines))
                for event, _ in ready:
                    chunk = os.read(event.fd, 65536)
                    if not chunk:
                        selector.unregister(event.fd)
                        open_fds.discard(event.fd)
                        continue
                    whole = self._rest.pop(event.fd, b"") + chunk
                    *complete, rest = whole.split(b"\n")
                    self._rest[event.fd] = rest
                    for line in complete:
                        if event.fd == self.answers:
                            answer = line
                        elif line.endswith(wanted):
                            marked = True
                            lines += [line[: -len(wanted)]] if line != wanted else []
                        else:
                            lines.append(line)
        lines += [rest for rest in (self._rest.pop(log_fd, b""),) if rest and not marked]
        return (json.loads(answer) if answer is not None else None), _text(lines)

    def end(self) -> None:
        """Kill the process and drop its temporary folder."""
        with contextlib.suppress(OSError):
            os.killpg(self.process.pid, signal.SIGKILL)
        for close in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError, ValueError):
                close.close()  # type: ignore[union-attr]
        with contextlib.suppress(OSError):
            os.close(self.answers)
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


class Functions:
    """The execution environments of a region's functions, at most so many at work as there are slots."""

    def __init__(self, region: Region) -> None:
        self._region = region
        self._root = region.root / "functions"
        (self._root / "tmp").mkdir(parents=True, exist_ok=True)
        self._slots = threading.BoundedSemaphore(region.slots)
        self._waiting_slots = threading.BoundedSemaphore(region.slots * WAITING_SLOTS)
        self._kept = region.slots + IDLE_KEPT
        self._idle: list[Environment] = []
        self._living: set[int] = set()
        self._lock = threading.Lock()
        self._unpacking = threading.Lock()
        self._closed = False
        self._serial = 0
        if not PYTHON.exists():
            raise RuntimeMissing(f"the functions' bare Python is missing: expected {PYTHON}; make it with `make setup`")

    # -- one invocation ------------------------------------------------------------------------------------------
    def execute(self, func: dict[str, Any], event: Any, request_id: str) -> dict[str, Any]:
        """Run one invocation and return ministack's result {body, log, error}; waits for a slot first."""
        config: Config = func.get("config") or func
        name = config.get("FunctionName", "unknown")
        with self._waiting_slots if is_waiting(name) else self._slots:
            began = time.monotonic()
            result, cold = self._run(func, config, event, request_id)
            took_ms = round((time.monotonic() - began) * 1000, 1)
        body = result["body"] if result.get("error") else None
        self._region.journal.record(
            "function", name=name, request_id=request_id, error=body.get("errorType") if isinstance(body, dict) else None,
            operation=event.get("operation") if isinstance(event, dict) else None, cold=cold, ms=took_ms,
        )  # fmt: skip
        return result

    def _run(self, func: dict[str, Any], config: Config, event: Any, request_id: str) -> tuple[dict[str, Any], bool]:
        from ministack.services import lambda_svc

        environment, cold, init_log = self._take(config), False, ""
        if environment is None:
            cold = True
            environment, answer, init_log = self._spawn(config, func.get("code_zip") or b"")
            if answer is None or "ready" not in answer:
                environment.end()
                return self._init_failed(answer, init_log, request_id, environment), True
        timeout_s = float(config.get("Timeout") or 3)
        log = ""
        try:
            environment.send(
                {
                    "event": event, "request_id": request_id, "arn": config.get("FunctionArn", ""),
                    "timeout_s": timeout_s, "trace_id": lambda_svc._xray_trace_id_for_invocation(config),
                }
            )  # fmt: skip
            answer, log = environment.receive(request_id, timeout_s)
        except TimeoutError as late:
            environment.end()
            message = f"RequestId: {request_id} Error: Task timed out after {timeout_s:.2f} seconds"
            log = _joined(init_log, late.args[1], f"{request_id} Task timed out after {timeout_s:.2f} seconds")
            return _failed({"errorType": "Sandbox.Timedout", "errorMessage": message}, log, environment), cold
        except OSError:
            answer = None
        log = _joined(init_log, log)
        if answer is None:
            environment.end()
            return _failed(_exit_error(environment, request_id), log, environment), cold
        self._give_back(environment)
        if "raised" in answer:
            return _failed(answer["raised"], log, environment), cold
        return {"body": answer["result"], "log": log, "log_source": environment.log_stream}, cold

    def _init_failed(self, answer: dict[str, Any] | None, log: str, request_id: str, environment: Environment) -> dict[str, Any]:
        body = {**answer["raised"], "requestId": request_id} if answer else _exit_error(environment, request_id)
        told = f"[ERROR] {body['errorType']}: {body['errorMessage']}"
        return _failed(body, _joined(log, told), environment)

    # -- environments --------------------------------------------------------------------------------------------
    def _take(self, config: Config) -> Environment | None:
        key, fingerprint = _key(config), _fingerprint(config)
        stale: list[Environment] = []
        found = None
        with self._lock:
            for environment in list(reversed(self._idle)):
                if environment.key != key:
                    continue
                usable = environment.fingerprint == fingerprint and environment.alive()
                if usable and found is None:
                    found = environment
                    self._idle.remove(environment)
                elif not usable:
                    stale.append(environment)
                    self._idle.remove(environment)
        for environment in stale:
            environment.end()
        return found

    def _give_back(self, environment: Environment) -> None:
        environment.last_used = time.monotonic()
        with self._lock:
            if self._closed:
                surplus = [environment]
            else:
                self._idle.append(environment)
                surplus = self._idle[: max(0, len(self._idle) - self._kept)]
                del self._idle[: len(surplus)]
        for one in surplus:
            one.end()

    def _spawn(self, config: Config, code_zip: bytes) -> tuple[Environment, dict[str, Any] | None, str]:
        from ministack.core import lambda_runtime
        from ministack.core.responses import new_uuid
        from ministack.services import lambda_svc

        name, version = config.get("FunctionName", "unknown"), config.get("Version", "$LATEST")
        code = self._unpacked(code_zip)
        contents = (lambda_svc._resolve_layer_zip(layer) for layer in config.get("Layers") or [])
        layers = [self._unpacked(content) for content in contents if content]
        with self._lock:
            self._serial += 1
            folder = self._root / "tmp" / f"{name}-{self._serial}"
        folder.mkdir(parents=True)
        day = time.strftime("%Y/%m/%d", time.gmtime())
        log_stream = f"{day}/[{version}]{new_uuid().replace('-', '')}"
        variables = {
            **self._variables(config, code, folder, log_stream),
            **lambda_runtime.execution_credentials(config),
        }
        read_end, write_end = os.pipe()
        try:
            process = subprocess.Popen(
                [PYTHON, "-s", "-X", "utf8", RUNTIME, str(write_end)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=code,
                env=variables, pass_fds=(write_end,), start_new_session=True,
            )  # fmt: skip
        finally:
            os.close(write_end)
        environment = Environment(_key(config), _fingerprint(config), process, read_end, log_stream, folder)
        with self._lock:
            self._living = {pid for pid in self._living if _is_process(pid)} | {process.pid}
        start = {"code": str(code), "layers": [str(x) for x in layers], "handler": config.get("Handler", "index.handler")}
        try:
            environment.send(start)
            answer, log = environment.receive("init", INIT_S)
        except TimeoutError as late:
            answer, log = None, late.args[1]
        except OSError:
            answer, log = None, ""
        return environment, answer, log

    def _variables(self, config: Config, code: Path, folder: Path, log_stream: str) -> dict[str, str]:
        """What AWS sets, then the function's own, then what leads to this region. Nothing of the lab's process."""
        name = config.get("FunctionName", "")
        own = (config.get("Environment") or {}).get("Variables") or {}
        group = (config.get("LoggingConfig") or {}).get("LogGroup") or f"/aws/lambda/{name}"
        variables = {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "TZ": ":UTC",
            **{key: str(value) for key, value in own.items()},
            "LAMBDA_TASK_ROOT": str(code),
            "_HANDLER": config.get("Handler", ""),
            "AWS_EXECUTION_ENV": f"AWS_Lambda_{config.get('Runtime', '')}",
            "AWS_LAMBDA_FUNCTION_NAME": name,
            "AWS_LAMBDA_FUNCTION_VERSION": config.get("Version", "$LATEST"),
            "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": str(config.get("MemorySize", 128)),
            "AWS_LAMBDA_INITIALIZATION_TYPE": "on-demand",
            "AWS_LAMBDA_LOG_GROUP_NAME": group,
            "AWS_LAMBDA_LOG_STREAM_NAME": log_stream,
            "AWS_REGION": self._region.name,
            "AWS_DEFAULT_REGION": self._region.name,
            "AWS_XRAY_CONTEXT_MISSING": "LOG_ERROR",
            "AWS_XRAY_DAEMON_ADDRESS": "127.0.0.1:2000",
            "HOME": str(folder),
            "TMPDIR": str(folder),
        }
        variables.setdefault("AWS_ENDPOINT_URL", self._region.endpoint_url)
        with contextlib.suppress(RuntimeError):
            variables = lifeline.mark(variables)
        return variables

    def _unpacked(self, content: bytes) -> Path:
        """A folder with the content of a zip file, made once per content and shared, as /var/task and /opt are."""
        folder = self._root / "code" / hashlib.sha256(content).hexdigest()[:24]
        with self._unpacking:
            if not folder.exists():
                partial = folder.with_suffix(".partial")
                shutil.rmtree(partial, ignore_errors=True)
                with zipfile.ZipFile(io.BytesIO(content)) as archive:
                    archive.extractall(partial)
                    for entry in archive.infolist():
                        mode = entry.external_attr >> 16 & 0o777
                        if mode and not entry.is_dir():
                            (partial / entry.filename).chmod(mode | 0o400)
                partial.rename(folder)
        return folder

    def forget(self, name: str) -> None:
        """End the idle environments of a function that was changed or deleted."""
        with self._lock:
            doomed = [e for e in self._idle if e.key.split(":")[0] == name]
            self._idle = [e for e in self._idle if e not in doomed]
        for environment in doomed:
            environment.end()

    def close(self) -> None:
        """End every environment, those at work too: their invocations fail with Runtime.ExitError."""
        with self._lock:
            self._closed = True
            doomed, self._idle = self._idle, []
            living = set(self._living)
        for environment in doomed:
            environment.end()
        for pid in living:
            with contextlib.suppress(OSError):
                os.killpg(pid, signal.SIGKILL)


def apply(region: Region) -> None:
    """Have this region's functions run by `Functions`."""
    from ministack.core import lambda_runtime
    from ministack.services import lambda_svc

    functions = Functions(region)
    region.at_stop(functions.close)
    lambda_svc._execute_function_warm = functions.execute
    lambda_svc._emit_lambda_logs = emit_logs

    def forget(func_name: str, *_: object, **__: object) -> None:
        functions.forget(func_name)

    lambda_svc.invalidate_worker = lambda_runtime.invalidate_worker = forget
    _count_every_invocation(lambda_svc)


def is_waiting(name: str) -> bool:
    """Whether the function only waits, by its name, and so has slots of its own."""
    return "wait" in name.lower()


# -- logs and metrics ------------------------------------------------------------------------------------------------
def emit_logs(
    func: dict[str, Any], request_id: str, log_text: str, error: bool, duration_ms: int, *, log_source: str | None = None
) -> None:
    """Write an invocation's lines to its environment's log stream and its embedded metrics to CloudWatch.

    Nothing is written when the function's role may not logs:PutLogEvents, as on AWS.
    """
    from ministack.services import cloudwatch_logs as logs

    config: Config = func.get("config") or func
    name, version = config.get("FunctionName", "unknown"), config.get("Version", "$LATEST")
    group_name = (config.get("LoggingConfig") or {}).get("LogGroup") or f"/aws/lambda/{name}"
    stream_name = log_source or f"{time.strftime('%Y/%m/%d', time.gmtime())}/[{version}]{request_id.replace('-', '')}"
    if not _role_may_log(config, group_name, stream_name):
        return
    now_ms = int(time.time() * 1000)
    group = logs._log_groups.get(group_name)
    if group is None:
        group = {
            "arn": logs._make_group_arn(group_name), "creationTime": now_ms, "retentionInDays": None, "tags": {},
            "subscriptionFilters": {}, "streams": {},
        }  # fmt: skip
        logs._log_groups[group_name] = group
    stream = group["streams"].setdefault(
        stream_name,
        {
            "events": [], "uploadSequenceToken": "1", "creationTime": now_ms, "firstEventTimestamp": None,
            "lastEventTimestamp": None, "lastIngestionTime": None,
        },
    )  # fmt: skip
    lines = log_text.splitlines()
    report = (
        f"REPORT RequestId: {request_id}\tDuration: {duration_ms} ms\tBilled Duration: {duration_ms} ms\t"
        f"Memory Size: {config.get('MemorySize', 128)} MB\tMax Memory Used: {config.get('MemorySize', 128)} MB"
    )
    start, end = f"START RequestId: {request_id} Version: {version}", f"END RequestId: {request_id}"
    events = [{"timestamp": now_ms, "message": line, "ingestionTime": now_ms} for line in (start, *lines, end, report)]
    logs._append_log_events(stream, events)
    logs._fanout_to_subscription_filters(group_name, stream_name, events)
    for line in lines:
        if '"CloudWatchMetrics"' in line:
            with contextlib.suppress(ValueError, KeyError, TypeError):
                _put_embedded_metrics(json.loads(line))


def _put_embedded_metrics(line: dict[str, Any]) -> None:
    from ministack.services import cloudwatch

    for directive in line["_aws"]["CloudWatchMetrics"]:
        for dimensions in directive.get("Dimensions") or [[]]:
            named = {name: str(line[name]) for name in dimensions}
            for metric in directive["Metrics"]:
                values = line[metric["Name"]]
                for value in values if isinstance(values, list) else [values]:
                    cloudwatch.record_metric(directive["Namespace"], metric["Name"], value, metric.get("Unit", "None"), named)


def _role_may_log(config: Config, group: str, stream: str) -> bool:
    from lab.region import authorisation

    account, region = config["FunctionArn"].split(":")[4], config["FunctionArn"].split(":")[3]
    arn = f"arn:aws:logs:{region}:{account}:log-group:{group}:log-stream:{stream}"
    return authorisation.role_may(config.get("Role", ""), "logs:PutLogEvents", arn)


def _count_every_invocation(lambda_svc: Any) -> None:
    """AWS/Lambda metrics for asynchronous, event-source and machine invocations too, once each."""
    counted = lambda_svc._emit_lambda_metrics
    dispatch = lambda_svc._execute_function_dispatch

    def execute(func: dict[str, Any], config: Config, event: Any, request_id: str, started: float) -> dict[str, Any]:
        result: dict[str, Any] = dispatch(func, config, event, request_id, started)
        took_ms = max(0.01, (time.time() - started) * 1000)
        counted(config.get("FunctionName", "unknown"), duration_ms=took_ms, error=bool(result.get("error")), throttle=False)
        return result

    def count_throttles_only(function_name: str, duration_ms: float, error: bool, throttle: bool) -> None:
        if throttle and duration_ms == 0.0:
            counted(function_name, duration_ms=0.0, error=False, throttle=True)

    lambda_svc._execute_function_dispatch = execute
    lambda_svc._emit_lambda_metrics = count_throttles_only


# -- small parts -----------------------------------------------------------------------------------------------------
def _key(config: Config) -> str:
    return f"{config.get('FunctionName')}:{config.get('Version', '$LATEST')}"


def _fingerprint(config: Config) -> str:
    """Changes whenever AWS would start a new environment."""
    names = ("CodeSha256", "Environment", "Layers", "Handler", "MemorySize", "Role", "Runtime", "VpcConfig", "LoggingConfig")
    return hashlib.sha256(json.dumps([config.get(n) for n in names], default=str, sort_keys=True).encode()).hexdigest()


def _failed(body: dict[str, Any], log: str, environment: Environment) -> dict[str, Any]:
    return {"body": body, "error": True, "log": log, "log_source": environment.log_stream}


def _is_process(pid: int) -> bool:
    return Path("/proc", str(pid)).exists()


def _exit_error(environment: Environment, request_id: str) -> dict[str, Any]:
    rc = environment.process.wait()
    how = f"exit status {rc}" if rc >= 0 else f"signal: {-rc}"
    return {
        "errorType": "Runtime.ExitError",
        "errorMessage": f"RequestId: {request_id} Error: Runtime exited with error: {how}",
    }


def _text(lines: list[bytes]) -> str:
    return b"\n".join(lines).decode("utf-8", "replace")


def _joined(*parts: str) -> str:
    return "\n".join(part for part in parts if part)
