"""JSONata as Step Functions uses it: `{% … %}` strings, `$states`, variables, no undefined results, no `$eval`.

Parsing and evaluating are the package jsonata-python's; expressions are compiled once. `$millis` and `$now` are the
engine's clock. The functions that Step Functions adds to JSONata ($uuid, $hash, …) are not offered: a definition that
names one is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from jsonata import Jsonata
from jsonata.parser import Parser
from jsonata.utils import Utils

from lab.asl.clock import Clock, iso
from lab.asl.errors import TaskFailed

QUERY_EVALUATION_ERROR = "States.QueryEvaluationError"
REFUSED_FUNCTIONS = frozenset({"eval"})
OFFERED_FUNCTIONS = frozenset(Jsonata.static_frame.bindings) - REFUSED_FUNCTIONS


def is_expression(value: object) -> bool:
    """Whether a value of a definition is to be evaluated."""
    return isinstance(value, str) and value.startswith("{%") and value.endswith("%}")


def source(value: str) -> str:
    """The text inside `{% … %}`."""
    return value[2:-2].strip()


@lru_cache(maxsize=4096)
def compiled(text: str) -> Jsonata:
    """The parsed expression; raises jsonata's own exception when it does not parse."""
    expression = Jsonata(text)
    if expression.errors:
        raise expression.errors[0]
    expression.set_output_convert_nulls(False)
    return expression


def nodes(node: Any) -> Iterator[Any]:
    """A node of the syntax tree and all below it."""
    yield node
    for name, value in vars(node).items():
        if name == "_outer_instance":
            continue
        stack = [value]
        while stack:
            item = stack.pop()
            if isinstance(item, Parser.Symbol):
                yield from nodes(item)
            elif isinstance(item, list | tuple):
                stack.extend(reversed(item))


def problem_of(text: str) -> str | None:
    """Why the interpreter refuses this expression, or None."""
    try:
        tree = compiled(text).ast
    except Exception as exc:
        return f"is not JSONata: {exc}"
    bound: set[str] = set()
    for node in nodes(tree):
        if node.type == "lambda":
            bound |= {argument.value for argument in node.arguments}
        elif node.type == "bind":
            bound.add(node.lhs.value)
    for node in nodes(tree):
        if node.type in ("function", "partial") and node.procedure.type == "variable":
            name = node.procedure.value
            if name not in OFFERED_FUNCTIONS and name not in bound:
                return f"calls ${name}, which the interpreter does not offer"
    return None


@lru_cache(maxsize=4096)
def variables_in(text: str) -> frozenset[str]:
    """Names of the workflow variables that an expression reads, functions and `$states` left out."""
    tree = compiled(text).ast
    found: set[str] = set()
    bound: set[str] = set()
    procedures = set()
    for node in nodes(tree):
        if node.type == "variable" and id(node) not in procedures:
            found.add(str(node.value))
        if node.type in ("function", "partial"):
            procedures.add(id(node.procedure))
        elif node.type == "lambda":
            bound |= {argument.value for argument in node.arguments}
        elif node.type == "bind":
            bound.add(node.lhs.value)
    return frozenset(found - bound - {"states", "", "$"})


def texts(value: object) -> Iterator[str]:
    """The expressions in a template, outermost first."""
    if isinstance(value, str):
        if is_expression(value):
            yield source(value)
    elif isinstance(value, dict):
        for item in value.values():
            yield from texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from texts(item)


def evaluate(text: str, states: Mapping[str, Any], variables: Mapping[str, Any], clock: Clock) -> Any:
    """The JSON value of an expression. Raises TaskFailed(States.QueryEvaluationError), also for an undefined result."""
    bindings: dict[str, Any] = {n: Utils.NULL_VALUE if v is None else v for n, v in variables.items()}
    bindings["states"] = states
    bindings["millis"] = Jsonata.JLambda(lambda *_: int(clock.time() * 1000))
    bindings["now"] = Jsonata.JLambda(lambda *_: iso(clock.time()))
    try:
        result = compiled(text).evaluate(None, bindings)
    except Exception as exc:
        code = getattr(exc, "error", None)
        raise TaskFailed(QUERY_EVALUATION_ERROR, f"{code}: {exc}" if code else str(exc)) from exc
    if result is None:
        raise TaskFailed(QUERY_EVALUATION_ERROR, f"The JSONata expression '{text}' returned nothing (undefined).")
    return _plain(result, text)


def evaluate_template(value: Any, states: Mapping[str, Any], variables: Mapping[str, Any], clock: Clock) -> Any:
    """A value of a definition with every expression in it evaluated."""
    if isinstance(value, str):
        return evaluate(source(value), states, variables, clock) if is_expression(value) else value
    if isinstance(value, dict):
        return {k: evaluate_template(v, states, variables, clock) for k, v in value.items()}
    if isinstance(value, list):
        return [evaluate_template(v, states, variables, clock) for v in value]
    return value


def json_type(value: Any) -> str:
    """The JSON type name of a value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"


def typed(field: str, value: Any, *expected: str) -> Any:
    """The value, if its JSON type is one that the field takes; else States.QueryEvaluationError as AWS words it."""
    if json_type(value) in expected:
        return value
    raise TaskFailed(
        QUERY_EVALUATION_ERROR,
        f"The JSONata expression specified for the field '{field}' returned an unexpected result type. "
        f"Expected '{expected[0]}', but was '{json_type(value)}' for value: {json.dumps(value)}",
    )


def _plain(value: Any, text: str) -> Any:
    """JSON types only: null sentinels, sequences and whole floats become what JSON would print."""
    if value is None or value is Utils.NULL_VALUE:
        return None
    if isinstance(value, bool | str | int):
        return value
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < 2**53 else value
    if isinstance(value, dict):
        return {k: _plain(v, text) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v, text) for v in value]
    raise TaskFailed(QUERY_EVALUATION_ERROR, f"The JSONata expression '{text}' returned a function.")
