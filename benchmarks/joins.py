"""Joins in the lab: workers of Autojoin and of the baseline by turns on one region, then masters from nothing on another."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.counts import choices_of, of_join
from lab import scenario
from lab.lab import REPOSITORY, STACK, Lab, LabError

BASELINE = "baseline"
TEMPLATE = REPOSITORY / "benchmarks/template.yaml"
WARM_JOINS = 5
"""Warm joins of each workflow that are wanted at least."""
MOST_ROUNDS = 9
"""Rounds after which it stops, whatever was warm."""
JOIN_S = 240.0
REST_S = 0.5
"""Pause in seconds after a join, for what comes after its end (the answer's function, the journal)."""
DEFINITIONS = {STACK: REPOSITORY / "statemachine/join.asl.yaml", BASELINE: REPOSITORY / "benchmarks/baseline.asl.yaml"}
MASTERS = ("tp", "rp")

Say = Callable[[str], None]
Sample = dict[str, Any]


def workers(folder: Path, say: Say) -> tuple[list[Sample], dict[str, dict[str, str]]]:
    """Samples of at least WARM_JOINS warm joins of each workflow, and the environment variables of Autojoin's functions.

    Raises LabError, JoinNotMeasured, TimeoutError.
    """
    with Lab(folder, say=say) as lab:
        variables = _variables(lab)
        _deploy_baseline(lab)
        samples: list[Sample] = []
        for number in range(1, MOST_ROUNDS + 1):
            for workflow in (STACK, BASELINE):
                samples.append(_join(lab, workflow, f"{workflow}-workers", number, "worker"))
                say(_told(samples[-1]))
            warm = [s["workflow"] for s in samples if not s["cold"]]
            if min(warm.count(STACK), warm.count(BASELINE)) >= WARM_JOINS:
                break
        return samples, variables


def masters(folder: Path, say: Say) -> tuple[list[Sample], str | None]:
    """Samples of a cluster that comes up from nothing: a tenant and a resource partition; and why there are none, or fewer."""
    offered = scenario.schema()["properties"]["lab"]["properties"]["partitions"]["enum"]
    if "empty" not in offered:
        return [], 'this lab offers no partitions="empty"'
    samples: list[Sample] = []
    try:
        with Lab(folder, partitions="empty", say=say) as lab:
            for role in MASTERS:
                samples.append(_join(lab, STACK, lab.master_groups[f"{role}1"], 1, role))
                say(_told(samples[-1]))
    except Exception as error:  # rows that are missing are told, the workers' targets stand
        return samples, f"{type(error).__name__}: {error}"
    return samples, None


def _deploy_baseline(lab: Lab) -> None:
    layers = {layer["Arn"].split(":")[6]: layer["Arn"] for layer in _function(lab, f"{STACK}-node")["Layers"]}
    parameters = {
        "GroupName": f"{BASELINE}-workers",
        "DocumentPrefix": STACK,
        "DependenciesLayerArn": layers[f"{STACK}-dependencies"],
        "AutojoinLayerArn": layers[f"{STACK}-autojoin"],
    }
    lab.deploy(TEMPLATE, BASELINE, parameters)
    lab.create_group({"name": f"{STACK}-workers"})
    lab.create_group({"name": f"{BASELINE}-workers", "hooks": [{"name": "baseline-launching", "metadata": ""}]})


def _join(lab: Lab, workflow: str, group: str, number: int, role: str) -> Sample:
    """One more instance of the group, until it is in service and its execution has ended."""
    since = time.time()
    lab.region.client("autoscaling").set_desired_capacity(AutoScalingGroupName=group, DesiredCapacity=number)
    give_up = time.monotonic() + JOIN_S

    def over() -> bool:
        ended = [e for e in lab.journal.entries("execution", since) if e["machine"] == f"{workflow}-join" and e["status"] != "RUNNING"]
        return bool(ended) and (len(lab.in_service(group)) == number or ended[0]["status"] != "SUCCEEDED")

    while not over():
        if time.monotonic() > give_up:
            raise TimeoutError(f"instance {number} of {group} did not join within {JOIN_S:.0f} s")
        time.sleep(0.1)
    time.sleep(REST_S)
    sample = of_join(lab.journal.entries(since=since), workflow, role, choices_of(DEFINITIONS[workflow]))
    for instance_id in lab.in_service(group) if role == "worker" else ():
        node = lab.node(instance_id)
        if node is None or not node.ready or node.tainted:
            raise LabError(f"{instance_id} of {group} is in service, but its Node is {node}")
    return sample


def _function(lab: Lab, name: str) -> dict[str, Any]:
    found: dict[str, Any] = lab.region.client("lambda").get_function_configuration(FunctionName=name)
    return found


def _variables(lab: Lab) -> dict[str, dict[str, str]]:
    """Environment variables of Autojoin's functions as they are deployed, by their name without the stack's."""
    own = f"{STACK}-"
    pages = lab.region.client("lambda").get_paginator("list_functions").paginate()
    names = [f["FunctionName"] for page in pages for f in page["Functions"] if f["FunctionName"].startswith(own)]
    return {name.removeprefix(own): _function(lab, name).get("Environment", {}).get("Variables", {}) for name in sorted(names)}


def _told(sample: Sample) -> str:
    temperature = "cold" if sample["cold"] else "warm"
    return f"{sample['workflow']} {sample['role']}, {temperature}: held {sample['held_s']:.1f} s, overhead {sample['overhead_s']:.1f} s"
