"""A function loads only what it uses: no client before it is asked for, no adapter beside the one that is."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache

import pytest

from tests.fakes.world import ROOT

ADAPTERS = sorted(
    p.stem for p in (ROOT / "layers/autojoin/autojoin/adapters").glob("*.py") if p.stem not in ("__init__", "aws", "operator")
)
"""Those of functions; operator is the operator's command's."""
FUNCTIONS = sorted(p.parent.name for p in (ROOT / "functions").glob("*/app.py"))
PORT_ADAPTERS = {
    "clock": {"clock"},
    "instances": {"ec2"},
    "groups": {"autoscaling"},
    "commands": {"ssm"},
    "configuration": {"parameters"},
    "registry": {"dynamodb", "clock"},
    "machines": {"stepfunctions"},
    "callbacks": {"stepfunctions"},
    "markers": {"dynamodb"},
    "witness": {"parameters"},
    "etcd": {"etcd"},
    "names": {"route53"},
    "targets": {"elbv2"},
}
ENVIRONMENT = {"AUTOJOIN_TABLE": "nodes", "AUTOJOIN_DOCUMENT_PREFIX": "autojoin", "AWS_DEFAULT_REGION": "eu-central-1"}
PROBE = """
import json, sys
sys.path.insert(0, "layers/autojoin")
for step in json.load(sys.stdin):
    for name in [m for m in sys.modules if m.partition(".")[0] == "autojoin"]:
        del sys.modules[name]
    exec(step, {"__name__": "probe"})
    print(json.dumps([m for m in sys.modules if m.partition(".")[0] in ("autojoin", "boto3")]))
"""


@cache
def loaded_after(*steps: str) -> list[set[str]]:
    """Our modules, and boto3's, that are loaded after each step, in one fresh process; ours are unloaded before each."""
    ended = subprocess.run(
        [sys.executable, "-c", PROBE],
        cwd=ROOT,
        env=ENVIRONMENT,
        input=json.dumps(steps),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return [set(json.loads(line)) for line in ended.stdout.splitlines()]


def adapters_in(modules: set[str]) -> set[str]:
    return {m.rpartition(".")[2] for m in modules if m.startswith("autojoin.adapters.")} - {"aws"}


def test_importing_an_adapter_imports_no_other() -> None:
    loaded = loaded_after(*(f"import autojoin.adapters.{a}" for a in ADAPTERS))

    assert [adapters_in(modules) for modules in loaded] == [{a} for a in ADAPTERS]


def test_asking_for_a_port_imports_its_adapter_alone() -> None:
    loaded = loaded_after(*(f"from autojoin.bootstrap import ports\nports().{port}" for port in PORT_ADAPTERS))

    assert dict(zip(PORT_ADAPTERS, map(adapters_in, loaded), strict=True)) == PORT_ADAPTERS


def test_every_adapter_but_the_operator_s_is_asked_for_by_some_port() -> None:
    assert set().union(*PORT_ADAPTERS.values()) == set(ADAPTERS)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_importing_a_function_makes_no_client_and_imports_no_boto3(function: str) -> None:
    loaded = dict(zip(FUNCTIONS, loaded_after(*(f"exec(open('functions/{f}/app.py').read())" for f in FUNCTIONS)), strict=True))

    assert "autojoin.bootstrap" in loaded[function]
    assert not {m for m in loaded[function] if m.partition(".")[0] == "boto3"}
    assert adapters_in(loaded[function]) == set()
