"""docs/configuration.md: its tables are the models' fields, and its examples validate."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

from autojoin.events.configuration import ClusterDeclaration, PartitionDeclaration

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs/configuration.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^`(/autojoin/\S+)`:\n\n```json\n(.*?)```", TEXT, re.DOTALL | re.MULTILINE)


def model_of(parameter: str) -> type[BaseModel]:
    return ClusterDeclaration if parameter.endswith("cluster") else PartitionDeclaration


@pytest.mark.parametrize("model", [ClusterDeclaration, PartitionDeclaration])
def test_the_table_has_every_field_with_its_default_and_no_other(model: type[BaseModel]) -> None:
    table = re.search(rf"<!-- fields of {model.__name__} -->\n\n((?:\|.*\n)+)", TEXT)

    assert table
    rows = dict(re.findall(r"^\| `(\w+)` \|[^|]*\| ([^|]*) \|", table[1], re.MULTILINE))
    assert rows == {name: default_of(model, name) for name in model.model_fields}


def default_of(model: type[BaseModel], name: str) -> str:
    field = model.model_fields[name]
    if field.is_required():
        return "required"
    return "none" if field.default is None else f"`{field.default}`"


@pytest.mark.parametrize(("parameter", "value"), EXAMPLES)
def test_an_example_fits_its_model(parameter: str, value: str) -> None:
    declared = model_of(parameter).model_validate_json(value)

    assert getattr(declared, "id", "cluster") == parameter.rpartition("/")[2]


def test_there_are_examples_of_both_models() -> None:
    assert {model_of(parameter) for parameter, _ in EXAMPLES} == {ClusterDeclaration, PartitionDeclaration}


def test_the_declarations_of_the_example_stack_fit_their_models() -> None:
    text = (ROOT / "examples/declarations.yaml").read_text(encoding="utf-8")
    given = {"Zone": "demo.arktos.internal", "HostedZoneId": "Z0DEMO", "ServiceCidr": "10.0.0.0/16", "PodCidr": "10.244.0.0/16"}
    given |= {"CniBackend": "host-gw", "Targets": ""}
    names = re.findall(r"Name: !Sub /autojoin/\$\{Cluster\}/(\S+)", text)
    values = [re.sub(r"\$\{(\w+)\}", lambda m: given[m[1]], value) for value in re.findall(r"'(\{.*\})'", text)]

    declared = {name: model_of(name).model_validate_json(value) for name, value in zip(names, values, strict=True)}

    assert declared.keys() == {"cluster", "partitions/tp1", "partitions/rp1"}


def test_the_stack_s_parameters_are_the_template_s() -> None:
    class Loader(yaml.SafeLoader):
        pass

    Loader.add_multi_constructor("!", lambda loader, suffix, node: None)
    parameters = yaml.load((ROOT / "template.yaml").read_text(encoding="utf-8"), Loader)["Parameters"]

    section = TEXT.partition("## The stack's parameters")[2]

    rows = dict(re.findall(r"^\| `(\w+)` \|[^|]*\| ([^|]*) \|", section, re.MULTILINE))
    assert rows == {name: f"`{p['Default']}`" if p["Default"] != "" else "empty" for name, p in parameters.items()}
