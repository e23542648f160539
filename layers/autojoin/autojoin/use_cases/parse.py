"""Turning what came in into a model, or into an InvalidInput that says which field and what was expected."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from autojoin import errors
from autojoin.events.problems import problems_of

Model = TypeVar("Model", bound=BaseModel)


def parse(model: type[Model], data: Any, what: str) -> Model:
    """`data` as a `model`. Raises InvalidInput naming each field that does not fit; never repeats a value of a token."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise errors.InvalidInput(
            f"{what}: {problems_of(error)}",
            f"the fields of {model.__name__}: {', '.join(model.model_fields)}",
            "correct the input; samples are in events/",
        ) from None
