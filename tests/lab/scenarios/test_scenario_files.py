"""Scenario files: every one that is shipped can be run, and what is wrong with another is said clearly and at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab import scenario
from lab.observer.invariants import INVARIANTS

SHIPPED = sorted(scenario.FOLDER.rglob("*.yaml"))

GOOD = """
name: x
about: Something that must be true.
groups: [{name: workers}]
steps:
  - scale: {group: workers, to: 1}
  - wait_for: {in_service: {group: workers, count: 1}, within_s: 30}
"""
LAST = "wait_for: {in_service: {group: workers, count: 1}, within_s: 30}"


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_scenario_is_one(path: Path) -> None:
    assert scenario.load(path).name == path.stem


def test_every_invariant_has_a_scenario_that_breaks_it() -> None:
    # When
    broken = {path.stem for path in SHIPPED if path.parent.name == "planted"}

    # Then
    assert {name for name in INVARIANTS if name.replace("_", "-") not in broken} == set()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (("steps:", "stepz:"), "the file: "),
        (("to: 1", "to: one"), "steps.0.scale.to: 'one' is not of type 'integer'"),
        (("to: 1", "to: 1, now: true"), "known are: group, to"),
        (("{group: workers, to", "{group: wrokers, to"), "there is no group wrokers; groups are: workers"),
        (("within_s: 30", "ready: workers/1"), "two conditions in one step"),
        ((LAST, "fault: {name: nope}"), "there is no fault nope; faults are: "),
        ((LAST, "plant: {name: nope}"), "there is no plant nope; plants are: "),
        (
            ("in_service: {group: workers, count: 1}", "execution: {as: again, status: RUNNING}"),
            "no earlier step starts an execution as again",
        ),
        (("name: x", "name: [x"), "is not YAML"),
    ],
)  # fmt: skip
def test_a_bad_file_is_refused_with_the_place_and_the_reason(change: tuple[str, str], problem: str) -> None:
    # Given
    text = GOOD.replace(*change)

    # When
    with pytest.raises(scenario.ScenarioError) as refused:
        scenario.parse(text)

    # Then
    assert problem in str(refused.value)


def test_the_name_must_be_the_files() -> None:
    with pytest.raises(scenario.ScenarioError, match="is not the file's name"):
        scenario.parse(GOOD, stem="y")


def test_a_missing_file_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(scenario.ScenarioError, match="cannot be read"):
        scenario.load(tmp_path / "none.yaml")
