"""A whole lab: the region, the golden image, the fleet, partitions, Autojoin deployed by `sam`; up and down by one call.

Everything of a lab lies under one folder and dies with its process (lab/lifeline.py).
"""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lab import lifeline
from lab.faults import Faults
from lab.loopback import ask
from lab.observer import leftovers
from lab.observer.invariants import Evidence, Hook, Leftover, hooks_of
from lab.observer.journal import Entry, Journal
from lab.observer.observer import MASTER_ROLES, NODE_ROLES, Observer
from lab.observer.report import Member

REPOSITORY = Path(__file__).resolve().parent.parent
STACK = "autojoin"
TABLE = f"{STACK}-nodes"
CLUSTER = "demo"
NETWORKS = range(20, 120)
"""Second numbers of the 127.N.0.0/16 that labs may take."""
LOCK_PORT = 1999

BUILD_INPUTS = ("template.yaml", "samconfig.toml", "functions", "layers", "statemachine", "documents", "requirements/functions.txt")
BUILD_S, DEPLOY_S, STACK_S = 600, 300, 60
"""Longest times in seconds of `sam build`, `sam deploy` and a plain stack."""

IMAGE_ID = "ami-0a1b2c3d4e5f60718"
CNI_PLUGINS = ("flannel", "bridge", "host-local", "loopback", "portmap")
Say = Callable[[str], None]


class LabError(Exception):
    """The lab cannot be brought up; the message says what to look at."""


def take_network() -> tuple[int, socket.socket]:
    """The first free 127.N.0.0/16 and the socket that holds it; labs of other processes hold theirs."""
    for number in NETWORKS:
        lock = socket.socket()
        try:
            lock.bind((f"127.{number}.255.254", LOCK_PORT))
            lock.listen(1)
        except OSError:
            lock.close()
            continue
        return number, lock
    raise LabError("all networks from 127.20 to 127.119 are held by other labs")


def bake_image(folder: Path) -> Path:
    """The golden image: a folder with bin/ of links to the stand-ins, etcd, the aws CLI and placeholders of the CNI plugins."""
    binaries = folder / "bin"
    binaries.mkdir(parents=True, exist_ok=True)
    sources = [*(REPOSITORY / "lab/arktos/bin").iterdir(), *(Path(sys.prefix) / "bin" / name for name in ("etcd", "etcdctl"))]
    sources += [REPOSITORY / ".cache/image/bin/aws", *(REPOSITORY / ".cache/tools/bin" / name for name in ("curl", "jq", "openssl"))]
    for source in sources:
        if source.is_file() and not (binaries / source.name).exists():
            (binaries / source.name).symlink_to(source)
    for name in CNI_PLUGINS:
        plugin = binaries / name
        if not plugin.exists():
            plugin.write_text("#!/bin/sh\nexit 0\n", encoding="utf-8")
            plugin.chmod(0o755)
    return folder


class Lab:
    """One lab. `with Lab(root) as lab:` brings it up and takes it down; `start` and `stop` do the same by hand."""

    def __init__(
        self, root: Path, *, stack: str = "autojoin", partitions: str = "handmade", boot_s: float = 1.0, agent_s: float = 0.5,
        fresh_build: bool = False, say: Say | None = None,
    ) -> None:  # fmt: skip
        """A lab under the folder `root`.

        stack         autojoin: `sam deploy` it; none: leave it out
        partitions    handmade: one TP and one RP as an operator makes them; empty: tp1 and rp1 are declared and their groups
                      of masters hold no instance; none: no partition
        fresh_build   always run `sam build`, also when the sources are those of the last one
        say           told in a line what is going on
        """
        self.root = root.resolve()
        self.has_stack = stack == "autojoin"
        self._partitions = partitions
        self._boot_s, self._agent_s = boot_s, agent_s
        self._fresh_build = fresh_build
        self._say = say or (lambda _: None)
        self._at_stop = contextlib.ExitStack()
        self.master_groups: dict[str, str] = {}
        self.timings: dict[str, float] = {}
        self.network = 0
        self._groups: dict[str, dict[str, Any]] = {}
        self._template_data: dict[str, dict[str, Any]] = {}  # example group -> what it launches

    @property
    def masters(self) -> dict[str, str]:
        """Id of the living master by partition; of several the one whose API server answers."""
        return {partition: instance.instance_id for partition, instance in self.observer.masters(MASTER_ROLES).items()}

    # -- life --------------------------------------------------------------------------------------------------------

    def __enter__(self) -> Lab:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Bring everything up; on any error everything is taken down again."""
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Take everything down. Safe to call twice."""
        self._at_stop.close()

    def _start(self) -> None:
        from lab.fleet.fleet import Fleet
        from lab.region.region import Region

        self.root.mkdir(parents=True, exist_ok=True)
        self.network, lock = take_network()
        self._at_stop.callback(lock.close)
        self.id = f"{self.network}-{uuid.uuid4().hex[:8]}"
        self.journal = Journal(self.root / "journal.jsonl")
        self._at_stop.callback(self.journal.close)
        lifeline.start(self.id, self.journal)
        self._at_stop.callback(lifeline.stop_all)
        with self._timed("region"):
            self.region = Region(self.root / "region", self.journal)
            self.region.start()
            self._at_stop.callback(self.region.stop)
        image = bake_image(self.root / "image")
        self.fleet = Fleet(self.region, self.root, image, self.journal, self.network, boot_s=self._boot_s, agent_s=self._agent_s)
        self._at_stop.callback(self.fleet.stop)
        self.observer = Observer(self.journal, self.region, lambda: list(self.fleet.instances.values()))
        self.faults = Faults(self)
        self._at_stop.callback(self.faults.disarm)
        with self._timed("example stacks"):
            self._make_network()
            self._make_workers()
        building: list[BaseException | None] = []
        builder = threading.Thread(target=self._build_and_deploy, args=(building,), name="sam", daemon=True)
        if self.has_stack:
            builder.start()
        if self._partitions == "handmade":
            from lab.arktos import handmade

            with self._timed("partitions"):
                self.handmade = handmade.build(self.fleet, self.region)
        elif self._partitions == "empty":
            with self._timed("declarations"):
                self._declare()
                self.master_groups = {"tp1": self._group_of_masters("tp1", "tp"), "rp1": self._group_of_masters("rp1", "rp")}
        self.look_at_declarations()
        if self.has_stack:
            builder.join()
            if building and building[0] is not None:
                raise building[0]
        self.observer.start()
        self._at_stop.callback(self.observer.stop)
        self._before = self._records()
        self._parameters_before = self._parameters()

    @contextlib.contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        begun = time.monotonic()
        yield
        self.timings[what] = round(time.monotonic() - begun, 1)
        self._say(f"{what}: {self.timings[what]} s")

    # -- Autojoin ----------------------------------------------------------------------------------------------------

    def _build_and_deploy(self, outcome: list[BaseException | None]) -> None:
        try:
            with self._timed("sam build"):
                built = self._build()
            with self._timed("sam deploy"):
                self.deploy_autojoin(built)
            outcome.append(None)
        except BaseException as error:
            outcome.append(error)

    def _build(self) -> Path:
        """The built template. A build of the same sources is taken again unless a fresh one was asked for."""
        if self._fresh_build:
            self.sam(["build", "--build-in-source"], BUILD_S)
            return REPOSITORY / ".aws-sam/build/template.yaml"
        kept = REPOSITORY / ".lab/builds" / _fingerprint()
        if not kept.exists():
            # Built beside where it is kept: the built template names files by relative paths.
            folder = kept.with_name(f"{kept.name}-{self.id}")
            folder.parent.mkdir(parents=True, exist_ok=True)
            self.sam(["build", "--build-in-source", "--build-dir", str(folder)], BUILD_S)
            with contextlib.suppress(OSError):  # another lab was faster
                folder.rename(kept)
        return kept / "template.yaml"

    def deploy_autojoin(self, built: Path | None = None, **parameters: str) -> None:
        """Deploy Autojoin as its README says; its function etcd gets the network's subnet and security group."""
        network = self.network_outputs
        given = {"EtcdSubnetIds": network["SubnetAId"], "EtcdSecurityGroupIds": network["FunctionSecurityGroupId"], **parameters}
        self.deploy(built or self._build(), STACK, given)

    def delete_autojoin(self) -> None:
        """Delete Autojoin's stack as an operator would; its table stays. Raises LabError when that fails."""
        formation = self.region.client("cloudformation")
        formation.delete_stack(StackName=STACK)
        give_up = time.monotonic() + STACK_S
        while True:
            stacks = [s for s in formation.list_stacks()["StackSummaries"] if s["StackName"] == STACK]
            if all(stack["StackStatus"] == "DELETE_COMPLETE" for stack in stacks):
                return
            if time.monotonic() > give_up or any(stack["StackStatus"] == "DELETE_FAILED" for stack in stacks):
                raise LabError(f"stack {STACK} was not deleted: {[s['StackStatus'] for s in stacks]}")
            time.sleep(0.1)

    def deploy(self, template: Path, name: str, parameters: Mapping[str, str] | None = None) -> None:
        """`sam deploy` a template as a stack. Raises LabError with what sam said when it fails."""
        argv = [
            "deploy", "--stack-name", name, "--template-file", str(template), "--resolve-s3",
            "--capabilities", "CAPABILITY_IAM", "CAPABILITY_NAMED_IAM", "CAPABILITY_AUTO_EXPAND",
            "--no-confirm-changeset", "--no-fail-on-empty-changeset", "--region", self.region.name,
        ]  # fmt: skip
        if parameters:
            argv += ["--parameter-overrides", *(f"{key}={value}" for key, value in parameters.items())]
        self.sam(argv, DEPLOY_S)

    def sam(self, argv: Sequence[str], timeout_s: float) -> str:
        """Run `sam` against the region; returns what it printed. Raises LabError with the end of it when it fails."""
        environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "LOG_LEVEL", "SAM_"))},
            **self.region.environment(),
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "PATH": f"{Path(sys.prefix) / 'bin'}:{os.environ.get('PATH', '/usr/bin:/bin')}",
            "AUTOJOIN_LAYER_TARGET": "host",
            "SAM_CLI_TELEMETRY": "0",
            "NO_PROXY": "127.0.0.1",
            "no_proxy": "127.0.0.1",
        }
        log = self.root / f"sam-{argv[0]}-{time.monotonic_ns()}.log"
        with log.open("wb") as out:
            process = lifeline.popen(
                [str(Path(sys.prefix) / "bin/sam"), *argv], env=environment, cwd=REPOSITORY,
                stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
            )  # fmt: skip
            try:
                code = process.wait(timeout=timeout_s)
            except subprocess.TimeoutExpired:
                process.kill()
                code = -1
        said = log.read_text(encoding="utf-8", errors="replace")
        if code != 0:
            raise LabError(f"sam {argv[0]} failed ({code}); the end of {log}:\n{said[-3000:]}")
        return said

    def create_stack(self, name: str, template: Path, parameters: Mapping[str, str]) -> dict[str, str]:
        """Create a stack of a plain template as an operator would; returns its outputs. Raises LabError when it fails."""
        formation = self.region.client("cloudformation")
        formation.create_stack(
            StackName=name, TemplateBody=template.read_text(encoding="utf-8"), Capabilities=["CAPABILITY_IAM"],
            Parameters=[{"ParameterKey": key, "ParameterValue": value} for key, value in parameters.items()],
        )  # fmt: skip
        give_up = time.monotonic() + STACK_S
        while True:
            stack = formation.describe_stacks(StackName=name)["Stacks"][0]
            if stack["StackStatus"] == "CREATE_COMPLETE":
                return {output["OutputKey"]: output["OutputValue"] for output in stack.get("Outputs", [])}
            if not stack["StackStatus"].endswith("IN_PROGRESS") or time.monotonic() > give_up:
                events = formation.describe_stack_events(StackName=name)["StackEvents"]
                reasons = [f"{e['LogicalResourceId']}: {e['ResourceStatusReason']}" for e in events if e.get("ResourceStatusReason")]
                raise LabError(f"stack {name} is {stack['StackStatus']}: {'; '.join(reasons)}")
            time.sleep(0.1)

    def _make_network(self) -> None:
        """examples/network.yaml with the lab's addresses."""
        self.network_outputs = self.create_stack(
            f"{CLUSTER}-network", REPOSITORY / "examples/network.yaml",
            {
                "Cluster": CLUSTER, "VpcCidr": f"127.{self.network}.0.0/16", "SubnetACidr": f"127.{self.network}.0.0/20",
                "SubnetBCidr": f"127.{self.network}.16.0/20", "PodCidr": f"127.{self.network}.128.0/18",
            },
        )  # fmt: skip

    def _make_workers(self) -> None:
        """examples/workers.yaml, with no instance yet; scenario groups use its launch template."""
        outputs = self.create_stack(
            f"{CLUSTER}-workers", REPOSITORY / "examples/workers.yaml",
            {
                "Cluster": CLUSTER, "Partition": "rp1", "SubnetId": self.network_outputs["SubnetAId"],
                "SecurityGroupId": self.network_outputs["MemberSecurityGroupId"], "ImageId": IMAGE_ID,
            },
        )  # fmt: skip
        self.workers = outputs["GroupName"]

    def _group_of_masters(self, partition: str, role: str) -> str:
        """The group of examples/masters.yaml of a partition, with no instance; made when it is first asked for."""
        name = f"{CLUSTER}-{partition}-masters"
        stacks = self.region.client("cloudformation").list_stacks(StackStatusFilter=["CREATE_COMPLETE"])["StackSummaries"]
        if name not in [stack["StackName"] for stack in stacks]:
            self.create_stack(
                name, REPOSITORY / "examples/masters.yaml",
                {
                    "Cluster": CLUSTER, "Partition": partition, "Role": role, "SubnetId": self.network_outputs["SubnetAId"],
                    "SecurityGroupId": self.network_outputs["MemberSecurityGroupId"],
                    "EtcdSecurityGroupId": self.network_outputs["EtcdSecurityGroupId"], "ImageId": IMAGE_ID,
                },
            )  # fmt: skip
        return name

    def _declare(self) -> None:
        """examples/declarations.yaml with the lab's ranges, and for tp1 the load balancer of examples/load-balancer.yaml."""
        network = self.network_outputs
        balancer = self.create_stack(
            f"{CLUSTER}-tp1-load-balancer", REPOSITORY / "examples/load-balancer.yaml",
            {
                "Cluster": CLUSTER, "Partition": "tp1", "VpcId": network["VpcId"], "SubnetIds": network["SubnetAId"],
                "SecurityGroupId": network["MemberSecurityGroupId"],
            },
        )  # fmt: skip
        self.create_stack(
            f"{CLUSTER}-declarations", REPOSITORY / "examples/declarations.yaml",
            {
                "Cluster": CLUSTER, "HostedZoneId": network["HostedZoneId"], "TenantTargetGroupArn": balancer["TargetGroupArn"],
                "ServiceCidr": f"127.{self.network}.224.0/20", "PodCidr": f"127.{self.network}.128.0/18",
            },
        )  # fmt: skip

    def declare_tenant(self, partition: str) -> None:
        """Declare one more tenant partition, by hand. `partition` is tp2 to tp31; the number gives its range of services."""
        number = int(partition.removeprefix("tp"))
        declared = {"id": partition, "kind": "tp", "ordinal": number, "service_cidr": f"127.{self.network}.{192 + number}.0/24"}
        self.region.client("ssm").put_parameter(
            Name=f"/autojoin/{CLUSTER}/partitions/{partition}", Type="String", Value=json.dumps(declared), Overwrite=True
        )
        self.look_at_declarations()

    def _launched_by(self, group: str) -> dict[str, Any]:
        """The launch template's data of an example group."""
        if group not in self._template_data:
            described = self.region.client("autoscaling").describe_auto_scaling_groups(AutoScalingGroupNames=[group])
            template = described["AutoScalingGroups"][0]["LaunchTemplate"]["LaunchTemplateId"]
            versions = self.region.client("ec2").describe_launch_template_versions(LaunchTemplateId=template)
            data: dict[str, Any] = versions["LaunchTemplateVersions"][0]["LaunchTemplateData"]
            data.get("MetadataOptions", {}).pop("State", None)  # shown, but not taken
            self._template_data[group] = data
        return self._template_data[group]

    def machine_arn(self, machine: str) -> str:
        """ARN of the state machine `join` or `leave`."""
        return f"arn:aws:states:{self.region.name}:{self.region.account}:stateMachine:{STACK}-{machine}"

    def start_execution(self, machine: str, given: Mapping[str, Any], label: str = "manual") -> str:
        """Start a machine by hand, as the account's operator; returns the execution's ARN."""
        stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        subject = re.sub("[^A-Za-z0-9-]", "_", str(given.get("instance_id", label)))
        name = f"manual-{subject}-{stamp}-{uuid.uuid4().hex[:6]}"[:72]
        answer = self.region.client("stepfunctions").start_execution(
            stateMachineArn=self.machine_arn(machine), name=name, input=json.dumps(given)
        )
        return str(answer["executionArn"])

    @property
    def task_token_pattern(self) -> str:
        """What a task token looks like in a text."""
        from lab.asl.engine import TOKEN_PREFIX

        return f"{TOKEN_PREFIX}[0-9A-Za-z]{{32,}}"

    # -- the world ---------------------------------------------------------------------------------------------------

    def create_group(self, group: Mapping[str, Any]) -> None:
        """Make a group of a scenario, with its launch template, tags and hooks, all in one call as AWS wants it."""
        name = group["name"]
        tags = {
            "autojoin:cluster": group.get("cluster", CLUSTER),
            "autojoin:role": group.get("role", "worker"),
            "autojoin:partition": group.get("partition", "rp1"),
        }
        foreign = tags["autojoin:cluster"] is None
        if foreign:
            tags = {"team": "somebody-else"}
        given: Mapping[str, str] = group.get("instance_tags") or {}
        example = self.workers
        if tags.get("autojoin:role") in MASTER_ROLES and tags["autojoin:partition"]:
            example = self._group_of_masters(tags["autojoin:partition"], tags["autojoin:role"])
        template = dict(self._launched_by(example))
        if given:
            template["TagSpecifications"] = [
                {"ResourceType": "instance", "Tags": [{"Key": key, "Value": value} for key, value in given.items()]}
            ]
        self.region.client("ec2").create_launch_template(LaunchTemplateName=f"{name}-template", LaunchTemplateData=template)
        hooks = []
        for hook in group.get("hooks", [{}]):
            launching = hook.get("transition", "launching") == "launching"
            specification = {
                "LifecycleHookName": hook.get("name", "autojoin-launching"),
                "LifecycleTransition": f"autoscaling:EC2_INSTANCE_{'LAUNCHING' if launching else 'TERMINATING'}",
                "HeartbeatTimeout": hook.get("heartbeat_s", 300),
                "DefaultResult": hook.get("default_result", "ABANDON"),
            }
            metadata = hook.get("metadata", '{"autojoin":1}')
            if metadata:
                specification["NotificationMetadata"] = metadata
            hooks.append(specification)
        if foreign:
            self.observer.foreign_groups.add(name)
        self._groups[name] = dict(group)
        self.region.client("autoscaling").create_auto_scaling_group(
            AutoScalingGroupName=name,
            LaunchTemplate={"LaunchTemplateName": f"{name}-template", "Version": "$Latest"},
            MinSize=0,
            MaxSize=group.get("max", 10),
            DesiredCapacity=group.get("desired", 0),
            VPCZoneIdentifier=self.network_outputs[f"Subnet{group.get('subnet', 'a').upper()}Id"],
            Tags=[
                {
                    "ResourceId": name, "ResourceType": "auto-scaling-group", "Key": key, "Value": value,
                    "PropagateAtLaunch": key not in given,
                }
                for key, value in tags.items()
                if value is not None
            ],
            **({"LifecycleHookSpecificationList": hooks} if hooks else {}),
        )  # fmt: skip

    def in_service(self, group: str) -> list[str]:
        """Ids of the group's instances in service."""
        return [
            i.instance_id for i in list(self.fleet.instances.values())
            if i.group == group and i.lifecycle_state == "InService" and i.state == "running"
        ]  # fmt: skip

    def node(self, instance_id: str | None) -> leftovers.Node | None:
        """The Node of an instance, whichever RP it is in, or None."""
        if instance_id not in self.fleet.instances:
            return None
        for partition, address in self.observer.addresses(NODE_ROLES).items():
            with contextlib.suppress(OSError, ValueError):
                node = leftovers.node_of(partition, address, instance_id)
                if node is not None:
                    return node
        return None

    def run_on(self, instance_id: str, script: str, timeout_s: float = 30) -> subprocess.CompletedProcess[str]:
        """Run a bash script as root on a node."""
        done = self.fleet.run_on(instance_id, ["/bin/bash", "-c", script], timeout=timeout_s)
        out, err = (text.decode() if isinstance(text, bytes) else (text or "") for text in (done.stdout, done.stderr))
        return subprocess.CompletedProcess(done.args, done.returncode, out, err)

    def hooks(self, since: float) -> list[Hook]:
        """The lifecycle actions opened since a time."""
        return hooks_of(self.journal.entries(since=since))

    def members(self, entries: Sequence[Entry]) -> list[Member]:
        """The cluster's instances: the masters and those launched within `entries`."""
        launched = {e["instance_id"] for e in entries if e["kind"] == "instance"} | set(self.masters.values())
        return [
            Member(
                instance_id=i.instance_id, group=i.group, role=i.tags.get("autojoin:role"),
                partition=i.tags.get("autojoin:partition"), lifecycle_state=i.lifecycle_state, gone=i.state != "running",
            )
            for i in list(self.fleet.instances.values())
            if i.instance_id in launched
        ]  # fmt: skip

    def logs(self, since: float, part_of_name: str = "") -> list[tuple[str, str]]:
        """(log group, line) of everything logged since a time, of groups whose name holds `part_of_name`."""
        logs = self.region.client("logs")
        found = []
        for page in logs.get_paginator("describe_log_groups").paginate():
            for group in page["logGroups"]:
                if part_of_name in group["logGroupName"]:
                    for events in logs.get_paginator("filter_log_events").paginate(
                        logGroupName=group["logGroupName"], startTime=int(since * 1000)
                    ):
                        found += [(group["logGroupName"], event["message"]) for event in events["events"]]
        return found

    def witness(self, partition: str) -> dict[str, dict[str, Any]]:
        """What the witness of a partition's founding says, by `claimed-<epoch>` and `formed-<epoch>`."""
        path = f"/autojoin/{CLUSTER}/witness/{partition}"
        pages = self.region.client("ssm").get_paginator("get_parameters_by_path").paginate(Path=path)
        return {p["Name"].rpartition("/")[2]: json.loads(p["Value"]) for page in pages for p in page["Parameters"]}

    def metric(self, name: str, since: float) -> float:
        """Sum of one of Autojoin's metrics since a time, whatever its dimensions."""
        watch = self.region.client("cloudwatch")
        total = 0.0
        for page in watch.get_paginator("list_metrics").paginate(Namespace="Autojoin", MetricName=name):
            for metric in page["Metrics"]:
                end = dt.datetime.now(dt.UTC) + dt.timedelta(minutes=1)
                points = watch.get_metric_statistics(
                    Namespace="Autojoin", MetricName=name, Dimensions=metric["Dimensions"], Statistics=["Sum"], Period=60,
                    StartTime=dt.datetime.fromtimestamp(since - since % 60, dt.UTC), EndTime=end,
                )  # fmt: skip
                total += sum(point["Sum"] for point in points["Datapoints"])
        return total

    def cli(self, argv: Sequence[str], timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
        """Run Autojoin's command line as the account's operator."""
        environment = {**os.environ, **self.region.environment(), "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
        return subprocess.run(
            [sys.executable, "-m", "cli", *argv], cwd=REPOSITORY, env=environment, stdin=subprocess.DEVNULL, capture_output=True,
            text=True, timeout=timeout_s, check=False,
        )  # fmt: skip

    def dead_letters(self) -> list[str]:
        """Bodies and attributes of the messages in every dead-letter queue; they stay there."""
        sqs = self.region.client("sqs")
        found = []
        for url in sqs.list_queues().get("QueueUrls", []):
            answer = sqs.receive_message(
                QueueUrl=url, MaxNumberOfMessages=10, VisibilityTimeout=0, MessageAttributeNames=["All"], WaitTimeSeconds=0
            )
            found += [json.dumps([m["Body"], m.get("MessageAttributes") or {}]) + m["Body"] for m in answer.get("Messages", [])]
        return found

    def texts(self, since: float, entries: Sequence[Entry]) -> Iterator[tuple[str, str]]:
        """(where, text) of everything that could leak: logs, histories, outputs of commands, logs of units."""
        yield from ((f"log {group}", line) for group, line in self.logs(since))
        states = self.region.client("stepfunctions")
        for arn in dict.fromkeys(e["arn"] for e in entries if e["kind"] == "execution"):
            for page in states.get_paginator("get_execution_history").paginate(executionArn=arn):
                yield f"history {arn.rpartition(':')[2]}", json.dumps(page["events"], default=str)
        ssm = self.region.client("ssm")
        for command_id, instance_id in dict.fromkeys((e["command_id"], e["instance_id"]) for e in entries if e["kind"] == "command"):
            with contextlib.suppress(ssm.exceptions.ClientError):
                answer = ssm.get_command_invocation(CommandId=command_id, InstanceId=instance_id)
                yield f"command {command_id}", f"{answer['StandardOutputContent']}\n{answer['StandardErrorContent']}"
        for instance in list(self.fleet.instances.values()):
            for path in sorted((instance.root / "var/log").glob("*.log")):
                yield f"log {path.name} on {instance.instance_id}", path.read_text(encoding="utf-8", errors="replace")

    def evidence(
        self, since: float, entries: Sequence[Entry], left: Sequence[Leftover], may_be_left_waiting: frozenset[str] = frozenset()
    ) -> Evidence:
        """What the invariants of a run that began at `since` and ends now are judged by; `left` is what names gone instances."""
        return Evidence(
            entries=entries,
            leftovers=tuple(left),
            ended_at=time.time(),
            may_be_left_waiting=may_be_left_waiting,
            foreign_groups=frozenset(self.observer.foreign_groups),
            texts=[("journal", json.dumps(entries, default=str)), *self.texts(since, entries)],
            task_token_pattern=self.task_token_pattern,
        )

    # -- between runs ------------------------------------------------------------------------------------------------

    def clear(self) -> None:
        """Make the lab as new for another run: no groups, no worker Nodes, the zone's records of the start, empty queues."""
        autoscaling, ec2 = self.region.client("autoscaling"), self.region.client("ec2")
        for name in list(self._groups):
            with contextlib.suppress(autoscaling.exceptions.ClientError):
                autoscaling.delete_auto_scaling_group(AutoScalingGroupName=name, ForceDelete=True)
            with contextlib.suppress(ec2.exceptions.ClientError):
                ec2.delete_launch_template(LaunchTemplateName=f"{name}-template")
        give_up = time.monotonic() + 30
        while time.monotonic() < give_up and any(
            i.group in self._groups and i.state != "terminated" for i in list(self.fleet.instances.values())
        ):
            time.sleep(0.1)
        self._groups.clear()
        self.observer.foreign_groups.clear()
        masters = set(self.masters.values())
        for partition, address in self.observer.addresses(NODE_ROLES).items():
            for node in leftovers.nodes_of(partition, address):
                if node.name not in masters:
                    with contextlib.suppress(OSError):
                        ask(f"http://{address}:8080/api/v1/nodes/{node.name}", method="DELETE")
        self._restore_records()
        self._empty_target_groups()
        self._forget_foundings()
        sqs = self.region.client("sqs")
        for url in sqs.list_queues().get("QueueUrls", []):
            sqs.purge_queue(QueueUrl=url)

    def _empty_target_groups(self) -> None:
        elb = self.region.client("elbv2")
        for group in elb.describe_target_groups()["TargetGroups"]:
            health = elb.describe_target_health(TargetGroupArn=group["TargetGroupArn"])["TargetHealthDescriptions"]
            targets = [{"Id": one["Target"]["Id"], "Port": one["Target"]["Port"]} for one in health]
            if targets:
                elb.deregister_targets(TargetGroupArn=group["TargetGroupArn"], Targets=targets)

    def _forget_foundings(self) -> None:
        """No partition was ever founded: what is kept for ever outside of a lab goes here (table, witness, keys, later declarations)."""
        dynamodb, ssm, secrets = (self.region.client(service) for service in ("dynamodb", "ssm", "secretsmanager"))
        for table in dynamodb.list_tables()["TableNames"]:
            for page in dynamodb.get_paginator("scan").paginate(TableName=table, ProjectionExpression="pk, sk"):
                for key in page["Items"]:
                    dynamodb.delete_item(TableName=table, Key=key)
        for name in self._parameters() - self._parameters_before:
            ssm.delete_parameter(Name=name)
        self.look_at_declarations()
        for page in secrets.get_paginator("list_secrets").paginate():
            for secret in page["SecretList"]:
                secrets.delete_secret(SecretId=secret["ARN"], ForceDeleteWithoutRecovery=True)

    def _parameters(self) -> set[str]:
        pages = self.region.client("ssm").get_paginator("get_parameters_by_path").paginate(Path="/autojoin", Recursive=True)
        return {parameter["Name"] for page in pages for parameter in page["Parameters"]}

    def _records(self) -> list[tuple[str, dict[str, Any]]]:
        route53 = self.region.client("route53")
        return [
            (zone["Id"], record)
            for zone in route53.list_hosted_zones()["HostedZones"]
            for record in route53.list_resource_record_sets(HostedZoneId=zone["Id"])["ResourceRecordSets"]
            if record["Type"] not in ("NS", "SOA")
        ]

    def _restore_records(self) -> None:
        route53 = self.region.client("route53")
        now = self._records()
        changes = [(zone, "DELETE", r) for zone, r in now if (zone, r) not in self._before]
        changes += [(zone, "CREATE", r) for zone, r in self._before if (zone, r) not in now]
        for zone, action, record in changes:
            route53.change_resource_record_sets(
                HostedZoneId=zone, ChangeBatch={"Changes": [{"Action": action, "ResourceRecordSet": record}]}
            )

    def look_at_declarations(self) -> None:
        """Tell the observer which tenant partitions and which ranges of pods are declared now."""
        pages = self.region.client("ssm").get_paginator("get_parameters_by_path").paginate(Path=f"/autojoin/{CLUSTER}/partitions")
        declared = [json.loads(parameter["Value"]) for page in pages for parameter in page["Parameters"]]
        self.observer.pod_cidrs = {str(one["id"]): str(one["pod_cidr"]) for one in declared if one.get("pod_cidr")}
        self.observer.tenants = {str(one["id"]) for one in declared if one["kind"] != "rp"}


def _fingerprint() -> str:
    digest = hashlib.sha256(f"{sys.version_info[:2]}".encode())
    for name in BUILD_INPUTS:
        top = REPOSITORY / name
        for path in [top] if top.is_file() else sorted(p for p in top.rglob("*") if p.is_file() and "__pycache__" not in p.parts):
            digest.update(str(path.relative_to(REPOSITORY)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:20]
