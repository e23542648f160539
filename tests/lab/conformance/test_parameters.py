"""Parameter Store: lab/region/parameters.py and what ministack does well by itself."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError

from lab.region.region import Region
from tests.lab.conformance.conftest import eventually

pytestmark = pytest.mark.lab
WITNESS = "/autojoin/parameters/witness/tp1"


@pytest.fixture(scope="module")
def ssm(region: Region) -> Any:
    return region.client("ssm")


def refused(call: Any, **given: Any) -> str:
    with pytest.raises(ClientError) as caught:
        call(**given)
    return str(caught.value.response["Error"]["Code"])


def test_a_parameter_is_written_once_unless_it_may_be_overwritten(ssm: Any) -> None:
    given = {"Name": f"{WITNESS}/claimed-1", "Type": "String"}

    ssm.put_parameter(**given, Value="first", Overwrite=False)
    second = refused(ssm.put_parameter, **given, Value="second", Overwrite=False)
    kept = ssm.get_parameter(Name=given["Name"])["Parameter"]
    overwritten = ssm.put_parameter(**given, Value="third", Overwrite=True)["Version"]

    assert second == "ParameterAlreadyExists"
    assert (kept["Value"], kept["Version"], overwritten) == ("first", 1, 2)


def test_the_arn_of_a_parameter_has_one_slash(region: Region, ssm: Any) -> None:
    ssm.put_parameter(Name=f"{WITNESS}/arn", Type="String", Value="x")

    arn = ssm.get_parameter(Name=f"{WITNESS}/arn")["Parameter"]["ARN"]

    assert arn == f"arn:aws:ssm:{region.name}:{region.account}:parameter{WITNESS}/arn"


def test_a_path_is_read_by_pages_of_ten_at_most(ssm: Any) -> None:
    path = "/autojoin/pages"
    for number in range(23):
        ssm.put_parameter(Name=f"{path}/{number % 3}/{number}", Type="String", Value=str(number))
    ssm.put_parameter(Name=f"{path}-beside/0", Type="String", Value="no")

    pages = list(ssm.get_paginator("get_parameters_by_path").paginate(Path=path, Recursive=True))
    flat = ssm.get_parameters_by_path(Path=path, Recursive=False)["Parameters"]
    one_level = ssm.get_parameters_by_path(Path=f"{path}/0", MaxResults=10)["Parameters"]

    assert [len(page["Parameters"]) for page in pages] == [10, 10, 3]
    assert sorted(int(one["Value"]) for page in pages for one in page["Parameters"]) == list(range(23))
    assert (flat, len(one_level)) == ([], 8)
    assert refused(ssm.get_parameters_by_path, Path=path, MaxResults=11) == "ValidationException"


@pytest.mark.parametrize("given", [{"Value": "x" * 4097}, {"Name": "no/slash/first"}, {"Name": "/a b"}], ids=["long", "no-slash", "space"])
def test_parameters_that_are_refused(ssm: Any, given: dict[str, str]) -> None:
    assert refused(ssm.put_parameter, **{"Name": f"{WITNESS}/bad", "Type": "String", "Value": "x", **given}) == "ValidationException"


def test_a_parameter_is_journalled_by_its_name_alone(region: Region, ssm: Any) -> None:
    ssm.put_parameter(Name=f"{WITNESS}/told", Type="String", Value="not for a log", Description="nor this")

    def told() -> list[dict[str, Any]]:
        return [one["detail"] for one in region.journal.entries("api_call") if one["detail"].get("Name") == f"{WITNESS}/told"]

    assert eventually(told) == [{"Name": f"{WITNESS}/told"}]
