"""Render documents/src/*.sh into the SSM Command documents documents/*.yaml, so that scripts and documents cannot drift.

Usage: tools/render_documents.py [--check]. With --check nothing is written; exit code 1 if a document is stale or left over.
A document's parameters are the `parameter` lines of its script; its text is the script with lib.sh, and with each part lib-*.sh,
in place of the line that sources it. The exit codes in lib.sh must be those of documents/exit_codes.json.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "documents" / "src"
LIBRARY = "lib.sh"
_SOURCE = r'(?:# shellcheck source-path=SCRIPTDIR source=[a-z-]+\.sh\n)?{}\. "\$\(dirname "\$0"\)/(?P<part>lib[a-z-]*\.sh)"\n'
SOURCING = re.compile("^" + _SOURCE.format(""), re.MULTILINE)
NEEDING = re.compile("^" + _SOURCE.format(r"\[\[ -v \w+ \]\] \|\| "), re.MULTILINE)
"""How a part says which other parts it needs; in a document they are there already."""
PARAMETER = re.compile(r"^parameter .+$", re.MULTILINE)
EXIT_CODE = re.compile(r"\[(\w+)\]=(\d+)")
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


class _Script(str):
    """Text that is written as a literal block, so that a document reads like its script."""


def _literal(dumper: yaml.SafeDumper, text: _Script) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", str(text), style="|")


yaml.SafeDumper.add_representer(_Script, _literal)


def exit_codes_of(library: str) -> dict[str, int]:
    """Error class to exit code, as lib.sh has them."""
    line = next((line for line in library.splitlines() if line.startswith("declare -Ar exit_codes=")), "")
    return {name: int(code) for name, code in EXIT_CODE.findall(line)}


def render(name: str, sources: Path = SOURCES) -> str:
    """The YAML of document `name`. Raises ValueError for a script that cannot be one."""
    script = (sources / f"{name}.sh").read_text(encoding="utf-8")
    library = (sources / LIBRARY).read_text(encoding="utf-8")
    codes = {k: v["code"] for k, v in json.loads((sources.parent / "exit_codes.json").read_text(encoding="utf-8")).items()}
    if exit_codes_of(library) != codes:
        raise ValueError(f"the exit codes of {LIBRARY} are not those of exit_codes.json: {exit_codes_of(library)}")
    parts = [match["part"] for match in SOURCING.finditer(script)]
    if parts.count(LIBRARY) != 1 or len(set(parts)) != len(parts):
        raise ValueError(f"{name}.sh sources {LIBRARY} {parts.count(LIBRARY)} times, expected once, and each part at most once: {parts}")
    text = SOURCING.sub(lambda match: "\n" + _part(sources / match["part"]), script)
    if not text.startswith("#!/bin/bash\n"):
        raise ValueError(f"{name}.sh does not begin with #!/bin/bash; the agent would run it with sh")
    if "{{" in text:
        raise ValueError(f"{name}.sh has '{{{{', which Systems Manager would take for a parameter")
    description = next(line[2:] for line in script.splitlines()[1:] if line.startswith("# "))
    document = {
        "schemaVersion": "2.2",
        "description": description,
        "parameters": parameters_of(script),
        "mainSteps": [
            {
                "action": "aws:runShellScript",
                "name": "run",
                "precondition": {"StringEquals": ["platformType", "Linux"]},
                "inputs": {"timeoutSeconds": "{{ ExecutionTimeout }}", "runCommand": [_Script(text)]},
            }
        ],
    }
    body = yaml.dump(document, Dumper=yaml.SafeDumper, sort_keys=False, width=1000, allow_unicode=True)
    if len(body.encode()) > LONGEST:
        raise ValueError(f"{name} has {len(body.encode())} bytes, a document at most {LONGEST}")
    return HEADER.format(name=name) + body


def _part(path: Path) -> str:
    """The text of a sourced part as it stands in a document."""
    return NEEDING.sub("", path.read_text(encoding="utf-8").removeprefix("#!/bin/bash\n"))


def main() -> int:
    """Write, or with --check compare, every document; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    stale = []
    names = sorted(source.stem for source in SOURCES.glob("*.sh") if not source.name.startswith("lib"))
    for name in names:
        target = ROOT / "documents" / f"{name}.yaml"
        rendered = render(name)
        if target.exists() and target.read_text(encoding="utf-8") == rendered:
            continue
        stale.append(target.name)
        if not check:
            target.write_text(rendered, encoding="utf-8")
    for target in sorted((ROOT / "documents").glob("*.yaml")):
        if target.stem not in names:
            stale.append(target.name)
            if not check:
                target.unlink()
    if check and stale:
        print(f"stale: {', '.join(stale)}; run tools/render_documents.py", file=sys.stderr)
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
