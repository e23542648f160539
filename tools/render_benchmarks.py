#!/usr/bin/env python3
"""Write the tables of docs/benchmarks.md from benchmarks/results.json, so that no number there is told from memory.

.venv/bin/python tools/render_benchmarks.py           write them
.venv/bin/python tools/render_benchmarks.py --check   exit code 1 if they are stale
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
for folder in (ROOT, ROOT / "layers/autojoin"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from benchmarks import results  # noqa: E402
from tools.generated_parts import table, write_or_check  # noqa: E402

DOCUMENT = ROOT / "docs/benchmarks.md"
RESULTS = ROOT / "benchmarks/results.json"
TOOL = "tools/render_benchmarks.py"


def parts() -> dict[str, str]:
    """All generated parts of docs/benchmarks.md."""
    found: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))
    run = f"Run of {results.machine_line(found)}."
    if found["masters_skipped"]:
        run += f" Masters were not measured: {found['masters_skipped']}."
    return {"run": run, **{name: table(heads, rows) for name, (heads, rows) in results.tables(found).items()}}


def write() -> None:
    """Write the tables into the document."""
    write_or_check(DOCUMENT, parts(), False, TOOL)


def main() -> int:
    """Exit code 1 if --check finds stale tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true")
    return write_or_check(DOCUMENT, parts(), parser.parse_args().check, TOOL)


if __name__ == "__main__":
    sys.exit(main())
