"""docs/table.md: the items and attributes that the adapter writes, and no others."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from autojoin.adapters.dynamodb import DynamoDbMarkers, DynamoDbRegistry
from autojoin.domain import intents, naming
from autojoin.domain.founding import Marker, State
from autojoin.ports import Intent, NodeRecord

TEXT = (Path(__file__).resolve().parents[2] / "docs/table.md").read_text(encoding="utf-8")
NODE = "i-0123456789abcdef0"
READ_ONLY = {"LEASE": {"tombstone_at"}}
"""Attributes that are honoured but written by nothing yet."""


class Recorder:
    """A DynamoDB client that keeps the attributes of each kind of item."""

    def __init__(self) -> None:
        self.written: dict[str, set[str]] = {}

    def update_item(self, **call: Any) -> dict[str, Any]:
        names = {call["ExpressionAttributeNames"][n] for n in re.findall(r"#\w+", call["UpdateExpression"])}
        self._keep(call["Key"], names)
        return {"Attributes": {}}

    def transact_write_items(self, **call: Any) -> dict[str, Any]:
        for item in call["TransactItems"]:
            if "Put" in item:
                put = item["Put"]["Item"]
                self._keep(put, put.keys() - {"pk", "sk"})
        return {}

    def put_item(self, **call: Any) -> dict[str, Any]:
        self._keep(call["Item"], call["Item"].keys() - {"pk", "sk"})
        return {}

    def _keep(self, key: dict[str, Any], names: set[str]) -> None:
        kind = "COMMAND" if key["pk"]["S"].startswith("COMMAND#") else key["sk"]["S"].partition("#")[0]
        self.written.setdefault(kind, set()).update(names)


@pytest.fixture
def written() -> dict[str, set[str]]:
    recorder = Recorder()
    registry = DynamoDbRegistry(recorder, "nodes", lambda: 0)
    full = NodeRecord(NODE, "demo", "rp1", "worker", "group", "10.20.0.10", "uid", 1, "arn")
    registry.take_lease(NODE, "arn")
    registry.release_lease(NODE, "arn")
    registry.put_record(full, "arn")
    registry.put_intent(NODE, Intent("node", NODE, "arn", "uid", 1), "arn")
    registry.meet_token("command", NODE, "token")
    registry.meet_status("command", NODE, "Success")
    DynamoDbMarkers(recorder, "nodes").put(Marker("demo", "rp1", State.FORMED, NODE, 1, 0, "0123456789abcdef"), None)
    return recorder.written


@pytest.mark.parametrize("kind", ["RECORD", "LEASE", "INTENT", "COMMAND", "MARKER"])
def test_the_attributes_of_an_item_are_those_that_are_written(written: dict[str, set[str]], kind: str) -> None:
    section = re.split(r"^## ", TEXT.partition(f"## {kind}\n")[2], flags=re.MULTILINE)[0]
    rows = re.findall(r"^\| (`.*?`) \| [SN] \|", section, re.MULTILINE)

    documented = {name for row in rows for name in re.findall(r"`(\w+)`", row)}

    assert documented == written[kind] | READ_ONLY.get(kind, set())


def test_the_kinds_of_intents_are_those_of_the_use_cases() -> None:
    kinds = set(
        re.findall(r"^\| `(node|canary|command|\w+)` \| .*\| .*\| .*\|$", TEXT.partition("## INTENT\n")[2].partition("## ")[0], re.M)
    )

    assert kinds == {intents.NODE, intents.CANARY, intents.COMMAND, intents.FOUNDING, naming.RECORD, naming.TARGET}
