"""The benchmark's pure parts: counts from the journal, medians and ratios, targets, tables, and what its document says."""

from __future__ import annotations

import copy
import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks import counts, imports, joins, results, sizes
from tests.fakes.world import ROOT, World
from tools import generated_parts, render_benchmarks

ROLE = "arn:aws:sts::000000000000:assumed-role"
EXECUTION = "arn:aws:states:us-east-1:000000000000:execution:autojoin-join:token"
NODE = "i-0123456789abcdef0"


# -- builders ---------------------------------------------------------------------------------------------------------


def function(name: str, *, t: float = 105.0, cold: bool = False) -> dict[str, Any]:
    return {"t": t, "kind": "function", "name": name, "cold": cold, "ms": 5.0}


def call(principal: str, operation: str = "GetItem", service: str = "dynamodb", **fields: Any) -> dict[str, Any]:
    return {"t": 105.0, "kind": "api_call", "service": service, "operation": operation, "principal": principal, "source": "http", **fields}


def entered(state: str, arn: str = EXECUTION) -> dict[str, Any]:
    return {"t": 104.0, "kind": "state", "arn": arn, "state": state, "event": "entered"}


def journal(result: str = "CONTINUE", status: str = "SUCCEEDED", *more: dict[str, Any]) -> list[dict[str, Any]]:
    """A join of 10 s: boot 1 s, agent 0.5 s, scripts 3 s, so an overhead of 5.5 s."""
    hook = {"kind": "hook", "instance_id": NODE, "group": "workers", "hook": "autojoin-launching", "token": "t1"}
    execution = {"kind": "execution", "machine": "autojoin-join", "arn": EXECUTION, "name": "token"}
    command = {"kind": "command", "instance_id": NODE, "command_id": "c1", "status": "Success", "started": 103.0, "ended": 106.0}
    return [
        {"t": 100.0, "kind": "instance", "instance_id": NODE, "event": "launched"},
        {"t": 100.0, **hook, "event": "opened", "deadline": 400.0},
        {"t": 100.1, **execution, "status": "RUNNING", "transitions": 0},
        {"t": 101.0, "kind": "instance", "instance_id": NODE, "event": "booted"},
        {"t": 101.5, "kind": "instance", "instance_id": NODE, "event": "agent_online"},
        entered("AwaitAgent"),
        {"t": 106.0, **command},
        *more,
        {"t": 110.0, **hook, "event": "completed", "result": result},
        {"t": 110.1, **execution, "status": status, "transitions": 14},
    ]


def sample(workflow: str = "autojoin", role: str = "worker", **fields: Any) -> dict[str, Any]:
    functions = {"node": 2, "hook": 1}
    times = {"held_s": 10.0, "boot_s": 1.0, "agent_s": 0.5, "scripts_s": 5.0, "overhead_s": 2.0 if workflow == "autojoin" else 20.0}
    used = {"transitions": 14, "invocations": 9, "aws_calls": 60, "turns": 0, "functions": functions, "calls": {"ssm:SendCommand": 2}}
    return {"workflow": workflow, "role": role, "cold": False, **times, **used, **fields}


def found(**changes: Any) -> dict[str, Any]:
    """Results that meet every target."""
    made: dict[str, Any] = {
        "date": "2026-01-02T03:04:05Z",
        "machine": {"cores": 2, "processor": "some processor", "load_before": 0.1, "python": "3.11.7", "runtime_python": "3.11.7"},
        "joins": [sample(w) for w in ("autojoin", "baseline") for _ in range(5)],
        "masters_skipped": None,
        "imports": {
            "functions": {
                "node": {
                    "ports": ["clock"],
                    "boto3_ms": [200.0],
                    "module_ms": [100.0],
                    "adapters_ms": [300.0],
                    "clients_ms": [400.0],
                    "sources_ms": [500.0],
                },
                "hook": {
                    "ports": ["groups"],
                    "boto3_ms": [200.0],
                    "module_ms": [90.0],
                    "adapters_ms": [250.0],
                    "clients_ms": [300.0],
                    "sources_ms": [400.0],
                },
            },
        },
        "sizes": {
            "DependenciesLayer": {"kind": "layer", "unpacked": 10_000_000, "zipped": 3_000_000},
            "AutojoinLayer": {"kind": "layer", "unpacked": 200_000, "zipped": 50_000},
            "SigningLayer": {"kind": "layer", "unpacked": 30_000_000, "zipped": 9_000_000},
            "node": {"kind": "function", "unpacked": 500, "zipped": 300},
        },
    }
    return {**made, **changes}


def missed(measured: dict[str, Any]) -> list[str]:
    return [t.name for t in results.failed(measured)]


# -- counts -----------------------------------------------------------------------------------------------------------


def test_a_join_has_the_observer_s_overhead_and_its_own_counts() -> None:
    more = (function("autojoin-node"), function("autojoin-hook"), call(f"{ROLE}/autojoin-NodeFunctionRole-1/autojoin-node"))

    counted = counts.of_join(journal("CONTINUE", "SUCCEEDED", *more), "autojoin", "worker", frozenset())

    assert (counted["held_s"], counted["overhead_s"], counted["cold"]) == (10.0, 5.5, False)
    assert (counted["transitions"], counted["invocations"], counted["aws_calls"], counted["turns"]) == (14, 2, 1, 0)
    assert counted["functions"] == {"hook": 1, "node": 1}
    assert counted["calls"] == {"dynamodb:GetItem": 1}


def test_a_join_in_which_a_function_started_cold_is_cold() -> None:
    counted = counts.of_join(journal("CONTINUE", "SUCCEEDED", function("autojoin-node", cold=True)), "autojoin", "worker", frozenset())

    assert counted["cold"] is True


@pytest.mark.parametrize(("result", "status"), [("ABANDON", "SUCCEEDED"), ("CONTINUE", "FAILED")])
def test_a_join_that_did_not_end_well_is_not_measured(result: str, status: str) -> None:
    with pytest.raises(counts.JoinNotMeasured, match=rf"autojoin-launching {result}.*{status}"):
        counts.of_join(journal(result, status), "autojoin", "worker", frozenset())


def test_a_join_of_the_other_workflow_is_not_measured() -> None:
    with pytest.raises(counts.JoinNotMeasured, match="ended executions of baseline-join: none"):
        counts.of_join(journal(), "baseline", "worker", frozenset())


def test_invocations_are_those_of_the_stack_alone() -> None:
    entries = [function("autojoin-node"), function("autojoin-node"), function("baseline-poll"), function("autojoins-node")]

    assert counts.functions_of(entries, "autojoin") == {"node": 2}
    assert counts.functions_of(entries, "baseline") == {"poll": 1}


def test_calls_are_those_of_the_stack_s_functions() -> None:
    entries = [
        call(f"{ROLE}/autojoin-NodeFunctionRole-1/autojoin-node"),
        call(f"{ROLE}/autojoin-NodeFunctionRole-1/autojoin-node", "SendCommand", "ssm", status=400),
        call(f"{ROLE}/baseline-FunctionRole-1/baseline-poll"),
        call(f"{ROLE}/autojoin-like-node-role/{NODE}"),
        call("root"),
        call("arn:aws:events:us-east-1:000000000000:rule/autojoin-LaunchRule", source="internal"),
    ]

    assert counts.calls_of(entries, "autojoin") == {"dynamodb:GetItem": 1, "ssm:SendCommand": 1}


def test_a_turn_is_a_choice_passed_again_by_the_same_execution() -> None:
    round_ = ["AwaitAgent", "AgentDeadline"]
    entries = [entered(s) for s in (*round_, *round_, *round_, "JoinDeadline")] + [entered("AgentDeadline", "another")]

    assert counts.turns_of(entries, EXECUTION, frozenset({"AgentDeadline", "JoinDeadline"})) == 2


@pytest.mark.parametrize("definition", joins.DEFINITIONS.values(), ids=list(joins.DEFINITIONS))
def test_the_machines_have_choices_to_count_turns_by(definition: Path) -> None:
    assert counts.choices_of(definition)


# -- medians and ratios -----------------------------------------------------------------------------------------------


def test_a_median_of_nothing_is_none_and_an_outlier_does_not_move_it() -> None:
    assert results.median([]) is None
    assert results.median([2.0, 900.0, 1.0]) == 2.0


@pytest.mark.parametrize(("value", "base", "wanted"), [(1.0, 4.0, 0.25), (None, 4.0, None), (1.0, None, None), (1.0, 0.0, None)])
def test_a_ratio_needs_both(value: float | None, base: float | None, wanted: float | None) -> None:
    assert results.ratio(value, base) == wanted


def test_cold_joins_do_not_count_into_the_overhead() -> None:
    measured = found(joins=[sample(overhead_s=1.0), sample(overhead_s=2.0), sample(overhead_s=3.0), sample(overhead_s=50.0, cold=True)])

    assert results.overhead(measured, "autojoin") == 2.0


def test_imports_are_multiples_of_boto3_s_median() -> None:
    assert results.import_ratios(found(), "adapters_ms") == {"node": 1.5, "hook": 1.25}


# -- targets ----------------------------------------------------------------------------------------------------------


def test_results_that_are_good_miss_nothing() -> None:
    assert missed(found()) == []


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"overhead_s": 4.01}, "overhead of a warm join, median"),
        ({"overhead_s": 10.01}, "the same by the baseline's"),
        ({"invocations": 11}, "invocations of a worker's join, most, without turns"),
        ({"transitions": 21}, "transitions of a worker's join, most, without turns"),
        ({"turns": 2}, "turns of waiting"),
    ],
)
def test_a_worker_s_join_that_costs_too_much_misses_its_target(fields: dict[str, Any], wanted: str) -> None:
    baseline = [sample("baseline") for _ in range(5)]

    assert wanted in missed(found(joins=[*(sample(**fields) for _ in range(5)), *baseline]))


def test_turns_are_allowed_what_they_cost_one_a_minute() -> None:
    slow = sample(held_s=130.0, turns=2, invocations=12, transitions=24)
    measured = found(joins=[*(slow for _ in range(5)), *(sample("baseline") for _ in range(5))])

    assert missed(measured) == []


def test_fewer_than_five_warm_joins_of_either_miss_their_target() -> None:
    measured = found()
    measured["joins"][-1] = sample("baseline", cold=True)

    assert missed(measured) == ["warm joins measured"]


@pytest.mark.parametrize(
    ("samples", "ms", "wanted"),
    [
        ("module_ms", 201.0, "import of a function's module, slowest"),
        ("adapters_ms", 321.0, "import and its own adapters, slowest"),
    ],
)
def test_one_slow_function_misses_the_target_of_imports(samples: str, ms: float, wanted: str) -> None:
    measured = copy.deepcopy(found())
    measured["imports"]["functions"]["hook"][samples] = [ms]

    (target,) = results.failed(measured)

    assert target.name == wanted
    assert "(hook)" in target.seen


def test_the_size_is_of_the_layers_that_every_function_has() -> None:
    measured = copy.deepcopy(found())
    measured["sizes"]["AutojoinLayer"]["unpacked"] = 10_000_000

    assert missed(measured) == ["dependencies and autojoin layers, unpacked"]


def test_masters_have_no_target() -> None:
    dear = [sample(role=role, cold=True, overhead_s=90.0, invocations=30, transitions=60, turns=9) for role in ("tp", "rp")]

    assert missed(found(joins=[*found()["joins"], *dear])) == []


# -- tables -----------------------------------------------------------------------------------------------------------


def test_every_row_has_a_cell_under_every_head() -> None:
    measured = found(joins=[*found()["joins"], sample(role="rp", cold=True)])

    for name, (heads, rows) in results.tables(measured).items():
        assert rows, name
        assert {len(row) for row in rows} == {len(heads)}, name


def test_a_role_without_a_warm_join_shows_its_cold_ones() -> None:
    measured = found(joins=[*found()["joins"], sample(role="tp", cold=True, transitions=33)])

    assert ("autojoin", "tp", 1, "33", "9", "60", "0") in results.counts_table(measured)[1]


def test_the_estimate_is_transitions_and_the_loading_of_the_functions_on_the_way() -> None:
    _, rows = results.estimate_table(found())

    assert rows == [("worker", "14", "0.28", 2, "1.18")]


def test_a_workflow_without_a_cold_join_shows_dashes() -> None:
    _, rows = results.overhead_table(found())

    assert rows[1] == ("autojoin", "cold", 0, "–", "–", "–", "–")


# -- imports and sizes ------------------------------------------------------------------------------------------------


def test_the_ports_of_a_function_are_those_that_its_use_cases_ask_for() -> None:
    assert imports.ports_of(ROOT / "functions/intake/app.py") == ("groups", "machines", "telemetry")
    assert {"callbacks", "commands", "registry", "telemetry"} <= set(imports.ports_of(ROOT / "functions/answer/app.py"))


def test_a_size_leaves_bytecode_out_and_is_of_files(tmp_path: Path) -> None:
    (tmp_path / "python/__pycache__").mkdir(parents=True)
    (tmp_path / "python/a.py").write_bytes(b"x" * 1000)
    (tmp_path / "python/__pycache__/a.pyc").write_bytes(b"y" * 1000)

    size = sizes.size_of(tmp_path)

    assert size["unpacked"] == 1000
    assert 0 < size["zipped"] < 300


def test_the_folders_of_a_built_template_are_its_functions_and_layers(tmp_path: Path) -> None:
    functions = "Type: AWS::Serverless::Function, Properties: {CodeUri: ../functions/node, Role: !GetAtt Role.Arn}"
    layers = "Type: AWS::Serverless::LayerVersion, Properties: {ContentUri: SomeLayer}"
    (tmp_path / "build").mkdir()
    template = tmp_path / "build/template.yaml"
    template.write_text(f"Resources:\n  NodeFunction: {{{functions}}}\n  SomeLayer: {{{layers}}}\n  Queue: {{Type: AWS::SQS::Queue}}\n")

    assert sizes.folders(template) == {
        "node": ("function", tmp_path / "functions/node"),
        "SomeLayer": ("layer", tmp_path / "build/SomeLayer"),
    }


# -- the baseline -----------------------------------------------------------------------------------------------------


def test_every_wait_of_the_baseline_is_ten_seconds_and_a_look() -> None:
    states = yaml.safe_load(joins.DEFINITIONS[joins.BASELINE].read_text())["States"]
    waits = {name: state for name, state in states.items() if state["Type"] == "Wait"}

    assert {state["Seconds"] for state in waits.values()} == {10}
    assert {states[state["Next"]]["Arguments"]["Payload"]["operation"] for state in waits.values()} == {"LookAtAgent", "LookAtCommand"}


def test_the_baseline_s_operations_are_those_that_its_machine_calls() -> None:
    states = yaml.safe_load(joins.DEFINITIONS[joins.BASELINE].read_text())["States"]
    called = {state["Arguments"]["Payload"]["operation"] for state in states.values() if state["Type"] == "Task"}
    source = (ROOT / "benchmarks/baseline/app.py").read_text()

    assert called == set(re.findall(r'operation: Literal\["(\w+)"\]', source))


def test_the_baseline_tells_the_scripts_what_autojoin_tells_them() -> None:
    spec = importlib.util.spec_from_file_location("baseline_app", ROOT / "benchmarks/baseline/app.py")
    assert spec is not None
    assert spec.loader is not None
    baseline = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(baseline)
    world = World()
    world.add_group()
    world.add_instance(NODE)

    prepared = baseline.prepare(baseline.Prepare(operation="Prepare", instance_id=NODE, execution="x"), world)

    for document, given in (("join-worker", prepared.join), ("verify", prepared.verify)):
        wanted = yaml.safe_load((ROOT / f"documents/{document}.yaml").read_text())["parameters"]
        assert given.keys() | {"ExecutionTimeout"} == wanted.keys() - {"BinDir"}


# -- the document -----------------------------------------------------------------------------------------------------


def test_the_document_says_what_the_results_say() -> None:
    text = render_benchmarks.DOCUMENT.read_text(encoding="utf-8")

    assert generated_parts.put(text, render_benchmarks.parts()) == text


def test_the_results_hold_enough_raw_samples() -> None:
    measured = json.loads(render_benchmarks.RESULTS.read_text(encoding="utf-8"))

    for name, function_ in measured["imports"]["functions"].items():
        assert len(function_["boto3_ms"]) >= imports.RUNS, name
        assert len(function_["module_ms"]) >= imports.RUNS, name
        assert len(function_["adapters_ms"]) >= imports.RUNS, name
    assert {path.parent.name for path in (ROOT / "functions").glob("*/app.py")} >= set(measured["imports"]["functions"])
