"""Ports Markers and Witness, on moto: a decision changes only instead of what was read, and a testimony never."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import boto3
import pytest

from autojoin import errors
from autojoin.adapters.dynamodb import DynamoDbMarkers
from autojoin.adapters.parameters import SsmWitness
from autojoin.domain.founding import Marker, State, void
from tests.adapters.conftest import REGION, Stubs

ME, OTHER = "i-00000000000000001", "i-00000000000000002"
CLAIMED = Marker("demo", "tp1", State.CLAIMED, ME, 1, 1_800_000_000_000)
FORMED = replace(CLAIMED, state=State.FORMED, cluster_id="0123456789abcdef", at_ms=1_800_000_001_000)
PATH = "/autojoin/demo/witness/tp1"


@pytest.fixture
def markers(region: None) -> Iterator[DynamoDbMarkers]:
    client = boto3.client("dynamodb", region_name=REGION)
    client.create_table(
        TableName="foundings",
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[{"AttributeName": n, "AttributeType": "S"} for n in ("pk", "sk")],
        KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}, {"AttributeName": "sk", "KeyType": "RANGE"}],
    )
    yield DynamoDbMarkers(client, "foundings")
    client.delete_table(TableName="foundings")


@pytest.fixture
def ssm(region: None) -> Iterator[Any]:
    client = boto3.client("ssm", region_name=REGION)
    yield client
    pages = list(client.get_paginator("get_parameters_by_path").paginate(Path="/autojoin", Recursive=True))
    for name in [p["Name"] for page in pages for p in page["Parameters"]]:
        client.delete_parameter(Name=name)


# -- the marker ------------------------------------------------------------------------------------------------------------


def test_a_partition_that_nobody_founded_has_no_marker(markers: DynamoDbMarkers) -> None:
    assert markers.get("demo", "tp1") is None


@pytest.mark.parametrize("marker", [CLAIMED, FORMED])
def test_a_marker_is_read_as_it_was_written(markers: DynamoDbMarkers, marker: Marker) -> None:
    assert markers.put(marker, None)

    assert markers.get("demo", "tp1") == marker
    assert markers.get("demo", "tp2") is None
    assert markers.get("other", "tp1") is None


def test_a_marker_is_written_only_instead_of_what_was_read(markers: DynamoDbMarkers) -> None:
    assert markers.put(CLAIMED, None)

    others = [replace(CLAIMED, epoch=2), replace(CLAIMED, instance_id=OTHER), FORMED, None]

    assert [markers.put(replace(CLAIMED, epoch=9), instead) for instead in others] == [False] * 4
    assert markers.get("demo", "tp1") == CLAIMED
    assert markers.put(FORMED, CLAIMED)
    assert markers.get("demo", "tp1") == FORMED


def test_a_marker_that_is_gone_is_not_written_instead_of_itself(markers: DynamoDbMarkers) -> None:
    assert not markers.put(FORMED, CLAIMED)
    assert markers.get("demo", "tp1") is None


def test_of_many_that_claim_at_once_exactly_one_has_claimed(markers: DynamoDbMarkers) -> None:
    claims = [replace(CLAIMED, instance_id=f"i-{n:017x}") for n in range(8)]
    with ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(lambda claim: markers.put(claim, None), claims))

    assert sum(taken) == 1
    assert markers.get("demo", "tp1") == claims[taken.index(True)]


@pytest.mark.parametrize(("code", "expected"), [("AccessDeniedException", errors.AwsRefused), ("ThrottlingException", errors.AwsThrottled)])
def test_a_refused_write_is_not_taken_for_another_claim(stubs: Stubs, code: str, expected: type[Exception]) -> None:
    stubs.refuse("dynamodb", "put_item", code)

    with pytest.raises(expected):
        DynamoDbMarkers(stubs.client("dynamodb"), "foundings").put(CLAIMED, None)


# -- the witness -----------------------------------------------------------------------------------------------------------


def test_a_partition_without_decisions_has_no_witness(ssm: Any) -> None:
    assert SsmWitness(ssm).read("demo", "tp1") == ()


def test_each_decision_is_a_parameter_that_is_read_as_it_was_written(ssm: Any) -> None:
    witness = SsmWitness(ssm)
    later = replace(CLAIMED, instance_id=OTHER, epoch=2)
    decisions = [CLAIMED, void(CLAIMED), later, replace(FORMED, instance_id=OTHER, epoch=2)]

    assert [witness.write(decision) for decision in decisions] == decisions

    assert sorted(witness.read("demo", "tp1"), key=str) == sorted(decisions, key=str)
    assert [d.is_void for d in decisions] == [False, True, False, False]
    names = {p["Name"] for p in ssm.get_parameters_by_path(Path=PATH)["Parameters"]}
    assert names == {f"{PATH}/{name}" for name in ("claimed-1", "formed-1", "claimed-2", "formed-2")}


def test_a_decision_that_stands_is_never_changed_and_is_what_a_later_writer_is_told(ssm: Any) -> None:
    witness = SsmWitness(ssm)
    witness.write(CLAIMED)
    witness.write(FORMED)

    assert witness.write(replace(CLAIMED, instance_id=OTHER)) == CLAIMED
    assert witness.write(void(CLAIMED)) == FORMED
    assert witness.write(replace(FORMED, cluster_id="f" * 16)) == FORMED
    assert set(witness.read("demo", "tp1")) == {CLAIMED, FORMED}


def test_a_claim_that_was_given_up_is_never_formed(ssm: Any) -> None:
    witness = SsmWitness(ssm)
    witness.write(void(CLAIMED))

    assert witness.write(FORMED).is_void


def test_a_witness_of_more_than_a_page_is_read_to_its_end(ssm: Any) -> None:
    witness = SsmWitness(ssm)
    for epoch in range(1, 14):
        witness.write(replace(CLAIMED, epoch=epoch))

    assert {m.epoch for m in witness.read("demo", "tp1")} == set(range(1, 14))


def test_decisions_of_other_partitions_are_others(ssm: Any) -> None:
    SsmWitness(ssm).write(replace(CLAIMED, partition="tp10"))

    assert SsmWitness(ssm).read("demo", "tp1") == ()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("claimed-1", "{}"),
        ("claimed-1", "not json"),
        ("claimed-1", '{"instance": "i-1"}'),
        ("claimed-1", '{"instance": "i-1", "at_ms": "soon"}'),
        ("claimed-1", "[]"),
        ("forgotten-1", '{"instance": "i-1", "at_ms": 1}'),
        ("claimed-x", '{"instance": "i-1", "at_ms": 1}'),
    ],
)
def test_a_witness_that_cannot_be_read_does_not_count_as_none(ssm: Any, name: str, value: str) -> None:
    ssm.put_parameter(Name=f"{PATH}/{name}", Value=value, Type="String")

    with pytest.raises(errors.ConfigurationInvalid, match=name):
        SsmWitness(ssm).read("demo", "tp1")


def test_a_parameter_is_put_without_leave_to_overwrite(stubs: Stubs) -> None:
    asked = {
        "Name": f"{PATH}/claimed-1",
        "Value": f'{{"instance": "{ME}", "at_ms": {CLAIMED.at_ms}}}',
        "Type": "String",
        "Overwrite": False,
    }
    stubs.expect("ssm", "put_parameter", {"Version": 1}, asked)

    SsmWitness(stubs.client("ssm")).write(CLAIMED)


@pytest.mark.parametrize(
    ("code", "expected"),
    [("AccessDeniedException", errors.AwsRefused), ("TooManyUpdates", errors.AwsThrottled), ("ThrottlingException", errors.AwsThrottled)],
)
def test_a_refused_put_is_not_taken_for_a_decision_that_stands(stubs: Stubs, code: str, expected: type[Exception]) -> None:
    stubs.refuse("ssm", "put_parameter", code)

    with pytest.raises(expected):
        SsmWitness(stubs.client("ssm")).write(CLAIMED)


def test_a_decision_that_stands_but_is_not_seen_yet_is_looked_for_again(stubs: Stubs) -> None:
    stubs.refuse("ssm", "put_parameter", "ParameterAlreadyExists")
    stubs.refuse("ssm", "get_parameter", "ParameterNotFound")

    with pytest.raises(errors.AwsUnavailable, match="claimed-1"):
        SsmWitness(stubs.client("ssm")).write(CLAIMED)
