"""The closed set of errors: code, state machines and scripts agree on it, both ways."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from autojoin import errors
from tests.fakes.world import ROOT, machine

MACHINES = {name: machine(name).definition for name in ("join", "leave")}
CLASSES: dict[str, type[errors.AutojoinError]] = {
    name: c
    for name, c in vars(errors).items()
    if isinstance(c, type) and issubclass(c, errors.AutojoinError) and c is not errors.AutojoinError
}
RETRYABLE = {c.__name__ for c in errors.RETRYABLE}
SOURCES = "\n".join(p.read_text() for p in sorted((ROOT / "layers/autojoin/autojoin").rglob("*.py")) if p.name != "errors.py")


def tasks() -> Iterator[tuple[str, dict[str, Any]]]:
    for name, definition in MACHINES.items():
        yield from ((f"{name}:{s}", state) for s, state in definition["States"].items() if state["Type"] == "Task")


def retried(task: dict[str, Any]) -> set[str]:
    return {name for r in task.get("Retry", []) for name in r["ErrorEquals"]}


def errors_assigned() -> set[str]:
    """Names of errors that a machine gives by itself."""
    return {
        choice["Assign"]["failure"]["Error"]
        for definition in MACHINES.values()
        for state in definition["States"].values()
        for choice in state.get("Choices", [])
        if "failure" in choice.get("Assign", {})
    }


@pytest.mark.parametrize(("name", "task"), list(tasks()))
def test_every_retryable_error_is_retried_by_every_task(name: str, task: dict[str, Any]) -> None:
    assert retried(task) >= RETRYABLE


@pytest.mark.parametrize(("name", "task"), list(tasks()))
def test_every_name_that_a_task_retries_is_aws_s_or_one_of_our_retryable_ones(name: str, task: dict[str, Any]) -> None:
    ours = {n for n in retried(task) if not n.startswith(("Lambda.", "States.", "Sandbox."))}

    assert ours == RETRYABLE


@pytest.mark.parametrize(("name", "task"), list(tasks()))
def test_every_name_that_a_task_catches_is_aws_s(name: str, task: dict[str, Any]) -> None:
    caught = {n for c in task["Catch"] for n in c["ErrorEquals"]}

    assert {n for n in caught if not n.startswith("States.")} <= CLASSES.keys()


def test_every_error_that_a_machine_gives_by_itself_is_of_the_closed_set() -> None:
    assert errors_assigned()
    assert errors_assigned() <= CLASSES.keys()


def test_every_error_of_the_closed_set_is_given_by_somebody() -> None:
    raised = set(re.findall(r"errors\.(\w+)", SOURCES)) | set(re.findall(r"\b(InvalidInput)\(", SOURCES))
    by_script = {c.__name__ for c in errors.BY_EXIT_CODE.values()}

    assert CLASSES.keys() == CLASSES.keys() & (raised | by_script | errors_assigned())


def test_every_error_says_what_it_means() -> None:
    assert all((c.__doc__ or "").strip().endswith(".") for c in CLASSES.values())


def test_no_error_shadows_a_name_of_step_functions_or_python() -> None:
    import builtins

    assert not [n for n in CLASSES if hasattr(builtins, n) or n.startswith(("States", "Lambda"))]


def test_what_may_be_sent_again_is_no_error_of_a_task() -> None:
    assert not {c.__name__ for c in errors.SEND_AGAIN} & RETRYABLE


def test_a_message_says_what_was_seen_what_was_expected_and_what_to_do() -> None:
    error = errors.InvalidInput("a", "b", "c")

    assert str(error) == "seen: a; expected: b; to do: c"


def test_exit_codes_of_the_scripts_are_the_errors_of_the_closed_set() -> None:
    documented = json.loads((ROOT / "documents/exit_codes.json").read_text())

    by_code = {entry["code"]: name for name, entry in documented.items()}
    again = {name for name, entry in documented.items() if entry["retryable"]}

    assert by_code.pop(1) == errors.ScriptFailed.__name__
    assert by_code == {code: c.__name__ for code, c in errors.BY_EXIT_CODE.items()}
    assert again == {c.__name__ for c in errors.SEND_AGAIN}
