"""Record sets: lab/region/record_sets.py, and what the nodes of the fleet make of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError

from lab.fleet.names import zone_names
from lab.region.region import Region

pytestmark = pytest.mark.lab
_serial = itertools.count()
ZONE = "records.internal"
NAME = f"api.tp1.{ZONE}"
Change = Callable[..., str]


@pytest.fixture
def zone(region: Region) -> str:
    route53 = region.client("route53")
    vpc = {"VPCId": f"vpc-{next(_serial):08x}", "VPCRegion": region.name}
    made = route53.create_hosted_zone(Name=ZONE, CallerReference=f"records-{next(_serial)}", VPC=vpc)
    return str(made["HostedZone"]["Id"].rpartition("/")[2])


@pytest.fixture
def change(region: Region, zone: str) -> Change:
    """Make changes, each (action, record); "" or how they were refused."""

    def make(*changes: tuple[str, dict[str, Any]]) -> str:
        batch = {"Changes": [{"Action": action, "ResourceRecordSet": record} for action, record in changes]}
        try:
            region.client("route53").change_resource_record_sets(HostedZoneId=zone, ChangeBatch=batch)
        except ClientError as error:
            return f"{error.response['Error']['Code']}: {error.response['Error']['Message']}"
        return ""

    return make


def simple(value: str = "127.30.0.1", name: str = NAME, kind: str = "A", ttl: int = 10) -> dict[str, Any]:
    return {"Name": name, "Type": kind, "TTL": ttl, "ResourceRecords": [{"Value": value}]}


def answer(identifier: str, value: str = "127.30.0.1", ttl: int = 10, name: str = NAME) -> dict[str, Any]:
    return {**simple(value, name=name, ttl=ttl), "SetIdentifier": identifier, "MultiValueAnswer": True}


@pytest.fixture
def kept(region: Region, zone: str) -> Callable[[], dict[str | None, str]]:
    """Values of the A records by set identifier."""

    def look() -> dict[str | None, str]:
        records = region.client("route53").list_resource_record_sets(HostedZoneId=zone)["ResourceRecordSets"]
        return {one.get("SetIdentifier"): one["ResourceRecords"][0]["Value"] for one in records if one["Type"] == "A"}

    return look


def test_several_answers_have_one_name_and_each_is_changed_alone(change: Change, kept: Callable[[], Any], zone: str) -> None:
    done = [
        change(("CREATE", answer("i-1", "127.30.0.1")), ("CREATE", answer("i-2", "127.30.0.2"))),
        change(("UPSERT", answer("i-1", "127.30.0.3"))),
    ]
    before = kept()
    vpc = _vpc_of(zone)
    seen = zone_names(vpc)[NAME]
    done.append(change(("DELETE", answer("i-1", "127.30.0.3"))))

    assert done == ["", "", ""]
    assert before == {"i-1": "127.30.0.3", "i-2": "127.30.0.2"}
    assert seen == ["127.30.0.2", "127.30.0.3"]
    assert kept() == {"i-2": "127.30.0.2"}
    assert zone_names(vpc)[NAME] == ["127.30.0.2"]


@pytest.mark.parametrize(
    "record", [answer("i-1", "127.30.0.9"), answer("i-1", ttl=30)], ids=["value", "ttl"],
)  # fmt: skip
def test_a_deletion_must_name_what_is_there(change: Change, kept: Callable[[], Any], record: dict[str, Any]) -> None:
    change(("CREATE", answer("i-1")))

    refused = change(("DELETE", record))

    assert refused == (
        f"InvalidChangeBatch: [Tried to delete resource record set [name='{NAME}.', type='A', set-identifier='i-1'] "
        "but the values provided do not match the current values]"
    )
    assert kept() == {"i-1": "127.30.0.1"}


def test_what_is_not_there_is_not_deleted(change: Change) -> None:
    change(("CREATE", answer("i-1")))

    assert change(("DELETE", answer("i-2"))) == (
        f"InvalidChangeBatch: [Tried to delete resource record set [name='{NAME}.', type='A', set-identifier='i-2'] but it was not found]"
    )
    assert change(("DELETE", simple())).endswith(f"[name='{NAME}.', type='A'] but it was not found]")


def test_a_simple_record_and_an_answer_do_not_share_a_name(change: Change, kept: Callable[[], Any]) -> None:
    change(("CREATE", simple()))
    beside = change(("CREATE", answer("i-1")))
    replaced = change(("DELETE", simple()), ("CREATE", answer("i-1")))
    back = change(("UPSERT", simple()))

    assert beside == (
        f"InvalidChangeBatch: [RRSet with DNS name {NAME}., type A, SetIdentifier i-1 cannot be created because a non multivalue answer "
        "rrset exists with the same name and type.]"
    )
    assert replaced == ""
    assert back.startswith("InvalidChangeBatch: [RRSet with DNS name")
    assert kept() == {"i-1": "127.30.0.1"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ([("CREATE", simple(name="api.tp1.other.internal"))], "is not permitted in zone records.internal."),
        ([("CREATE", simple("not-an-address"))], "ARRDATAIllegalIPv4Address"),
        ([("UPSERT", answer("i-1")), ("UPSERT", answer("i-1"))], "invalid set of changes"),
        ([("CREATE", {**answer("i-1"), "ResourceRecords": [{"Value": "127.0.0.1"}, {"Value": "127.0.0.2"}]})], "exactly one"),
        ([("CREATE", {**simple(), "SetIdentifier": "i-1"})], "InvalidInput: Invalid request: Expected exactly one of"),
        ([("CREATE", {**simple(), "MultiValueAnswer": True})], "InvalidInput: Invalid request: Missing field 'SetIdentifier'"),
        ([("CREATE", simple()), ("CREATE", simple(NAME, kind="CNAME"))], "conflicts with other records"),
        ([("CREATE", simple(NAME, kind="CNAME")), ("CREATE", simple())], "conflicting RRSet of type CNAME"),
    ],
    ids=["outside", "address", "twice", "two-values", "no-policy", "no-identifier", "cname", "beside-cname"],
)
def test_changes_that_are_refused_as_a_whole(
    change: Change, kept: Callable[[], Any], changes: list[tuple[str, dict[str, Any]]], words: str
) -> None:
    refused = change(("CREATE", simple(name=f"good.{ZONE}")), *changes)

    assert words in refused
    assert kept() == {}


def test_names_are_one_whatever_their_case(change: Change) -> None:
    change(("CREATE", simple(name=NAME.upper())))

    assert change(("DELETE", simple())) == ""


def test_the_zones_own_soa_record_is_changed_and_never_deleted(region: Region, zone: str, change: Change) -> None:
    route53 = region.client("route53")
    before = next(r for r in route53.list_resource_record_sets(HostedZoneId=zone)["ResourceRecordSets"] if r["Type"] == "SOA")
    value = before["ResourceRecords"][0]["Value"].rpartition(" ")[0] + " 10"
    wanted = {**before, "TTL": 10, "ResourceRecords": [{"Value": value}]}

    done = change(("UPSERT", wanted))
    deleted = change(("DELETE", wanted))

    after = [r for r in route53.list_resource_record_sets(HostedZoneId=zone)["ResourceRecordSets"] if r["Type"] == "SOA"]
    assert (done, deleted) == ("", "InvalidChangeBatch: [A HostedZone must contain exactly one SOA record.]")
    assert after == [wanted]


def _vpc_of(zone: str) -> str:
    from ministack.services import route53

    return str(route53._zones[zone]["vpcs"][0]["VPCId"])
