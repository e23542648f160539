#!/usr/bin/env python3
"""Write events/manual/schema.json from JoinRequest, so that an editor can check an input by hand.

.venv/bin/python tools/render_schemas.py           write it
.venv/bin/python tools/render_schemas.py --check   exit code 1 if it is stale
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT / "layers/autojoin") not in sys.path:
    sys.path.insert(0, str(ROOT / "layers/autojoin"))

from autojoin.events.requests import JoinRequest  # noqa: E402

SCHEMA = ROOT / "events/manual/schema.json"


def render() -> str:
    """The JSON Schema (2020-12) of the join machine's input."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **JoinRequest.model_json_schema()}
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def main() -> int:
    """Exit code 1 if --check finds a stale schema."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true")
    if not parser.parse_args().check:
        SCHEMA.write_text(render(), encoding="utf-8")
        return 0
    if not SCHEMA.exists() or SCHEMA.read_text(encoding="utf-8") != render():
        print(f"{SCHEMA.relative_to(ROOT)} is stale; write it anew: .venv/bin/python tools/render_schemas.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
