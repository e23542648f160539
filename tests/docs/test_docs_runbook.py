"""The runbook has an entry for every error that an execution can end with, and for nothing else."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path

import pytest
import yaml

from autojoin import errors

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs/runbook.md").read_text(encoding="utf-8")
FROM_AWS = {"ExecutionTimedOut", "ExecutionAborted", "Lambda.Unknown", "States.Timeout"}
"""Names that intake gives to executions killed from outside, and the two that stand for their families."""


def entries() -> dict[str, str]:
    """Name → text of each entry: a heading of the third level below a heading that begins with Errors."""
    found: dict[str, str] = {}
    for section in re.split(r"^## ", TEXT, flags=re.MULTILINE):
        if section.startswith("Errors"):
            found |= {e.partition("\n")[0]: e for e in re.split(r"^### ", section, flags=re.MULTILINE)[1:]}
    return found


def classes() -> set[str]:
    """Names of the closed set."""
    members = inspect.getmembers(errors, inspect.isclass)
    return {name for name, cls in members if issubclass(cls, errors.AutojoinError) and cls is not errors.AutojoinError}


def written_in_the_machines() -> set[str]:
    """Literal values of Error in the definitions."""
    texts = [p.read_text(encoding="utf-8") for p in sorted((ROOT / "statemachine").glob("*.asl.yaml"))]
    return {name for text in texts for name in re.findall(r"^\s+Error: (\w+)$", text, re.MULTILINE)}


def test_every_error_has_its_entry() -> None:
    assert (classes() | written_in_the_machines() | FROM_AWS) - entries().keys() == set()


def test_every_entry_has_its_error() -> None:
    assert entries().keys() - (classes() | written_in_the_machines() | FROM_AWS) == set()


@pytest.mark.parametrize("name", sorted(entries()))
def test_an_entry_says_what_it_means_and_what_to_do_with_a_command(name: str) -> None:
    entry = entries()[name]

    assert re.search(r"^\*\*Means\*\*: \S", entry, re.MULTILINE)
    assert re.search(r"^\*\*Do\*\*: \S", entry, re.MULTILINE)
    assert re.search(r"^```bash\n\S", entry, re.MULTILINE)


def test_every_error_of_a_script_has_its_entry() -> None:
    codes = json.loads((ROOT / "documents/exit_codes.json").read_text(encoding="utf-8"))

    assert codes.keys() - entries().keys() == set()


def test_every_alarm_stands_in_the_runbook_and_no_other() -> None:
    class Loader(yaml.SafeLoader):
        pass

    Loader.add_multi_constructor("!", lambda loader, suffix, node: None)
    template = yaml.load((ROOT / "template.yaml").read_text(encoding="utf-8"), Loader)
    alarms = {name for name, resource in template["Resources"].items() if resource["Type"] == "AWS::CloudWatch::Alarm"}

    assert set(re.findall(r"^\| `(\w+Alarm)` \|", TEXT, re.MULTILINE)) == alarms


def test_a_function_of_the_shell_is_defined_before_it_is_used() -> None:
    blocks = "\n".join(re.findall(r"```bash\n(.*?)```", TEXT, re.DOTALL))
    defined = set(re.findall(r"^(\w+)\(\) \{", blocks, re.MULTILINE))

    used = set(re.findall(r'^([a-z_]+) "\$', blocks, re.MULTILINE))

    assert used - {"aws", "cat", "kubectl"} <= defined
    assert {"rejoin", "declared", "script_output", "forget", "remove_node"} <= used
