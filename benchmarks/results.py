"""From raw samples to medians, targets and tables. Pure functions of benchmarks/results.json; nothing is measured here."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Results = Mapping[str, Any]
Sample = Mapping[str, Any]
Table = tuple[tuple[str, ...], list[tuple[object, ...]]]

AUTOJOIN, BASELINE = "autojoin", "baseline"
WARM_JOINS = 5
OVERHEAD_S, OVERHEAD_RATIO = 4.0, 0.5
INVOCATIONS, TRANSITIONS = 10, 20
TURN_INVOCATIONS, TURN_TRANSITIONS = 1, 2
"""What a turn of waiting adds: its task with one function, and the choice after it."""
MODULE_RATIO, ADAPTERS_RATIO = 1.0, 1.6
LAYERS_BYTES = 20_000_000
LAYERS = ("DependenciesLayer", "AutojoinLayer")
"""The layers that every function has; others are listed apart."""
TRANSITION_S = 0.02
"""What a transition of a Standard workflow is taken to cost in the estimate for AWS."""


@dataclass(frozen=True)
class Target:
    """One target of the benchmark."""

    name: str
    wanted: str
    seen: str
    met: bool


def median(values: Iterable[float]) -> float | None:
    """The median, None of nothing."""
    listed = list(values)
    return statistics.median(listed) if listed else None


def ratio(value: float | None, base: float | None) -> float | None:
    """value / base; None where either is missing or the base is nothing."""
    return value / base if value is not None and base else None


def joins(results: Results, workflow: str, role: str = "worker", *, cold: bool | None = None) -> list[Sample]:
    """The samples of a workflow and role; only cold or only warm ones if asked."""
    return [j for j in results["joins"] if (j["workflow"], j["role"]) == (workflow, role) and (cold is None or j["cold"] == cold)]


def overhead(results: Results, workflow: str) -> float | None:
    """Median overhead of the warm joins in seconds."""
    return median(j["overhead_s"] for j in joins(results, workflow, cold=False))


def import_ratios(results: Results, samples: str) -> dict[str, float]:
    """Median over the pairs of each function's `samples` (module_ms, adapters_ms, …) as a multiple of boto3's, measured right before it."""
    found = {}
    for name, function in results["imports"]["functions"].items():
        pairs = [taken / boto3 for taken, boto3 in zip(function[samples], function["boto3_ms"], strict=True)]
        if pairs:
            found[name] = statistics.median(pairs)
    return found


def targets(results: Results) -> list[Target]:
    """Every target with what was seen. A target without a sample is missed."""
    warm = {w: len(joins(results, w, cold=False)) for w in (AUTOJOIN, BASELINE)}
    own, other = overhead(results, AUTOJOIN), overhead(results, BASELINE)
    by_ratio = ratio(own, other)
    paths = joins(results, AUTOJOIN)
    invocations = max((j["invocations"] - TURN_INVOCATIONS * j["turns"] for j in paths), default=None)
    transitions = max((j["transitions"] - TURN_TRANSITIONS * j["turns"] for j in paths), default=None)
    spare = min((math.ceil(j["held_s"] / 60) - j["turns"] for j in paths), default=None)
    layers = sum(results["sizes"][name]["unpacked"] for name in LAYERS)
    return [
        Target(
            "warm joins measured",
            f"at least {WARM_JOINS} of each",
            f"{warm[AUTOJOIN]} and {warm[BASELINE]} of the baseline",
            min(warm.values()) >= WARM_JOINS,
        ),
        Target("overhead of a warm join, median", f"at most {OVERHEAD_S:g} s", _number(own, "s", 2), own is not None and own <= OVERHEAD_S),
        Target(
            "the same by the baseline's",
            f"at most {OVERHEAD_RATIO:g} ×",
            _number(by_ratio, "×", 2),
            by_ratio is not None and by_ratio <= OVERHEAD_RATIO,
        ),
        Target(
            "invocations of a worker's join, most, without turns",
            f"at most {INVOCATIONS}",
            _number(invocations),
            invocations is not None and invocations <= INVOCATIONS,
        ),
        Target(
            "transitions of a worker's join, most, without turns",
            f"at most {TRANSITIONS}",
            _number(transitions),
            transitions is not None and transitions <= TRANSITIONS,
        ),
        Target(
            "turns of waiting",
            "at most one a minute begun",
            "more" if spare is None or spare < 0 else f"{max(j['turns'] for j in paths)}",
            spare is not None and spare >= 0,
        ),
        _slowest("import of a function's module, slowest", import_ratios(results, "module_ms"), MODULE_RATIO),
        _slowest("import and its own adapters, slowest", import_ratios(results, "adapters_ms"), ADAPTERS_RATIO),
        Target(
            "dependencies and autojoin layers, unpacked",
            f"under {LAYERS_BYTES / 1e6:g} MB",
            f"{layers / 1e6:.1f} MB",
            layers < LAYERS_BYTES,
        ),
    ]


def _slowest(name: str, ratios: Mapping[str, float], limit: float) -> Target:
    wanted = f"at most {limit:g} × `import boto3`"
    if not ratios:
        return Target(name, wanted, "–", False)
    function = max(ratios, key=lambda n: ratios[n])
    return Target(name, wanted, f"{ratios[function]:.2f} × ({function})", ratios[function] <= limit)


# -- tables: heads and rows -------------------------------------------------------------------------------------------


def tables(results: Results) -> dict[str, Table]:
    """Every table by its name, in the order in which they are told."""
    return {
        "targets": targets_table(results),
        "overhead": overhead_table(results),
        "counts": counts_table(results),
        "calls": calls_table(results),
        "imports": imports_table(results),
        "sizes": sizes_table(results),
        "estimate": estimate_table(results),
    }


def targets_table(results: Results) -> Table:
    """What is wanted, what was seen."""
    rows: list[tuple[object, ...]] = [(t.name, t.wanted, t.seen, "met" if t.met else "MISSED") for t in targets(results)]
    return ("target", "wanted", "seen", ""), rows


def overhead_table(results: Results) -> Table:
    """Seconds of a worker's join, medians; the overhead with its least and greatest."""
    rows: list[tuple[object, ...]] = []
    for workflow in (AUTOJOIN, BASELINE):
        for cold in (False, True):
            samples = joins(results, workflow, cold=cold)
            own = [j["boot_s"] + j["agent_s"] + j["scripts_s"] for j in samples]
            seen = [j["overhead_s"] for j in samples]
            span = f"{min(seen):.2f} to {max(seen):.2f}" if seen else "–"
            rows.append(
                (
                    workflow,
                    "cold" if cold else "warm",
                    len(samples),
                    _number(median(j["held_s"] for j in samples), digits=2),
                    _number(median(own), digits=2),
                    _number(median(seen), digits=2),
                    span,
                )
            )
    return ("workflow", "functions", "joins", "hook held, s", "the node's own, s", "overhead, s", "from, to"), rows


def counts_table(results: Results) -> Table:
    """Medians of counts by workflow and role; warm joins if there are some."""
    rows: list[tuple[object, ...]] = []
    for workflow, role in dict.fromkeys((j["workflow"], j["role"]) for j in results["joins"]):
        samples = joins(results, workflow, role, cold=False) or joins(results, workflow, role)
        counted = [_number(median(j[name] for j in samples)) for name in ("transitions", "invocations", "aws_calls", "turns")]
        rows.append((workflow, role, len(samples), *counted))
    return ("workflow", "role", "joins", "transitions", "invocations", "AWS calls", "turns of waiting"), rows


def calls_table(results: Results) -> Table:
    """Medians of AWS calls by operation, one column a workflow and role."""
    columns = list(dict.fromkeys((j["workflow"], j["role"]) for j in results["joins"]))
    samples = {c: joins(results, *c, cold=False) or joins(results, *c) for c in columns}
    names = sorted({name for listed in samples.values() for j in listed for name in j["calls"]})
    rows: list[tuple[object, ...]] = [
        (name, *(_number(median(j["calls"].get(name, 0) for j in samples[c])) for c in columns)) for name in names
    ]
    return ("AWS call", *(f"{workflow} {role}" for workflow, role in columns)), rows


def imports_table(results: Results) -> Table:
    """Milliseconds and multiples of `import boto3`, medians."""
    boto3 = median(ms for f in results["imports"]["functions"].values() for ms in f["boto3_ms"])
    module_ratios, adapters_ratios = import_ratios(results, "module_ms"), import_ratios(results, "adapters_ms")
    rows: list[tuple[object, ...]] = [("`import boto3`", "", _number(boto3, digits=0), "1.00", "", "", "", "")]
    for name, function in results["imports"]["functions"].items():
        module, adapters = median(function["module_ms"]), median(function["adapters_ms"])
        rows.append(
            (
                name,
                ", ".join(function["ports"]),
                _number(module, digits=0),
                _number(module_ratios.get(name), digits=2),
                _number(adapters, digits=0),
                _number(adapters_ratios.get(name), digits=2),
                _number(median(function["clients_ms"]), digits=0),
                _number(median(function["sources_ms"]), digits=0),
            )
        )
    return ("function", "ports", "module, ms", "×", "with adapters, ms", "×", "with clients, ms", "without bytecode, ms"), rows


def sizes_table(results: Results) -> Table:
    """Kilobytes (1,000 bytes)."""
    listed = sorted(results["sizes"].items(), key=lambda item: (item[1]["kind"] != "layer", item[0]))
    rows: list[tuple[object, ...]] = [
        (size["kind"], name, _kilobytes(size["unpacked"]), _kilobytes(size["zipped"])) for name, size in listed
    ]
    return ("what", "name", "unpacked, kB", "zipped, kB"), rows


def estimate_table(results: Results) -> Table:
    """Seconds that Autojoin's workflow would add on AWS: transitions, and with every function cold its loading too."""
    loading = {name: median(f["sources_ms"]) or 0.0 for name, f in results["imports"]["functions"].items()}
    rows: list[tuple[object, ...]] = []
    for role in dict.fromkeys(j["role"] for j in results["joins"] if j["workflow"] == AUTOJOIN):
        samples = joins(results, AUTOJOIN, role, cold=False) or joins(results, AUTOJOIN, role)
        transitions = median(j["transitions"] for j in samples) or 0.0
        functions = sorted({name for j in samples for name in j["functions"]})
        warm = transitions * TRANSITION_S
        cold = warm + sum(loading.get(name, 0.0) for name in functions) / 1000
        rows.append((role, _number(transitions), f"{warm:.2f}", len(functions), f"{cold:.2f}"))
    return ("role", "transitions", "all warm, s", "functions", "all cold, s"), rows


def machine_line(results: Results) -> str:
    """Where and when, in a line."""
    machine = results["machine"]
    return (
        f"{results['date']}, {machine['cores']} cores, {machine['processor']}, load {machine['load_before']:.1f} before, "
        f"functions on Python {machine['runtime_python']}, the lab on {machine['python']}"
    )


def _number(value: float | None, unit: str = "", digits: int | None = None) -> str:
    if value is None:
        return "–"
    text = f"{value:g}" if digits is None else f"{value:.{digits}f}"
    return f"{text} {unit}".strip()


def _kilobytes(size: int) -> str:
    return f"{size / 1000:,.1f}"


def failed(results: Results) -> Sequence[Target]:
    """The targets that were missed."""
    return [t for t in targets(results) if not t.met]
