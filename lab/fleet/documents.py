"""Systems Manager documents: the store with its versions and hashes, and what the lab understands of a Command document.

Understood: schema 2.2, parameters of type String and StringList (default, allowedValues, allowedPattern, minChars,
maxChars, interpolationType), steps of action aws:runShellScript (runCommand, timeoutSeconds, workingDirectory,
precondition on the platform, onFailure, isEnd). Anything else is refused when the document is created, not ignored when it runs.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from lab.fleet.wire import ApiError

MAX_BYTES = 65536
ENV_VAR_SINCE = (3, 3, 2746, 0)
"""First agent version that hands ENV_VAR parameters over as environment variables; older ones paste them like the others."""
DEFAULT_EXECUTION_TIMEOUT_S = 3600

_PARAMETER_KEYS = {
    "type", "description", "default", "allowedValues", "allowedPattern", "minChars", "maxChars", "minItems", "maxItems",
    "displayType", "interpolationType",
}  # fmt: skip
_STEP_KEYS = {"action", "name", "inputs", "precondition", "onFailure", "isEnd", "finallyStep"}
_INPUT_KEYS = {"runCommand", "timeoutSeconds", "workingDirectory"}
_NAME = re.compile(r"[A-Za-z0-9_\-.]{3,128}")
_PLACEHOLDER = re.compile(r"\{\{\s*([A-Za-z0-9_]+)\s*\}\}")

RUN_SHELL_SCRIPT = {
    "schemaVersion": "2.2",
    "description": "Run a shell script or specify the commands to run.",
    "parameters": {
        "commands": {"type": "StringList", "description": "Lines of the script."},
        "workingDirectory": {"type": "String", "default": "", "maxChars": 4096},
        "executionTimeout": {
            "type": "String",
            "default": "3600",
            "allowedPattern": "([1-9][0-9]{0,4})|(1[0-6][0-9]{4})|(17[0-1][0-9]{3})|(172[0-7][0-9]{2})|(172800)",
        },
    },
    "mainSteps": [
        {
            "action": "aws:runShellScript",
            "name": "runShellScript",
            "inputs": {
                "runCommand": "{{ commands }}",
                "workingDirectory": "{{ workingDirectory }}",
                "timeoutSeconds": "{{ executionTimeout }}",
            },
        }
    ],
}


@dataclass
class Version:
    """One version of a document. `hash` is the SHA-256 of the content as it was given."""

    number: int
    content: str
    format: str
    parsed: dict[str, Any]
    created_at: float
    name: str | None = None

    @property
    def hash(self) -> str:
        """SHA-256 in hexadecimal, as DescribeDocument shows it."""
        return hashlib.sha256(self.content.encode()).hexdigest()


@dataclass
class Document:
    """A document with all its versions."""

    name: str
    type: str
    owner: str
    target_type: str | None
    versions: dict[int, Version] = field(default_factory=dict)
    default: int = 1
    tags: list[dict[str, str]] = field(default_factory=list)

    @property
    def latest(self) -> int:
        """Number of the newest version: what $LATEST stands for."""
        return max(self.versions)

    def version(self, asked: str | None) -> Version:
        """The version named by a number, $DEFAULT or $LATEST. Raises InvalidDocumentVersion."""
        number = {None: self.default, "": self.default, "$DEFAULT": self.default, "$LATEST": self.latest}.get(asked)
        if number is None and asked and asked.isdigit():
            number = int(asked)
        if number not in self.versions:
            raise ApiError("InvalidDocumentVersion", f"Document version {asked} of {self.name} does not exist")
        return self.versions[number]


@dataclass
class Step:
    """What an agent is to run."""

    name: str
    script: str
    timeout_s: float
    working_directory: str
    go_on_after_failure: bool


class DocumentStore:
    """The documents of an account and region. Errors are ApiError as the API gives them."""

    def __init__(self, account: str = "000000000000") -> None:
        self._account = account
        self._lock = threading.RLock()
        self._documents: dict[str, Document] = {}
        amazon = Document("AWS-RunShellScript", "Command", "Amazon", None)
        amazon.versions[1] = Version(1, json.dumps(RUN_SHELL_SCRIPT), "JSON", RUN_SHELL_SCRIPT, time.time())
        self._documents[amazon.name] = amazon

    def create(
        self, name: str, content: str | Mapping[str, Any], *, type: str = "Command", format: str = "JSON",
        target_type: str | None = None, tags: Sequence[Mapping[str, str]] = (), version_name: str | None = None,
    ) -> Document:  # fmt: skip
        """CreateDocument. A mapping as content is stored as JSON (that is how CloudFormation hands a template's content over)."""
        if not _NAME.fullmatch(name) or name.lower().startswith(("aws", "amazon")):
            raise ApiError(
                "ValidationException",
                f"'{name}' is not a document name: [a-zA-Z0-9_\\-.]{{3,128}}, not beginning with aws or amazon",
            )
        if type != "Command":
            raise ApiError("InvalidDocumentContent", f"the lab runs Command documents only, not {type}")
        text, parsed = _content(content, format)
        with self._lock:
            if name in self._documents:
                raise ApiError("DocumentAlreadyExists", f"Document with name {name} already exists.")
            document = Document(name, type, self._account, target_type, tags=[dict(tag) for tag in tags])
            document.versions[1] = Version(1, text, format if isinstance(content, str) else "JSON", parsed, time.time(), version_name)
            self._documents[name] = document
            return document

    def update(self, name: str, content: str | Mapping[str, Any], *, format: str = "JSON", version_name: str | None = None) -> Version:
        """UpdateDocument: a new version; the default version stays. The latest content again raises DuplicateDocumentContent."""
        text, parsed = _content(content, format)
        with self._lock:
            document = self._own(name)
            if document.versions[document.latest].content == text:
                raise ApiError("DuplicateDocumentContent", "The content of the document is the same as that of its latest version.")
            number = document.latest + 1
            document.versions[number] = Version(
                number, text, format if isinstance(content, str) else "JSON", parsed, time.time(), version_name
            )
            return document.versions[number]

    def set_default(self, name: str, version: str) -> Document:
        """UpdateDocumentDefaultVersion."""
        with self._lock:
            document = self._own(name)
            document.default = document.version(version).number
            return document

    def delete(self, name: str) -> None:
        """DeleteDocument. One that does not exist raises InvalidDocument."""
        with self._lock:
            self._own(name)
            del self._documents[name]

    def get(self, name: str) -> Document:
        """The document with that name or ARN. Raises InvalidDocument."""
        with self._lock:
            document = self._documents.get(name.rsplit("/", 1)[-1])
            if document is None:
                raise ApiError("InvalidDocument", f"Document with name {name} does not exist.")
            return document

    def all(self) -> list[Document]:
        with self._lock:
            return sorted(self._documents.values(), key=lambda document: document.name)

    def _own(self, name: str) -> Document:
        document = self.get(name)
        if document.owner == "Amazon":
            raise ApiError("InvalidDocument", f"{name} belongs to Amazon")
        return document


def _content(content: str | Mapping[str, Any], format: str) -> tuple[str, dict[str, Any]]:
    text = content if isinstance(content, str) else json.dumps(content)
    if len(text.encode()) > MAX_BYTES:
        raise ApiError("MaxDocumentSizeExceeded", f"the document has {len(text.encode())} bytes; the limit is {MAX_BYTES}")
    if format not in ("JSON", "YAML"):
        raise ApiError("InvalidDocumentContent", f"the lab does not know the format {format}")
    try:
        parsed = json.loads(text) if format == "JSON" or not isinstance(content, str) else yaml.safe_load(text)
    except (ValueError, yaml.YAMLError) as error:
        raise ApiError("InvalidDocumentContent", f"{format} content not well-formed: {error}") from None
    problems = _problems(parsed)
    if problems:
        raise ApiError("InvalidDocumentContent", "; ".join(problems))
    return text, parsed


def _problems(parsed: Any) -> list[str]:
    if not isinstance(parsed, dict):
        return ["the document is not a mapping"]
    found = [
        f"unknown key {key}" for key in sorted(set(parsed) - {"schemaVersion", "description", "parameters", "mainSteps", "assumeRole"})
    ]
    if str(parsed.get("schemaVersion")) != "2.2":
        found.append(f"schemaVersion is {parsed.get('schemaVersion')!r}, the lab runs 2.2")
    for name, spec in (parsed.get("parameters") or {}).items():
        if not isinstance(spec, dict) or spec.get("type") not in ("String", "StringList"):
            found.append(f"parameter {name}: the lab knows the types String and StringList")
            continue
        found += [f"parameter {name}: unknown key {key}" for key in sorted(set(spec) - _PARAMETER_KEYS)]
        if "allowedPattern" in spec:
            try:
                re.compile(spec["allowedPattern"])
            except re.error as error:
                found.append(f"parameter {name}: allowedPattern: {error}")
        if spec.get("interpolationType", "ENV_VAR") not in ("ENV_VAR", "LITERAL"):
            found.append(f"parameter {name}: interpolationType {spec['interpolationType']}")
        if spec.get("interpolationType") == "ENV_VAR" and spec["type"] != "String":
            found.append(f"parameter {name}: interpolationType ENV_VAR is for String only")
    steps = parsed.get("mainSteps")
    if not isinstance(steps, list) or not steps:
        return [*found, "mainSteps is missing"]
    for step in steps:
        if not isinstance(step, dict) or step.get("action") != "aws:runShellScript":
            found.append(f"step {step.get('name') if isinstance(step, dict) else step}: the lab knows the action aws:runShellScript")
            continue
        inputs = step.get("inputs") or {}
        found += [f"step {step.get('name')}: unknown key {key}" for key in sorted(set(step) - _STEP_KEYS)]
        found += [f"step {step.get('name')}: unknown input {key}" for key in sorted(set(inputs) - _INPUT_KEYS)]
        if not step.get("name"):
            found.append("a step has no name")
        if "runCommand" not in inputs:
            found.append(f"step {step.get('name')}: runCommand is missing")
        for used in _PLACEHOLDER.findall(json.dumps(inputs)):
            if used not in (parsed.get("parameters") or {}):
                found.append(f"step {step.get('name')}: parameter {used} is not defined")
    return found


def check_parameters(parsed: Mapping[str, Any], given: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """The value of each parameter, defaults filled in. Raises InvalidParameters for whatever does not fit."""
    specs: dict[str, dict[str, Any]] = parsed.get("parameters") or {}
    wrong = [f"{name} is not a parameter of the document" for name in given if name not in specs]
    values: dict[str, list[str]] = {}
    for name, spec in specs.items():
        if name in given:
            items = given[name] if isinstance(given[name], list | tuple) else [given[name]]
            value = [str(item) for item in items]
        elif "default" in spec:
            default = spec["default"]
            value = [str(item) for item in default] if isinstance(default, list) else [str(default)]
        else:
            wrong.append(f"{name} is missing")
            continue
        if spec["type"] == "String" and len(value) != 1:
            wrong.append(f"{name} must be one string")
            continue
        for item in value if name in given else []:
            if "allowedPattern" in spec and not re.fullmatch(spec["allowedPattern"], item):
                wrong.append(f"{name} does not match its allowedPattern {spec['allowedPattern']}")
            if spec.get("allowedValues") and item not in [str(one) for one in spec["allowedValues"]]:
                wrong.append(f"{name} is none of its allowedValues")
            if not int(spec.get("minChars", 0)) <= len(item) <= int(spec.get("maxChars", 10**9)):
                wrong.append(f"{name} is too short or too long")
        values[name] = value
    if wrong:
        raise ApiError("InvalidParameters", "; ".join(wrong))
    return values


def passes_by_environment(agent_version: str) -> bool:
    """Whether an agent of this version hands ENV_VAR parameters over as environment variables."""
    return tuple(int(part) for part in agent_version.split(".") if part.isdigit()) >= ENV_VAR_SINCE


def plan(parsed: Mapping[str, Any], values: Mapping[str, Sequence[str]], agent_version: str) -> tuple[list[Step], dict[str, str]]:
    """The steps that an agent of that version runs, and the environment variables that it adds."""
    specs: dict[str, dict[str, Any]] = parsed.get("parameters") or {}
    by_environment = {
        name for name, spec in specs.items() if spec.get("interpolationType") == "ENV_VAR" and passes_by_environment(agent_version)
    }
    environment = {f"SSM_{name}": values[name][0] for name in by_environment if name in values}

    def pasted(text: str) -> str:
        def value(match: re.Match[str]) -> str:
            name = match[1]
            if name in by_environment or name not in values:
                return match[0]
            return values[name][0] if specs[name]["type"] == "String" else json.dumps(list(values[name]))

        return _PLACEHOLDER.sub(value, text)

    steps = []
    for step in parsed["mainSteps"]:
        condition = (step.get("precondition") or {}).get("StringEquals")
        if condition and sorted(condition) != ["Linux", "platformType"]:
            continue
        inputs = step["inputs"]
        lines: list[str] = []
        for line in [inputs["runCommand"]] if isinstance(inputs["runCommand"], str) else inputs["runCommand"]:
            whole = _PLACEHOLDER.fullmatch(str(line).strip())
            if whole and whole[1] in values and specs[whole[1]]["type"] == "StringList":
                lines += values[whole[1]]
            else:
                lines.append(pasted(str(line)))
        timeout = pasted(str(inputs.get("timeoutSeconds", DEFAULT_EXECUTION_TIMEOUT_S)))
        steps.append(
            Step(
                step["name"],
                "\n".join(lines) + "\n",
                float(timeout) if timeout.isdigit() else float(DEFAULT_EXECUTION_TIMEOUT_S),
                pasted(str(inputs.get("workingDirectory") or "")),
                step.get("onFailure") != "exit",
            )
        )
        if step.get("isEnd") in (True, "true"):
            break
    return steps, environment
