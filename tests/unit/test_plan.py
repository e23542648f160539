"""The plan of a join: steps of the graph in the graph's order, only for what this version joins."""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autojoin import errors
from autojoin.domain.identity import Role
from autojoin.domain.partitions import Partition, PartitionKind
from autojoin.domain.plan import API_STEPS, ETCD_STEPS, FRONT_DOOR_STEPS, KINDS_OF_ROLE, STEP_ORDER, plan_join
from tests.fakes.world import machine

RP = Partition("rp1", PartitionKind.RP, pod_cidr="10.244.0.0/16")
TP = Partition("tp1", PartitionKind.TP, service_cidr="10.0.0.0/16")
STATES = machine("join").definition["States"]


def test_a_worker_of_a_resource_partition_hosts_no_etcd_and_serves_no_api() -> None:
    plan = plan_join(Role.WORKER, RP)

    assert plan.steps == ("Admit", "Preflight", "AwaitAgent", "Join", "Verify", "Complete")
    assert not any((plan.hosts_etcd, plan.serves_api, plan.has_front_door))


def test_a_master_hosts_etcd_serves_an_api_and_opens_its_front_door_where_one_is_declared() -> None:
    plain = plan_join(Role.TP, TP)
    with_door = plan_join(Role.RP, replace(RP, front_door_target_groups=("arn",)))

    assert plain.steps == tuple(s for s in STEP_ORDER if s not in FRONT_DOOR_STEPS)
    assert with_door.steps == STEP_ORDER
    assert (plain.hosts_etcd, plain.serves_api, plain.has_front_door) == (True, True, False)
    assert with_door.has_front_door


def test_a_worker_opens_no_front_door_of_its_partition() -> None:
    assert not plan_join(Role.WORKER, replace(RP, front_door_target_groups=("arn",))).has_front_door


def test_a_tenant_partition_without_a_range_of_services_is_refused() -> None:
    with pytest.raises(errors.ConfigurationInvalid, match="service_cidr"):
        plan_join(Role.TP, replace(TP, service_cidr=None))


@given(role=st.sampled_from(Role), kind=st.sampled_from(PartitionKind), cni=st.sampled_from(["host-gw", "vxlan", "bridge", "mizar"]))
def test_every_plan_keeps_the_order_of_the_graph_and_answers_its_choices(role: Role, kind: PartitionKind, cni: str) -> None:
    try:
        plan = plan_join(role, Partition("p", kind, pod_cidr="10.0.0.0/16", service_cidr="10.1.0.0/16", cni_backend=cni))
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
        name = todo.popleft()
        state = STATES[name]
        ends = [state.get("Next"), *(c["Next"] for c in state.get("Choices", []))]
        if state["Type"] == "Choice" and not name.endswith("Deadline"):
            ends.append(state.get("Default"))
        fresh = {e for e in ends if e and e not in seen and e != start}
        seen |= fresh
        todo.extend(fresh)
    return seen
