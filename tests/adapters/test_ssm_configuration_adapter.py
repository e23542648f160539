"""Port Configuration on Parameter Store, on moto."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import boto3
import pytest

from autojoin import errors
from autojoin.adapters.parameters import SsmConfiguration
from autojoin.domain.partitions import Partition, PartitionKind, Topology
from tests.adapters.conftest import REGION, Stubs

RP1 = {"id": "rp1", "kind": "rp", "pod_cidr": "10.244.0.0/16"}


@pytest.fixture(scope="module")
def client(region: None) -> Any:
    return boto3.client("ssm", region_name=REGION)


@pytest.fixture
def ssm(client: Any) -> Iterator[Any]:
    """A client of a region that declares nothing."""
    yield client
    pages = list(client.get_paginator("describe_parameters").paginate())
    for name in [p["Name"] for page in pages for p in page["Parameters"]]:
        client.delete_parameter(Name=name)


def declare(ssm: Any, name: str, value: object, cluster: str = "demo") -> None:
    text = value if isinstance(value, str) else json.dumps(value)
    ssm.put_parameter(Name=f"/autojoin/{cluster}/{name}", Value=text, Type="String")


def test_a_cluster_that_is_not_declared_has_no_topology(ssm: Any) -> None:
    declare(ssm, "cluster", {"zone": "other.internal"}, cluster="other")

    assert SsmConfiguration(ssm).topology("demo") is None


def test_partitions_come_by_ordinal_then_by_id(ssm: Any) -> None:
    declare(ssm, "cluster", {"zone": "demo.internal", "canary_image": "mine/canary:2"})
    declare(ssm, "partitions/tp2", {"id": "tp2", "kind": "tp", "service_cidr": "10.1.0.0/16"})
    declare(ssm, "partitions/tp1", {"id": "tp1", "kind": "tp"})
    declare(ssm, "partitions/rp1", {**RP1, "ordinal": 1, "cni_backend": "vxlan"})

    assert SsmConfiguration(ssm).topology("demo") == Topology(
        "demo.internal",
        (
            Partition("tp1", PartitionKind.TP),
            Partition("tp2", PartitionKind.TP, service_cidr="10.1.0.0/16"),
            Partition("rp1", PartitionKind.RP, pod_cidr="10.244.0.0/16", cni_backend="vxlan"),
        ),
        "mine/canary:2",
    )


def test_a_cluster_with_more_partitions_than_a_page_is_read_to_its_end(ssm: Any) -> None:
    declare(ssm, "cluster", {"zone": "demo.internal"})
    for n in range(23):
        declare(ssm, f"partitions/tp{n:02}", {"id": f"tp{n:02}", "kind": "tp"})

    found = SsmConfiguration(ssm).topology("demo")

    assert found is not None
    assert len(found.partitions) == 23


def test_public_data_and_other_clusters_are_no_partitions(ssm: Any) -> None:
    declare(ssm, "cluster", {"zone": "demo.internal"})
    declare(ssm, "public/rp1/client-ca.crt", "certificate")
    declare(ssm, "partitions/rp9", RP1, cluster="demo2")

    assert SsmConfiguration(ssm).topology("demo") == Topology("demo.internal", ())


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("cluster", "demo.internal", "Invalid JSON"),
        ("cluster", {"Zone": "demo.internal"}, "Zone"),
        ("partitions/rp1", {**RP1, "pod_cidr": "big"}, "pod_cidr"),
        ("partitions/rp1", {"id": "rp1", "kind": "rp"}, "needs pod_cidr"),
    ],
)
def test_a_declaration_that_does_not_fit_is_refused_by_the_parameters_name(ssm: Any, name: str, value: object, says: str) -> None:
    declare(ssm, "cluster", value if name == "cluster" else {"zone": "demo.internal"})
    if name != "cluster":
        declare(ssm, name, value)

    with pytest.raises(errors.ConfigurationInvalid, match=f"/autojoin/demo/{name}.*{says}"):
        SsmConfiguration(ssm).topology("demo")


def test_a_refused_read_is_not_taken_for_no_configuration(stubs: Stubs) -> None:
    stubs.refuse("ssm", "get_parameter", "AccessDeniedException")

    with pytest.raises(errors.AwsRefused, match="ssm:GetParameter"):
        SsmConfiguration(stubs.client("ssm")).topology("demo")
