"""What a model refused, in words: each field with its problem, never the value, which may be a token."""

from __future__ import annotations

from pydantic import ValidationError


def problems_of(error: ValidationError) -> str:
    """`field.path: what was expected`, joined by semicolons."""
    return "; ".join(
        f"{'.'.join(str(part) for part in problem['loc']) or '(all of it)'}: {problem['msg']}"
        for problem in error.errors(include_url=False, include_input=False)
    )
