"""Documents are their scripts; their parameters let nothing through that a shell could take for more than text."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tools"))
import render_documents  # noqa: E402

NAMES = (
    "inspect", "join-rp", "join-tp", "join-worker", "leave-node", "remove-node", "start-api", "start-etcd", "verify", "verify-master",
)  # fmt: skip
DOCUMENTS: dict[str, dict[str, Any]] = {name: yaml.safe_load((ROOT / f"documents/{name}.yaml").read_text()) for name in NAMES}
PARAMETERS = [(name, parameter) for name, document in DOCUMENTS.items() for parameter in document["parameters"]]
GOOD = {
    "Cluster": ["demo", "a"],
    "Partition": ["rp1", "master"],
    "InstanceId": ["i-0123456789abcdef0", "i-01234567"],
    "Zone": ["demo.arktos.internal"],
    "TenantPartitions": ["tp1", "tp1,tp2,tenant-three"],
    "PodCidr": ["10.244.0.0/16"],
    "CniBackend": ["host-gw", "vxlan"],
    "ClientCaParameter": ["/autojoin/demo/public/rp1/client-ca.crt"],
    "BinDir": ["/opt/arktos/bin"],
    "Execution": ["manual-i-0123456789abcdef0-20260101T000000Z-cleanup"],
    "CanaryImage": ["registry.internal:5000/canary@sha256:0a", "nginx:1.25"],
    "NodeName": ["i-0123456789abcdef0", "ip-10-0-0-1.ec2.internal"],
    "NodeUid": ["", "0f8b7a7e-3a3b-4c5d-8e9f-0123456789ab"],
    "Scope": ["node", "canaries"],
    "Mode": ["found", "resume"],
    "Token": ["demo.tp1.1.i-0123456789abcdef0"],
    "ClusterId": ["", "00c0ffee00c0ffee"],
    "Kind": ["tp", "rp"],
    "ServiceCidr": ["10.0.0.0/16"],
    "ResourcePartitions": ["rp1", "rp1,rp2,resource-three"],
    "EtcdUrl": ["", "http://10.0.0.1:2379"],
    "CertDir": ["/var/run/kubernetes"],
    "Store": ["no", "yes"],
    "ExecutionTimeout": ["600"],
}
SHELL = [
    "$(id)",
    "`id`",
    "${HOME}",
    "a;id",
    "a|id",
    "a&id",
    "a\nid",
    "a'b",
    'a"b',
    "a b",
    "a>b",
    "a<b",
    "a\\b",
    "a*",
    "a?",
    "a#b",
    "a!b",
    "~",
    "-n x",
]


def allows(document: str, parameter: str, value: str) -> bool:
    return re.fullmatch(DOCUMENTS[document]["parameters"][parameter]["allowedPattern"], value) is not None


@pytest.mark.parametrize(("document", "parameter"), PARAMETERS)
def test_a_parameter_takes_what_it_is_for(document: str, parameter: str) -> None:
    assert all(allows(document, parameter, value) for value in GOOD[parameter])


@pytest.mark.parametrize(("document", "parameter"), PARAMETERS)
@pytest.mark.parametrize("text", SHELL)
def test_a_parameter_refuses_what_a_shell_would_read(document: str, parameter: str, text: str) -> None:
    good = GOOD[parameter][-1]

    assert not any(allows(document, parameter, value) for value in (text, good + text, text + good))


@pytest.mark.parametrize("name", NAMES)
def test_parameters_come_as_environment_and_the_time_out_alone_is_pasted(name: str) -> None:
    document = DOCUMENTS[name]
    pasted = re.findall(r"\{\{\s*(\w+)\s*\}\}", yaml.safe_dump(document))

    assert {k for k, v in document["parameters"].items() if v.get("interpolationType") == "ENV_VAR"} == set(document["parameters"]) - {
        "ExecutionTimeout"
    }
    assert pasted == ["ExecutionTimeout"]


@pytest.mark.parametrize("name", NAMES)
def test_a_script_gives_up_by_itself_before_the_agent_ends_it(name: str) -> None:
    script = DOCUMENTS[name]["mainSteps"][0]["inputs"]["runCommand"][0]
    limit = re.search(r"limit_s=(\d+)$", script, re.MULTILINE)

    assert limit is not None
    assert int(limit[1]) < int(DOCUMENTS[name]["parameters"]["ExecutionTimeout"]["default"])


@pytest.mark.parametrize("name", NAMES)
def test_a_document_is_a_bash_script_of_allowed_size(name: str) -> None:
    text = (ROOT / f"documents/{name}.yaml").read_text()

    assert DOCUMENTS[name]["schemaVersion"] == "2.2"
    assert DOCUMENTS[name]["mainSteps"][0]["inputs"]["runCommand"][0].startswith("#!/bin/bash\n")
    assert len(text.encode()) <= 64 * 1024


def test_documents_are_those_of_their_scripts() -> None:
    assert {name: render_documents.render(name) for name in NAMES} == {n: (ROOT / f"documents/{n}.yaml").read_text() for n in NAMES}
    assert sorted(p.stem for p in (ROOT / "documents").glob("*.yaml")) == sorted(NAMES)


def test_scripts_are_clean_without_ignores() -> None:
    sources = sorted((ROOT / "documents/src").glob("*.sh"))

    done = subprocess.run([Path(sys.prefix) / "bin/shellcheck", "-x", *sources], capture_output=True, text=True, check=False)

    assert done.stdout == ""
    assert not [p.name for p in sources if "shellcheck disable" in p.read_text()]
    assert all(p.read_text().startswith("#!/bin/bash\n") for p in sources)


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "documents", tmp_path / "documents")
    return tmp_path / "documents/src"


def test_exit_codes_cannot_drift(sources: Path) -> None:
    codes = sources.parent / "exit_codes.json"
    changed = json.loads(codes.read_text())
    changed["Busy"]["code"] = 99
    codes.write_text(json.dumps(changed))

    with pytest.raises(ValueError, match="exit codes"):
        render_documents.render("verify", sources)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda text: text + "echo '{{ Partition }}'\n", "take for a parameter"),
        (lambda text: text.replace('. "$(dirname "$0")/lib.sh"\n', ""), "sources lib.sh 0 times"),
        (lambda text: text.replace("lib-verify.sh", "lib.sh"), "sources lib.sh 2 times"),
        (lambda text: text.replace("#!/bin/bash\n", "", 1), "does not begin with"),
        (lambda text: text + "# padding\n" * 7000, "at most"),
    ],
)
def test_a_script_that_cannot_be_a_document_is_refused(sources: Path, change: Any, complaint: str) -> None:
    script = sources / "verify.sh"
    script.write_text(change(script.read_text()))

    with pytest.raises(ValueError, match=complaint):
        render_documents.render("verify", sources)
