"""The rules of Run Command, on a clock that the test moves and agents that do what it says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from lab.fleet.commands import STDOUT_CHARS, Commands, Invocation, Managed, Outcome, cut
from lab.fleet.documents import DocumentStore, Step
from lab.fleet.timers import ManualTimers
from lab.fleet.wire import ApiError

ONE, TWO, THREE = (f"i-{number:017x}" for number in (1, 2, 3))
DOCUMENT = {
    "schemaVersion": "2.2",
    "parameters": {
        "Who": {"type": "String", "allowedPattern": "^[a-z]+$", "interpolationType": "ENV_VAR", "default": "nobody"},
        "ExecutionTimeout": {"type": "String", "default": "600", "allowedPattern": "[0-9]+"},
    },
    "mainSteps": [
        {
            "action": "aws:runShellScript", "name": "run",
            "inputs": {"runCommand": ["#!/bin/bash", "echo {{ Who }}"], "timeoutSeconds": "{{ ExecutionTimeout }}"},
        }
    ],
}  # fmt: skip


class FakeAgents:
    def __init__(self) -> None:
        self.known = {i: Managed(i, True, "3.3.2746.0", {"role": "worker"}) for i in (ONE, TWO, THREE)}
        self.ran: list[tuple[str, str, dict[str, str]]] = []
        self.running: dict[str, Invocation] = {}
        self.killed: list[str] = []
        self.deaf: set[str] = set()

    def managed(self) -> list[Managed]:
        return list(self.known.values())

    def lost(self, invocation: Invocation) -> bool:
        return invocation.instance_id in self.deaf

    def run(self, invocation: Invocation, steps: Sequence[Step], environment: Mapping[str, str]) -> None:
        self.ran.append((invocation.instance_id, steps[0].script, dict(environment)))
        self.running[invocation.instance_id] = invocation

    def kill_invocation(self, invocation: Invocation) -> None:
        self.killed.append(invocation.instance_id)


class World:
    def __init__(self) -> None:
        self.clock, self.agents, self.store = ManualTimers(), FakeAgents(), DocumentStore()
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.journal: list[dict[str, Any]] = []
        self.commands = Commands(
            self.clock, self.store, lambda kind, detail, _: self.events.append((kind, detail)),
            lambda kind, **fields: self.journal.append({"kind": kind, **fields}), account="000000000000", region="us-east-1",
        )  # fmt: skip
        self.commands.agents = self.agents
        self.store.create("doc", DOCUMENT)

    def send(self, *instances: str, **more: Any) -> str:
        given = {"DocumentName": "doc", "InstanceIds": list(instances or (ONE,)), **more}
        return self.commands.send(given).command_id

    def finish(self, instance_id: str, exit_code: int = 0, *, timed_out: bool = False, stdout: str = "") -> None:
        invocation = self.agents.running.pop(instance_id)
        self.commands.reported(invocation, Outcome("run", exit_code, stdout, timed_out=timed_out))
        self.commands.finished(invocation)

    def status(self, command_id: str, instance_id: str = ONE) -> tuple[str, str]:
        invocation = self.commands.command(command_id).invocations[instance_id]
        return invocation.status, invocation.details


@pytest.fixture
def world() -> World:
    return World()


def refused(call: Callable[[], object]) -> str:
    with pytest.raises(ApiError) as caught:
        call()
    return f"{caught.value.code}: {caught.value.message}"


@pytest.mark.parametrize(
    ("exit_code", "timed_out", "expected"),
    [(0, False, ("Success", "Success")), (3, False, ("Failed", "Failed")), (137, True, ("TimedOut", "Execution Timed Out"))],
)
def test_success_is_exit_code_zero_and_nothing_more(world: World, exit_code: int, timed_out: bool, expected: tuple[str, str]) -> None:
    command = world.send(Parameters={"Who": ["bob"]})
    world.clock.advance(1)

    world.finish(ONE, exit_code, timed_out=timed_out)

    assert world.status(command) == expected
    invocations = [d["status"] for kind, d in world.events if kind == "EC2 Command Invocation Status-change Notification"]
    assert invocations == ["InProgress", expected[0]]


def test_parameters_of_type_env_var_come_as_environment_and_are_not_pasted(world: World) -> None:
    world.send(Parameters={"Who": ["bob"]})
    world.clock.advance(1)

    assert world.agents.ran == [(ONE, "#!/bin/bash\necho {{ Who }}\n", {"SSM_Who": "bob"})]


def test_an_old_agent_pastes_them(world: World) -> None:
    world.agents.known[ONE].agent_version = "3.2.999.0"

    world.send(Parameters={"Who": ["bob"]})
    world.clock.advance(1)

    assert world.agents.ran == [(ONE, "#!/bin/bash\necho bob\n", {})]


@pytest.mark.parametrize(
    ("parameters", "said"),
    [({"Who": ["a; rm"]}, "allowedPattern"), ({"Other": ["a"]}, "not a parameter"), ({"Who": ["a", "b"]}, "one string")],
)
def test_parameters_that_do_not_fit_are_refused(world: World, parameters: dict[str, list[str]], said: str) -> None:
    answer = refused(lambda: world.send(Parameters=parameters))

    assert answer.startswith("InvalidParameters")
    assert said in answer


def test_only_managed_instances_are_targets(world: World) -> None:
    assert refused(lambda: world.send("i-0000000000000dead")).startswith(
        "InvalidInstanceId: Instances [[i-0000000000000dead]] not in a valid state"
    )
    assert refused(lambda: world.send(ONE, ONE)).startswith("DuplicateInstanceId")


def test_the_same_command_sent_twice_runs_twice(world: World) -> None:
    first, second = world.send(Comment="e/s"), world.send(Comment="e/s")
    world.clock.advance(1)

    assert first != second
    assert len(world.agents.ran) == 2


def test_delivery_waits_for_an_agent_that_is_away(world: World) -> None:
    world.agents.known[ONE].online = False
    command = world.send()
    world.clock.advance(10)
    waiting = world.status(command)

    world.agents.known[ONE].online = True
    world.commands.agent_online(ONE)
    world.clock.advance(1)

    assert waiting == ("Pending", "Pending")
    assert world.status(command) == ("InProgress", "InProgress")


def test_delivery_times_out_after_delivery_plus_execution_time(world: World) -> None:
    world.agents.deaf.add(ONE)
    command = world.send(TimeoutSeconds=30, Parameters={"ExecutionTimeout": ["100"]})

    world.clock.advance(129)
    before = world.status(command)
    world.clock.advance(2)

    assert before == ("Pending", "Pending")
    assert world.status(command) == ("TimedOut", "Delivery Timed Out")


def test_cancelling_kills_what_runs_and_drops_what_waits(world: World) -> None:
    world.agents.known[TWO].online = False
    command = world.send(ONE, TWO)
    world.clock.advance(1)

    world.commands.cancel(command)
    killing = world.status(command, ONE)
    world.finish(ONE, 137)

    assert killing == ("Cancelling", "Cancelling")
    assert world.agents.killed == [ONE]
    assert (world.status(command, ONE)[0], world.status(command, TWO)[0]) == ("Cancelled", "Cancelled")
    world.commands.cancel(command)
    assert refused(lambda: world.commands.cancel("nothing")).startswith("InvalidCommandId")


def test_an_invocation_is_not_there_in_the_first_moments(world: World) -> None:
    command = world.send()

    at_once = refused(lambda: world.commands.invocation(command, ONE))
    world.clock.advance(0.2)

    assert at_once.startswith("InvocationDoesNotExist")
    assert world.commands.invocation(command, ONE).instance_id == ONE
    assert refused(lambda: world.commands.invocation(command, TWO)).startswith("InvocationDoesNotExist")


def test_max_errors_stops_what_was_not_sent_yet(world: World) -> None:
    command = world.send(ONE, TWO, THREE, MaxConcurrency="1", MaxErrors="0")
    world.clock.advance(1)
    alone = [instance for instance, _, _ in world.agents.ran]

    world.finish(ONE, 1)
    world.clock.advance(1)

    assert alone == [ONE]
    assert [instance for instance, _, _ in world.agents.ran] == [ONE]
    assert world.status(command, TWO) == ("Cancelled", "Terminated")
    assert world.commands.command(command).status == "Failed"


def test_a_wrong_document_hash_is_refused(world: World) -> None:
    right = world.store.get("doc").version(None).hash

    assert refused(lambda: world.send(DocumentHash="0" * 64, DocumentHashType="Sha256")).startswith("InvalidDocument")
    assert world.send(DocumentHash=right, DocumentHashType="Sha256")


def test_a_command_runs_the_version_it_was_sent_with(world: World) -> None:
    world.store.update("doc", {**DOCUMENT, "description": "newer"})

    by_default = world.commands.command(world.send()).version.number
    latest = world.commands.command(world.send(DocumentVersion="$LATEST")).version.number
    world.store.set_default("doc", "2")

    assert (by_default, latest, world.commands.command(world.send()).version.number) == (1, 2, 2)
    assert refused(lambda: world.send(DocumentVersion="9")).startswith("InvalidDocumentVersion")


def test_limits_of_the_request(world: World) -> None:
    assert "100" in refused(lambda: world.send(Comment="x" * 101))
    assert "30" in refused(lambda: world.send(TimeoutSeconds=29))


def test_long_output_is_cut_at_its_end_and_says_so() -> None:
    shown = cut("a" * 30_000 + "last line", STDOUT_CHARS, "\n---Output truncated---")

    assert len(shown) == STDOUT_CHARS
    assert shown.endswith("---Output truncated---")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schemaVersion": "1.2"}, "schemaVersion"),
        ({"mainSteps": []}, "mainSteps"),
        ({"mainSteps": [{"action": "aws:runPowerShellScript", "name": "x", "inputs": {}}]}, "aws:runShellScript"),
        ({"surprise": 1}, "unknown key surprise"),
        (
            {"mainSteps": [{"action": "aws:runShellScript", "name": "x", "inputs": {"runCommand": ["{{ Nobody }}"]}}]},
            "Nobody is not defined",
        ),
        ({"parameters": {"Who": {"type": "Boolean"}}}, "String and StringList"),
    ],
)
def test_a_document_that_the_lab_cannot_run_is_refused_when_it_is_made(world: World, change: dict[str, Any], said: str) -> None:
    answer = refused(lambda: world.store.create("other", {**DOCUMENT, **change}))

    assert answer.startswith("InvalidDocumentContent")
    assert said in answer
