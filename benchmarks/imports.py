"""How long a function takes to load: fresh processes of the lab's Lambda runtime, one by turns with `import boto3`."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import json
import os
import shutil
import subprocess
import textwrap
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

RUNS, SOURCE_RUNS = 21, 3
PROCESS_S = 60
USE_CASES = "autojoin.use_cases"
ALWAYS = "telemetry"
"""The port that every invocation uses, by the entry point."""
KINDS = ("boto3_ms", "module_ms", "adapters_ms", "clients_ms", "sources_ms")
WITHOUT_BOTO3 = ("clock", "etcd", "telemetry")
"""Ports whose adapters are no boto3 clients."""

PROBE = """
import json, sys, time
given = json.loads(sys.argv[1])
sys.path[:0] = given["path"]
begun = time.process_time()
if given["ports"] is None:
    import boto3
    print(json.dumps([(time.process_time() - begun) * 1000]))
else:
    import app
    imported = time.process_time()
    ports = app.ports()
    if not given["clients"]:
        import autojoin.bootstrap
        autojoin.bootstrap._client = lambda service: None
        if any(name not in given["plain"] for name in given["ports"]):
            import autojoin.adapters.aws
    for name in given["ports"]:
        getattr(ports, name)
    print(json.dumps([(imported - begun) * 1000, (time.process_time() - begun) * 1000]))
"""


class NotLoaded(Exception):
    """A function does not load outside the region; the message holds the end of what Python said."""


def ports_of(handler: Path) -> tuple[str, ...]:
    """Names of the ports that the operations of functions/<name>/app.py ask for, from the source of their use cases."""
    spec = importlib.util.spec_from_file_location(f"measured_{handler.parent.name}", handler)
    if spec is None or spec.loader is None:
        raise NotLoaded(f"{handler} is no module")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found, seen = {ALWAYS}, set()
    todo: list[types.FunctionType] = list(module.lambda_handler.operations.values())
    while todo:
        function = todo.pop()
        if function in seen:
            continue
        seen.add(function)
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
        found |= set(_asked(tree))
        todo += _called(tree, function)
    return tuple(sorted(found))


def _asked(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "ports":
            yield node.attr


def _called(tree: ast.AST, function: types.FunctionType) -> Iterator[types.FunctionType]:
    """Functions of our use cases that the source names."""
    for node in ast.walk(tree):
        named: Any = None
        if isinstance(node, ast.Name):
            named = function.__globals__.get(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            owner = function.__globals__.get(node.value.id)
            named = getattr(owner, node.attr, None) if isinstance(owner, types.ModuleType) else None
        if isinstance(named, types.FunctionType) and named.__module__.startswith(USE_CASES):
            yield named


def measure(
    python: Path, layers: list[Path], functions: Mapping[str, Path], variables: Mapping[str, Mapping[str, str]], scratch: Path,
    say: Callable[[str], None],
) -> dict[str, Any]:  # fmt: skip
    """Samples in milliseconds of processor time by function: boto3_ms, module_ms, adapters_ms, clients_ms, sources_ms; and its ports.

    Processor time is what a busy machine distorts least; files are in memory, so on a quiet one it is the time that passes.
    boto3_ms      import of boto3 alone, right before each of the next two
    module_ms     import of app.py alone
    adapters_ms   goes on until the adapters of its operations are imported, boto3 with them
    clients_ms    goes on until their boto3 clients are made, as an invocation does
    sources_ms    the same as clients_ms without bytecode in function and layers, which is how they are shipped
    Raises NotLoaded.
    """
    ports = {name: ports_of(path / "app.py") for name, path in functions.items()}
    compiled, plain = scratch / "compiled", scratch / "plain"
    for root in (compiled, plain):
        for source in [*layers, *functions.values()]:
            shutil.copytree(source, root / source.name, ignore=shutil.ignore_patterns("__pycache__"))
    compiling = [str(python), "-m", "compileall", "-q", str(compiled)]
    subprocess.run(compiling, check=False, stdout=subprocess.DEVNULL, env={"PATH": os.defpath})
    found: dict[str, Any] = {
        "functions": {name: {"ports": list(ports[name]), **{kind: [] for kind in KINDS}} for name in functions},
    }

    def path_of(root: Path, name: str) -> list[str]:
        return [str(root / functions[name].name), *(str(root / layer.name / "python") for layer in reversed(layers))]

    def run(path: list[str], asked: tuple[str, ...] | None, name: str = "", *, clients: bool = True, **more: str) -> list[float]:
        given = json.dumps({"path": path, "ports": asked, "clients": clients, "plain": WITHOUT_BOTO3})
        environment = {**variables.get(name, {}), **more, "PATH": os.defpath, "AWS_REGION": "us-east-1", "AWS_DEFAULT_REGION": "us-east-1"}
        argv = [str(python), "-s", "-X", "utf8", "-c", PROBE, given]
        ended = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=PROCESS_S, cwd=scratch, check=False)
        if ended.returncode != 0:
            raise NotLoaded(f"function {name or 'boto3'}: {ended.stderr.strip()[-600:]}")
        return [round(float(ms), 1) for ms in json.loads(ended.stdout.splitlines()[-1])]

    run([], None)  # boto3's own bytecode
    for number in range(RUNS):
        for name in functions:
            samples = found["functions"][name]
            samples["boto3_ms"] += run([], None)
            module_ms, adapters_ms = run(path_of(compiled, name), ports[name], name, clients=False, PYTHONDONTWRITEBYTECODE="1")
            samples["module_ms"].append(module_ms)
            samples["adapters_ms"].append(adapters_ms)
            samples["clients_ms"] += run(path_of(compiled, name), ports[name], name, PYTHONDONTWRITEBYTECODE="1")[1:]
            if number < SOURCE_RUNS:
                samples["sources_ms"] += run(path_of(plain, name), ports[name], name, PYTHONDONTWRITEBYTECODE="1")[1:]
    say(f"imports: {RUNS} processes of each of {len(functions)} functions")
    return found
