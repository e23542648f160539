"""Translate template.yaml as the SAM transform does on deployment, without an AWS account.

Usage: tools/translate_template.py [TEMPLATE] > translated.json. Local paths become S3 addresses, as `sam package` makes them.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from samtranslator.public.translator import ManagedPolicyLoader
from samtranslator.translator.transform import transform
from samtranslator.yaml_helper import yaml_parse

ROOT = Path(__file__).resolve().parents[1]
LOCAL = {"CodeUri", "ContentUri", "DefinitionUri"}


class _Policies(ManagedPolicyLoader):  # type: ignore[misc]
    """Managed policies by name, as the transform would list them from IAM."""

    def __init__(self) -> None:
        self._policy_map = None

    def load(self) -> dict[str, str]:
        return {"AWSLambdaBasicExecutionRole": "arn:aws:iam::aws:policy/service-role/AWSLambdaBasicExecutionRole"}


def translate(path: Path) -> dict[str, Any]:
    """The template as CloudFormation processes it, with region us-east-1 for what the transform asks."""
    os.environ.setdefault("AWS_DEFAULT_REGION", "us-east-1")
    raw = yaml_parse(path.read_text())
    for resource in raw["Resources"].values():
        properties = resource.get("Properties", {})
        for name in LOCAL & properties.keys():
            if isinstance(properties[name], str):
                properties[name] = {"Bucket": "packaged", "Key": properties[name]}
        content = properties.get("Content")
        if isinstance(content, dict) and "Fn::Transform" in content:
            location = content["Fn::Transform"]["Parameters"]["Location"]
            properties["Content"] = yaml_parse((path.parent / location).read_text())
    translated: dict[str, Any] = transform(raw, {}, _Policies())
    return translated


if __name__ == "__main__":
    source = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "template.yaml"
    json.dump(translate(source), sys.stdout, indent=1)
