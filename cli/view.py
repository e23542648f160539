"""What the command prints: as lines for people, or as one JSON object."""

from __future__ import annotations

import json
from typing import TextIO

from autojoin import errors
from autojoin.use_cases.enrolment import Change, Planned

AGAIN = "run the command again: it finds done what is done"
PERMISSION = "allow this to the role or user that runs the command (docs/cli.md), and check the region"


class Lines:
    """A plan as lines, each beginning with what it is."""

    def __init__(self, out: TextIO, err: TextIO) -> None:
        self._out, self._err = out, err

    def planned(self, planned: Planned, *, applies: bool) -> None:
        """What was seen, then what would change."""
        for line in planned.seen:
            self._say("seen", line)
        for line in planned.notes:
            self._say("note", line)
        if not planned.changes:
            self._out.write("nothing to do\n")
        elif not applies:
            for change in planned.changes:
                self._say("would", change.says)
            self._out.write("nothing was changed; --apply does it\n")

    def done(self, change: Change) -> None:
        """One change was made."""
        self._say("done", change.says)

    def refused(self, error: errors.AutojoinError) -> None:
        """Nothing more is done."""
        self._err.write(f"refused: {type(error).__name__}\n")
        for word, text in (("seen", error.seen), ("expected", error.expected), ("to do", advice(error))):
            self._err.write(f"  {word + ':':<10}{text}\n")

    def end(self) -> None:
        """Nothing: every line is out."""

    def _say(self, word: str, text: str) -> None:
        self._out.write(f"{word + ':':<7}{text}\n")
        self._out.flush()


class Json:
    """All of it as one object, printed at the end: seen, notes, changes with `done`, and refused (null unless it was)."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._planned = Planned((), (), ())
        self._done: list[Change] = []
        self._refused: dict[str, str] | None = None

    def planned(self, planned: Planned, *, applies: bool) -> None:
        """Keep the plan."""
        self._planned = planned

    def done(self, change: Change) -> None:
        """One change was made."""
        self._done.append(change)

    def refused(self, error: errors.AutojoinError) -> None:
        """Nothing more is done."""
        self._refused = {"error": type(error).__name__, "seen": error.seen, "expected": error.expected, "to_do": advice(error)}

    def end(self) -> None:
        """Print the object."""
        changes = [{"change": c.says, "done": c in self._done} for c in self._planned.changes]
        said = {"seen": self._planned.seen, "notes": self._planned.notes, "changes": changes, "refused": self._refused}
        self._out.write(json.dumps(said, indent=2) + "\n")


def advice(error: errors.AutojoinError) -> str:
    """What an operator does about it; AWS's own errors advise a function's owner, not the operator."""
    if isinstance(error, errors.RETRYABLE):
        return AGAIN
    return PERMISSION if isinstance(error, errors.AwsRefused) else error.todo
