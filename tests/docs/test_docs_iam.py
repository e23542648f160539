"""docs/iam.md and the templates name the same statements, and every `*` has its reason."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs/iam.md").read_text(encoding="utf-8")


class Loader(yaml.SafeLoader):
    """YAML with CloudFormation's short forms, each as an opaque text."""


Loader.add_multi_constructor("!", lambda loader, suffix, node: f"!{suffix}")


def resources(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.load((ROOT / name).read_text(encoding="utf-8"), Loader)["Resources"]
    return found


def statements() -> dict[tuple[str, str], dict[str, Any]]:
    """(function or machine, Sid) → statement."""
    found = {}
    for logical_id, resource in resources("template.yaml").items():
        if resource["Type"] in ("AWS::Serverless::Function", "AWS::Serverless::StateMachine"):
            owner = re.sub("(Function|Machine)$", "", logical_id).lower()
            for policy in resource["Properties"].get("Policies", []):
                found |= {(owner, s["Sid"]): s for s in policy["Statement"]}
    return found


def documented() -> dict[tuple[str, str], str]:
    """(function or machine, Sid) → what it is on."""
    rows = re.findall(r"^\| (\w+) \| `(\w+)` \| (.*?) \| .*\|$", TEXT, re.MULTILINE)
    return {(owner, sid): on for owner, sid, on in rows}


def test_every_statement_has_its_row_and_every_row_its_statement() -> None:
    assert documented().keys() == statements().keys()


def test_a_star_is_said_where_it_is_and_nowhere_else() -> None:
    said = {key for key, on in documented().items() if on == "`*`"}

    assert said == {key for key, s in statements().items() if s["Resource"] == "*"}


def test_every_action_on_a_star_has_its_reason_and_every_reason_its_action() -> None:
    section = TEXT.partition("## Every `*`")[2].partition("## ")[0]

    explained = set(re.findall(r"`(\w+:\w+)`", section))

    assert explained == {action for s in statements().values() if s["Resource"] == "*" for action in s["Action"]}


@pytest.mark.parametrize(("example", "role_name"), [("workers", "Role"), ("masters", "NodeRole")])
def test_the_statements_of_an_instance_are_those_of_the_example(example: str, role_name: str) -> None:
    role = resources(f"examples/{example}.yaml")[role_name]["Properties"]["Policies"][0]["PolicyDocument"]["Statement"]

    section = TEXT.partition(f"The role of `examples/{example}.yaml`")[2].partition("The role of")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*?) \| .*\|$", section, re.MULTILINE))

    assert rows.keys() == {s["Sid"] for s in role}
    assert {sid for sid, on in rows.items() if on == "`*`"} == {s["Sid"] for s in role if s["Resource"] == "*"}
