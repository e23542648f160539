"""Runs machines. One interpreter for both clocks; functions are called through `invoke`.

Made true, where other local interpreters differ from AWS: a function that raises fails its callback task at once; a new
token for each attempt; heartbeats; time-outs as expressions; MaxDelaySeconds and jitter; a machine's own time-out; stop
ends everything at once and nothing can change the status afterwards; Parallel and Map have their own scope and their
first failure stops the rest; all names of one Assign see the old values; undefined results are errors.
"""

from __future__ import annotations

import json
import logging
import random
import re
import uuid
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any

from lab.asl import definition as asl
from lab.asl import expressions as expr
from lab.asl import faults as fp
from lab.asl.clock import Clock, VirtualClock, iso
from lab.asl.definition import Machine, State
from lab.asl.errors import (
    ExecutionAlreadyExists,
    ExecutionDoesNotExist,
    InvalidExecutionInput,
    InvalidName,
    InvalidOutput,
    InvalidToken,
    StateMachineDoesNotExist,
    TaskDoesNotExist,
    TaskFailed,
    TaskTimedOut,
)
from lab.asl.execution import Execution, dumps
from lab.asl.scheduler import Fiber, Future, RealScheduler, Scheduler, Timer, VirtualScheduler

log = logging.getLogger("lab.asl")

MAX_PAYLOAD = 262_144  # characters of JSON; Step Functions quota "maximum input or output size"
INLINE_MAP_CONCURRENCY = 40  # AWS: "Inline mode supports up to 40 concurrent iterations"
TOKEN_PREFIX = "AQC"
TIMEOUTS = ("States.Timeout", "States.HeartbeatTimeout")
UNCATCHABLE = ("States.Runtime", "States.DataLimitExceeded")
_BAD_NAME = re.compile(r"[\s<>{}\[\]?*\"#%\\^|~`$&,;:/\x00-\x1f\x7f-\x9f]")

Invoke = Callable[[str, Any], Any]
StartExecution = Callable[[Execution, dict[str, Any]], Any]
Authorise = Callable[[Execution, str, str], str | None]
OnStatus = Callable[[Execution], None]
OnState = Callable[[Execution, str, str, str | None], None]


@dataclass
class Branch:
    """Where one thread of an execution is: its variables, its place in the history, its part of the context."""

    execution: Execution
    variables: dict[str, Any]
    last_event: int
    item: dict[str, Any] | None = None
    state: str = ""
    type: str = ""
    entered_at: float = 0.0
    retries: int = 0
    token: str | None = None
    fibers: list[Fiber] = field(default_factory=list)


@dataclass
class Call:
    """A task attempt that waits for its answer."""

    execution: Execution
    answer: Future
    beat: float
    lost: bool = False


class Engine:
    """Executions of machines on one clock.

    invoke           (function ARN or name, payload) -> result; raises TaskFailed. Other exceptions become TaskFailed
                     named after their class, as Lambda reports them; AssertionError ends a virtual run.
    start_execution  what states:startExecution does; by default starts a machine that was `register`ed
    authorise        (execution, action, resource) -> why not, or None
    on_status        called at RUNNING and at the end of each execution
    on_state         (execution, state, "entered" | "exited" | "failed", error)
    faults           see lab.asl.faults
    Virtual clock: nothing happens until `run`. Real clock: everything happens in the engine's own threads.
    """

    def __init__(
        self,
        clock: Clock,
        invoke: Invoke,
        *,
        on_status: OnStatus | None = None,
        on_state: OnState | None = None,
        faults: fp.Faults | None = None,
        start_execution: StartExecution | None = None,
        authorise: Authorise | None = None,
        region: str = "us-east-1",
        account: str = "000000000000",
        workers: int = 64,
        seed: int = 0,
    ) -> None:
        self.clock = clock
        self.region = region
        self.account = account
        self.executions: dict[str, Execution] = {}
        self._invoke = invoke
        self._on_status = on_status
        self._on_state = on_state
        self._faults = faults
        self._start_execution = start_execution or self._start_registered
        self._authorise = authorise
        self._random = random.Random(seed)
        self._machines: dict[str, Machine] = {}
        self._calls: dict[str, Call] = {}
        self._closed_tokens: dict[str, str] = {}
        self._tokens: dict[str, set[str]] = {}
        self._roots: dict[str, tuple[Fiber, Timer | None, list[Branch]]] = {}
        self._scheduler: Scheduler
        if isinstance(clock, VirtualClock):
            self._scheduler = VirtualScheduler(clock)
        else:
            self._scheduler = RealScheduler(clock, workers)
            self._scheduler.on_crash = self._crashed

    # -- the API -----------------------------------------------------------------------------------------------

    def register(self, machine: Machine) -> str:
        """Make a machine known to states:startExecution tasks; returns its ARN."""
        arn = machine.arn or self.machine_arn(machine.name)
        self._machines[arn] = machine
        return arn

    def machine_arn(self, name: str) -> str:
        """The ARN of a state machine of this region and account."""
        return f"arn:aws:states:{self.region}:{self.account}:stateMachine:{name}"

    def start(
        self,
        machine: Machine,
        name: str,
        input: Any,
        *,
        arn: str | None = None,
        role_arn: str | None = None,
        prepare: Callable[[Execution], None] | None = None,
    ) -> Execution:
        """Start, or return the running execution of the same name and input.

        `prepare` is called with a new execution before anything of it happens. Raises InvalidName,
        InvalidExecutionInput, ExecutionAlreadyExists.
        """
        if not 0 < len(name) <= 80 or _BAD_NAME.search(name):
            raise InvalidName(f"Invalid Name: '{name}'")
        try:
            text = dumps(input)
        except (TypeError, ValueError) as exc:
            raise InvalidExecutionInput(f"Invalid State Machine Execution Input: '{exc}'") from exc
        if len(text) > MAX_PAYLOAD:
            raise InvalidExecutionInput(f"Invalid State Machine Execution Input: over {MAX_PAYLOAD} characters")
        arn = arn or f"arn:aws:states:{self.region}:{self.account}:execution:{machine.name}:{name}"
        role_arn = role_arn or machine.role_arn or f"arn:aws:iam::{self.account}:role/{machine.name}"
        with self._scheduler.lock:
            known = self.executions.get(arn)
            if known is not None:
                if known.status == "RUNNING" and known.input == json.loads(text):
                    return known
                raise ExecutionAlreadyExists(f"Execution Already Exists: '{arn}'")
            execution = Execution(arn, name, machine, json.loads(text), role_arn, self.clock.time())
            self.executions[arn] = execution
            if prepare is not None:
                prepare(execution)
            details = {"input": text, "inputDetails": {"truncated": False}, "roleArn": role_arn}
            first = execution.record(self.clock.time(), "ExecutionStarted", details, 0)
            self._tell_status(execution)
            root = Branch(execution, {}, first)
            fiber = Fiber(
                self._scheduler,
                self._run_states(root, machine.start_at, machine.states, execution.input),
                lambda value, error: self._finished(execution, root, value, error),
            )
            limit = machine.timeout_s
            timer = self._scheduler.after(limit, lambda: self._time_out(execution)) if limit else None
            self._roots[arn] = (fiber, timer, [root])
        if isinstance(self._scheduler, RealScheduler):
            self._scheduler.start()
        return execution

    def stop(self, arn: str, error: str = "", cause: str = "") -> Execution:
        """Abort a running execution; nothing of it happens afterwards. Returns it; harmless when it has ended."""
        with self._scheduler.lock:
            execution = self._find(arn)
            self._abort(execution, error, cause)
        return execution

    def send_task_success(self, token: str, output: Any) -> None:
        """Answer a callback task. `output` as text is JSON, as in the API. Raises as the API does."""
        if isinstance(output, str):
            try:
                output = json.loads(output)
            except ValueError as exc:
                raise InvalidOutput(f"Invalid Output: '{exc}'") from exc
        if len(dumps(output)) > MAX_PAYLOAD:
            raise InvalidOutput(f"Invalid Output: over {MAX_PAYLOAD} characters")
        with self._scheduler.lock:
            call = self._call(token)
            self._close_token(token)
            if not call.lost:
                call.answer.resolve(json.loads(dumps(output)))

    def send_task_failure(self, token: str, error: str = "", cause: str = "") -> None:
        """Fail a callback task."""
        with self._scheduler.lock:
            call = self._call(token)
            self._close_token(token)
            if not call.lost:
                call.answer.fail(TaskFailed(error, cause))

    def send_task_heartbeat(self, token: str) -> None:
        """Reset the heartbeat time of a callback task."""
        with self._scheduler.lock:
            self._call(token).beat = self.clock.time()

    def call_later(self, delay_s: float, action: Callable[[], None]) -> None:
        """Do something outside of all executions at a later time: how a test's world moves by itself."""
        self._scheduler.after(delay_s, lambda: self._scheduler.call(action))

    def run(self, until: float | None = None) -> None:
        """Virtual: until nothing is left to do or the time is reached. Real: until all executions have ended."""
        if isinstance(self._scheduler, VirtualScheduler):
            self._scheduler.run(until)
            return
        for execution in list(self.executions.values()):
            left = None if until is None else max(0.0, until - self.clock.time())
            execution.ended.wait(left)

    def close(self) -> None:
        """Real clock: end the engine's threads."""
        if isinstance(self._scheduler, RealScheduler):
            self._scheduler.close()

    # -- beginnings and ends -------------------------------------------------------------------------------------

    def _find(self, arn: str) -> Execution:
        execution = self.executions.get(arn)
        if execution is None:
            raise ExecutionDoesNotExist(f"Execution Does Not Exist: '{arn}'")
        return execution

    def _finished(self, execution: Execution, root: Branch, value: Any, error: BaseException | None) -> None:
        if execution.status != "RUNNING":
            return
        if error is None:
            self._end(execution, "SUCCEEDED", value, None, None)
        elif isinstance(error, TaskFailed):
            self._end(execution, "FAILED", None, error.error, error.cause)
        else:
            self._end(execution, "FAILED", None, "States.Runtime", f"{type(error).__name__}: {error}")
            raise error

    def _abort(self, execution: Execution, error: str = "", cause: str = "") -> None:
        if execution.status == "RUNNING":
            self._end(execution, "ABORTED", None, error or None, cause or None)

    def _time_out(self, execution: Execution) -> None:
        if execution.status == "RUNNING":
            self._end(execution, "TIMED_OUT", None, "States.Timeout", None)

    def _end(self, execution: Execution, status: str, output: Any, error: str | None, cause: str | None) -> None:
        fiber, timer, branches = self._roots.pop(execution.arn)
        execution.status, execution.output, execution.error, execution.cause = status, output, error, cause
        now = execution.stopped_at = self.clock.time()
        fiber.cancel()
        if timer is not None:
            timer.cancel()
        for token in list(self._tokens.get(execution.arn, ())):
            self._close_token(token)
        self._tokens.pop(execution.arn, None)
        root = branches[0]
        if status == "SUCCEEDED":
            details: dict[str, Any] = {"output": dumps(output), "outputDetails": {"truncated": False}}
        else:
            details = {k: v for k, v in (("error", error), ("cause", cause)) if v is not None}
        if status == "ABORTED":
            for branch in branches:
                if branch.type in ("Task", "Parallel", "Map", "Wait"):
                    branch.last_event = execution.record(now, f"{branch.type}StateAborted", None, branch.last_event)
        kind = {"SUCCEEDED": "Succeeded", "FAILED": "Failed", "ABORTED": "Aborted", "TIMED_OUT": "TimedOut"}[status]
        execution.record(now, f"Execution{kind}", details, root.last_event)
        self._tell_status(execution)
        self._scheduler.news(execution.ended.set)

    def _crashed(self, error: BaseException) -> None:
        log.error("the interpreter of state machines failed", exc_info=error)

    # -- news: always told outside of the lock and of fibers -------------------------------------------------------

    def _tell_status(self, execution: Execution) -> None:
        if self._on_status is not None:
            tell = self._on_status
            self._scheduler.news(lambda: tell(execution))

    def _tell_state(self, branch: Branch, event: str, error: str | None = None) -> None:
        if self._on_state is not None:
            tell, execution, state = self._on_state, branch.execution, branch.state
            self._scheduler.news(lambda: tell(execution, state, event, error))

    # -- states ----------------------------------------------------------------------------------------------------

    def _states(self, branch: Branch, data: Any, **more: Any) -> dict[str, Any]:
        """The reserved variable `$states`."""
        execution = branch.execution
        context: dict[str, Any] = {
            "Execution": {
                "Id": execution.arn,
                "Input": execution.input,
                "Name": execution.name,
                "RoleArn": execution.role_arn,
                "StartTime": iso(execution.started_at),
                "RedriveCount": 0,
            },
            "State": {"Name": branch.state, "EnteredTime": iso(branch.entered_at), "RetryCount": branch.retries},
            "StateMachine": {
                "Id": execution.machine.arn or self.machine_arn(execution.machine.name),
                "Name": execution.machine.name,
            },
        }
        if branch.token is not None:
            context["Task"] = {"Token": branch.token}
        if branch.item is not None:
            context["Map"] = {"Item": branch.item}
        return {"input": data, "context": context, **more}

    def _evaluate(self, branch: Branch, value: Any, data: Any, **more: Any) -> Any:
        try:
            return expr.evaluate_template(value, self._states(branch, data, **more), branch.variables, self.clock)
        except TaskFailed as failed:
            self._note(branch, "EvaluationFailed", {"error": failed.error, "cause": failed.cause, "state": branch.state})
            raise

    def _finish(self, branch: Branch, part: State, data: Any, default: Any, **more: Any) -> Any:
        """The output of a state, rule or catcher; its Assign is done, all of it against the old values."""
        output = self._evaluate(branch, part["Output"], data, **more) if "Output" in part else default
        if "Assign" in part:
            branch.variables = {**branch.variables, **self._evaluate(branch, part["Assign"], data, **more)}
        return output

    def _note(self, branch: Branch, kind: str, details: dict[str, Any] | None = None) -> None:
        branch.last_event = branch.execution.record(self.clock.time(), kind, details, branch.last_event)

    async def _run_states(self, branch: Branch, start_at: str, states: dict[str, State], data: Any) -> Any:
        """One level from its start to its end; returns its output. Raises TaskFailed."""
        execution = branch.execution
        name: str | None = start_at
        while name is not None:
            state = states[name]
            branch.state, branch.type, branch.retries, branch.entered_at = name, state["Type"], 0, self.clock.time()
            execution.visited.append(name)
            execution.transitions += 1
            details = {"name": name, "input": dumps(data), "inputDetails": {"truncated": False}}
            self._note(branch, f"{branch.type}StateEntered", details)
            self._tell_state(branch, "entered")
            try:
                data, name = await self._run_state(branch, state, data)
                text = dumps(data)
                if len(text.encode()) > MAX_PAYLOAD:
                    raise TaskFailed("States.DataLimitExceeded", f"The state '{branch.state}' returned over 256 KiB.")
            except TaskFailed as failed:
                self._tell_state(branch, "failed", failed.error)
                raise
            details = {"name": branch.state, "output": text, "outputDetails": {"truncated": False}}
            self._note(branch, f"{branch.type}StateExited", details)
            self._tell_state(branch, "exited")
        branch.type = ""
        return data

    async def _run_state(self, branch: Branch, state: State, data: Any) -> tuple[Any, str | None]:
        """One state; returns its output and the next state's name."""
        kind = state["Type"]
        if kind in ("Task", "Parallel", "Map"):
            return await self._with_retry_and_catch(branch, state, data)
        await self._fault(branch, "before", 1)
        if kind == "Choice":
            part, target = self._choose(branch, state, data)
            await self._fault(branch, "after", 1)
            return self._finish(branch, part, data, data), target
        if kind == "Wait":
            await self._wait(self._wait_until(branch, state, data))
        await self._fault(branch, "after", 1)
        if kind == "Fail":
            error = self._evaluate(branch, state.get("Error", ""), data)
            cause = self._evaluate(branch, state.get("Cause", ""), data)
            raise TaskFailed(expr.typed("Error", error, "string"), expr.typed("Cause", cause, "string"))
        return self._finish(branch, state, data, data), state.get("Next")

    def _choose(self, branch: Branch, state: State, data: Any) -> tuple[State, str]:
        for rule in state["Choices"]:
            if expr.typed("Condition", self._evaluate(branch, rule["Condition"], data), "boolean"):
                return rule, rule["Next"]
        if "Default" not in state:
            raise TaskFailed("States.NoChoiceMatched", f"No choice of '{branch.state}' matched and it has no Default.")
        return state, state["Default"]

    def _wait_until(self, branch: Branch, state: State, data: Any) -> float:
        if "Seconds" in state:
            seconds = expr.typed("Seconds", self._evaluate(branch, state["Seconds"], data), "number")
            if not 0 <= seconds <= asl.MAX_WAIT_S:
                raise TaskFailed("States.QueryEvaluationError", f"Seconds is out of range: {seconds}")
            return self.clock.time() + float(seconds)
        text = expr.typed("Timestamp", self._evaluate(branch, state["Timestamp"], data), "string")
        try:
            moment = datetime.fromisoformat(text)
            if moment.tzinfo is None:
                raise ValueError("no time zone")
        except ValueError as exc:
            raise TaskFailed("States.QueryEvaluationError", f"Timestamp is not an RFC 3339 time: {text}") from exc
        return moment.timestamp()

    async def _wait(self, until: float) -> None:
        future = self._scheduler.future()
        timer = self._scheduler.at(max(until, self.clock.time()), lambda: future.resolve(None))
        try:
            await future
        finally:
            timer.cancel()

    # -- retry and catch ---------------------------------------------------------------------------------------------

    async def _with_retry_and_catch(self, branch: Branch, state: State, data: Any) -> tuple[Any, str | None]:
        used: dict[int, int] = {}
        while True:
            before = branch.variables
            try:
                return await self._attempt(branch, state, data), state.get("Next")
            except TaskFailed as failed:
                branch.variables = before
                branch.token = None
                number = _match(state.get("Retry", []), failed.error)
                if number is not None:
                    retrier, count = state["Retry"][number], used.get(number, 0)
                    if count < retrier.get("MaxAttempts", 3):
                        used[number] = count + 1
                        await self._wait(self.clock.time() + self._delay(retrier, count))
                        branch.retries += 1
                        branch.execution.transitions += 1
                        continue
                number = _match(state.get("Catch", []), failed.error)
                if number is None:
                    raise
                self._tell_state(branch, "failed", failed.error)
                catcher = state["Catch"][number]
                told = {"Error": failed.error, "Cause": failed.cause}
                return self._finish(branch, catcher, data, told, errorOutput=told), catcher["Next"]

    def _delay(self, retrier: State, count: int) -> float:
        delay: float = retrier.get("IntervalSeconds", 1) * float(retrier.get("BackoffRate", 2.0)) ** count
        delay = min(delay, retrier.get("MaxDelaySeconds", asl.MAX_DELAY_S))
        return self._random.uniform(0, delay) if retrier.get("JitterStrategy") == "FULL" else delay

    async def _attempt(self, branch: Branch, state: State, data: Any) -> Any:
        kind = state["Type"]
        if kind == "Task":
            return await self._task(branch, state, data)
        attempt = branch.retries + 1
        await self._fault(branch, "before", attempt)
        try:
            result = await (self._parallel if kind == "Parallel" else self._map)(branch, state, data)
            await self._fault(branch, "after", attempt)
            output = self._finish(branch, state, data, result, result=result)
        except TaskFailed as failed:
            self._note(branch, f"{kind}StateFailed", {"error": failed.error, "cause": failed.cause} if kind == "Map" else None)
            raise
        self._note(branch, f"{kind}StateSucceeded")
        return output

    # -- faults ------------------------------------------------------------------------------------------------------

    async def _fault(self, branch: Branch, edge: Any, attempt: int) -> fp.Action:
        """Ask for a fault; delays and aborts are done here. Returns KILL_ANSWER, REPEAT or None; raises TaskFailed."""
        if self._faults is None:
            return None
        execution = branch.execution
        point = fp.FaultPoint(
            execution.name,
            execution.arn,
            execution.machine.name,
            branch.state,
            branch.type,
            edge,
            attempt,
            execution.visited.count(branch.state),
        )
        try:
            action = self._faults(point)
        except TaskFailed as failed:
            action = failed
        action = fp.check(point, action)
        if isinstance(action, TaskFailed):
            raise action
        if isinstance(action, fp.Delay):
            await self._wait(self.clock.time() + action.seconds)
            return None
        if action == fp.ABORT:
            self._scheduler.soon(lambda: self._abort(execution))
            await self._scheduler.future()
        return action

    # -- tasks -------------------------------------------------------------------------------------------------------

    async def _task(self, branch: Branch, state: State, data: Any) -> Any:
        """One attempt of a Task: call, wait for the answer, Output and Assign."""
        _execution, resource = branch.execution, state["Resource"]
        callback = resource == asl.LAMBDA_CALLBACK
        branch.token = TOKEN_PREFIX + uuid.UUID(int=self._random.getrandbits(128)).hex * 6 if callback else None
        service, _, operation = resource.removeprefix("arn:aws:states:::").partition(":")
        about = {"resourceType": service, "resource": operation}
        attempt = branch.retries + 1
        arguments = expr.typed("Arguments", self._evaluate(branch, state["Arguments"], data), "object")
        timeout = self._seconds(branch, state, "TimeoutSeconds", data)
        heartbeat = self._seconds(branch, state, "HeartbeatSeconds", data)
        scheduled: dict[str, Any] = {**about, "region": self.region, "parameters": dumps(arguments)}
        scheduled |= {"timeoutInSeconds": timeout} if timeout else {}
        scheduled |= {"heartbeatInSeconds": heartbeat} if heartbeat else {}
        try:
            fault = await self._fault(branch, "before", attempt)
            self._note(branch, "TaskScheduled", scheduled)
            self._note(branch, "TaskStarted", about)
            result = await self._answer(branch, resource, arguments, timeout, heartbeat, fault, attempt, about)
            self._note(branch, "TaskSucceeded", {**about, "output": dumps(result), "outputDetails": {"truncated": False}})
            output = self._finish(branch, state, data, result, result=result)
        except TaskFailed as failed:
            if failed.error != expr.QUERY_EVALUATION_ERROR:
                kind = "TaskTimedOut" if failed.error in TIMEOUTS else "TaskFailed"
                self._note(branch, kind, {**about, "error": failed.error, "cause": failed.cause})
            raise
        branch.token = None
        return output

    def _seconds(self, branch: Branch, state: State, key: str, data: Any) -> float | None:
        if key not in state:
            return None
        value = expr.typed(key, self._evaluate(branch, state[key], data), "number")
        if not 0 < value <= asl.MAX_WAIT_S:
            raise TaskFailed("States.QueryEvaluationError", f"{key} must be at least 1, but was {value}")
        return float(value)

    async def _answer(
        self,
        branch: Branch,
        resource: str,
        arguments: dict[str, Any],
        timeout: float | None,
        heartbeat: float | None,
        fault: fp.Action,
        attempt: int,
        about: dict[str, Any],
    ) -> Any:
        """Call and wait: result, failure, time-out or missing heartbeat, whatever is first."""
        scheduler, now, token = self._scheduler, self.clock.time(), branch.token
        call = Call(branch.execution, scheduler.future(), now)
        timers: list[Timer] = []
        if token is not None:
            self._calls[token] = call
            self._tokens.setdefault(branch.execution.arn, set()).add(token)
        if timeout is not None:
            timers.append(scheduler.after(timeout, lambda: call.answer.fail(TaskFailed("States.Timeout", ""))))
        if heartbeat is not None:
            self._watch(call, heartbeat, timers)

        def submitted(result: Any) -> None:
            if call.answer.done or call.execution.status != "RUNNING":
                return
            self._note(branch, "TaskSubmitted", {**about, "output": dumps(result), "outputDetails": {"truncated": False}})

        try:
            if fault == fp.KILL_ANSWER:
                call.lost = True
            else:
                self._perform(branch.execution, resource, arguments, call, submitted if token else None, fault == fp.REPEAT)
            held = _Held(call.answer)
            result = await held.outcome()
            heard = held.failed is None or held.failed.error not in TIMEOUTS
            if heard and await self._fault(branch, "after", attempt) == fp.KILL_ANSWER:
                call.lost = True
                call.answer = scheduler.future()
                await call.answer
            if held.failed is not None:
                raise held.failed
            return result
        finally:
            for timer in timers:
                timer.cancel()
            if token is not None:
                self._close_token(token)

    def _watch(self, call: Call, heartbeat: float, timers: list[Timer]) -> None:
        def look() -> None:
            due = call.beat + heartbeat
            if self.clock.time() >= due:
                call.answer.fail(TaskFailed("States.HeartbeatTimeout", ""))
            else:
                timers.append(self._scheduler.at(due, look))

        timers.append(self._scheduler.at(call.beat + heartbeat, look))

    def _perform(
        self,
        execution: Execution,
        resource: str,
        arguments: dict[str, Any],
        call: Call,
        submitted: Callable[[Any], None] | None,
        repeat: bool,
    ) -> None:
        """Do the call of a task in the scheduler's own way; its outcome settles the call."""
        text = dumps(arguments)

        def work() -> None:
            result, error = None, None
            try:
                for _ in range(2 if repeat else 1):
                    result = self._service(execution, resource, json.loads(text))
                result = json.loads(dumps(result))
            except TaskFailed as failed:
                error = failed
            except AssertionError:
                if isinstance(self.clock, VirtualClock):
                    raise
                error = TaskFailed("AssertionError", "")
            except Exception as exc:
                cause = {"errorMessage": str(exc), "errorType": type(exc).__name__, "requestId": "", "stackTrace": []}
                error = TaskFailed(type(exc).__name__, dumps(cause))
            self._scheduler.soon(lambda: settle(result, error))

        def settle(result: Any, error: TaskFailed | None) -> None:
            if call.lost:
                return
            if error is not None:
                call.answer.fail(error)
            elif submitted is not None:
                submitted(result)
            else:
                call.answer.resolve(result)

        self._scheduler.call(lambda: execution.context.copy().run(work))

    def _service(self, execution: Execution, resource: str, arguments: dict[str, Any]) -> Any:
        """The service integrations."""
        if resource == asl.START_EXECUTION:
            arn = arguments.get("StateMachineArn")
            if not isinstance(arn, str):
                raise TaskFailed("States.Runtime", "StateMachineArn must be a string")
            why = self._authorise(execution, "states:StartExecution", arn) if self._authorise else None
            if why:
                raise TaskFailed("StepFunctions.AWSStepFunctionsException", why)
            return self._start_execution(execution, arguments)
        function = arguments.get("FunctionName")
        if not isinstance(function, str) or not function:
            raise TaskFailed("States.Runtime", "FunctionName must be a string")
        why = self._authorise(execution, "lambda:InvokeFunction", function) if self._authorise else None
        if why:
            raise TaskFailed("Lambda.AWSLambdaException", why)
        payload = self._invoke(function, arguments.get("Payload", {}))
        return {"ExecutedVersion": "$LATEST", "Payload": payload, "StatusCode": 200}

    def _start_registered(self, parent: Execution, arguments: dict[str, Any]) -> dict[str, Any]:
        arn = arguments["StateMachineArn"]
        machine = self._machines.get(arn)
        if machine is None:
            raise TaskFailed("StepFunctions.StateMachineDoesNotExistException", f"State Machine Does Not Exist: '{arn}'")
        try:
            name = arguments.get("Name") or str(uuid.UUID(int=self._random.getrandbits(128)))
            child = self.start(machine, name, arguments.get("Input", {}))
        except (ExecutionAlreadyExists, InvalidName, InvalidExecutionInput, StateMachineDoesNotExist) as exc:
            raise TaskFailed(f"StepFunctions.{exc.code}Exception", str(exc)) from exc
        return {"ExecutionArn": child.arn, "StartDate": iso(child.started_at)}

    # -- tokens --------------------------------------------------------------------------------------------------------

    def _call(self, token: str) -> Call:
        call = self._calls.get(token)
        if call is not None:
            return call
        if token in self._closed_tokens:
            raise TaskTimedOut("Task Timed Out: 'Provided task does not exist anymore'")
        if isinstance(token, str) and token.startswith(TOKEN_PREFIX):
            raise TaskDoesNotExist("Task does not exist")
        raise InvalidToken("Invalid Token: 'Invalid token'")

    def machine_of_token(self, token: str) -> str | None:
        """ARN of the machine whose task has or had the token; None for a token that was never given."""
        call = self._calls.get(token)
        return call.execution.machine.arn if call is not None else self._closed_tokens.get(token)

    def _close_token(self, token: str) -> None:
        call = self._calls.get(token)
        if call is not None:
            self._closed_tokens[token] = call.execution.machine.arn
            del self._calls[token]
            self._tokens.get(call.execution.arn, set()).discard(token)

    # -- Parallel and Map ----------------------------------------------------------------------------------------------

    async def _parallel(self, branch: Branch, state: State, data: Any) -> list[Any]:
        given = self._evaluate(branch, state["Arguments"], data) if "Arguments" in state else data
        self._note(branch, "ParallelStateStarted")
        jobs = []
        for inner in state["Branches"]:
            child = Branch(branch.execution, dict(branch.variables), branch.last_event, branch.item)
            work = partial(self._run_states, child, inner["StartAt"], inner["States"], given)
            jobs.append((child, work))
        return await self._gather(branch, jobs, len(jobs))

    async def _map(self, branch: Branch, state: State, data: Any) -> list[Any]:
        items = self._evaluate(branch, state["Items"], data) if "Items" in state else data
        items = expr.typed("Items", items, "array")
        limit = int(expr.typed("MaxConcurrency", self._evaluate(branch, state.get("MaxConcurrency", 0), data), "number"))
        self._note(branch, "MapStateStarted", {"length": len(items)})
        inner, name = state["ItemProcessor"], branch.state
        jobs = []
        for index, value in enumerate(items):
            item = {"Index": index, "Value": value}
            child = Branch(branch.execution, dict(branch.variables), branch.last_event, item, name, "Map")
            jobs.append((child, partial(self._iterate, child, state, inner, data, name)))
        return await self._gather(branch, jobs, min(limit or INLINE_MAP_CONCURRENCY, INLINE_MAP_CONCURRENCY))

    async def _iterate(self, child: Branch, state: State, inner: State, data: Any, name: str) -> Any:
        assert child.item is not None
        about = {"name": name, "index": child.item["Index"]}
        self._note(child, "MapIterationStarted", about)
        given = self._evaluate(child, state["ItemSelector"], data) if "ItemSelector" in state else child.item["Value"]
        try:
            output = await self._run_states(child, inner["StartAt"], inner["States"], given)
        except TaskFailed:
            self._note(child, "MapIterationFailed", about)
            raise
        self._note(child, "MapIterationSucceeded", about)
        return output

    async def _gather(
        self, parent: Branch, jobs: Sequence[tuple[Branch, Callable[[], Coroutine[Future, None, Any]]]], limit: int
    ) -> list[Any]:
        """The results of all jobs, at most `limit` at a time. The first failure cancels the others and is raised."""
        branches = self._roots[parent.execution.arn][2]
        done = self._scheduler.future()
        results: list[Any] = [None] * len(jobs)
        running: dict[int, tuple[Branch, Fiber]] = {}
        waiting = deque(range(len(jobs)))

        def launch() -> None:
            while waiting and len(running) < limit and not done.done:
                index = waiting.popleft()
                child, work = jobs[index]
                branches.append(child)
                running[index] = (child, Fiber(self._scheduler, work(), partial(ended, index)))
            if not running and not waiting:
                done.resolve(None)

        def ended(index: int, value: Any, error: BaseException | None) -> None:
            child, _ = running.pop(index)
            branches.remove(child)
            if error is not None:
                done.fail(error)
                return
            results[index] = value
            parent.last_event = max(parent.last_event, child.last_event)
            launch()

        launch()
        try:
            await done
        finally:
            for child, fiber in running.values():
                fiber.cancel()
                if parent.execution.status == "RUNNING":
                    branches.remove(child)
        return results


class _Held:
    """The outcome of a future as a value, so that something can happen before it is used."""

    def __init__(self, future: Future) -> None:
        self._future = future
        self.failed: TaskFailed | None = None

    async def outcome(self) -> Any:
        """The value, or None with `failed` set."""
        try:
            return await self._future
        except TaskFailed as failed:
            self.failed = failed
            return None


def _match(parts: list[State], error: str) -> int | None:
    """The index of the first retrier or catcher whose ErrorEquals takes the error."""
    for index, part in enumerate(parts):
        names = part["ErrorEquals"]
        if error in names:
            return index
        if "States.ALL" in names and error not in UNCATCHABLE:
            return index
        if "States.TaskFailed" in names and error not in TIMEOUTS + UNCATCHABLE:
            return index
        if "States.Timeout" in names and error == "States.HeartbeatTimeout":
            return index
    return None
