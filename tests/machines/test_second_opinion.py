"""A second opinion: the machines on moto's engine, with our handlers in process.

moto's interpreter and the lab's share no code, so where both give the same answer, the data flow is the language's and not
one interpreter's. What moto cannot do (heartbeats by name, a second attempt of a callback, aborts) is not asked.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml

from autojoin.ports import ExecutionState, Pin
from tests.fakes.world import ACCOUNT, REGION, ROOT, Script, World, refusal
from tests.shims.moto_engine import MotoEngine, Outcome

NODE = "i-0123456789abcdef0"


class MotoWorld(World):
    """The fake world on the wall clock; its callbacks answer moto's engine, and its machines start nothing by themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.time.now = time.time()
        self.started: list[tuple[str, str, Mapping[str, object]]] = []
        self.moto = MotoEngine(self._invoke)
        self._one_at_a_time = threading.RLock()

    def send(self, document: str, instance_id: str, parameters: Mapping[str, str], comment: str, pin: Pin | None = None) -> str:
        command_id = super().send(document, instance_id, parameters, comment, pin)
        queue = self.scripts.get(document, [])
        script = queue[0] if queue else Script()
        threading.Timer(0.02, self._end_later, (command_id, script)).start()
        return command_id

    def _end_later(self, command_id: str, script: Script) -> None:
        with self._one_at_a_time:
            self._end(command_id, script)

    def _invoke(self, function_arn: str, payload: Any) -> Any:
        with self._one_at_a_time:
            return super()._invoke(function_arn, payload)

    def succeed(self, token: str, output: Mapping[str, object]) -> bool:
        return self._answer_moto(lambda: self.moto.send_task_success(token, dict(output)))

    def fail(self, token: str, error: str, cause: str) -> bool:
        return self._answer_moto(lambda: self.moto.send_task_failure(token, error, cause))

    def _answer_moto(self, send: Any) -> bool:
        """moto knows a token only once the function that was given it has returned: answer from beside, until it is taken."""

        def until_taken() -> None:
            give_up = time.monotonic() + 30
            while time.monotonic() < give_up:
                try:
                    send()
                except Exception:
                    time.sleep(0.01)
                else:
                    return

        threading.Thread(target=until_taken, daemon=True).start()
        return True

    def _start(self, machine_name: str, name: str, request: Mapping[str, object]) -> bool:
        self.started.append((machine_name, name, request))
        return True

    def execution(self, arn: str) -> ExecutionState | None:
        return ExecutionState("FAILED", self.now_ms())

    def run_machine(self, machine_name: str, request: Mapping[str, object], name: str) -> Outcome:
        """Run one of our machines on moto's engine to its end."""
        text = (ROOT / f"statemachine/{machine_name}.asl.yaml").read_text()
        text = text.replace("${Partition}", "aws")
        text = re.sub(r"\$\{(\w+)FunctionArn\}", lambda m: f"arn:aws:lambda:{REGION}:{ACCOUNT}:function:autojoin-{m[1].lower()}", text)
        with self.moto as engine:
            return engine.run(yaml.safe_load(text), dict(request), name=name)


@pytest.fixture
def world() -> Iterator[MotoWorld]:
    made = MotoWorld()
    made.add_group()
    made.add_master()
    made.add_instance(NODE, agent_after_s=0.0)
    return made


def on_the_lab(scripts: Mapping[str, list[Script]], request: Mapping[str, object]) -> Any:
    """The same join on the lab's interpreter."""
    lab = World()
    lab.add_group()
    lab.add_master()
    lab.add_instance(NODE, agent_after_s=0.0)
    lab.scripts = {k: list(v) for k, v in scripts.items()}
    execution = lab.start("join", request, "second")
    lab.engine.run()
    return execution


def request_of(world: World) -> dict[str, object]:
    action = world.actions[NODE]
    return {"instance_id": NODE, "source": "event", "group": "workers", "hook": action.hook, "token": action.token}


def without_times(output: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in output.items() if not k.endswith("_ms")}


def test_a_join_takes_the_same_way_to_the_same_answer(world: MotoWorld) -> None:
    found = world.run_machine("join", request_of(world), "second")

    lab = on_the_lab({}, {"instance_id": NODE})
    assert found.status == "SUCCEEDED", (found.error, found.cause)
    assert found.visited == lab.visited
    assert without_times(found.output) == without_times(lab.output)
    assert world.actions[NODE].result == "CONTINUE"


def test_a_dry_run_gives_the_same_plan(world: MotoWorld) -> None:
    found = world.run_machine("join", {"instance_id": NODE, "dry_run": True}, "second")

    lab = on_the_lab({}, {"instance_id": NODE, "dry_run": True})
    assert found.status == "SUCCEEDED"
    assert found.visited == lab.visited
    assert found.output["plan"] == lab.output["plan"]
    assert world.actions[NODE].result is None


def test_a_failed_join_hands_over_and_fails_with_the_scripts_error(world: MotoWorld) -> None:
    world.scripts["verify"] = [refusal(22, "CanaryFailed")]

    found = world.run_machine("join", request_of(world), "second")

    lab = on_the_lab(world.scripts, {"instance_id": NODE})
    assert (found.status, found.error) == ("FAILED", "CanaryFailed")
    assert found.error == lab.error
    assert found.visited == lab.visited
    assert [s[:2] for s in world.started] == [("leave", "second-cleanup")]


def test_a_refused_join_fails_with_the_error_of_admit(world: MotoWorld) -> None:
    world.declared = None

    found = world.run_machine("join", request_of(world), "second")

    assert (found.status, found.error) == ("FAILED", "PartitionNotConfigured")
    assert found.visited == ["Admit", "HandOver", "NotJoined"]


def test_the_clean_up_of_a_failed_join_undoes_it_and_fails_with_its_error(world: MotoWorld) -> None:
    world.scripts["join-worker"] = [refusal(16, "UnitFailed")]
    world.run_machine("join", request_of(world), "second")
    ((_, name, request),) = world.started
    failed = json.loads(json.dumps(request))
    failed["from_execution"] = world.leases[NODE].owner

    found = world.run_machine("leave", failed, name)

    assert (found.status, found.error) == ("FAILED", "UnitFailed")
    assert found.visited[-1] == "RolledBack"
    assert {"StopCommands", "LeaveNode", "RemoveNode", "Abandon"} <= set(found.visited)
    assert world.actions[NODE].result == "ABANDON"
    assert world.left_of(NODE) == []
