"""Scenario files: what happens in a lab, step by step, and what must be true at the end.

A file is checked against lab/scenarios/schema.json and for names that lead nowhere before anything is started. A run ends with a
report; it passes only if every step did what it says, every expectation and every invariant held, and every armed fault fired.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from lab.faults import FAULTS
from lab.lab import CLUSTER, TABLE, Lab, LabError
from lab.loopback import is_healthy
from lab.observer import leftovers
from lab.observer import report as reports
from lab.observer.invariants import Leftover, gone_instances, instance_of, judge
from lab.observer.journal import Entry
from lab.plants import PLANTS

FOLDER = Path(__file__).parent / "scenarios"
DEFAULT_WAIT_S = 60.0
SETTLE_S = 90.0
"""Longest time in seconds that executions, commands and hooks may need to come to rest after the last step."""
LEFTOVER_S = 12.0
"""Longest time in seconds for what names a gone instance to disappear once nothing moves any more."""
POLL_S = 0.1

ENDED = ("SUCCEEDED", "FAILED", "TIMED_OUT", "ABORTED")
NAMES_AN_INSTANCE = ("group", "instance", "gone", "ready", "healthy", "no_node", "nothing_left", "no_execution")
_PLACEHOLDER = re.compile(r"\{(instance|token|address):([^}]+)\}")


class ScenarioError(Exception):
    """A scenario file that cannot be run; `problems` says all that is wrong with it."""

    def __init__(self, source: str, problems: list[str]) -> None:
        super().__init__(f"{source} is no scenario:\n" + "\n".join(f"  {problem}" for problem in problems))
        self.problems = problems


class StepFailed(Exception):
    """A step did not do, or did not see, what it says."""


@dataclass(frozen=True)
class Scenario:
    """A checked scenario."""

    name: str
    about: str
    lab: Mapping[str, Any]
    groups: tuple[Mapping[str, Any], ...]
    steps: tuple[tuple[str, Any], ...]  # (kind, body)
    expect: Mapping[str, Any]


@cache
def schema() -> dict[str, Any]:
    """The JSON schema of scenario files."""
    loaded: dict[str, Any] = json.loads((FOLDER / "schema.json").read_text(encoding="utf-8"))
    return loaded


def load(path: Path) -> Scenario:
    """Read and check a file. Raises ScenarioError with every problem found, each with its place in the file."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ScenarioError(str(path), [f"cannot be read: {error.strerror}"]) from error
    return parse(text, str(path), path.stem)


def parse(text: str, source: str = "the text", stem: str | None = None) -> Scenario:
    """The scenario in a YAML text. `stem` is the file's name, which must be the scenario's."""
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ScenarioError(source, [f"is not YAML: {' '.join(str(error).split())}"]) from error
    problems = [
        f"{_place(error.absolute_path)}: {_words(error)}"
        for error in sorted(jsonschema.Draft202012Validator(schema()).iter_errors(data), key=lambda e: list(map(str, e.absolute_path)))
    ]
    if not problems:
        problems = _loose_ends(data, stem)
    if problems:
        raise ScenarioError(source, problems)
    return Scenario(
        name=data["name"],
        about=" ".join(data["about"].split()),
        lab=data.get("lab") or {},
        groups=tuple(data.get("groups") or ()),
        steps=tuple(next(iter(step.items())) for step in data["steps"]),
        expect=data.get("expect") or {},
    )


def _place(path: Any) -> str:
    return ".".join(str(part) for part in path) or "the file"


def _words(error: jsonschema.ValidationError) -> str:
    if error.validator == "additionalProperties" and isinstance(error.schema, Mapping):
        known = ", ".join(sorted(error.schema.get("properties", {})))
        return f"{error.message}; known are: {known}"
    if error.validator == "maxProperties":
        return "more than one thing in one step or condition"
    return error.message


def _references(value: Any) -> Iterator[tuple[str, str]]:
    """(kind, name) of every group, instance and placeholder that a step names."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if key in NAMES_AN_INSTANCE and isinstance(inner, str):
                yield ("group" if key == "group" else "instance"), inner
            else:
                yield from _references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _references(inner)
    elif isinstance(value, str):
        for _, name in _PLACEHOLDER.findall(value):
            yield "instance", name


def _loose_ends(data: Mapping[str, Any], stem: str | None) -> list[str]:
    problems = []
    groups = {group["name"] for group in data.get("groups") or []}
    if stem is not None and data["name"] != stem:
        problems.append(f"name: {data['name']} is not the file's name, {stem}")
    if len(groups) < len(data.get("groups") or []):
        problems.append("groups: two of them have one name")
    started: set[str] = set()
    for number, step in enumerate(data["steps"]):
        kind, body = next(iter(step.items()))
        where = f"steps.{number}.{kind}"
        for what, name in _references(body):
            group = name if what == "group" else name.partition("/")[0] if "/" in name else None
            if group is not None and group not in groups:
                problems.append(f"{where}: there is no group {group}; groups are: {', '.join(sorted(groups)) or 'none'}")
        if kind == "fault" and body["name"] not in FAULTS:
            problems.append(f"{where}: there is no fault {body['name']}; faults are: {', '.join(sorted(FAULTS))}")
        if kind == "plant" and body["name"] not in PLANTS:
            problems.append(f"{where}: there is no plant {body['name']}; plants are: {', '.join(sorted(PLANTS))}")
        if kind in ("wait_for", "assert"):
            if set(body) == {"within_s"}:
                problems.append(f"{where}: within_s without a condition")
            if len(body) == 2 and "within_s" not in body:
                problems.append(f"{where}: two conditions in one step")
            if kind == "assert" and "within_s" in body:
                problems.append(f"{where}: an assert does not wait; use wait_for")
            label = (body.get("execution") or {}).get("as")
            if label and label not in started:
                problems.append(f"{where}: no earlier step starts an execution as {label}")
            if "execution" in body and not ({"as", "instance"} & set(body["execution"])):
                problems.append(f"{where}: name the execution by `as` or by `instance`")
        if kind == "start_execution":
            started.add(body["as"])
    expect = data.get("expect") or {}
    for key in ("in_service", "ready"):
        problems += [f"expect.{key}: there is no group {group}" for group in expect.get(key) or {} if group not in groups]
    problems += [
        f"expect.may_be_left_waiting: there is no group {group}" for group in expect.get("may_be_left_waiting") or [] if group not in groups
    ]
    return problems


@dataclass
class Outcome:
    """What became of a run."""

    scenario: str
    failures: list[str] = field(default_factory=list)
    report: dict[str, Any] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Every step, expectation and invariant held, and every armed fault fired."""
        return not self.failures and not self.broken

    @property
    def broken(self) -> list[str]:
        """Names of the invariants that did not hold."""
        return [name for name, verdict in self.report.get("invariants", {}).items() if not verdict["holds"]]


class Run:
    """One scenario on one lab that is up. The lab may have seen other runs before."""

    def __init__(self, scenario: Scenario, lab: Lab) -> None:
        self.scenario = scenario
        self.lab = lab
        self.began_at = time.time()
        self._executions: dict[str, str] = {}  # as -> ARN
        self._steps: dict[str, Callable[[Any], None]] = {
            "scale": self._scale,
            "terminate": self._terminate,
            "suspend": self._suspend,
            "kill": self._kill,
            "inject_event": self._inject_event,
            "start_execution": self._start_execution,
            "fault": self._fault,
            "wait_for": self._wait_for,
            "assert": self._assert,
            "plant": self._plant,
            "run_on": self._run_on,
            "make_by_hand": self._make_by_hand,
            "declare": self._declare,
            "put_marker": self._put_marker,
            "delete_marker": self._delete_marker,
            "delete_stack": self._delete_stack,
            "deploy_stack": self._deploy_stack,
            "cli": self._cli,
        }

    def go(self) -> Outcome:
        """Run every step, let things come to rest, judge. Never raises for what the scenario finds."""
        outcome = Outcome(self.scenario.name)
        self.began_at = time.time()
        self.lab.observer.remember()
        try:
            for group in self.scenario.groups:
                self.lab.create_group(group)
            for number, (kind, body) in enumerate(self.scenario.steps):
                try:
                    self._steps[kind](body)
                except StepFailed as failure:
                    outcome.failures.append(f"steps.{number}.{kind}: {failure}")
                    break
            left = self._come_to_rest()
            self._judge(outcome, left)
        finally:
            self.lab.faults.disarm()
        return outcome

    # -- the run's own view ------------------------------------------------------------------------------------------

    def entries(self, kind: str | None = None) -> list[Entry]:
        """The journal since this run began."""
        return self.lab.journal.entries(kind, since=self.began_at)

    def instance(self, name: str) -> str | None:
        """The id that a name stands for, None when no such instance was launched yet."""
        if name.startswith("i-"):
            return name
        if "/" not in name:
            return self.lab.masters.get(name)
        group, _, number = name.partition("/")
        launched = list(
            dict.fromkeys(e["instance_id"] for e in self.entries("instance") if e["event"] == "launched" and e.get("group") == group)
        )
        return launched[int(number) - 1] if int(number) <= len(launched) else None

    def _known(self, name: str) -> str:
        instance_id = self.instance(name)
        if instance_id is None:
            raise StepFailed(f"{name} was never launched")
        return instance_id

    def _filled(self, value: Any) -> Any:
        """`value` with its placeholders filled in."""
        if isinstance(value, Mapping):
            return {key: self._filled(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [self._filled(inner) for inner in value]
        if not isinstance(value, str):
            return value

        def fill(match: re.Match[str]) -> str:
            instance_id = self._known(match[2])
            if match[1] == "instance":
                return instance_id
            if match[1] == "address":
                return str(self.lab.fleet.instances[instance_id].address)
            tokens = [e["token"] for e in self.entries("hook") if e["instance_id"] == instance_id and e["event"] == "opened"]
            if not tokens:
                raise StepFailed(f"no hook of {match[2]} was opened")
            return str(tokens[-1])

        return _PLACEHOLDER.sub(fill, value)

    # -- steps -------------------------------------------------------------------------------------------------------

    def _scale(self, body: Mapping[str, Any]) -> None:
        self.lab.region.client("autoscaling").set_desired_capacity(
            AutoScalingGroupName=body["group"], DesiredCapacity=body["to"], HonorCooldown=False
        )

    def _terminate(self, body: Mapping[str, Any]) -> None:
        self.lab.region.client("autoscaling").terminate_instance_in_auto_scaling_group(
            InstanceId=self._known(body["instance"]), ShouldDecrementDesiredCapacity=body.get("decrement", False)
        )

    def _suspend(self, body: Mapping[str, Any]) -> None:
        self.lab.region.client("autoscaling").suspend_processes(AutoScalingGroupName=body["group"], ScalingProcesses=["Launch"])

    def _kill(self, body: Mapping[str, Any]) -> None:
        self.lab.fleet.kill(self._known(body["instance"]))

    def _inject_event(self, body: Mapping[str, Any]) -> None:
        self.lab.region.put_event(
            body["source"], body["detail_type"], self._filled(body["detail"]), self._filled(body.get("resources") or [])
        )

    def _start_execution(self, body: Mapping[str, Any]) -> None:
        given = self._filled(body["input"])
        self._executions[body["as"]] = self.lab.start_execution(body.get("machine", "join"), given, body["as"])

    def _fault(self, body: Mapping[str, Any]) -> None:
        self.lab.faults.arm(
            body["name"],
            group=body.get("group"),
            instance_id=self._known(body["instance"]) if body.get("instance") else None,
            document=body.get("document"),
            state=body.get("state"),
            times=body.get("times", 1),
        )

    def _plant(self, body: Mapping[str, Any]) -> None:
        PLANTS[body["name"]](self.lab, self._known(body["instance"]) if body.get("instance") else None, body.get("group"))

    def _run_on(self, body: Mapping[str, Any]) -> None:
        done = self.lab.run_on(self._known(body["instance"]), self._filled(body["script"]))
        if done.returncode != body.get("exit_code", 0):
            raise StepFailed(f"exit code {done.returncode}, {(done.stderr or done.stdout).strip()[-300:]}")
        if body.get("stdout_contains", "") not in done.stdout:
            raise StepFailed(f"stdout is {done.stdout.strip()[-300:]!r} without {body['stdout_contains']!r}")

    def _make_by_hand(self, body: Mapping[str, Any]) -> None:
        from lab.arktos import handmade

        try:
            handmade.make_masters(self.lab.fleet, self.lab.region, self._known(body["tp"]), self._known(body["rp"]))
        except handmade.NotUp as error:
            raise StepFailed(str(error)) from error

    def _declare(self, body: Mapping[str, Any]) -> None:
        self.lab.declare_tenant(body["tenant"])

    def _marker(self, partition: str) -> dict[str, Any]:
        """Table and key of a partition's marker."""
        key = {"pk": {"S": f"PARTITION#{CLUSTER}#{partition}"}, "sk": {"S": "MARKER"}}
        return {"TableName": TABLE, "Key": key}

    def _put_marker(self, body: Mapping[str, Any]) -> None:
        given = self._filled(body["attributes"])
        values = {name: {"N": str(value)} if isinstance(value, int) else {"S": value} for name, value in given.items()}
        self.lab.region.client("dynamodb").update_item(
            **self._marker(body["partition"]),
            UpdateExpression="SET " + ", ".join(f"#{name} = :{name}" for name in values),
            ExpressionAttributeNames={f"#{name}": name for name in values},
            ExpressionAttributeValues={f":{name}": value for name, value in values.items()},
        )

    def _delete_marker(self, body: Mapping[str, Any]) -> None:
        self.lab.region.client("dynamodb").delete_item(**self._marker(body["partition"]))

    def _delete_stack(self, _: Mapping[str, Any]) -> None:
        self._of_the_lab(self.lab.delete_autojoin)

    def _deploy_stack(self, body: Mapping[str, Any]) -> None:
        if body["table"] == "existing":
            self._of_the_lab(lambda: self.lab.deploy_autojoin(ExistingTableName=TABLE))
        else:
            self.lab.region.client("dynamodb").delete_table(TableName=TABLE)
            self._of_the_lab(self.lab.deploy_autojoin)

    def _of_the_lab(self, does: Callable[[], None]) -> None:
        try:
            does()
        except LabError as error:
            raise StepFailed(str(error)) from error

    def _cli(self, body: Mapping[str, Any]) -> None:
        done = self.lab.cli([str(self._filled(word)) for word in body["args"]])
        said = (done.stdout + done.stderr).strip()[-1000:]
        if done.returncode != body.get("exit_code", 0):
            raise StepFailed(f"exit code {done.returncode}: {said}")
        missing = [text for text in self._filled(body.get("contains") or []) if text not in done.stdout + done.stderr]
        if missing:
            raise StepFailed(f"said {said!r}, without {missing}")

    def _wait_for(self, body: Mapping[str, Any]) -> None:
        within_s = float(body.get("within_s", DEFAULT_WAIT_S))
        give_up = time.monotonic() + within_s
        while True:
            why = self._why_not(body)
            if why is None:
                return
            if time.monotonic() > give_up:
                raise StepFailed(f"not within {within_s:.0f} s: {why}")
            time.sleep(POLL_S)

    def _assert(self, body: Mapping[str, Any]) -> None:
        why = self._why_not(body)
        if why is not None:
            raise StepFailed(why)

    # -- conditions: None when true, else what was seen ----------------------------------------------------------------

    def _why_not(self, body: Mapping[str, Any]) -> str | None:
        name, wanted = next((k, v) for k, v in body.items() if k != "within_s")
        condition: Callable[[Any], str | None] = getattr(self, f"_is_{name}")
        return condition(wanted)

    def _is_in_service(self, wanted: Mapping[str, Any]) -> str | None:
        seen = len(self.lab.in_service(wanted["group"]))
        return None if seen == wanted["count"] else f"{seen} instances of {wanted['group']} are in service, not {wanted['count']}"

    def _is_launched(self, wanted: Mapping[str, Any]) -> str | None:
        seen = sum(e["event"] == "launched" and e.get("group") == wanted["group"] for e in self.entries("instance"))
        return None if seen >= wanted["count"] else f"{seen} instances of {wanted['group']} were launched, not {wanted['count']}"

    def _is_lifecycle(self, wanted: Mapping[str, Any]) -> str | None:
        instance_id = self.instance(wanted["instance"])
        states = [e["state"] for e in self.entries("lifecycle") if e["instance_id"] == instance_id]
        seen = states[-1] if states else "unknown"
        return None if seen == wanted["state"] else f"{wanted['instance']} is {seen}, not {wanted['state']}"

    def _is_gone(self, name: str) -> str | None:
        return None if self.instance(name) in gone_instances(self.entries("instance")) else f"{name} is not gone"

    def _is_ready(self, name: str) -> str | None:
        node = self.lab.node(self.instance(name))
        if node is None:
            return f"there is no Node {name}"
        return None if node.ready and not node.tainted else f"Node {name}: ready={node.ready}, tainted={node.tainted}"

    def _is_no_node(self, name: str) -> str | None:
        return None if self.lab.node(self.instance(name)) is None else f"there is a Node {name}"

    def _is_nothing_left(self, name: str) -> str | None:
        instance_id = self.instance(name)
        left = [found for found in self.lab.observer.left_of_gone(self.entries()) if found.instance_id == instance_id]
        return "; ".join(f"{found.where}: {found.what}" for found in left) or None

    def _is_hook(self, wanted: Mapping[str, Any]) -> str | None:
        instance_id = self.instance(wanted["instance"])
        events = [e for e in self.entries("hook") if e["instance_id"] == instance_id]
        if any(e["event"] == wanted["event"] and wanted.get("result", e.get("result")) == e.get("result") for e in events):
            return None
        seen = ", ".join(f"{e['event']} {e.get('result') or ''}".strip() for e in events) or "nothing"
        return f"the hook of {wanted['instance']} saw {seen}"

    def _newest(self, wanted: Mapping[str, Any]) -> Entry | None:
        machine = wanted.get("machine", "join")
        arn = self._executions.get(wanted.get("as", ""))
        instance_id = self.instance(wanted["instance"]) if wanted.get("instance") else None
        fitting = [
            e
            for e in self.entries("execution")
            if (e["arn"] == arn if arn else e["machine"].endswith(f"-{machine}") and instance_of(e) == instance_id)
        ]
        return fitting[-1] if fitting else None

    def _is_execution(self, wanted: Mapping[str, Any]) -> str | None:
        seen = self._newest(wanted)
        who = wanted.get("as") or f"{wanted.get('machine', 'join')} of {wanted.get('instance')}"
        if seen is None:
            return f"there is no execution {who}"
        output = seen.get("output")
        if isinstance(output, str):
            output = json.loads(output) if output else {}
        told = f"{who} is {seen['status']} {seen.get('error') or ''} {seen.get('cause') or ''} {output or ''}"
        if seen["status"] != wanted["status"]:
            return told
        if "outcome" in wanted and (output or {}).get("outcome") != wanted["outcome"]:
            return told
        if "error" in wanted and seen.get("error") != wanted["error"]:
            return told
        missing = [text for text in self._filled(wanted.get("cause") or []) if text not in str(seen.get("cause"))]
        return f"{told}, without {missing}" if missing else None

    def _is_failed_joins(self, wanted: Mapping[str, Any]) -> str | None:
        failed = [e for e in self.entries("execution") if e["machine"].endswith("-join") and e["status"] == "FAILED"]
        mine = [e for e in failed if (i := self.lab.fleet.instances.get(instance_of(e) or "")) and i.group == wanted["group"]]
        seen = len({e["arn"] for e in mine if e["error"] == wanted["error"]})
        if seen >= wanted["at_least"]:
            return None
        return f"{seen} joins of {wanted['group']} failed with {wanted['error']}; failures: {[e['error'] for e in mine]}"

    def _is_executions(self, wanted: Mapping[str, Any]) -> str | None:
        instance_id = self.instance(wanted["instance"])
        joins = [e for e in self.entries("execution") if e["machine"].endswith("-join") and instance_of(e) == instance_id]
        seen = len({e["arn"] for e in joins})
        return None if seen == wanted["count"] else f"{seen} joins of {wanted['instance']}, not {wanted['count']}"

    def _is_no_execution(self, name: str) -> str | None:
        instance_id = self.instance(name)
        seen = [e["name"] for e in self.entries("execution") if instance_of(e) == instance_id]
        return f"executions of {name}: {', '.join(seen)}" if seen else None

    def _is_command(self, wanted: Mapping[str, Any]) -> str | None:
        instance_id = self.instance(wanted["instance"])
        seen = [e for e in self.entries("command") if e["instance_id"] == instance_id and wanted["document"] in str(e.get("document"))]
        if any(e["status"] == wanted["status"] for e in seen):
            return None
        return f"commands of {wanted['instance']}: {[(e.get('document'), e['status']) for e in seen]}"

    def _is_log(self, wanted: Mapping[str, Any]) -> str | None:
        texts = [self._filled(text) for text in wanted["contains"]]
        if any(all(text in line for text in texts) for _, line in self.lab.logs(self.began_at, wanted["function"])):
            return None
        return f"no line of {wanted['function']} contains {texts}"

    def _is_healthy(self, name: str) -> str | None:
        instance_id = self.instance(name)
        instance = self.lab.fleet.instances.get(instance_id or "")
        return None if instance and is_healthy(instance.address) else f"no API server answers on {name}"

    def _is_founding(self, wanted: Mapping[str, Any]) -> str | None:
        """What the witness says was decided last, and that its etcd is the one that answers."""
        partition, instance_id = wanted["partition"], self.instance(wanted["instance"])
        seen = self.lab.witness(partition)
        told = f"the witness of {partition} says {seen}, {wanted['instance']} is {instance_id}"
        if not seen:
            return told
        last = max(seen, key=lambda name: (int(name.partition("-")[2]), name))
        state, _, epoch = last.partition("-")
        decided = seen[last]
        if (state, decided["instance"]) != (wanted["state"], instance_id) or wanted.get("epoch", int(epoch)) != int(epoch):
            return told
        answering = [e for e in self.entries("etcd") if e["instance_id"] == instance_id]
        if wanted["state"] == "formed" and (not answering or answering[-1]["cluster_id"] != decided["cluster_id"]):
            return f"{told}; etcd answered with {[e['cluster_id'] for e in answering]}"
        return None

    def _is_named(self, wanted: Mapping[str, Any]) -> str | None:
        instance_id = self.instance(wanted["instance"])
        address = self.lab.fleet.instances[instance_id].address if instance_id in self.lab.fleet.instances else ""
        names = [r["name"] for r in leftovers.records(self.lab.region) if r["set"] == instance_id and r["values"] == [address]]
        targets = [t["group"] for t in leftovers.targets(self.lab.region) if t["id"] in (instance_id, address)]
        if len(names) == 1 and len(targets) == wanted["targets"]:
            return None
        return f"{wanted['instance']} at {address} has the records {names} and is a target of {targets}"

    def _is_metric(self, wanted: Mapping[str, Any]) -> str | None:
        seen = self.lab.metric(wanted["name"], self.began_at)
        return None if seen >= wanted["at_least"] else f"metric {wanted['name']} is {seen:g}, not at least {wanted['at_least']}"

    def _is_dead_letter(self, wanted: list[str]) -> str | None:
        texts = [self._filled(text) for text in wanted]
        messages = self.lab.dead_letters()
        if any(all(text in message for text in texts) for message in messages):
            return None
        return f"none of {len(messages)} dead letters contains {texts}"

    def _is_fault_fired(self, name: str) -> str | None:
        fired = any(e["name"] == name and e["event"] == "fired" for e in self.entries("fault"))
        return None if fired else f"fault {name} did not fire"

    # -- the end -----------------------------------------------------------------------------------------------------

    def _may_wait(self) -> frozenset[str]:
        return frozenset(self.scenario.expect.get("may_be_left_waiting") or ())

    def _moving(self) -> bool:
        running = {e["arn"]: e["status"] for e in self.entries("execution")}
        if any(status not in ENDED for status in running.values()):
            return True
        return any(hook.closed_at is None and hook.group not in self._may_wait() for hook in self.lab.hooks(self.began_at))

    def _left(self) -> list[Leftover]:
        """What names a gone instance, but for those that served: leaving is not handled in this version."""
        served = {self.instance(name) for name in self.scenario.expect.get("may_be_left_behind") or ()}
        return [found for found in self.lab.observer.left_of_gone(self.entries()) if found.instance_id not in served]

    def _come_to_rest(self) -> list[Leftover]:
        """Wait until nothing moves, then for leftovers to go; returns those that stay."""
        give_up = time.monotonic() + (SETTLE_S if self.lab.has_stack else 1.0)
        while self._moving() and time.monotonic() < give_up:
            time.sleep(POLL_S)
        give_up = time.monotonic() + (LEFTOVER_S if self.lab.has_stack else 1.0)
        while True:
            left = self._left()
            if not left or time.monotonic() > give_up:
                return left
            time.sleep(0.5)

    def _judge(self, outcome: Outcome, left: list[Leftover]) -> None:
        self.lab.observer.poll()
        world = self.lab.observer.world()
        entries = self.entries()
        invariants = judge(self.lab.evidence(self.began_at, entries, left, self._may_wait()))
        outcome.report = reports.assemble(
            entries=entries, members=self.lab.members(entries), world=world, invariants=invariants, leftovers=left
        )
        outcome.failures += self._unmet(outcome.report)
        outcome.failures += [f"fault {name} was armed and never fired" for name in self.lab.faults.unfired()]
        outcome.entries = entries

    def _unmet(self, report: Mapping[str, Any]) -> list[str]:
        expect = self.scenario.expect
        unmet = []
        wanted = {"timed_out": 0, "left_waiting": 0, **(expect.get("hooks") or {})}
        for what, count in wanted.items():
            # Hooks left waiting by somebody else's groups are told by the invariant, unless a number was asked for.
            if what == "left_waiting" and "left_waiting" not in (expect.get("hooks") or {}):
                continue
            if report["hooks"][what] != count:
                unmet.append(f"expect.hooks.{what}: {report['hooks'][what]}, not {count}")
        for group, count in (expect.get("in_service") or {}).items():
            seen = len(self.lab.in_service(group))
            if seen != count:
                unmet.append(f"expect.in_service.{group}: {seen}, not {count}")
        for group, count in (expect.get("ready") or {}).items():
            seen = sum(row["ready"] for row in report["nodes"] if row["group"] == group)
            if seen != count:
                unmet.append(f"expect.ready.{group}: {seen}, not {count}")
        if "overhead" in expect:
            warm, median = report["overhead"]["warm_s"], report["overhead"]["warm_median_s"]
            if len(warm) < expect["overhead"]["warm_joins"]:
                unmet.append(f"expect.overhead.warm_joins: {len(warm)}, not {expect['overhead']['warm_joins']}")
            if median is None or median > expect["overhead"]["median_s_at_most"]:
                unmet.append(f"expect.overhead.median_s_at_most: {median} s of {warm}, not {expect['overhead']['median_s_at_most']} s")
        return unmet


def run(scenario: Scenario, lab: Lab) -> Outcome:
    """Run a checked scenario on a lab that is up."""
    return Run(scenario, lab).go()
