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
IN_README = re.findall(
    r"put-parameter --type String --name (/autojoin/\S+) \\\n  --value '(.*?)'", (ROOT / "README.md").read_text(encoding="utf-8")
)


def model_of(parameter: str) -> type[BaseModel]:
    return ClusterDeclaration if parameter.endswith("/cluster") else PartitionDeclaration


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


@pytest.mark.parametrize(("parameter", "value"), EXAMPLES + IN_README)
def test_an_example_fits_its_model(parameter: str, value: str) -> None:
    declared = model_of(parameter).model_validate_json(value)

    assert getattr(declared, "id", "cluster") == parameter.rpartition("/")[2]


def test_there_are_examples_of_both_models_in_both_documents() -> None:
    for examples in (EXAMPLES, IN_README):
        assert {model_of(parameter) for parameter, _ in examples} == {ClusterDeclaration, PartitionDeclaration}


def test_the_stack_s_parameters_are_the_template_s() -> None:
    class Loader(yaml.SafeLoader):
        pass

    Loader.add_multi_constructor("!", lambda loader, suffix, node: None)
    parameters = yaml.load((ROOT / "template.yaml").read_text(encoding="utf-8"), Loader)["Parameters"]

    section = TEXT.partition("## The stack's parameters")[2]

    rows = dict(re.findall(r"^\| `(\w+)` \|[^|]*\| ([^|]*) \|", section, re.MULTILINE))
    assert rows == {name: f"`{p['Default']}`" if p["Default"] != "" else "empty" for name, p in parameters.items()}
