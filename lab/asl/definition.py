"""The subset of the Amazon States Language that Autojoin uses: parse it, check it, refuse all else.

JSONata only. A field or type that is not in the tables below is a DefinitionError, so that nothing is ignored in silence
(most interpreters do that). Checked as AWS does at creation: targets exist, every state is reachable, names are unique,
`{% … %}` parses, States.ALL stands alone and last, no Assign to an outer name in Parallel and Map.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from lab.asl import expressions
from lab.asl.errors import DefinitionError

State = dict[str, Any]

LAMBDA_INVOKE = "arn:aws:states:::lambda:invoke"
LAMBDA_CALLBACK = "arn:aws:states:::lambda:invoke.waitForTaskToken"
START_EXECUTION = "arn:aws:states:::states:startExecution"
RESOURCES = (LAMBDA_INVOKE, LAMBDA_CALLBACK, START_EXECUTION)
ARGUMENTS = {
    LAMBDA_INVOKE: ({"FunctionName"}, {"Payload"}),
    LAMBDA_CALLBACK: ({"FunctionName"}, {"Payload"}),
    START_EXECUTION: ({"StateMachineArn"}, {"Name", "Input"}),
}

_COMMON = {"Type", "Comment", "QueryLanguage"}
_FLOW = {"Next", "End"}
_DATA = {"Output", "Assign"}
_ERRORS = {"Retry", "Catch"}
FIELDS: dict[str, set[str]] = {
    "Task": {"Resource", "Arguments", "TimeoutSeconds", "HeartbeatSeconds", *_FLOW, *_DATA, *_ERRORS},
    "Choice": {"Choices", "Default", *_DATA},
    "Pass": {*_FLOW, *_DATA},
    "Wait": {"Seconds", "Timestamp", *_FLOW, *_DATA},
    "Succeed": {"Output"},
    "Fail": {"Error", "Cause"},
    "Parallel": {"Branches", "Arguments", *_FLOW, *_DATA, *_ERRORS},
    "Map": {"Items", "ItemSelector", "ItemProcessor", "MaxConcurrency", *_FLOW, *_DATA, *_ERRORS},
}
_MACHINE = {"Comment", "QueryLanguage", "StartAt", "States", "TimeoutSeconds", "Version"}
_RULE = {"Condition", "Next", "Output", "Assign", "Comment"}
_RETRIER = {"ErrorEquals", "IntervalSeconds", "BackoffRate", "MaxAttempts", "MaxDelaySeconds", "JitterStrategy", "Comment"}
_CATCHER = {"ErrorEquals", "Next", "Output", "Assign", "Comment"}
_VARIABLE = re.compile(r"^[A-Za-z_][A-Za-z0-9_]{0,79}$")
_SUBSTITUTION = re.compile(r"\$\{([A-Za-z0-9_]+)\}")
MAX_WAIT_S = 99_999_999
MAX_DELAY_S = 31_622_400


@dataclass(frozen=True)
class Machine:
    """A checked definition. `states` is the mapping of the definition itself; treat it as read-only."""

    name: str
    definition: Mapping[str, Any] = field(repr=False)
    arn: str = ""
    role_arn: str = ""

    @property
    def states(self) -> dict[str, State]:
        """The states of the top level by name."""
        return dict(self.definition["States"])

    @property
    def start_at(self) -> str:
        """The name of the first state."""
        return str(self.definition["StartAt"])

    @property
    def timeout_s(self) -> int | None:
        """The execution's own time-out in seconds, if any."""
        return self.definition.get("TimeoutSeconds")


@dataclass(frozen=True)
class Graph:
    """One level of a machine: the machine itself, a branch of a Parallel, or the processor of a Map."""

    path: str
    start_at: str
    states: dict[str, State]


def substitute(text: str, values: Mapping[str, str]) -> str:
    """The text with each `${Name}` replaced, as CloudFormation does with DefinitionSubstitutions; others stay."""
    return _SUBSTITUTION.sub(lambda m: values.get(m[1], m[0]), text)


def substitutions_in(text: str) -> set[str]:
    """The names of the `${Name}` in a text."""
    return set(_SUBSTITUTION.findall(text))


def load(definition: Mapping[str, Any] | str) -> dict[str, Any]:
    """The mapping of a definition given as YAML or JSON text, or as a mapping. Raises DefinitionError."""
    if not isinstance(definition, str):
        return dict(definition)
    try:
        loaded = yaml.safe_load(definition)
    except yaml.YAMLError as exc:
        raise DefinitionError([f"is neither JSON nor YAML: {exc}"]) from exc
    if not isinstance(loaded, dict):
        raise DefinitionError(["is not a mapping"])
    return loaded


def parse(definition: Mapping[str, Any] | str, *, name: str = "machine", arn: str = "", role_arn: str = "") -> Machine:
    """The machine of a definition in YAML or JSON text, or as a mapping. Raises DefinitionError with all problems."""
    loaded = load(definition)
    found = problems(loaded)
    if found:
        raise DefinitionError(found)
    return Machine(name, loaded, arn, role_arn)


def graphs(definition: Mapping[str, Any], path: str = "") -> Iterator[Graph]:
    """The machine's own graph, then those nested in it."""
    states = definition.get("States")
    states = states if isinstance(states, dict) else {}
    yield Graph(path, str(definition.get("StartAt")), states)
    for name, state in states.items():
        if isinstance(state, dict):
            for label, inner in nested(state):
                yield from graphs(inner, f"{path}{name}{label}.")


def nested(state: State) -> list[tuple[str, dict[str, Any]]]:
    """The definitions inside a Parallel or Map state, with a label each."""
    branches = state.get("Branches") if state.get("Type") == "Parallel" else None
    processor = state.get("ItemProcessor") if state.get("Type") == "Map" else None
    found = [(f"[{i}]", b) for i, b in enumerate(branches) if isinstance(b, dict)] if isinstance(branches, list) else []
    return found + ([("[]", processor)] if isinstance(processor, dict) else [])


def successors(state: State) -> list[tuple[str, str]]:
    """Where a state may go: (edge, name) with edge next, choice, default or catch."""
    edges: list[tuple[str, str]] = []
    if "Next" in state:
        edges.append(("next", state["Next"]))
    edges += [("choice", r["Next"]) for r in _mappings(state.get("Choices")) if "Next" in r]
    if "Default" in state:
        edges.append(("default", state["Default"]))
    edges += [("catch", c["Next"]) for c in _mappings(state.get("Catch")) if "Next" in c]
    return edges


def reachable(graph: Graph) -> set[str]:
    """Names of the states of one level that can be reached from its start."""
    seen: set[str] = set()
    stack = [graph.start_at]
    while stack:
        name = stack.pop()
        if name in seen or not isinstance(graph.states.get(name), dict):
            continue
        seen.add(name)
        stack += [target for _, target in successors(graph.states[name])]
    return seen


def assigned(state: State) -> set[str]:
    """Names of the variables that a state assigns, in its rules and catchers too."""
    parts = [state, *_mappings(state.get("Choices")), *_mappings(state.get("Catch"))]
    return {n for p in parts for n in (p["Assign"] if isinstance(p.get("Assign"), dict) else {})}


def templates(state: State) -> Iterator[tuple[str, Any]]:
    """The values of a state that may hold expressions, with the field's name; nested machines left out."""
    for key in ("Arguments", "Output", "Assign", "Items", "ItemSelector", "MaxConcurrency", "Seconds", "Timestamp"):
        if key in state:
            yield key, state[key]
    for key in ("TimeoutSeconds", "HeartbeatSeconds", "Error", "Cause"):
        if key in state:
            yield key, state[key]
    for name in ("Choices", "Catch"):
        for i, part in enumerate(_mappings(state.get(name))):
            for key in ("Condition", "Output", "Assign"):
                if key in part:
                    yield f"{name}[{i}].{key}", part[key]


def problems(definition: Mapping[str, Any]) -> list[str]:
    """All that AWS or the interpreter would refuse, as sentences that name the state and the field."""
    found: list[str] = []
    if definition.get("QueryLanguage") != "JSONata":
        found.append("QueryLanguage: must be JSONata")
    found += [f"{k}: not a field of a state machine that the interpreter knows" for k in definition.keys() - _MACHINE]
    if "TimeoutSeconds" in definition and not _is_int(definition["TimeoutSeconds"], 1, MAX_WAIT_S):
        found.append("TimeoutSeconds: must be a whole number of seconds of at least 1")
    _check_level(definition, "", frozenset(), set(), found)
    return found


def _check_level(level: Mapping[str, Any], path: str, outer: frozenset[str], names: set[str], found: list[str]) -> None:
    states = level.get("States")
    if not isinstance(states, dict) or not states:
        found.append(f"{path}States: must be a mapping with at least one state")
        return
    if level.get("StartAt") not in states:
        found.append(f"{path}StartAt: there is no state {level.get('StartAt')!r}")
    for name, state in states.items():
        where = f"{path}{name}"
        if not isinstance(name, str) or not 0 < len(name) <= 80:
            found.append(f"{where}: a state's name has 1 to 80 characters")
        if name in names:
            found.append(f"{where}: the name is used twice in the machine")
        names.add(name)
        if not isinstance(state, dict) or state.get("Type") not in FIELDS:
            kind = state.get("Type") if isinstance(state, dict) else None
            found.append(f"{where}: Type {kind!r} is not one that the interpreter knows")
            continue
        _check_state(where, state, states, outer, found)
    graph = Graph(path, str(level.get("StartAt")), states)
    if graph.start_at in states:
        found += [f"{path}{n}: is not reachable" for n in states if n not in reachable(graph)]
    own = {n for s in states.values() if isinstance(s, dict) for n in assigned(s)}
    for name, state in states.items():
        for label, inner in nested(state) if isinstance(state, dict) else []:
            where = f"{path}{name}{label}"
            allowed = {"StartAt", "States", "Comment", *({"ProcessorConfig"} if label == "[]" else ())}
            found += [f"{where}.{k}: not a field that the interpreter knows" for k in inner.keys() - allowed]
            if inner.get("ProcessorConfig", {"Mode": "INLINE"}) != {"Mode": "INLINE"}:
                found.append(f"{where}.ProcessorConfig: only Mode INLINE")
            _check_level(inner, f"{where}.", outer | own, names, found)


def _check_state(where: str, state: State, states: dict[str, Any], outer: frozenset[str], found: list[str]) -> None:
    kind = state["Type"]
    found += [f"{where}.{k}: not a field of {kind} that the interpreter knows" for k in state.keys() - FIELDS[kind] - _COMMON]
    if state.get("QueryLanguage", "JSONata") != "JSONata":
        found.append(f"{where}.QueryLanguage: must be JSONata")
    if "Next" in FIELDS[kind] and (("Next" in state) == ("End" in state) or state.get("End", True) is not True):
        found.append(f"{where}: needs either Next or End: true")
    for edge, target in successors(state):
        if target not in states:
            found.append(f"{where}: {edge} goes to {target!r}, which does not exist")
    for name in assigned(state):
        if not _VARIABLE.match(str(name)) or name == "states":
            found.append(f"{where}.Assign: {name!r} is not a variable's name")
        if name in outer:
            found.append(f"{where}.Assign: {name!r} is a variable of the outer scope")
    for part in [state, *_mappings(state.get("Choices")), *_mappings(state.get("Catch"))]:
        if not isinstance(part.get("Assign", {}), dict):
            found.append(f"{where}.Assign: must be a mapping")
    for key, value in templates(state):
        _check_expressions(f"{where}.{key}", value, found)
    _check_errors(where, state, found)
    if kind in _CHECKS:
        _CHECKS[kind](where, state, found)


def _check_expressions(where: str, value: Any, found: list[str]) -> None:
    if isinstance(value, str):
        if expressions.is_expression(value):
            problem = expressions.problem_of(expressions.source(value))
            if problem:
                found.append(f"{where}: {value} {problem}")
        elif "{%" in value or "%}" in value:
            found.append(f"{where}: an expression is the whole string, from {{% to %}}: {value!r}")
        elif _SUBSTITUTION.search(value):
            found.append(f"{where}: {value!r} has not been substituted")
    elif isinstance(value, dict):
        for key, item in value.items():
            _check_expressions(f"{where}.{key}", item, found)
    elif isinstance(value, list):
        for i, item in enumerate(value):
            _check_expressions(f"{where}[{i}]", item, found)
    elif not isinstance(value, int | float | bool | None):
        found.append(f"{where}: {value!r} is not JSON")


def _check_errors(where: str, state: State, found: list[str]) -> None:
    for key, known in (("Retry", _RETRIER), ("Catch", _CATCHER)):
        if key not in state or key not in FIELDS[state["Type"]]:
            continue
        parts = state[key]
        if not isinstance(parts, list) or not all(isinstance(p, dict) for p in parts):
            found.append(f"{where}.{key}: must be a list of mappings")
            continue
        for i, part in enumerate(parts):
            here = f"{where}.{key}[{i}]"
            found += [f"{here}.{k}: not a field that the interpreter knows" for k in part.keys() - known]
            names = part.get("ErrorEquals")
            if not isinstance(names, list) or not names or not all(isinstance(n, str) for n in names):
                found.append(f"{here}.ErrorEquals: must be a list of names")
            elif "States.ALL" in names and (len(names) > 1 or i < len(parts) - 1):
                found.append(f"{here}.ErrorEquals: States.ALL stands alone and last")
            if key == "Catch" and "Next" not in part:
                found.append(f"{here}: needs Next")
            if key == "Retry":
                _check_retrier(here, part, found)


def _check_retrier(here: str, part: dict[str, Any], found: list[str]) -> None:
    interval, delay = part.get("IntervalSeconds", 1), part.get("MaxDelaySeconds", MAX_DELAY_S)
    if not _is_int(interval, 1, MAX_WAIT_S):
        found.append(f"{here}.IntervalSeconds: must be a whole number of at least 1")
    elif not _is_int(delay, 1, MAX_DELAY_S) or delay <= interval:
        found.append(f"{here}.MaxDelaySeconds: must be a whole number over IntervalSeconds, at most {MAX_DELAY_S}")
    if not _is_int(part.get("MaxAttempts", 3), 0, MAX_WAIT_S):
        found.append(f"{here}.MaxAttempts: must be a whole number of at least 0")
    rate = part.get("BackoffRate", 2.0)
    if isinstance(rate, bool) or not isinstance(rate, int | float) or rate < 1:
        found.append(f"{here}.BackoffRate: must be a number of at least 1")
    if part.get("JitterStrategy", "NONE") not in ("NONE", "FULL"):
        found.append(f"{here}.JitterStrategy: NONE or FULL")


def _check_task(where: str, state: State, found: list[str]) -> None:
    resource = state.get("Resource")
    if resource not in RESOURCES:
        found.append(f"{where}.Resource: {resource!r} is not one of {', '.join(RESOURCES)}")
        return
    arguments = state.get("Arguments")
    required, optional = ARGUMENTS[resource]
    if isinstance(arguments, dict):
        found += [f"{where}.Arguments: needs {k}" for k in sorted(required - arguments.keys())]
        found += [f"{where}.Arguments.{k}: not one that the interpreter knows" for k in arguments.keys() - required - optional]
    elif not expressions.is_expression(arguments):
        found.append(f"{where}.Arguments: must be a mapping or an expression")
    for key in ("TimeoutSeconds", "HeartbeatSeconds"):
        if key in state and not _is_int(state[key], 1, MAX_WAIT_S) and not expressions.is_expression(state[key]):
            found.append(f"{where}.{key}: must be a whole number of seconds of at least 1, or an expression")
    timeout, heartbeat = state.get("TimeoutSeconds"), state.get("HeartbeatSeconds")
    if isinstance(timeout, int) and isinstance(heartbeat, int) and heartbeat >= timeout:
        found.append(f"{where}.HeartbeatSeconds: must be under TimeoutSeconds")
    if heartbeat is not None and resource != LAMBDA_CALLBACK:
        found.append(f"{where}.HeartbeatSeconds: only a .waitForTaskToken task has heartbeats")


def _check_choice(where: str, state: State, found: list[str]) -> None:
    rules = state.get("Choices")
    if not isinstance(rules, list) or not rules or not all(isinstance(r, dict) for r in rules):
        found.append(f"{where}.Choices: must be a list of at least one rule")
        return
    for i, rule in enumerate(rules):
        found += [f"{where}.Choices[{i}].{k}: not a field that the interpreter knows" for k in rule.keys() - _RULE]
        condition = rule.get("Condition")
        if not isinstance(condition, bool) and not expressions.is_expression(condition):
            found.append(f"{where}.Choices[{i}].Condition: must be an expression, true or false")
        if "Next" not in rule:
            found.append(f"{where}.Choices[{i}]: needs Next")


def _check_wait(where: str, state: State, found: list[str]) -> None:
    if ("Seconds" in state) == ("Timestamp" in state):
        found.append(f"{where}: needs either Seconds or Timestamp")
    seconds, timestamp = state.get("Seconds", 0), state.get("Timestamp", "")
    if not _is_int(seconds, 0, MAX_WAIT_S) and not expressions.is_expression(seconds):
        found.append(f"{where}.Seconds: must be a whole number of seconds, or an expression")
    if not isinstance(timestamp, str):
        found.append(f"{where}.Timestamp: must be text, or an expression")


def _check_fail(where: str, state: State, found: list[str]) -> None:
    found += [f"{where}.{k}: must be text" for k in ("Error", "Cause") if not isinstance(state.get(k, ""), str)]


def _check_parallel(where: str, state: State, found: list[str]) -> None:
    branches = state.get("Branches")
    if not isinstance(branches, list) or not branches or not all(isinstance(b, dict) for b in branches):
        found.append(f"{where}.Branches: must be a list of at least one mapping")


def _check_map(where: str, state: State, found: list[str]) -> None:
    if not isinstance(state.get("ItemProcessor"), dict):
        found.append(f"{where}.ItemProcessor: must be a mapping")
    if not isinstance(state.get("Items", []), list) and not expressions.is_expression(state["Items"]):
        found.append(f"{where}.Items: must be a list or an expression")
    limit = state.get("MaxConcurrency", 0)
    if not _is_int(limit, 0, MAX_WAIT_S) and not expressions.is_expression(limit):
        found.append(f"{where}.MaxConcurrency: must be a whole number or an expression")


_CHECKS = {
    "Task": _check_task,
    "Choice": _check_choice,
    "Wait": _check_wait,
    "Fail": _check_fail,
    "Parallel": _check_parallel,
    "Map": _check_map,
}


def _is_int(value: Any, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _mappings(value: Any) -> list[dict[str, Any]]:
    return [v for v in value if isinstance(v, dict)] if isinstance(value, list) else []
