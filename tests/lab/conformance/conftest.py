"""One region for this folder, and the small application deployed into it once by the real SAM CLI."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lab import lifeline
from lab.observer.journal import Journal
from lab.region.region import Region

APP = Path(__file__).parent / "app"
SAM = Path(sys.executable).with_name("sam")
STACK = "conformance"


@pytest.fixture(scope="package")
def region(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Region]:
    root = tmp_path_factory.mktemp("region")
    journal = Journal(root / "journal.jsonl")
    lifeline.start(f"conformance-{uuid.uuid4().hex[:8]}", journal)
    region = Region(root, journal)
    region.start()
    yield region
    region.stop()
    lifeline.stop_all()


@pytest.fixture(scope="package")
def sam(region: Region, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the SAM CLI as an operator would, in a copy of the application."""
    folder = tmp_path_factory.mktemp("app")
    shutil.copytree(APP, folder, dirs_exist_ok=True)
    environment = {
        "PATH": f"{SAM.parent}:{os.environ['PATH']}", "HOME": str(folder), "SAM_CLI_TELEMETRY": "0", "LC_ALL": "C.UTF-8",
        **region.environment(),
    }  # fmt: skip

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run([SAM, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done

    return run


@pytest.fixture(scope="package")
def deploy(sam: Callable[..., subprocess.CompletedProcess[str]]) -> Callable[..., None]:
    def run(*arguments: str) -> None:
        sam(
            "deploy", "--stack-name", STACK, "--resolve-s3", "--capabilities", "CAPABILITY_IAM", "CAPABILITY_NAMED_IAM",
            "--no-confirm-changeset", "--no-fail-on-empty-changeset", "--no-progressbar", *arguments,
        )  # fmt: skip

    sam("build", "--build-in-source")
    return run


@pytest.fixture(scope="package")
def outputs(region: Region, deploy: Callable[..., None]) -> dict[str, str]:
    """The outputs of the deployed application."""
    deploy()
    stack = region.client("cloudformation").describe_stacks(StackName=STACK)["Stacks"][0]
    return {output["OutputKey"]: output["OutputValue"] for output in stack["Outputs"]}


@pytest.fixture(scope="package")
def invoke(region: Region, outputs: dict[str, str]) -> Callable[..., tuple[Any, str | None]]:
    """Invoke a function of the application: its payload and the kind of its error."""
    client = region.client("lambda")

    def run(event: Any, function: str = "greet") -> tuple[Any, str | None]:
        answer = client.invoke(FunctionName=f"{STACK}-{function}", Payload=json.dumps(event))
        return json.loads(answer["Payload"].read()), answer.get("FunctionError")

    return run


def eventually(look: Callable[[], Any], timeout_s: float = 30.0) -> Any:
    """What `look` returns once it is truthy; fails the test when it never is."""
    give_up = time.monotonic() + timeout_s
    while not (found := look()):
        assert time.monotonic() < give_up, f"nothing came of {look} in {timeout_s:.0f} s"
        time.sleep(0.05)
    return found
