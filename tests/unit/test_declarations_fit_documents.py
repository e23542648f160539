"""What may be declared is what the documents take: a value that the models let in is never refused by Systems Manager."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from autojoin.domain.partitions import client_ca_parameter
from autojoin.events.configuration import ClusterDeclaration, PartitionDeclaration
from tests.fakes.world import ROOT

DOCUMENTS: dict[str, dict[str, Any]] = {
    p.stem: yaml.safe_load(p.read_text())["parameters"] for p in sorted((ROOT / "documents").glob("*.yaml"))
}
DECLARED = {
    "Zone": (ClusterDeclaration, "zone"),
    "CanaryImage": (ClusterDeclaration, "canary_image"),
    "Partition": (PartitionDeclaration, "id"),
    "TenantPartitions": (PartitionDeclaration, "id"),
    "PodCidr": (PartitionDeclaration, "pod_cidr"),
}
USES = [(d, p) for d, parameters in DOCUMENTS.items() for p in parameters if p in DECLARED]


def constraint(model: Any, field: str, name: str) -> Any:
    return next((getattr(m, name) for m in model.model_fields[field].metadata if getattr(m, name, None) is not None), None)


def declared(parameter: str) -> st.SearchStrategy[str]:
    """Values of a field that its model lets in."""
    model, field = DECLARED[parameter]
    pattern = constraint(model, field, "pattern") or constraint_of_optional(model, field)
    longest = constraint(model, field, "max_length") or 1000
    return st.from_regex(re.compile(pattern.removeprefix("^").removesuffix("$"), re.ASCII), fullmatch=True).filter(
        lambda text: len(text) <= longest
    )


def constraint_of_optional(model: Any, field: str) -> str:
    schema = model.model_json_schema()["properties"][field]
    return next(s["pattern"] for s in schema["anyOf"] if "pattern" in s)


@pytest.mark.parametrize(("document", "parameter"), USES)
@settings(max_examples=30)
@given(data=st.data())
def test_a_declared_value_is_one_that_the_document_takes(document: str, parameter: str, data: st.DataObject) -> None:
    value = data.draw(declared(parameter))

    assert re.fullmatch(DOCUMENTS[document][parameter]["allowedPattern"], value)


@pytest.mark.parametrize("document", sorted(d for d in DOCUMENTS if "ClientCaParameter" in DOCUMENTS[d]))
def test_the_name_of_a_client_ca_is_one_that_the_document_takes(document: str) -> None:
    pattern = DOCUMENTS[document]["ClientCaParameter"]["allowedPattern"]

    assert re.fullmatch(pattern, client_ca_parameter("demo", "a" * 32))


@pytest.mark.parametrize("document", sorted(DOCUMENTS))
def test_every_parameter_of_a_document_is_bounded_and_passed_by_the_environment(document: str) -> None:
    for name, parameter in DOCUMENTS[document].items():
        assert parameter["allowedPattern"].startswith("^"), name
        assert parameter["allowedPattern"].endswith("$"), name
        assert name == "ExecutionTimeout" or parameter["interpolationType"] == "ENV_VAR", name


@pytest.mark.parametrize("digits", ["१०.0.0.0/8", "10.0.0.0/٨"])
def test_a_range_in_other_digits_is_refused_where_it_is_declared(digits: str) -> None:
    with pytest.raises(ValueError, match="pod_cidr"):
        PartitionDeclaration(id="rp1", kind="rp", pod_cidr=digits)
