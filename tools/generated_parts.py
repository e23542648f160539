"""Parts of a document that a tool writes: what stands between the lines `<!-- begin NAME -->` and `<!-- end NAME -->`."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path


def put(text: str, parts: Mapping[str, str]) -> str:
    """`text` with the body of each named part replaced. Raises ValueError unless each part stands in it exactly once."""
    for name, body in parts.items():
        pattern = re.compile(rf"(<!-- begin {re.escape(name)} -->\n).*?(<!-- end {re.escape(name)} -->)", re.DOTALL)
        found = pattern.findall(text)
        if len(found) != 1:
            raise ValueError(f"part {name}: {len(found)} pairs of marks, expected one")
        begin, end = found[0]
        start, stop = text.index(begin) + len(begin), text.index(end)
        text = f"{text[:start]}\n{body.strip()}\n\n{text[stop:]}"
    return text


def write_or_check(path: Path, parts: Mapping[str, str], check: bool, tool: str) -> int:
    """Write the parts into the file, or, with `check`, say whether that would change it. Returns the exit code."""
    before = path.read_text(encoding="utf-8")
    after = put(before, parts)
    if not check:
        path.write_text(after, encoding="utf-8")
        return 0
    if before != after:
        print(f"{path.name} is stale; write it anew: .venv/bin/python {tool}", file=sys.stderr)
        return 1
    return 0


def row(*cells: object) -> str:
    """One row of a table."""
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def table(heads: tuple[str, ...], rows: list[tuple[object, ...]]) -> str:
    """A table."""
    return "\n".join([row(*heads), row(*("---" for _ in heads)), *(row(*cells) for cells in rows)])
