"""Functions as they are deployed: their source, their operations, and what the machines ask them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import pytest
import yaml
from samtranslator.yaml_helper import yaml_parse

from tests.fakes.world import ROOT, load_handlers

FUNCTIONS = sorted(p.parent.name for p in (ROOT / "functions").glob("*/app.py"))
TEMPLATE: dict[str, Any] = yaml_parse((ROOT / "template.yaml").read_text())


@dataclass(frozen=True)
class Called:
    """One Task: `operation` is what its payload says, `function` the folder that its substitution leads to."""

    machine: str
    state: str
    operation: str
    function: str
    payload: frozenset[str]


def calls() -> list[Called]:
    """Every Task of every machine that calls a function of ours, resolved through the template."""
    found = []
    for resource in TEMPLATE["Resources"].values():
        if resource["Type"] != "AWS::Serverless::StateMachine":
            continue
        uri, given = resource["Properties"]["DefinitionUri"], resource["Properties"]["DefinitionSubstitutions"]
        for name, state in yaml.safe_load((ROOT / uri).read_text())["States"].items():
            if state["Type"] != "Task":
                continue
            placeholder = re.fullmatch(r"\$\{(\w+)\}", state["Arguments"]["FunctionName"])
            assert placeholder, f"{uri}: {name}: FunctionName is no substitution"
            logical_id, attribute = given[placeholder[1]]["Fn::GetAtt"]
            assert attribute == "Arn"
            folder = TEMPLATE["Resources"][logical_id]["Properties"]["CodeUri"].removeprefix("functions/")
            payload = state["Arguments"]["Payload"]
            found.append(Called(uri, name, payload["operation"], folder, frozenset(payload)))
    return found


@pytest.fixture(scope="session")
def operations() -> dict[str, set[str]]:
    """Operations that each function takes, by folder; events of EventBridge apart."""
    return {
        name: {m.__name__ for m in handler.operations if "operation" in m.model_fields}
        for name, handler in load_handlers(lambda: None).items()
    }
