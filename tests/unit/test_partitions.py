"""Partitions: order of tenants, names of parameters, adjacency of subnets, and what a declaration may say."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from autojoin.domain.partitions import Partition, PartitionKind, Topology, client_ca_parameter, not_adjacent
from autojoin.events.configuration import ClusterDeclaration, PartitionDeclaration

networks = st.builds(
    lambda address, bits: str(ipaddress.ip_network((address & ~((1 << (32 - bits)) - 1), bits))),
    st.integers(0, 2**32 - 1),
    st.integers(16, 28),
)


def topology(*kinds: PartitionKind) -> Topology:
    return Topology("demo.arktos.internal", tuple(Partition(f"p{n}", kind) for n, kind in enumerate(kinds)))


def test_tenant_partitions_keep_the_declared_order_and_leave_resource_partitions_out() -> None:
    found = topology(PartitionKind.TP, PartitionKind.RP, PartitionKind.TP, PartitionKind.MASTER)

    assert found.tenant_partitions() == ("p0", "p2", "p3")


def test_a_partition_is_found_by_its_id_or_not_at_all() -> None:
    found = topology(PartitionKind.RP)

    assert found.get("p0") == Partition("p0", PartitionKind.RP)
    assert found.get("P0") is None


def test_the_client_ca_of_a_partition_has_a_name_of_its_own() -> None:
    assert client_ca_parameter("demo", "rp1") == "/autojoin/demo/public/rp1/client-ca.crt"


@given(own=networks, others=st.dictionaries(st.text("0123456789abcdef", min_size=1, max_size=4), networks, max_size=5))
def test_only_nodes_of_the_same_subnet_are_adjacent(own: str, others: dict[str, str]) -> None:
    far = not_adjacent(own, {**others, "itself": own})

    assert far == {i: c for i, c in others.items() if c != own}


@pytest.mark.parametrize("kind", ["rp", "master"])
def test_a_declared_partition_with_nodes_needs_their_range(kind: str) -> None:
    with pytest.raises(ValidationError, match="needs pod_cidr"):
        PartitionDeclaration(id="rp1", kind=kind)


def test_a_declared_tenant_partition_needs_no_range() -> None:
    assert PartitionDeclaration(id="tp1", kind="tp").pod_cidr is None


@pytest.mark.parametrize(
    "changed", [{"id": "RP1"}, {"id": "-rp"}, {"kind": "worker"}, {"pod_cidr": "10.0.0.0"}, {"cidr": "x"}, {"ordinal": -1}]
)
def test_a_declaration_that_fits_no_model_is_refused(changed: dict[str, object]) -> None:
    declared = {"id": "rp1", "kind": "rp", "pod_cidr": "10.244.0.0/16", **changed}

    with pytest.raises(ValidationError):
        PartitionDeclaration.model_validate(declared)


@pytest.mark.parametrize("zone", ["", "Demo.internal", "demo internal", ".internal", "demo.", "a;b"])
def test_a_zone_that_is_no_name_is_refused(zone: str) -> None:
    with pytest.raises(ValidationError):
        ClusterDeclaration(zone=zone)
