"""Operations of the function hook: Complete, Abandon."""

from __future__ import annotations

from typing import Any, Literal

from autojoin.events.operations.run import Run, Wire


class Complete(Wire):
    """Write joined_at, CONTINUE a held hook, release."""

    operation: Literal["Complete"]
    run: Run
    verified: dict[str, Any]


class Completed(Wire):
    """Answer of Complete."""

    hook: Literal["continued", "none"]
    joined_ms: int


class Abandon(Wire):
    """Forget what the failed join wrote and ABANDON the hook that still holds the instance."""

    operation: Literal["Abandon"]
    run: Run
    from_execution: str
    serves: bool
    keeps: bool
    incomplete: bool
    error: str
    cause: str


class Abandoned(Wire):
    """Answer of Abandon: what the Fail state says."""

    hook: Literal["abandoned", "continued", "none"]
    error: str
    cause: str
