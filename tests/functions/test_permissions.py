"""Least privilege, both ways: what a function's use cases ask of AWS is allowed by its role, and nothing else is.

Functions run in the fake world behind ports that write down who asked for what; the adapters' source says which action each
method of a port is.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from autojoin import errors
from autojoin.entrypoint import Handler
from autojoin.ports import Intent
from tests.fakes.world import ROOT, Action, Script, World, masters_topology, refusal
from tests.functions.conftest import FUNCTIONS, TEMPLATE

NODE = "i-0123456789abcdef0"
ADAPTERS = {
    "instances": ("ec2", "Ec2Instances"),
    "groups": ("autoscaling", "AutoScalingGroups"),
    "commands": ("ssm", "SsmCommands"),
    "configuration": ("parameters", "SsmConfiguration"),
    "registry": ("dynamodb", "DynamoDbRegistry"),
    "machines": ("stepfunctions", "StepFunctionsMachines"),
    "callbacks": ("stepfunctions", "StepFunctionsCallbacks"),
    "markers": ("dynamodb", "DynamoDbMarkers"),
    "witness": ("parameters", "SsmWitness"),
    "etcd": ("etcd", "EtcdGateway"),
    "names": ("route53", "Route53Names"),
    "targets": ("elbv2", "ElbV2Targets"),
}
PARTS = {"dynamodb:TransactWriteItems": {"dynamodb:ConditionCheckItem", "dynamodb:PutItem"}}
"""A transaction needs the permission of each of its parts. Source: DynamoDB, IAM and transactions."""
OF_LAMBDA_ITSELF = {"sqs:SendMessage"}
"""What Lambda does with the function's role: failed events to their queue."""


@cache
def actions_of(port: str, method: str) -> frozenset[str]:
    """IAM actions of one method of a port, read from its adapter."""
    module, name = ADAPTERS[port]
    tree = ast.parse((ROOT / f"layers/autojoin/autojoin/adapters/{module}.py").read_text())
    (adapter,) = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == name]
    methods = {n.name: n for n in adapter.body if isinstance(n, ast.FunctionDef)}
    found: set[str] = set()
    todo, seen = [method], set()
    while todo:
        current = todo.pop()
        seen.add(current)
        for node in ast.walk(methods[current]):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"[a-z0-9]+:[A-Z]\w+", node.value):
                found |= PARTS.get(node.value, {node.value})
            if isinstance(node, ast.Attribute) and node.attr in methods and node.attr not in seen:
                todo.append(node.attr)
    return frozenset(found)


class Asked:
    """A port of one function that writes down the actions behind what is asked of it."""

    def __init__(self, world: World, port: str, used: set[str]) -> None:
        self._world, self._port, self._used = world, port, used

    def __getattr__(self, method: str) -> Any:
        self._used |= actions_of(self._port, method)
        return getattr(getattr(self._world, self._port), method)


class AskedPorts:
    """Ports of one function."""

    def __init__(self, world: World, used: set[str]) -> None:
        self.telemetry, self.clock = world.telemetry, world
        for port in ADAPTERS:
            setattr(self, port, Asked(world, port, used))


def watched(used: dict[str, set[str]]) -> World:
    """A world with one node to join, whose functions write down what they ask."""
    world = World()
    for name, handler in world.handlers.items():
        ports = AskedPorts(world, used[name])
        world.handlers[name] = Handler(handler.operations, lambda ports=ports: ports)
    world.add_group()
    world.add_master()
    world.add_instance(NODE)
    return world


def launched(world: World) -> None:
    action = world.actions[NODE]
    detail = {
        "LifecycleActionToken": action.token,
        "AutoScalingGroupName": "workers",
        "LifecycleHookName": action.hook,
        "EC2InstanceId": NODE,
        "LifecycleTransition": "autoscaling:EC2_INSTANCE_LAUNCHING",
        "NotificationMetadata": '{"autojoin":1}',
    }
    envelope = {"source": "aws.autoscaling", "detail-type": "EC2 Instance-launch Lifecycle Action", "time": "2026-01-01T00:00:00Z"}
    world.handlers["intake"]({**envelope, "detail": detail}, None)
    world.engine.run()


def joins_and_joins_again(world: World) -> None:
    world.join(NODE)
    world.scripts["verify"] = [refusal(22, "CanaryFailed")]
    world.join(NODE, "again", by_event=False)


def fails(world: World) -> None:
    world.scripts["join-worker"] = [refusal(14, "ApiUnreachable"), refusal(16, "UnitFailed")]
    world.join(NODE)


def loses_events(world: World) -> None:
    world.lose_events = True
    world.scripts["join-worker"] = [Script(takes_s=90)]
    world.join(NODE)


def cannot_record_a_command(world: World) -> None:
    put_intent, lost = world.put_intent, iter([True])

    def lose_the_first(instance_id: str, intent: Intent, owner: str) -> None:
        if intent.value and next(lost, False):
            raise errors.AwsUnavailable("no answer", "one", "again")
        put_intent(instance_id, intent, owner)

    world.put_intent = lose_the_first  # type: ignore[method-assign]
    world.join(NODE)


def is_aborted(world: World) -> None:
    world.scripts["join-worker"] = [Script(ends=False)]
    execution = world.start("join", {"instance_id": NODE}, "aborted")
    world.engine.call_later(50, lambda: world.engine.stop(execution.arn))
    world.engine.run()


def finds_a_dead_lease(world: World) -> None:
    world.scripts["join-worker"] = [refusal(11, "BinariesMissing"), Script()]
    world.break_next("complete", errors.AwsRefused("denied", "allowed", "look"))
    world.join(NODE)
    world.time.sleep(3600)
    world.actions[NODE] = Action("t", "autojoin-launching")
    world.join(NODE, "later", by_event=False)


def is_continued_twice(world: World) -> None:
    world.break_next("release_lease", errors.AwsUnavailable("a", "b", "c"))
    world.join(NODE)


def with_masters(world: World) -> None:
    """Without the master that nobody recorded, which add_master made, so that a partition can be founded."""
    world.ec2.clear()
    world.declared = masters_topology(world)
    for n, role in enumerate(("rp", "tp"), 1):
        world.launch_master(role, f"i-0000000000000000{n}")


def founds_both(world: World) -> None:
    with_masters(world)
    for n in (1, 2):
        world.join(f"i-0000000000000000{n}", f"founds-{n}")
        world.join(f"i-0000000000000000{n}", f"resumes-{n}", by_event=False)
    world.join("i-00000000000000001", "planned", by_event=False, dry_run=True)


def takes_a_founding_over(world: World) -> None:
    with_masters(world)
    world.abandoned_dies_after_s = 30
    world.scripts["start-etcd"] = [refusal(17, "PortInUse"), Script()]
    world.join("i-00000000000000001", "fails")
    world.launch_master("rp", "i-00000000000000003")
    world.join("i-00000000000000003", "takes-over")


def fails_after_its_names_were_made(world: World) -> None:
    with_masters(world)
    world.scripts["verify-master"] = [refusal(20, "NodeNotReady")]
    world.join("i-00000000000000001")


def finds_an_unrecorded_master(world: World) -> None:
    with_masters(world)
    world.add_master("i-00000000000000009")
    world.join("i-00000000000000001")


FLOWS: list[Callable[[World], None]] = [
    launched,
    joins_and_joins_again,
    fails,
    loses_events,
    cannot_record_a_command,
    is_aborted,
    finds_a_dead_lease,
    is_continued_twice,
    founds_both,
    takes_a_founding_over,
    fails_after_its_names_were_made,
    finds_an_unrecorded_master,
]


@cache
def used_by_function() -> dict[str, set[str]]:
    used: dict[str, set[str]] = {name: set() for name in FUNCTIONS}
    for flow in FLOWS:
        flow(watched(used))
    return used


def allowed(function: str) -> set[str]:
    (properties,) = [
        r["Properties"]
        for r in TEMPLATE["Resources"].values()
        if r["Type"] == "AWS::Serverless::Function" and r["Properties"]["CodeUri"] == f"functions/{function}"
    ]
    return {action for policy in properties.get("Policies", []) for statement in policy["Statement"] for action in statement["Action"]}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_function_may_do_all_that_its_use_cases_ask(function: str) -> None:
    assert used_by_function()[function] - allowed(function) == set()


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_function_may_do_nothing_that_its_use_cases_never_ask(function: str) -> None:
    assert allowed(function) - used_by_function()[function] - OF_LAMBDA_ITSELF == set()


def test_what_changes_the_outside_is_one_function_s_alone() -> None:
    who = {
        action: {f for f in FUNCTIONS if action in allowed(f)}
        for action in (
            "ssm:SendCommand",
            "autoscaling:CompleteLifecycleAction",
            "states:StartExecution",
            "ssm:PutParameter",
            "route53:ChangeResourceRecordSets",
            "elasticloadbalancing:RegisterTargets",
        )
    }

    assert who == {
        "ssm:SendCommand": {"command"},
        "autoscaling:CompleteLifecycleAction": {"hook"},
        "states:StartExecution": {"intake"},
        "ssm:PutParameter": {"membership"},
        "route53:ChangeResourceRecordSets": {"names"},
        "elasticloadbalancing:RegisterTargets": {"names"},
    }
