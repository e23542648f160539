"""Render documents/src/*.sh into the SSM Command documents documents/*.yaml, so that scripts and documents cannot drift.

Usage: tools/render_documents.py [--check]. With --check nothing is written; exit code 1 if a document is stale.
A document's parameters are the `parameter` lines of its script; its text is the script with lib.sh in place of the line
that sources it.
"""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "documents" / "src"
LIBRARY = "lib.sh"
SOURCING = re.compile(r'^(# shellcheck source=lib\.sh\n)?\. "\$\(dirname "\$0"\)/lib\.sh"\n', re.MULTILINE)
PARAMETER = re.compile(r"^parameter .+$", re.MULTILINE)
LONGEST = 64 * 1024
"""Bytes of a document. Source: Systems Manager quotas."""
HEADER = "# Rendered from documents/src/{name}.sh by tools/render_documents.py; change the script, not this file.\n"


def parameters_of(script: str) -> dict[str, dict[str, Any]]:
    """The document's parameters, as the script's `parameter` lines declare them, and the execution time-out."""
    found: dict[str, dict[str, Any]] = {}
    for line in PARAMETER.findall(script):
        words = shlex.split(line)[1:]
        name, pattern, meaning = words[:3]
        declared: dict[str, Any] = {
            "type": "String",
            "description": meaning,
            "allowedPattern": pattern,
            "interpolationType": "ENV_VAR",
        }
        if len(words) > 3:
            declared["default"] = words[3]
        found[name] = declared
    found["ExecutionTimeout"] = {
        "type": "String",
        "description": "seconds that the script may run",
        "allowedPattern": "^[1-9][0-9]{1,4}$",
        "default": "600",
    }
    return found


def render(name: str) -> str:
    """The YAML of document `name`. Raises ValueError for a script that cannot be one."""
    script = (SOURCES / f"{name}.sh").read_text()
    library = (SOURCES / LIBRARY).read_text().removeprefix("#!/bin/bash\n")
    text, times = SOURCING.subn(lambda _: library, script)
    if times != 1:
        raise ValueError(f"{name}.sh sources lib.sh {times} times, expected once")
    if "{{" in text:
        raise ValueError(f"{name}.sh has '{{{{', which Systems Manager would take for a parameter")
    comment = [line[2:] for line in script.splitlines()[1:] if line.startswith("# ")]
    document = {
        "schemaVersion": "2.2",
        "description": comment[0],
        "parameters": parameters_of(script),
        "mainSteps": [
            {
                "action": "aws:runShellScript",
                "name": "run",
                "precondition": {"StringEquals": ["platformType", "Linux"]},
                "inputs": {"timeoutSeconds": "{{ ExecutionTimeout }}", "runCommand": text.splitlines()},
            }
        ],
    }
    body = yaml.safe_dump(document, sort_keys=False, width=1000, allow_unicode=True)
    if len(body.encode()) > LONGEST:
        raise ValueError(f"{name} has {len(body.encode())} bytes, a document at most {LONGEST}")
    return HEADER.format(name=name) + body


def main() -> int:
    """Write, or with --check compare, every document; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    stale = []
    for source in sorted(SOURCES.glob("*.sh")):
        if source.name == LIBRARY:
            continue
        target = ROOT / "documents" / f"{source.stem}.yaml"
        rendered = render(source.stem)
        if target.exists() and target.read_text() == rendered:
            continue
        stale.append(target.name)
        if not check:
            target.write_text(rendered)
    if check and stale:
        print(f"stale: {', '.join(stale)}; run tools/render_documents.py", file=sys.stderr)
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
