"""The fleet: instances as folders with real processes, their boot and end, their SSM agents, their metadata and names.

ministack's instances are records, its Auto Scaling groups invent ids and its Run Command runs nothing. With a fleet attached
(`region.fleet`), an instance is a folder (its AUTOJOIN_ROOT), a loopback address, a metadata endpoint, a service manager
and an SSM agent that runs documents as real processes. The region's modules instances, auto_scaling and run_command speak
AWS's protocols; what happens is here.

Faults act through `interceptors`: functions (point, context) → None or what is to happen. Points and what they may return:
    address          {subnet_id, group}                                   → the address to use
    boot             {instance_id, group}                                 → "never", or a delay in seconds
    agent            {instance_id, group}                                 → "never", or a delay in seconds
    agent_version    {instance_id, group}                                 → the version it reports
    source_dest_check {instance_id, group, value}                         → "stuck": the call succeeds without effect
    delivery         {instance_id, group, command_id, document}           → "lost"
    command_script   {instance_id, group, command_id, document, step, script} → a script to run instead
    event            {source, detail_type, detail}                        → "lost", "duplicate", or a delay in seconds
The first answer that is not None counts.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import logging
import os
import queue
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lab import lifeline
from lab.fleet import names
from lab.fleet.commands import Invocation, Managed, Outcome
from lab.fleet.control import ControlSocket
from lab.fleet.documents import Step
from lab.fleet.groups import Group, LaunchFailed, Member
from lab.fleet.instance import STATE_CODES, Instance
from lab.fleet.metadata import CREDENTIALS_S, PORT, MetadataService
from lab.fleet.network import Network
from lab.fleet.service_manager import ServiceManager

if TYPE_CHECKING:
    from lab.observer.journal import Journal
    from lab.region.region import Region

SHIMS = Path(__file__).parent / "bin"
PENDING_S = 0.2
"""Seconds an instance is `pending` in EC2, and `shutting-down`."""
NAMES_S = 0.3
"""Seconds between two looks at the region's zones."""
FOLDERS = ("etc/systemd/system", "opt/arktos", "root", "run/lab/curl.d", "tmp", "var/lib", "var/log")
ORCHESTRATION = "var/lib/amazon/ssm/{instance}/document/orchestration/{command}/{step}"

Interceptor = Callable[[str, dict[str, Any]], object | None]
_log = logging.getLogger(__name__)


class Fleet:
    """The instances of one lab. Attaches itself to the region; `stop` it before the region."""

    def __init__(
        self, region: Region, root: Path, image: Path, journal: Journal, network: int, *, boot_s: float = 1.0, agent_s: float = 0.5
    ) -> None:
        """A fleet whose instances live in <root>/instances.

        image     folder whose bin/ becomes /opt/arktos/bin of every instance
        network   N of the lab's 127.N.0.0/16
        boot_s    seconds from launch to booted; agent_s from there to the SSM agent online
        """
        self.region, self.journal, self.network = region, journal, network
        self.root, self.image = Path(root).resolve(), Path(image).resolve()
        self.boot_s, self.agent_s = boot_s, agent_s
        self.instances: dict[str, Instance] = {}
        self.interceptors: list[Interceptor] = []
        self.timers = region.timers  # type: ignore[attr-defined]
        self.groups = region.groups  # type: ignore[attr-defined]
        self.commands = region.commands  # type: ignore[attr-defined]
        self._lock = threading.RLock()
        self._used: dict[str, int] = {}
        self._running: dict[tuple[str, str], subprocess.Popen[Any]] = {}
        self._cancelled: set[tuple[str, str]] = set()
        self._credentials: dict[str, dict[str, Any]] = {}
        self._clients: dict[str, Any] = {}
        self._over = threading.Event()
        self._shims = self._render_shims()
        self._named: dict[str, dict[str, list[str]]] = {}
        self._outbox: queue.SimpleQueue[tuple[str, str, dict[str, Any], list[str]] | None] = queue.SimpleQueue()
        self._publisher = threading.Thread(target=self._publish_all, name="fleet-events", daemon=True)
        self._publisher.start()
        self._namer = threading.Thread(target=self._watch_names, name="fleet-names", daemon=True)
        self._namer.start()
        region.fleet = self  # type: ignore[attr-defined]
        self.commands.agents = self
        self.groups.reconcile()

    def stop(self) -> None:
        """Cut the power of everything. Safe to call twice."""
        if self._over.is_set():
            return
        self._over.set()
        self.region.fleet = None  # type: ignore[attr-defined]
        self.commands.agents = None
        for instance in list(self.instances.values()):
            self._power_off(instance)
        self._outbox.put(None)
        self._publisher.join(timeout=10)
        self._namer.join(timeout=10)

    # -- use -----------------------------------------------------------------------------------------------------------

    def environment(self, instance: Instance) -> dict[str, str]:
        """The complete environment of everything on a node."""
        return {
            "AUTOJOIN_ROOT": str(instance.root),
            "PATH": f"{self._shims}:{self.image}/bin:/usr/bin:/bin",
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": f"http://{instance.address}:{PORT}",
            "AWS_ENDPOINT_URL": self.region.endpoint_url,
            "AWS_DEFAULT_REGION": self.region.name,
            "CURL_HOME": str(instance.root / "root"),
            "HOME": str(instance.root / "root"),
            lifeline.MARKER: lifeline.lab_id(),
            "LC_ALL": "C.UTF-8",
        }

    def run_on(
        self, instance_id: str, argv: Sequence[str], *, env: Mapping[str, str] | None = None, timeout: float = 30
    ) -> subprocess.CompletedProcess[str]:
        """Run a program as root on a node; its output comes back as text. Raises subprocess.TimeoutExpired."""
        instance = self.instances[instance_id]
        if instance.off or instance.booted_at is None:
            raise RuntimeError(f"{instance_id} is {instance.state} and not up")
        process = lifeline.popen(
            list(argv), env={**self.environment(instance), **(env or {})}, cwd=instance.root, instance_id=instance_id,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
        )  # fmt: skip
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            _kill_group(process)
            process.communicate()
            raise
        return subprocess.CompletedProcess(list(argv), process.returncode, out, err)

    def kill(self, instance_id: str) -> None:
        """Power off: its processes are gone, EC2 says terminated; no hook, no shutdown."""
        instance = self.instances[instance_id]
        self._power_off(instance)
        if self._move(instance, ("pending", "running", "shutting-down"), "terminated", "killed"):
            self.groups.gone(instance_id)

    def intercept(self, point: str, **context: Any) -> object | None:
        """What a fault wants to happen at a point; None when nothing does."""
        for interceptor in list(self.interceptors):
            wanted = interceptor(point, context)
            if wanted is not None:
                return wanted
        return None

    def publish(self, source: str, detail_type: str, detail: Mapping[str, Any], resources: Sequence[str] = ()) -> None:
        """Have an event of AWS's own published, in order, soon."""
        self._outbox.put((source, detail_type, dict(detail), list(resources)))

    # -- launch and end ------------------------------------------------------------------------------------------------

    def launch_instance(
        self, *, subnet_id: str, image_id: str, instance_type: str, profile: Mapping[str, str] | None, security_groups: Sequence[str],
        tags: Mapping[str, str], metadata_options: Mapping[str, Any] | None = None, group: str | None = None,
        address: str | None = None, launch_template: Mapping[str, Any] | None = None,
    ) -> Instance:  # fmt: skip
        """A new instance, `pending`. Raises LaunchFailed.

        profile   {"Arn": …} or {"Name": …} of the instance profile
        """
        from ministack.services import ec2

        if self._over.is_set():
            raise LaunchFailed("the fleet is stopped")
        subnet = ec2._subnets.get(subnet_id)
        if subnet is None:
            raise LaunchFailed(f"The subnet ID '{subnet_id}' does not exist")
        profile_record, role = _profile(profile)
        address = address or self._address(subnet_id, str(subnet["CidrBlock"]), group)
        record = ec2._launch_instances_internal(
            image_id, instance_type, subnet_id, 1, sg_ids=list(security_groups) or None, requested_private_ip=address,
            iam_profile={"Arn": profile_record["Arn"], "Id": profile_record["InstanceProfileId"]} if profile_record else None,
        )[0]  # fmt: skip
        instance_id = record["InstanceId"]
        number = int(ipaddress.ip_address(address))
        mac = ":".join(f"{part:02x}" for part in (0x02, 0x0A, *number.to_bytes(4, "big")))
        record["Placement"]["AvailabilityZone"] = subnet["AvailabilityZone"]
        record["VpcId"] = subnet["VpcId"]
        ec2._tags[instance_id] = [{"Key": key, "Value": value} for key, value in tags.items()]
        instance = Instance(
            instance_id=instance_id, group=group, address=address, subnet_id=subnet_id, subnet_cidr=str(subnet["CidrBlock"]),
            vpc_id=subnet["VpcId"], zone=subnet["AvailabilityZone"], root=self.root / "instances" / instance_id, mac=mac,
            image_id=image_id, instance_type=instance_type, profile_arn=profile_record["Arn"] if profile_record else None, role=role,
            launched_at=self.timers.now(), boot_s=self.boot_s, agent_s=self.agent_s, groups=self.groups, record=record,
            metadata_options={"HttpTokens": "required", "HttpEndpoint": "enabled", "HttpPutResponseHopLimit": 1, "InstanceMetadataTags": "disabled", **(metadata_options or {})},
            launch_template=dict(launch_template) if launch_template else None,
        )  # fmt: skip
        with self._lock:
            self.instances[instance_id] = instance
        self._move(instance, ("pending",), "pending", "launched")
        self.timers.after(PENDING_S, lambda: self._runs(instance))
        delay = self.intercept("boot", instance_id=instance_id, group=group)
        if delay != "never":
            instance.boot_s = float(delay) if isinstance(delay, int | float) else instance.boot_s
            self.timers.after(max(instance.boot_s, PENDING_S), lambda: _in_thread(self._boot, instance, name=f"boot-{instance_id}"))
        return instance

    def launch(self, group: Group, subnet_id: str) -> Member:
        """An instance for a group, from its launch template."""
        from lab.region import instances

        template = instances.template_of(group.settings.get("LaunchTemplate"))
        data = template["data"]
        interface = (data.get("NetworkInterfaces") or [{}])[0]
        subnet_id = subnet_id or interface.get("SubnetId", "")
        tags = {
            tag["Key"]: str(tag["Value"])
            for spec in data.get("TagSpecifications") or []
            if spec.get("ResourceType") == "instance"
            for tag in spec.get("Tags") or []
        }
        tags |= {tag["Key"]: str(tag["Value"]) for tag in group.tags if tag.get("PropagateAtLaunch")}
        tags["aws:autoscaling:groupName"] = group.name
        tags["aws:ec2launchtemplate:id"] = template["id"]
        tags["aws:ec2launchtemplate:version"] = str(template["version"])
        shown = {"LaunchTemplateId": template["id"], "LaunchTemplateName": template["name"], "Version": str(template["version"])}
        instance = self.launch_instance(
            subnet_id=subnet_id, image_id=data.get("ImageId") or "ami-00000000", instance_type=data.get("InstanceType") or "t3.micro",
            profile=data.get("IamInstanceProfile"), security_groups=data.get("SecurityGroupIds") or interface.get("Groups") or [],
            tags=tags, metadata_options=data.get("MetadataOptions"), group=group.name, launch_template=shown,
        )  # fmt: skip
        return Member(instance.instance_id, subnet_id, instance.zone, instance.instance_type, instance.image_id, shown)

    def terminate(self, instance_id: str) -> None:
        """Begin to end an instance: shutting-down, then terminated. Repeating it does nothing."""
        instance = self.instances[instance_id]
        if self._move(instance, ("pending", "running"), "shutting-down", "shutting-down"):
            self.timers.after(PENDING_S, lambda: _in_thread(self._end, instance, name=f"end-{instance_id}"))

    def set_source_dest_check(self, instance_id: str, value: bool) -> None:
        """Switch an instance's source/destination check."""
        instance = self.instances[instance_id]
        if self.intercept("source_dest_check", instance_id=instance_id, group=instance.group, value=value) == "stuck":
            return
        instance.source_dest_check = value
        instance.record["SourceDestCheck"] = value
        if instance.booted_at is not None and not instance.off:
            _write(instance.root / "run/lab/source_dest_check", str(value).lower())

    def _address(self, subnet_id: str, cidr: str, group: str | None) -> str:
        wanted = self.intercept("address", subnet_id=subnet_id, group=group)
        if isinstance(wanted, str):
            return wanted
        net = ipaddress.ip_network(cidr)
        with self._lock:
            number = self._used.get(subnet_id, 9) + 1
            if number >= net.num_addresses - 1:
                raise LaunchFailed(
                    f"There are not enough free addresses in subnet '{subnet_id}' to satisfy the requested number of instances."
                )
            self._used[subnet_id] = number
        return str(net[number])

    def _runs(self, instance: Instance) -> None:
        if self._move(instance, ("pending",), "running", "running"):
            self.groups.running(instance.instance_id)

    def _end(self, instance: Instance) -> None:
        self._power_off(instance)
        if self._move(instance, ("shutting-down",), "terminated", "terminated"):
            self.groups.gone(instance.instance_id)

    def _move(self, instance: Instance, before: Sequence[str], state: str, event: str) -> bool:
        """Change the EC2 state and tell everybody; False when the instance was in none of the states `before`."""
        with self._lock:  # not held while others are told: they may ask the groups, whose lock comes before this one
            if instance.state not in before:
                return False
            instance.state = state
            instance.record["State"] = {"Code": STATE_CODES[state], "Name": state}
            if state == "terminated":
                instance.terminated_at = self.timers.now()
                instance.record["_terminated_at"] = time.time()
        self._tell(instance, event)
        detail = {"instance-id": instance.instance_id, "state": state}
        arn = f"arn:aws:ec2:{self.region.name}:{self.region.account}:instance/{instance.instance_id}"
        self.publish("aws.ec2", "EC2 Instance State-change Notification", detail, [arn])
        return True

    def _tell(self, instance: Instance, event: str) -> None:
        self.journal.record(
            "instance", instance_id=instance.instance_id, group=instance.group, event=event, address=instance.address
        )

    def _power_off(self, instance: Instance) -> None:
        with self._lock:
            if instance.off:
                return
            instance.off = True
            instance.agent_online = False
        if instance.control:
            instance.control.stop()
        if instance.manager:
            instance.manager.stop()
        if instance.metadata:
            instance.metadata.stop()
        wanted, quiet = f"AUTOJOIN_ROOT={instance.root}".encode(), 0
        while quiet < 2:
            quiet = 0 if _kill_where(wanted) else quiet + 1
            time.sleep(0.02)

    # -- boot ----------------------------------------------------------------------------------------------------------

    def _boot(self, instance: Instance) -> None:
        if not instance.alive or instance.off:
            return
        root = instance.root
        for folder in FOLDERS:
            (root / folder).mkdir(parents=True, exist_ok=True)
        (root / "opt/arktos/bin").symlink_to(self.image / "bin")
        (root / "tmp").chmod(0o1777)
        _write(root / "run/lab/address", instance.address)
        _write(root / "run/lab/source_dest_check", str(instance.source_dest_check).lower())
        instance.network = Network(root)
        instance.network.set_up(instance.address, instance.subnet_cidr, instance.mac)
        names.render(root, self.region, instance.vpc_id)

        def popen(argv: Sequence[str], **kw: Any) -> subprocess.Popen[Any]:
            return lifeline.popen(argv, instance_id=instance.instance_id, **kw)

        def render_names(_: Sequence[str]) -> tuple[int, str, str]:
            names.render(root, self.region, instance.vpc_id)
            return 0, "", ""

        instance.manager = ServiceManager(root, self.environment(instance), popen)
        commands = {
            "systemctl": instance.manager.systemctl,
            "journalctl": instance.manager.journalctl,
            "ip": instance.network.run,
            "autojoin-lab-names": render_names,
        }
        try:
            instance.control = ControlSocket(root, commands)
            if instance.metadata_options["HttpEndpoint"] == "enabled":
                instance.metadata = MetadataService(instance.address, _Metadata(self, instance))
        except OSError as error:
            _log.error("instance %s on %s did not boot: %s", instance.instance_id, instance.address, error)
            self.journal.record(
                "instance", instance_id=instance.instance_id, group=instance.group, event="boot_failed", address=instance.address,
                detail=str(error),
            )  # fmt: skip
            return
        with self._lock:
            stopped = instance.off
            instance.booted_at = self.timers.now()
        if stopped:
            instance.off = False
            self._power_off(instance)
            return
        instance.manager.start_enabled()
        self._tell(instance, "booted")
        delay = self.intercept("agent", instance_id=instance.instance_id, group=instance.group)
        if delay == "never":
            return
        agent_s = float(delay) if isinstance(delay, int | float) else instance.agent_s
        self.timers.after(agent_s, lambda: self._agent(instance))

    def _agent(self, instance: Instance) -> None:
        if instance.off or not instance.alive:
            return
        if not _role_allows(instance.role, "ssm:UpdateInstanceInformation", self.region.account, self.region.name):
            self._tell(instance, "agent_refused")
            self.timers.after(5.0, lambda: self._agent(instance))
            return
        version = self.intercept("agent_version", instance_id=instance.instance_id, group=instance.group)
        instance.agent_version = str(version or instance.agent_version)
        instance.agent_online_at = self.timers.now()
        instance.agent_registered = instance.agent_online = True
        self._tell(instance, "agent_online")
        self.commands.agent_online(instance.instance_id)

    def set_agent(self, instance_id: str, online: bool) -> None:
        """Have the agent of a running instance lose its connection, or find it again."""
        instance = self.instances[instance_id]
        instance.agent_online = online and not instance.off
        self._tell(instance, "agent_online" if instance.agent_online else "agent_lost")
        if instance.agent_online:
            self.commands.agent_online(instance_id)

    def _render_shims(self) -> Path:
        """The shims with this python as their interpreter: a node's PATH need not have one."""
        folder = self.root / "shims"
        folder.mkdir(parents=True, exist_ok=True)
        for source in SHIMS.iterdir():
            if source.is_file():
                _, _, code = source.read_text(encoding="utf-8").partition("\n")
                _write(folder / source.name, f"#!{os.path.realpath(sys.executable)} -IS\n{code}")
                (folder / source.name).chmod(0o755)
        return folder

    # -- SSM agents (called by commands, its lock held) ------------------------------------------------------------------

    def managed(self) -> list[Managed]:
        """The instances that Systems Manager knows."""
        return [
            Managed(one.instance_id, one.agent_online, one.agent_version, one.tags)
            for one in list(self.instances.values())
            if one.agent_registered and one.alive
        ]

    def lost(self, invocation: Invocation) -> bool:
        """Whether a fault swallows the message."""
        return self.intercept("delivery", **self._context(invocation)) == "lost"

    def run(self, invocation: Invocation, steps: Sequence[Step], environment: Mapping[str, str]) -> None:
        """Run the steps in a thread of their own."""
        _in_thread(self._run_steps, invocation, steps, environment, name=f"command-{invocation.command.command_id[:8]}")

    def kill_invocation(self, invocation: Invocation) -> None:
        """Kill the process group that an invocation runs."""
        key = (invocation.command.command_id, invocation.instance_id)
        with self._lock:
            self._cancelled.add(key)
            process = self._running.get(key)
        if process is not None:
            _kill_group(process)

    def _context(self, invocation: Invocation) -> dict[str, Any]:
        instance = self.instances[invocation.instance_id]
        return {
            "instance_id": invocation.instance_id,
            "group": instance.group,
            "command_id": invocation.command.command_id,
            "document": invocation.command.document.name,
        }

    def _run_steps(self, invocation: Invocation, steps: Sequence[Step], environment: Mapping[str, str]) -> None:
        instance = self.instances[invocation.instance_id]
        for step in steps:
            try:
                outcome = self._run_step(instance, invocation, step, environment)
            except OSError as error:
                outcome = Outcome(step.name, 1, stderr=f"failed to run commands: {error}")
            if instance.off or self._over.is_set():
                return
            self.commands.reported(invocation, outcome)
            if (outcome.exit_code and not step.go_on_after_failure) or outcome.timed_out or self._is_cancelled(invocation):
                break
        self.commands.finished(invocation)
        if invocation.command.output.get("CloudWatchOutputEnabled"):
            self._write_to_logs(instance, invocation)

    def _is_cancelled(self, invocation: Invocation) -> bool:
        return (invocation.command.command_id, invocation.instance_id) in self._cancelled

    def _run_step(self, instance: Instance, invocation: Invocation, step: Step, environment: Mapping[str, str]) -> Outcome:
        key = (invocation.command.command_id, invocation.instance_id)
        folder = instance.root / ORCHESTRATION.format(instance=instance.instance_id, command=key[0], step=step.name)
        folder.mkdir(parents=True)
        script = folder / "_script.sh"
        wanted = self.intercept("command_script", **self._context(invocation), step=step.name, script=step.script)
        script.write_text(wanted if isinstance(wanted, str) else step.script, encoding="utf-8")
        script.chmod(0o700)
        outcome = Outcome(step.name, -1, started_at=self.timers.now())
        with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
            with self._lock:
                if key in self._cancelled or instance.off:
                    return outcome
                process = self._running[key] = lifeline.popen(
                    ["/bin/sh", "-c", str(script)], env={**self.environment(instance), **environment},
                    cwd=step.working_directory or folder, instance_id=instance.instance_id, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                )  # fmt: skip
            try:
                process.wait(timeout=step.timeout_s)
            except subprocess.TimeoutExpired:
                outcome.timed_out = True
                _kill_group(process)
                process.wait()
            with self._lock:
                del self._running[key]
        outcome.exit_code = process.returncode if process.returncode >= 0 else 128 - process.returncode
        outcome.ended_at = self.timers.now()
        outcome.stdout = (folder / "stdout").read_text(encoding="utf-8", errors="replace")
        outcome.stderr = (folder / "stderr").read_text(encoding="utf-8", errors="replace")
        return outcome

    def _write_to_logs(self, instance: Instance, invocation: Invocation) -> None:
        """As the agent does, with the instance's own role: it needs leave to write to the log group."""
        command = invocation.command
        group = command.output.get("CloudWatchLogGroupName") or f"/aws/ssm/{command.document.name}"
        try:
            logs = self._client(instance, "logs")
            for outcome in invocation.outcomes:
                step = outcome.step.replace(":", "-")
                for kind, text in (("stdout", outcome.stdout), ("stderr", outcome.stderr)):
                    lines = [line for line in text.splitlines() if line.strip()]
                    if not lines:
                        continue
                    stream = f"{command.command_id}/{instance.instance_id}/{step}/{kind}"
                    logs.create_log_stream(logGroupName=group, logStreamName=stream)
                    at = int(time.time() * 1000)
                    events = [{"timestamp": at, "message": line} for line in lines]
                    for first in range(0, len(events), 1000):
                        logs.put_log_events(logGroupName=group, logStreamName=stream, logEvents=events[first : first + 1000])
        except Exception as error:  # as on AWS: the command's own result does not change
            _log.warning("command %s: its output did not reach %s: %s", command.command_id, group, error)

    def _client(self, instance: Instance, service: str) -> Any:
        got = self.credentials(instance)
        if got is None:
            raise PermissionError(f"{instance.instance_id} has no role")
        with self._lock:
            if instance.instance_id not in self._clients:
                self._clients[instance.instance_id] = self.region.client(
                    service, aws_access_key_id=got["AccessKeyId"], aws_secret_access_key=got["SecretAccessKey"],
                    aws_session_token=got["Token"],
                )  # fmt: skip
            return self._clients[instance.instance_id]

    # -- credentials, names, events --------------------------------------------------------------------------------------

    def credentials(self, instance: Instance) -> dict[str, Any] | None:
        """STS credentials of the instance profile's role, the same until they are about to expire; None without a role."""
        from ministack.services import iam, sts

        role = iam._roles.get(instance.role) if instance.role else None
        if role is None or not _trusts_ec2(role):
            return None
        with self._lock:
            kept = self._credentials.get(instance.instance_id)
            if kept is None or kept["until"] < time.time() + 600:
                until = time.time() + CREDENTIALS_S
                kept = {
                    "until": until,
                    "AccessKeyId": "ASIA" + secrets.token_hex(8).upper(),
                    "SecretAccessKey": secrets.token_urlsafe(30),
                    "Token": secrets.token_urlsafe(60),
                    "Expiration": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(until)),
                }
                sts.register_session(
                    kept["AccessKeyId"],
                    {
                        "Arn": f"arn:aws:sts::{self.region.account}:assumed-role/{instance.role}/{instance.instance_id}",
                        "UserId": f"{role.get('RoleId', instance.role)}:{instance.instance_id}",
                        "SecretAccessKey": kept["SecretAccessKey"],
                        "SessionToken": kept["Token"],
                        "Expiration": until,
                        "AccountId": self.region.account,
                        "PrincipalType": "AssumedRole",
                    },
                )
                self._credentials[instance.instance_id] = kept
            return {name: kept[name] for name in ("AccessKeyId", "SecretAccessKey", "Token", "Expiration")}

    def _watch_names(self) -> None:
        while not self._over.wait(NAMES_S):
            try:
                by_vpc: dict[str, list[Instance]] = {}
                for instance in list(self.instances.values()):
                    if instance.booted_at is not None and not instance.off:
                        by_vpc.setdefault(instance.vpc_id, []).append(instance)
                for vpc_id, instances in by_vpc.items():
                    now = names.zone_names(vpc_id)
                    if now != self._named.get(vpc_id):
                        self._named[vpc_id] = now
                        for instance in instances:
                            names.render(instance.root, self.region, vpc_id)
            except Exception:
                _log.exception("names could not be rendered")

    def _publish_all(self) -> None:
        while (event := self._outbox.get()) is not None:
            source, detail_type, detail, resources = event
            wanted = self.intercept("event", source=source, detail_type=detail_type, detail=detail)
            try:
                if isinstance(wanted, int | float) and not isinstance(wanted, bool):
                    self.timers.after(float(wanted), lambda e=event: self.region.put_event(*e))
                elif wanted != "lost":
                    for _ in range(2 if wanted == "duplicate" else 1):
                        self.region.put_event(source, detail_type, detail, resources)
            except Exception:
                _log.exception("event %s could not be published", detail_type)


class _Metadata:
    """What the metadata service tells about an instance."""

    def __init__(self, fleet: Fleet, instance: Instance) -> None:
        self._fleet, self._instance = fleet, instance
        self.tokens_required = instance.metadata_options["HttpTokens"] == "required"
        self.tags_allowed = instance.metadata_options["InstanceMetadataTags"] == "enabled"

    def flat(self) -> dict[str, str]:
        one, region = self._instance, self._fleet.region
        interface = f"network/interfaces/macs/{one.mac}"
        tree = {
            "ami-id": one.image_id,
            "hostname": f"ip-{one.address.replace('.', '-')}.ec2.internal",
            "local-hostname": f"ip-{one.address.replace('.', '-')}.ec2.internal",
            "instance-id": one.instance_id,
            "instance-type": one.instance_type,
            "local-ipv4": one.address,
            "mac": one.mac,
            "placement/availability-zone": one.zone,
            "placement/region": region.name,
            "services/domain": "amazonaws.com",
            "services/partition": "aws",
            f"{interface}/device-number": "0",
            f"{interface}/interface-id": interface_id(one),
            f"{interface}/local-ipv4s": one.address,
            f"{interface}/mac": one.mac,
            f"{interface}/subnet-id": one.subnet_id,
            f"{interface}/subnet-ipv4-cidr-block": one.subnet_cidr,
            f"{interface}/vpc-id": one.vpc_id,
            f"{interface}/vpc-ipv4-cidr-block": _vpc_cidr(one.vpc_id),
        }
        state = one.lifecycle_state
        if state is not None:
            tree["autoscaling/target-lifecycle-state"] = "Terminated" if state.startswith("Terminat") else "InService"
        if one.profile_arn:
            tree["iam/info"] = json.dumps({"Code": "Success", "InstanceProfileArn": one.profile_arn}, indent=2)
        for key, value in one.tags.items():
            tree[f"tags/instance/{key}"] = value
        return tree

    def role(self) -> str | None:
        return self._instance.role

    def credentials(self) -> dict[str, Any] | None:
        return self._fleet.credentials(self._instance)

    def document(self) -> dict[str, Any]:
        one, region = self._instance, self._fleet.region
        return {
            "accountId": region.account, "architecture": "x86_64", "availabilityZone": one.zone, "imageId": one.image_id,
            "instanceId": one.instance_id, "instanceType": one.instance_type, "privateIp": one.address, "region": region.name,
            "pendingTime": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(one.launched_at)), "version": "2017-09-30",
        }  # fmt: skip


def interface_id(instance: Instance) -> str:
    """Id of an instance's only network interface."""
    return f"eni-{instance.instance_id[2:]}"


def _vpc_cidr(vpc_id: str) -> str:
    from ministack.services import ec2

    return str((ec2._vpcs.get(vpc_id) or {}).get("CidrBlock", ""))


def _profile(given: Mapping[str, str] | None) -> tuple[dict[str, Any] | None, str | None]:
    """The instance profile's record and its role's name. Raises LaunchFailed for one that does not exist."""
    from ministack.services import iam

    if not given:
        return None, None
    name = given.get("Name") or str(given.get("Arn", "")).rsplit("/", 1)[-1]
    profile = iam._lookup_instance_profile(name=name)
    if profile is None:
        raise LaunchFailed(f"Value ({name}) for parameter iamInstanceProfile.name is invalid. Invalid IAM Instance Profile name")
    roles = [role if isinstance(role, str) else role.get("RoleName") for role in profile.get("Roles") or []]
    return profile, (str(roles[0]).rsplit("/", 1)[-1] if roles else None)


def _trusts_ec2(role: Mapping[str, Any]) -> bool:
    document = role.get("AssumeRolePolicyDocument") or {}
    document = json.loads(document) if isinstance(document, str) else document
    for statement in document.get("Statement", []):
        principal = statement.get("Principal")
        services = principal.get("Service", []) if isinstance(principal, dict) else []
        if statement.get("Effect") == "Allow" and "ec2.amazonaws.com" in ([services] if isinstance(services, str) else services):
            return True
    return False


def _role_allows(role_name: str | None, action: str, account: str, region: str) -> bool:
    """Whether a role may do something on every resource, by its own policies."""
    from ministack.core import iam_evaluator
    from ministack.services import iam

    role = iam._roles.get(role_name) if role_name else None
    if role is None or not _trusts_ec2(role):
        return False
    if any(arn.endswith(":policy/AmazonSSMManagedInstanceCore") for arn in role.get("AttachedPolicies", [])):
        return True
    context = iam_evaluator.EvalContext(
        principal_arn=f"arn:aws:sts::{account}:assumed-role/{role_name}/agent", principal_type="AssumedRole", principal_account=account,
        action=action, resource_arn="*", region=region,
    )  # fmt: skip
    return bool(iam_evaluator.evaluate(context, iam_evaluator._gather_role_policies(str(role_name), account)).decision == "Allow")


def _in_thread(function: Callable[..., None], *arguments: Any, name: str) -> None:
    threading.Thread(target=function, args=arguments, name=name, daemon=True).start()


def _kill_group(process: subprocess.Popen[Any]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _kill_where(wanted: bytes) -> int:
    """Kill every process with that line in its environment; the number of those found."""
    found = 0
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                if wanted in Path("/proc", entry, "environ").read_bytes().split(b"\0"):
                    os.kill(int(entry), signal.SIGKILL)
                    found += 1
            except (OSError, ProcessLookupError):
                continue
    return found


def _write(path: Path, text: str) -> None:
    new = path.with_name(f".{path.name}.{threading.get_ident()}")
    new.write_text(text, encoding="utf-8")
    new.replace(path)
