"""Environment and input as validated models: what does not fit is refused by its name, and no value of it is repeated."""

from __future__ import annotations

import pytest

from autojoin import errors
from autojoin.config import Settings
from autojoin.events.operations.command import Join
from autojoin.events.requests import JoinRequest
from autojoin.use_cases.parse import parse


def test_a_variable_that_a_function_needs_and_has_not_is_named() -> None:
    settings = Settings({"AUTOJOIN_BOUNDARY": "hook"})

    with pytest.raises(errors.InvalidInput, match="function hook has no environment variable AUTOJOIN_TABLE"):
        settings.required("table_name")


def test_variables_of_the_runtime_are_ignored() -> None:
    settings = Settings({"AUTOJOIN_TABLE": "nodes", "LAMBDA_TASK_ROOT": "/var/task"})

    assert settings.required("table_name") == "nodes"


@pytest.mark.parametrize("instance_id", ["i-0123456789abcdef0", "i-01234567"])
def test_an_instance_id_is_enough_to_join_by_hand(instance_id: str) -> None:
    request = parse(JoinRequest, {"instance_id": instance_id}, "input")

    assert (request.source, request.dry_run, request.token) == ("manual", False, None)


@pytest.mark.parametrize(
    "instance_id", ["", "i-", "i-0123", "i-0123456789ABCDEF0", "mi-0123456789abcdef0", "i-01234567\n", "i-01234567; id", None]
)
def test_what_is_no_instance_id_is_refused(instance_id: str | None) -> None:
    with pytest.raises(errors.InvalidInput, match="instance_id"):
        parse(JoinRequest, {"instance_id": instance_id}, "input")


def test_a_misspelt_field_is_refused_by_name() -> None:
    with pytest.raises(errors.InvalidInput, match="dryrun"):
        parse(JoinRequest, {"instance_id": "i-01234567", "dryrun": True}, "input")


def test_a_refusal_does_not_repeat_a_token() -> None:
    with pytest.raises(errors.InvalidInput) as raised:
        parse(Join, {"operation": "Join", "token": ["do-not-say-me"]}, "event")

    assert "token" in str(raised.value)
    assert "do-not-say-me" not in str(raised.value)
    assert raised.value.__cause__ is None
