"""Sizes of what `sam build` makes for AWS: each function and each layer, unpacked and zipped."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from lab.lab import REPOSITORY, LabError

BUILD_S = 600
CONTENT = {"AWS::Serverless::Function": "CodeUri", "AWS::Serverless::LayerVersion": "ContentUri"}
KINDS = {"AWS::Serverless::Function": "function", "AWS::Serverless::LayerVersion": "layer"}


class _AnyTag(yaml.SafeLoader):
    """YAML with CloudFormation's short forms."""


_AnyTag.add_multi_constructor("!", lambda loader, suffix, node: None)


def build(folder: Path, *, for_host: bool = False) -> Path:
    """Run `sam build` as an operator would: for Lambda's Python and processor, or for this machine's. Returns the built template.

    Raises LabError.
    """
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "AUTOJOIN_", "SAM_"))}
    environment |= {
        "SAM_CLI_TELEMETRY": "0",
        "AWS_DEFAULT_REGION": "us-east-1",
        **({"AUTOJOIN_LAYER_TARGET": "host"} if for_host else {}),
        "PATH": f"{Path(sys.prefix) / 'bin'}:{os.environ.get('PATH', os.defpath)}",
    }
    argv = [str(Path(sys.prefix) / "bin/sam"), "build", "--build-in-source", "--build-dir", str(folder)]
    ended = subprocess.run(argv, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=BUILD_S, check=False)
    if ended.returncode != 0:
        raise LabError(f"sam build failed ({ended.returncode}): {ended.stderr[-2000:]}")
    return folder / "template.yaml"


def folders(template: Path) -> dict[str, tuple[str, Path]]:
    """(kind, folder) of each function and layer of a built template; functions by their folder's name, layers by logical id."""
    resources: Mapping[str, Any] = yaml.load(template.read_text(encoding="utf-8"), _AnyTag)["Resources"]
    found = {}
    for logical_id, resource in resources.items():
        kind = KINDS.get(resource["Type"])
        if kind:
            folder = (template.parent / resource["Properties"][CONTENT[resource["Type"]]]).resolve()
            found[folder.name if kind == "function" else logical_id] = (kind, folder)
    return found


def measure(template: Path) -> dict[str, dict[str, Any]]:
    """Bytes of each: kind (function or layer), unpacked, zipped."""
    return {name: {"kind": kind, **size_of(folder)} for name, (kind, folder) in folders(template).items()}


def size_of(folder: Path) -> dict[str, int]:
    """Bytes of the files below a folder, and of a zip file of them; bytecode of this machine is left out."""
    packed, unpacked = io.BytesIO(), 0
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(p for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts):
            unpacked += path.stat().st_size
            archive.write(path, path.relative_to(folder))
    return {"unpacked": unpacked, "zipped": len(packed.getvalue())}
