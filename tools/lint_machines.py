#!/usr/bin/env python3
"""Lint of the state machines: the rules of Autojoin that neither AWS nor cfn-lint checks.

    .venv/bin/python tools/lint_machines.py statemachine/*.asl.yaml --template template.yaml

Prints `file: state: problem` for each problem; exit code 1 if there is any. The rules:

1. the definition is one that the lab's interpreter takes: known fields, existing targets, all states reachable,
   expressions that parse, no Assign to an outer name inside Parallel and Map
2. every Task has a Comment, TimeoutSeconds, retries by name with MaxDelaySeconds and JitterStrategy FULL, the standard
   Lambda-service retry set where it calls a function, and a Catch that takes States.ALL
3. a callback task passes its token and catches States.Timeout and States.HeartbeatTimeout by name
4. every cycle passes through a Choice whose name ends in Deadline, which looks at $millis() and has a way out
5. every path, Catch edges included, ends in one of three ways: through a completing state to a Succeed, through a
   handing-over state to a Fail, or in an end that is listed here as holding no hook; nothing completes and hands over
6. the plan's order of steps is the graph's; another round, the Default of a Deadline, may begin at an earlier step
7. `${Name}` used = DefinitionSubstitutions given in the template
8. expressions: paths, literals, comparisons, and, or, $not, $exists, $millis, $string, $merge, objects and arrays
9. no literal ARN (service integrations apart), account, region, or name of a function or machine
10. every variable that is read is assigned somewhere
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from lab.asl import definition as asl  # noqa: E402
from lab.asl import expressions as expr  # noqa: E402
from lab.asl.errors import DefinitionError  # noqa: E402

State = dict[str, Any]

# "Handle transient Lambda service exceptions", Step Functions best practices, and the client-side time-out
LAMBDA_RETRIES = frozenset(
    {
        "Lambda.ServiceException",
        "Lambda.AWSLambdaException",
        "Lambda.SdkClientException",
        "Lambda.ClientExecutionTimeoutException",
        "Lambda.TooManyRequestsException",
    }
)
BOTH_TIMEOUTS = frozenset({"States.Timeout", "States.HeartbeatTimeout"})
ALLOWED_OPERATORS = frozenset({"=", "!=", "<", "<=", ">", ">=", "and", "or"})
ALLOWED_FUNCTIONS = frozenset({"not", "exists", "millis", "string", "merge"})
_ACCOUNT = re.compile(r"(?<!\d)\d{12}(?!\d)")
_REGION = re.compile(r"\b(?:af|ap|ca|cn|eu|il|me|mx|sa|us)(?:-gov|-iso[a-z]?)?-(?:north|south|east|west|central)+(?:east|west)?-\d\b")
_INTEGRATION = re.compile(r"^arn:(?:aws|\$\{[A-Za-z0-9_]+\}):states:::[A-Za-z0-9:.-]+$")
_PARTITION = re.compile(r"arn:\$\{([A-Za-z0-9_]+)\}:states:::")
_SUBSTITUTION = re.compile(r"^\$\{[A-Za-z0-9_]+\}$")


@dataclass(frozen=True)
class Ends:
    """How the paths of a machine may end, by names of states.

    completing    a held hook gets its answer here, when it is left by its normal edge
    handing_over  another machine is started that will answer the hook
    without_hook  ends of paths that hold no hook, or whose hook somebody else answers
    """

    completing: frozenset[str] = frozenset({"Complete"})
    handing_over: frozenset[str] = frozenset({"HandOver"})
    without_hook: frozenset[str] = frozenset()


ENDS: dict[str, Ends] = {
    "join": Ends(without_hook=frozenset({"Planned", "AlreadyInProgress"})),
    "leave": Ends(
        completing=frozenset({"Abandon"}),
        handing_over=frozenset(),
        without_hook=frozenset({"NothingHeld", "NotCleaned"}),  # NotCleaned: the hook's own time-out answers
    ),
}
PLANNED_MACHINES = frozenset({"join"})  # machines whose order of states is the plan's


@dataclass(frozen=True)
class Problem:
    """One finding; `state` is empty when it is about the whole file."""

    file: str
    state: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}: {self.state or '-'}: {self.text}"


def lint(
    text: str,
    *,
    file: str = "machine",
    substitutions: Mapping[str, str] | None = None,
    ends: Ends | None = None,
    step_order: Sequence[str] | None = None,
) -> list[Problem]:
    """All problems of one definition (YAML or JSON text).

    substitutions  what the template gives; None: not known, rule 7 is left out
    ends           how paths may end; None: rule 5 is left out
    step_order     the plan's steps in their order; None: rule 6 is left out
    """
    found: list[tuple[str, str]] = []
    used = asl.substitutions_in(text)
    if substitutions is not None:
        found += [("", f"${{{n}}} is used, but the template does not give it") for n in sorted(used - substitutions.keys())]
        found += [("", f"substitution {n} is given, but not used") for n in sorted(substitutions.keys() - used)]
    given = {n: v for n, v in (substitutions or {}).items() if v}
    values = {n: f"substituted-{n}" for n in used} | given | dict.fromkeys(_PARTITION.findall(text), "aws")
    try:
        raw = asl.load(text)
        machine = asl.load(asl.substitute(text, values))
    except DefinitionError as exc:
        return [Problem(file, "", p) for p in exc.problems]
    found += [_split(p) for p in asl.problems(machine)]
    found += _literals(raw)
    for graph in asl.graphs(machine):
        for name, state in graph.states.items():
            if isinstance(state, dict):
                found += [(name, p) for p in _task_rules(state)]
                found += [(name, p) for p in _expression_rules(state)]
        found += _cycle_rules(graph)
    found += _variable_rules(machine)
    top = next(asl.graphs(machine))
    if ends is not None:
        found += _end_rules(top, ends)
    if step_order is not None:
        found += _order_rules(top, step_order)
    return [Problem(file, state, problem) for state, problem in dict.fromkeys(found)]


# -- rule 2 and 3: tasks ---------------------------------------------------------------------------------------------


def _task_rules(state: State) -> Iterator[str]:
    if state.get("Type") != "Task":
        return
    if not state.get("Comment"):
        yield "a Task needs a Comment"
    if "TimeoutSeconds" not in state:
        yield "a Task needs TimeoutSeconds"
    resource = str(state.get("Resource"))
    retriers = _mappings(state.get("Retry"))
    names = {n for r in retriers for n in _names(r)}
    if not retriers:
        yield "a Task needs Retry"
    for wildcard in sorted(names & {"States.ALL", "States.TaskFailed"}):
        yield f"retries are by name, not {wildcard}"
    for retrier in retriers:
        about = ", ".join(_names(retrier))
        if "MaxDelaySeconds" not in retrier:
            yield f"the retry of {about} needs MaxDelaySeconds"
        if retrier.get("JitterStrategy") != "FULL":
            yield f"the retry of {about} needs JitterStrategy FULL"
    if resource.startswith("arn:aws:states:::lambda:"):
        for name in sorted(LAMBDA_RETRIES - names):
            yield f"the standard Lambda-service retry set lacks {name}"
    caught = {n for c in _mappings(state.get("Catch")) for n in _names(c)}
    if "States.ALL" not in caught:
        yield "a Task needs a Catch of States.ALL"
    if resource.endswith(".waitForTaskToken"):
        for name in sorted(BOTH_TIMEOUTS - caught):
            yield f"a callback task catches {name} by name"
        if not any("$states.context.Task.Token" in text for text in expr.texts(state.get("Arguments"))):
            yield "a callback task passes $states.context.Task.Token"


# -- rule 4: cycles ----------------------------------------------------------------------------------------------------


def _is_deadline(name: str, state: Any) -> bool:
    return isinstance(state, dict) and state.get("Type") == "Choice" and name.endswith("Deadline")


def _cycle_rules(graph: asl.Graph) -> Iterator[tuple[str, str]]:
    edges = _edges(graph)
    open_edges = {n: [t for t in targets if not _is_deadline(t, graph.states.get(t))] for n, targets in edges.items()}
    for name in graph.states:
        if not _is_deadline(name, graph.states[name]):
            path = _path(open_edges, open_edges.get(name, []), {name})
            if path is not None:
                yield name, f"is in a cycle without a Deadline choice: {' -> '.join([name, *path])}"
    for name, state in graph.states.items():
        if not _is_deadline(name, state):
            continue
        cycle = {n for n in _closure(edges, edges.get(name, [])) if name in _closure(edges, edges.get(n, []))}
        if cycle and all(target in cycle for target in edges.get(name, [])):
            yield name, "a Deadline choice needs a way out of its cycle"
        conditions = [t for r in _mappings(state.get("Choices")) for t in expr.texts(r.get("Condition"))]
        if not any("$millis()" in text for text in conditions):
            yield name, "a Deadline choice looks at $millis()"


# -- rule 5: ends ------------------------------------------------------------------------------------------------------


def _end_rules(graph: asl.Graph, ends: Ends) -> Iterator[tuple[str, str]]:
    states = graph.states
    for kind, names in (("completing", ends.completing), ("handing over", ends.handing_over)):
        for name in sorted(names - states.keys()):
            yield "", f"there is no {kind} state {name}"
    for name in sorted(ends.without_hook - states.keys()):
        yield "", f"there is no state {name}, which is listed as an end without a hook"
    edges = _edges(graph)
    terminal = {n for n, s in states.items() if isinstance(s, dict) and (s.get("Type") in ("Succeed", "Fail") or s.get("End"))}
    for name in sorted(terminal):
        if states[name]["Type"] not in ("Succeed", "Fail"):
            yield name, "a machine ends in a Succeed or a Fail, not in a state with End"
    for name in states:
        if name not in terminal and not terminal & _closure(edges, [name]):
            yield name, "no end can be reached from here"
    completed = {n: [t for e, t in asl.successors(states[n]) if e == "next"] for n in ends.completing & states.keys()}
    for name in sorted(terminal - ends.without_hook):
        handed = states[name].get("Type") == "Fail" and bool(ends.handing_over)
        passing = ends.handing_over if handed else ends.completing
        cut = {
            n: [] if handed and n in passing else [t for e, t in asl.successors(s) if not (n in passing and e == "next")]
            for n, s in states.items()
            if isinstance(s, dict)
        }
        path = [graph.start_at] if name == graph.start_at else _path(cut, cut.get(graph.start_at, []), {name})
        if path is not None:
            way = " -> ".join(dict.fromkeys([graph.start_at, *path]))
            need = "handing over" if handed else "completing"
            yield name, f"is reached without {need} ({', '.join(sorted(passing))}): {way}"
    for name, targets in completed.items():
        for bad in sorted((ends.completing | ends.handing_over) & _closure(edges, targets)):
            yield name, f"after it {bad} can still be reached: a hook is answered once"
    for name in sorted(ends.handing_over & states.keys()):
        for bad in sorted(ends.completing & _closure(edges, edges[name])):
            yield name, f"after it {bad} can still be reached: a hook is answered once"


# -- rule 6: order -----------------------------------------------------------------------------------------------------


def _onward(name: str, state: Mapping[str, Any]) -> list[str]:
    """Where the normal way goes on; the Default of a Deadline is another round."""
    back = {state.get("Default")} if name.endswith("Deadline") else set()
    return [t for e, t in asl.successors(state) if e != "catch" and t not in back]


def _order_rules(graph: asl.Graph, order: Sequence[str]) -> Iterator[tuple[str, str]]:
    edges = {n: _onward(n, s) if isinstance(s, dict) else [] for n, s in graph.states.items()}
    known = [s for s in order if s in graph.states]
    for step in order:
        if step not in graph.states:
            yield step, "is a step of the plan, but not a state"
    for first, second in itertools.pairwise(known):
        if second not in _closure(edges, edges[first]):
            yield second, f"comes after {first} in the plan, but is not reached from it"
    for i, later in enumerate(known):
        after = _closure(edges, edges[later])
        for earlier in known[:i]:
            if earlier in after:
                yield earlier, f"comes before {later} in the plan, but after it in the graph"
    if known:
        between = _closure(edges, edges[known[0]]) & {n for n in edges if known[-1] in _closure(edges, edges[n])}
        for name in sorted(between - set(order)):
            if graph.states[name].get("Type") == "Task":
                yield name, "is a Task between the plan's steps, but not a step of the plan"


# -- rules 8 and 10: expressions ------------------------------------------------------------------------------------------


def expression_problem(text: str) -> str | None:
    """Why an expression (without `{%` and `%}`) is not of the allowed kind, or None."""
    problem = expr.problem_of(text)
    return problem or _node_problem(expr.compiled(text).ast)


def _node_problem(node: Any) -> str | None:
    for mark in ("predicate", "stages", "group", "keep_array", "focus", "index", "tuple"):
        if getattr(node, mark, None):
            return "has a filter, index, grouping or binding"
    kind, value = node.type, node.value
    children: list[Any] = []
    if kind == "path":
        first, *rest = node.steps
        if first.type != "variable" or any(step.type != "name" for step in rest):
            return "has a path that is not $variable.name.name"
        children = list(node.steps)
    elif kind == "variable":
        if value in ("", "$"):
            return "reads the context value $"
    elif kind == "binary":
        if value not in ALLOWED_OPERATORS:
            return f"uses the operator {value}"
        children = [node.lhs, node.rhs]
    elif kind == "unary" and value == "[":
        children = list(node.expressions)
    elif kind == "unary" and value == "{":
        if any(key.type != "string" for key, _ in node.lhs_object):
            return "has an object key that is not a literal"
        children = [v for _, v in node.lhs_object]
    elif kind == "function":
        name = node.procedure.value if node.procedure.type == "variable" else "?"
        if name not in ALLOWED_FUNCTIONS:
            return f"calls ${name}"
        children = list(node.arguments or [])
    elif kind == "block":
        if len(node.expressions) != 1:
            return "has a block of several expressions"
        children = list(node.expressions)
    elif kind not in ("name", "string", "number", "value"):
        return f"uses {kind}"
    return next((p for p in map(_node_problem, children) if p), None)


def _expression_rules(state: State) -> Iterator[str]:
    for key, value in asl.templates(state):
        for text in expr.texts(value):
            problem = expression_problem(text)
            if problem:
                yield f"{key}: {{% {text} %}} {problem}"


def _variable_rules(machine: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    levels = list(asl.graphs(machine))
    states = [(n, s) for g in levels for n, s in g.states.items() if isinstance(s, dict)]
    known = {v for _, s in states for v in asl.assigned(s)}
    for name, state in states:
        for _, value in asl.templates(state):
            for text in expr.texts(value):
                if expr.problem_of(text) is None:
                    for variable in sorted(expr.variables_in(text) - known):
                        yield name, f"reads ${variable}, which nothing assigns"


# -- rule 9: literals --------------------------------------------------------------------------------------------------------


def _literals(raw: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for graph in asl.graphs(raw):
        for name, state in graph.states.items():
            if not isinstance(state, dict):
                continue
            for key, value in _strings({k: v for k, v in state.items() if k not in ("Comment", "Branches", "ItemProcessor")}):
                if "arn:" in value and not _INTEGRATION.match(value):
                    yield name, f"{key} has a literal ARN: {value}"
                if _ACCOUNT.search(value):
                    yield name, f"{key} has a literal account: {value}"
                if _REGION.search(value):
                    yield name, f"{key} has a literal region: {value}"
            arguments = state.get("Arguments")
            for key in ("FunctionName", "StateMachineArn"):
                target = arguments.get(key) if isinstance(arguments, dict) else None
                if target is not None and not _SUBSTITUTION.match(str(target)):
                    yield name, f"{key} has a literal name: {target}"


def _strings(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, dict):
        for k, v in value.items():
            yield from _strings(v, f"{key}.{k}" if key else str(k))
    elif isinstance(value, list):
        for v in value:
            yield from _strings(v, key)


# -- graphs --------------------------------------------------------------------------------------------------------------------


def _edges(graph: asl.Graph) -> dict[str, list[str]]:
    return {n: [t for _, t in asl.successors(s)] if isinstance(s, dict) else [] for n, s in graph.states.items()}


def _closure(edges: Mapping[str, Iterable[str]], start: Iterable[str]) -> set[str]:
    """All that can be reached, the start itself included."""
    seen: set[str] = set()
    stack = list(start)
    while stack:
        name = stack.pop()
        if name in edges and name not in seen:
            seen.add(name)
            stack += edges[name]
    return seen


def _path(edges: Mapping[str, Iterable[str]], start: Iterable[str], goal: set[str]) -> list[str] | None:
    """A shortest path from one of the starts to one of the goals, or None."""
    queue = [[n] for n in start if n in edges]
    seen = {p[0] for p in queue}
    for path in queue:
        if path[-1] in goal:
            return path
        for target in edges[path[-1]]:
            if target in edges and target not in seen:
                seen.add(target)
                queue.append([*path, target])
    return None


def _mappings(value: Any) -> list[dict[str, Any]]:
    return [v for v in value if isinstance(v, dict)] if isinstance(value, list) else []


def _names(part: Mapping[str, Any]) -> list[str]:
    names = part.get("ErrorEquals")
    return [str(n) for n in names] if isinstance(names, list) else []


def _split(problem: str) -> tuple[str, str]:
    """State and text of a problem of the interpreter, which names both as `path.State.field: text`."""
    where, _, text = problem.partition(": ")
    return (where, text) if text else ("", problem)


# -- the command ----------------------------------------------------------------------------------------------------------------


class _TemplateLoader(yaml.SafeLoader):
    """YAML with CloudFormation's short tags, whose values are of no interest here."""


def _tagged(loader: yaml.Loader, suffix: str, node: yaml.Node) -> dict[str, Any]:
    if isinstance(node, yaml.ScalarNode):
        return {suffix: loader.construct_scalar(node)}
    if isinstance(node, yaml.SequenceNode):
        return {suffix: loader.construct_sequence(node, deep=True)}
    return {suffix: loader.construct_mapping(node, deep=True)}  # type: ignore[arg-type]


_TemplateLoader.add_multi_constructor("!", _tagged)


def template_substitutions(template: Path, machine: Path) -> dict[str, str] | None:
    """The DefinitionSubstitutions of the machine whose DefinitionUri is this file, or None if there is none.

    A value that is not a literal of the template is given as "".
    """
    loaded = yaml.load(template.read_text(encoding="utf-8"), _TemplateLoader)
    for resource in (loaded.get("Resources") or {}).values():
        properties = resource.get("Properties") or {}
        uri = properties.get("DefinitionUri")
        if isinstance(uri, str) and (template.parent / uri).resolve() == machine.resolve():
            given = properties.get("DefinitionSubstitutions") or {}
            return {k: str(v) if isinstance(v, str | int | float) else "" for k, v in given.items()}
    return None


def plan_order(plan: str, root: Path) -> Sequence[str]:
    """The plan's steps: `module:NAME`, imported from a folder."""
    module, _, name = plan.partition(":")
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    return tuple(getattr(importlib.import_module(module), name))


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = argparse.ArgumentParser(description="Lint of Autojoin's state machines.")
    parser.add_argument("machines", nargs="+", type=Path, help="definitions, *.asl.yaml")
    parser.add_argument("--template", type=Path, help="the SAM template that gives the substitutions")
    parser.add_argument("--plan", default="autojoin.domain.plan:STEP_ORDER", help="module:NAME of the plan's step order")
    parser.add_argument("--plan-root", type=Path, default=ROOT / "layers" / "autojoin", help="folder to import it from")
    options = parser.parse_args(argv)
    found: list[Problem] = []
    for path in options.machines:
        name, file = path.name.split(".")[0], str(path)
        substitutions = None
        if options.template is not None:
            substitutions = template_substitutions(options.template, path)
            if substitutions is None:
                found.append(Problem(file, "", f"no state machine of {options.template} has this DefinitionUri"))
        order = None
        if name in PLANNED_MACHINES:
            try:
                order = plan_order(options.plan, options.plan_root)
            except (ImportError, AttributeError) as exc:
                found.append(Problem(file, "", f"the plan's step order cannot be imported: {exc}"))
        text = path.read_text(encoding="utf-8")
        found += lint(text, file=file, substitutions=substitutions, ends=ENDS.get(name, Ends()), step_order=order)
    for problem in found:
        print(problem)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
