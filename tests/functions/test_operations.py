"""operation = state = use case by name, and machines, template and functions agree on who does what, both ways."""

from __future__ import annotations

import re
from typing import Any

import pytest

from autojoin import errors
from tests.fakes.world import World, load_handlers
from tests.functions.conftest import FUNCTIONS, TEMPLATE, Called, calls

HANDLERS = load_handlers(lambda: None)


def snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


@pytest.mark.parametrize("called", calls(), ids=lambda c: f"{c.machine}:{c.state}")
def test_a_state_asks_the_operation_of_its_own_name_of_a_function_that_has_it(called: Called, operations: dict[str, set[str]]) -> None:
    assert called.operation == called.state
    assert called.operation in operations[called.function]


def test_every_operation_is_asked_by_some_state(operations: dict[str, set[str]]) -> None:
    asked = {(c.function, c.operation) for c in calls()}

    assert {(f, o) for f, known in operations.items() for o in known} == asked


@pytest.mark.parametrize("called", calls(), ids=lambda c: f"{c.machine}:{c.state}")
def test_a_state_gives_exactly_the_fields_of_its_operation(called: Called) -> None:
    (model,) = [m for m in HANDLERS[called.function].operations if m.__name__ == called.operation]

    required = {name for name, field in model.model_fields.items() if field.is_required()}

    assert required <= called.payload <= model.model_fields.keys()


@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_operation_is_a_use_case_of_its_own_name(function: str) -> None:
    for model, use_case in HANDLERS[function].operations.items():
        assert use_case.__name__ == snake(model.__name__)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_event_of_a_function_comes_by_a_rule_of_the_template(function: str) -> None:
    (logical_id,) = [
        k
        for k, r in TEMPLATE["Resources"].items()
        if r["Type"] == "AWS::Serverless::Function" and r["Properties"]["CodeUri"] == f"functions/{function}"
    ]
    taken = {m.detail_type_name for m in HANDLERS[function].operations if hasattr(m, "detail_type_name")}

    sent = {
        detail_type
        for r in TEMPLATE["Resources"].values()
        if r["Type"] == "AWS::Events::Rule"
        for target in r["Properties"]["Targets"]
        if target["Arn"] == {"Fn::GetAtt": [logical_id, "Arn"]}
        for detail_type in r["Properties"]["EventPattern"]["detail-type"]
    }

    assert taken == sent


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize(
    "event",
    [
        {},
        {"operation": "Sweep"},
        {"operation": ["Admit"]},
        {"operation": {"a": 1}},
        {"operation": None, "detail-type": "Scheduled Event"},
        {"Event": "autoscaling:TEST_NOTIFICATION"},
        [],
        None,
        "text",
    ],
)
def test_what_no_function_takes_is_invalid_input(function: str, event: Any) -> None:
    handler = World().handlers[function]

    with pytest.raises(errors.InvalidInput, match="expected: one of"):
        handler(event, None)


@pytest.mark.parametrize("called", calls(), ids=lambda c: f"{c.machine}:{c.state}")
def test_an_operation_with_a_field_too_many_is_invalid_input(called: Called) -> None:
    handler = World().handlers[called.function]

    with pytest.raises(errors.InvalidInput, match="surprise"):
        handler({"operation": called.operation, "surprise": 1}, None)
