"""moto's Step Functions engine as a second opinion on a machine's data flow, with Python callables as functions.

    with MotoEngine(invoke) as engine:
        outcome = engine.run(definition, {"instance_id": "i-0abc"})

In process, without sockets; waits and retry delays take no time. What is replaced in moto while the block runs:

* its JSONata evaluator, which wants a Java machine: jsonata-python
* the encoding of string variables, which breaks on quotes, backslashes and newlines
* the call of a function, which wants a Lambda endpoint
* the sleeping of waits and retries

Not to be asked (moto differs from AWS): heartbeats by name, a second attempt of a callback task, aborts, a Fail that
passes on an error whose name begins with `States.`.
"""

from __future__ import annotations

import itertools
import json
import logging
import time
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

from jsonata import Jsonata
from jsonata.utils import Utils
from moto.stepfunctions.parser.asl.component.common.retry import retrier_decl
from moto.stepfunctions.parser.asl.component.state.exec.state_task import lambda_eval_utils
from moto.stepfunctions.parser.asl.component.state.wait.wait_function import wait_function
from moto.stepfunctions.parser.asl.eval import states as states_module
from moto.stepfunctions.parser.asl.eval import variable_store
from moto.stepfunctions.parser.asl.jsonata import jsonata as moto_jsonata
from moto.stepfunctions.parser.asl.utils.encoding import to_json_str
from moto.stepfunctions.parser.backend.execution import BaseExecutionWorkerCommunication
from moto.stepfunctions.parser.models import StepFunctionsParserBackend

Invoke = Callable[[str, Any], Any]

_names = itertools.count(1)
ACCOUNT, REGION = "000000000000", "us-east-1"


@dataclass(frozen=True)
class Outcome:
    """How an execution ended, and the names of the states it entered."""

    status: str
    output: Any
    error: str | None
    cause: str | None
    visited: list[str] = field(default_factory=list)


class MotoEngine:
    """moto's engine for the length of a `with` block. `invoke(function, payload)` returns the result or raises.

    An exception is reported as Lambda reports it: by `error` and `cause` if it has them, else by its class's name.
    """

    def __init__(self, invoke: Invoke, *, timeout_s: float = 60) -> None:
        self._invoke = invoke
        self._timeout_s = timeout_s
        self._undo: list[Callable[[], None]] = []
        self._ended: list[Any] = []
        self._backend = StepFunctionsParserBackend(REGION, ACCOUNT)

    def __enter__(self) -> Self:
        self._replace(moto_jsonata, "_eval_jsonata", evaluate)
        for module in (moto_jsonata, states_module, variable_store):
            self._replace(module, "encode_jsonata_variable_declarations", encode_variables)
        terminated = BaseExecutionWorkerCommunication.terminated

        def ended(communication: BaseExecutionWorkerCommunication) -> None:
            terminated(communication)
            self._ended.append(communication.execution)

        self._replace(BaseExecutionWorkerCommunication, "terminated", ended)
        self._replace(lambda_eval_utils, "_invoke_lambda_function", self._call)
        self._replace(wait_function.WaitFunction, "_wait_interval", lambda *_, **__: None)
        logger = logging.getLogger("moto.stepfunctions")
        self._undo.append(partial(logger.setLevel, logger.level))
        logger.setLevel(logging.CRITICAL + 1)
        self._replace(retrier_decl, "time", types.SimpleNamespace(sleep=lambda _: None))
        return self

    def __exit__(self, *_: object) -> None:
        while self._undo:
            self._undo.pop()()

    def run(self, definition: dict[str, Any] | str, given: Any, *, name: str = "run") -> Outcome:
        """Run a definition to its end. Raises AssertionError if it does not end."""
        text = definition if isinstance(definition, str) else json.dumps(definition)
        role = f"arn:aws:iam::{ACCOUNT}:role/machine"
        machine = self._backend.create_state_machine(f"machine-{next(_names)}", text, role)
        execution = self._backend.start_execution(machine.arn, name, json.dumps(given))
        until = time.monotonic() + self._timeout_s
        while execution not in self._ended:
            assert time.monotonic() < until, "moto's engine did not end the execution"
            time.sleep(0.002)
        entered = [e.get("stateEnteredEventDetails") for e in execution.to_history_output()["events"]]
        visited = [e["name"] for e in entered if e]
        return Outcome(execution.status, execution.output, execution.error, execution.cause, visited)

    def send_task_success(self, token: str, output: Any) -> None:
        """Answer a callback task."""
        self._backend.send_task_success(token, json.dumps(output))

    def send_task_failure(self, token: str, error: str, cause: str = "") -> None:
        """Fail a callback task."""
        self._backend.send_task_failure(token, error, cause)

    def _call(self, parameters: dict[str, Any], region: str, state_credentials: Any) -> dict[str, Any]:
        payload = parameters.get("Payload", b"{}")
        payload = json.loads(payload) if isinstance(payload, bytes | str) else payload
        try:
            result = self._invoke(parameters["FunctionName"], payload)
        except Exception as exc:
            return {"StatusCode": 200, "FunctionError": "Unhandled", "Payload": failure_of(exc)}
        return {"StatusCode": 200, "ExecutedVersion": "$LATEST", "Payload": json.loads(json.dumps(result))}

    def _replace(self, owner: Any, name: str, value: Any) -> None:
        before = getattr(owner, name)
        setattr(owner, name, value)
        self._undo.append(lambda: setattr(owner, name, before))


def failure_of(exc: Exception) -> dict[str, Any]:
    """What Lambda answers for an exception. A cause that is such an answer already is kept."""
    name, message = getattr(exc, "error", type(exc).__name__), getattr(exc, "cause", str(exc))
    try:
        told = json.loads(message)
    except ValueError:
        told = None
    return told if isinstance(told, dict) and told.get("errorType") == name else {"errorType": name, "errorMessage": message}


def evaluate(expression: str) -> Any:
    """moto's `eval_jsonata`: a whole expression with its variables pasted in front."""
    try:
        parsed = Jsonata(expression)
        result = Utils.convert_nulls(parsed.evaluate(None))
        return json.loads(json.dumps(result))
    except Exception as exc:
        raise moto_jsonata.JSONataException("UNKNOWN", str(exc)) from exc


def encode_variables(bindings: dict[str, Any]) -> str:
    """Variables as JSONata source; strings properly quoted."""
    return "".join(f"{name}:={to_json_str(value)};" for name, value in bindings.items())
