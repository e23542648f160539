"""`make bench`: measure, write benchmarks/results.json and the tables of docs/benchmarks.md, tell what was met.

Exit code 0: every target met; 1: one was missed; 3: it could not be measured, and nothing was written.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import imports, joins, results, sizes
from benchmarks.counts import JoinNotMeasured
from lab.lab import REPOSITORY, LabError
from lab.region.functions import PYTHON
from tools import render_benchmarks

RESULTS = REPOSITORY / "benchmarks/results.json"
WIDTH = 140


def measured(folder: Path, console: Console) -> dict[str, Any]:
    """Everything, as it is written to results.json. Raises LabError, JoinNotMeasured, NotLoaded, TimeoutError."""

    def say(line: str) -> None:
        console.print(f"  {line}", markup=False)

    load = os.getloadavg()[0]
    begun = time.monotonic()
    for_aws, for_host = sizes.build(folder / "aws"), sizes.build(folder / "host", for_host=True)
    say("sam build, for AWS and for this machine")
    samples, variables = joins.workers(folder / "workers", say)
    of_masters, skipped = joins.masters(folder / "masters", say)
    if skipped:
        say(f"masters: skipped: {skipped}")
    found = {
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": {
            "cores": os.cpu_count(),
            "processor": processor(),
            "system": platform.platform(),
            "load_before": round(load, 2),
            "python": platform.python_version(),
            "runtime_python": subprocess.run([PYTHON, "-V"], check=True, capture_output=True, text=True).stdout.split()[-1],
        },
        "joins": [*samples, *of_masters],
        "masters_skipped": skipped,
        "imports": measured_imports(for_host, folder / "imports", variables, say),
        "sizes": sizes.measure(for_aws),
    }
    return {**found, "took_s": round(time.monotonic() - begun)}


def measured_imports(template: Path, scratch: Path, variables: dict[str, dict[str, str]], say: joins.Say) -> dict[str, Any]:
    """Imports of the functions and layers of a built template, with the variables that the functions are deployed with."""
    built = sizes.folders(template)
    layers = [path for kind, path in built.values() if kind == "layer"]
    functions = {name: path for name, (kind, path) in built.items() if kind == "function"}
    return imports.measure(PYTHON, layers, functions, variables, scratch, say)


def processor() -> str:
    """The processor's name, or the machine's kind."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def tell(found: results.Results, console: Console) -> None:
    """The tables."""
    for name, (heads, rows) in results.tables(found).items():
        table = Table(*heads, title=name, title_justify="left", title_style="bold", box=None, pad_edge=False)
        for row in rows:
            table.add_row(*map(str, row))
        console.print()
        console.print(table)


def main() -> int:
    """The exit code."""
    console = Console(highlight=False, soft_wrap=True, width=WIDTH)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    runs = REPOSITORY / ".lab/runs"
    runs.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="bench-", dir=runs))
    try:
        found = measured(folder, console)
    except (LabError, JoinNotMeasured, imports.NotLoaded, TimeoutError) as error:
        console.print(f"not measured: {error}\nthe folder: {folder}", markup=False)
        return 3
    RESULTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    render_benchmarks.write()
    tell(found, console)
    shutil.rmtree(folder, ignore_errors=True)
    console.print(f"\n{results.machine_line(found)}; it took {found['took_s']} s", markup=False)
    missed = results.failed(found)
    console.print(f"{len(missed)} targets missed" if missed else "every target met", markup=False)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
