"""The template as we write it, as CloudFormation gets it, and its names as a deployment resolves them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from samtranslator.yaml_helper import yaml_parse

from tools.translate_template import translate

ROOT = Path(__file__).resolve().parents[2]
PSEUDO = {
    "AWS::StackName": "autojoin",
    "AWS::AccountId": "123456789012",
    "AWS::Region": "eu-central-1",
    "AWS::Partition": "aws",
}
Resource = dict[str, Any]


def parse_template(path: str) -> dict[str, Any]:
    """A template with its short forms (`!Sub`) as long ones (`Fn::Sub`)."""
    parsed: dict[str, Any] = yaml_parse((ROOT / path).read_text())
    return parsed


@cache
def raw() -> dict[str, Any]:
    """template.yaml."""
    return parse_template("template.yaml")


@cache
def translated() -> dict[str, Any]:
    """template.yaml behind the SAM transform."""
    return translate(ROOT / "template.yaml")


@cache
def machine_source(name: str) -> dict[str, Any]:
    """statemachine/<name>.asl.yaml, substitutions left as they are."""
    parsed: dict[str, Any] = yaml.safe_load((ROOT / f"statemachine/{name}.asl.yaml").read_text())
    return parsed


def of_type(template: dict[str, Any], kind: str) -> dict[str, Resource]:
    """Resources of one type, by logical id."""
    return {k: r for k, r in template["Resources"].items() if r["Type"] == kind}


def functions() -> dict[str, Resource]:
    """Functions as written, by folder."""
    found = of_type(raw(), "AWS::Serverless::Function")
    return {r["Properties"]["CodeUri"].removeprefix("functions/"): {**r, "LogicalId": k} for k, r in found.items()}


def resolve(value: Any) -> Any:
    """A value with `Ref` and `Fn::Sub` of pseudo parameters replaced; others stay as they are."""
    if isinstance(value, list):
        return [resolve(v) for v in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"Ref"} and value["Ref"] in PSEUDO:
        return PSEUDO[value["Ref"]]
    if value.keys() == {"Fn::Sub"} and isinstance(value["Fn::Sub"], str):
        return re.sub(r"\$\{(AWS::\w+)\}", lambda m: PSEUDO[m[1]], value["Fn::Sub"])
    return {k: resolve(v) for k, v in value.items()}


def texts(value: Any) -> Iterator[str]:
    """Every text in a value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for k, v in value.items():
            yield from texts(k)
            yield from texts(v)
    elif isinstance(value, list):
        for v in value:
            yield from texts(v)
