"""Small state machines for tests, one call per state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lab import asl

State = dict[str, Any]

STANDARD_RETRY: State = {
    "ErrorEquals": [
        "Lambda.ServiceException",
        "Lambda.AWSLambdaException",
        "Lambda.SdkClientException",
        "Lambda.ClientExecutionTimeoutException",
        "Lambda.TooManyRequestsException",
    ],
    "IntervalSeconds": 1,
    "MaxAttempts": 6,
    "BackoffRate": 2,
    "MaxDelaySeconds": 20,
    "JitterStrategy": "FULL",
}


def machine(states: dict[str, State], start_at: str | None = None, **more: Any) -> State:
    """A definition; it starts at the first state unless told otherwise."""
    return {"QueryLanguage": "JSONata", "StartAt": start_at or next(iter(states)), "States": states, **more}


def task(payload: Any = None, *, callback: bool = False, function: str = "f", **more: Any) -> State:
    """A Task that calls a function; with `callback` its payload carries the token."""
    payload = {} if payload is None else payload
    if callback:
        payload = {**payload, "token": "{% $states.context.Task.Token %}"}
    resource = "arn:aws:states:::lambda:invoke" + (".waitForTaskToken" if callback else "")
    arguments = {"FunctionName": function, "Payload": payload}
    end = {} if "Next" in more else {"End": True}
    return {"Type": "Task", "Resource": resource, "Arguments": arguments, **end, **more}


def choice(*rules: tuple[str | bool, str], default: str | None = None, **more: Any) -> State:
    """A Choice of (condition, next)."""
    found = [{"Condition": c if isinstance(c, bool) else f"{{% {c} %}}", "Next": n} for c, n in rules]
    return {"Type": "Choice", "Choices": found, **({"Default": default} if default else {}), **more}


def catch(target: str, *names: str, **more: Any) -> State:
    """A catcher, of States.ALL unless told otherwise."""
    return {"ErrorEquals": list(names) or ["States.ALL"], "Next": target, **more}


def retry(*names: str, **more: Any) -> State:
    """A retrier without jitter."""
    return {"ErrorEquals": list(names), "IntervalSeconds": 1, "MaxAttempts": 2, "BackoffRate": 2, **more}


def payload_of(call: Callable[[Any], Any]) -> Callable[[str, Any], Any]:
    """An `invoke` that looks only at the payload."""
    return lambda _, payload: call(payload)


def run(definition: State, invoke: Callable[[str, Any], Any] | None = None, given: Any = None, **engine: Any) -> asl.Execution:
    """Run on a virtual clock to the end of all things."""
    made = asl.Engine(asl.VirtualClock(), invoke or (lambda *_: {}), **engine)
    execution = made.start(asl.parse(definition), "run", {} if given is None else given)
    made.run()
    return execution
