"""The plan of a join: steps of the graph in the graph's order, only for what this version joins."""

from __future__ import annotations

import itertools
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autojoin import errors
from autojoin.domain.identity import Role
from autojoin.domain.partitions import Partition, PartitionKind
from autojoin.domain.plan import API_STEPS, ETCD_STEPS, FRONT_DOOR_STEPS, KINDS_OF_ROLE, STEP_ORDER, plan_join
from tests.fakes.world import machine

RP = Partition("rp1", PartitionKind.RP, pod_cidr="10.244.0.0/16")
STATES = machine("join").definition["States"]


def test_a_worker_of_a_resource_partition_hosts_no_etcd_and_serves_no_api() -> None:
    plan = plan_join(Role.WORKER, RP)

    assert plan.steps == ("Admit", "Preflight", "AwaitAgent", "Join", "Verify", "Complete")
    assert not any((plan.hosts_etcd, plan.serves_api, plan.has_front_door))


@given(role=st.sampled_from(Role), kind=st.sampled_from(PartitionKind), cni=st.sampled_from(["host-gw", "vxlan", "bridge", "mizar"]))
def test_every_plan_keeps_the_order_of_the_graph_and_answers_its_choices(role: Role, kind: PartitionKind, cni: str) -> None:
    try:
        plan = plan_join(role, Partition("p", kind, pod_cidr="10.0.0.0/16", cni_backend=cni))
    except (errors.PartitionKindMismatch, errors.RoleNotSupported, errors.CniNotSupported):
        return

    assert [s for s in STEP_ORDER if s in plan.steps] == list(plan.steps)
    assert plan.hosts_etcd == bool(ETCD_STEPS & set(plan.steps))
    assert plan.serves_api == bool(API_STEPS & set(plan.steps))
    assert plan.has_front_door == bool(FRONT_DOOR_STEPS & set(plan.steps))
    assert {"Admit", "Preflight", "AwaitAgent", "Join", "Verify", "Complete"} <= set(plan.steps)


@pytest.mark.parametrize(("role", "kind"), [(r, k) for r, k in itertools.product(Role, PartitionKind) if k not in KINDS_OF_ROLE[r]])
def test_a_role_is_refused_in_a_partition_of_another_kind(role: Role, kind: PartitionKind) -> None:
    with pytest.raises(errors.PartitionKindMismatch, match=kind.value):
        plan_join(role, Partition("p", kind))


@pytest.mark.parametrize(
    ("role", "kind"),
    [
        (Role.TP, PartitionKind.TP),
        (Role.RP, PartitionKind.RP),
        (Role.MASTER, PartitionKind.MASTER),
        (Role.WORKER, PartitionKind.MASTER),
        (Role.ETCD, PartitionKind.RP),
    ],
)
def test_a_role_that_this_version_does_not_join_is_refused_by_name(role: Role, kind: PartitionKind) -> None:
    with pytest.raises(errors.RoleNotSupported, match=role.value):
        plan_join(role, Partition("p", kind))


@pytest.mark.parametrize("backend", ["bridge", "mizar", "", "HOST-GW"])
def test_a_network_that_autojoin_does_not_set_up_is_refused_with_the_reason(backend: str) -> None:
    with pytest.raises(errors.CniNotSupported, match="host-gw, vxlan"):
        plan_join(Role.WORKER, Partition("rp1", PartitionKind.RP, pod_cidr="10.0.0.0/16", cni_backend=backend))


def test_every_step_is_a_state_and_every_working_state_is_a_step() -> None:
    working = {name for name, state in STATES.items() if state["Type"] in ("Task", "Pass")}

    assert working == set(STEP_ORDER) | {"HandOver"}


def test_no_step_is_reached_before_the_steps_in_front_of_it() -> None:
    for earlier, later in itertools.pairwise(STEP_ORDER):
        assert later in reachable(earlier)
        assert earlier not in reachable(later)


def reachable(start: str) -> set[str]:
    """States behind `start`, the cycles of waiting left out."""
    seen: set[str] = set()
    todo = deque([start])
    while todo:
        state = STATES[todo.popleft()]
        ends = [state.get("Next"), *(c["Next"] for c in state.get("Choices", []))]
        if state["Type"] == "Choice" and state.get("Default") not in seen | {start}:
            ends.append(state.get("Default"))
        fresh = {e for e in ends if e and e not in seen and e != start}
        seen |= fresh
        todo.extend(fresh)
    return seen
