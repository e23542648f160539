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
import logging
import os
import queue
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
from lab.fleet.agents import Agents, kill_group
from lab.fleet.control import ControlSocket
from lab.fleet.groups import Group, LaunchFailed, Member
from lab.fleet.identity import Identities, SelfKnowledge, profile_of
from lab.fleet.instance import STATE_CODES, Instance
from lab.fleet.metadata import PORT, MetadataService
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
METADATA_OPTIONS = {
    "HttpTokens": "required", "HttpEndpoint": "enabled", "HttpPutResponseHopLimit": 1, "InstanceMetadataTags": "disabled",
}  # fmt: skip
"""What holds where neither the call nor the launch template says otherwise."""
FOLDERS = ("etc/systemd/system", "opt/arktos", "root", "run/lab/curl.d", "tmp", "var/lib", "var/log")

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
        self.identities = Identities(region)
        self._over = threading.Event()
        self._shims = self._render_shims()
        self._named: dict[str, dict[str, list[str]]] = {}
        self._outbox: queue.SimpleQueue[tuple[str, str, dict[str, Any], list[str]] | None] = queue.SimpleQueue()
        self._publisher = threading.Thread(target=self._publish_all, name="fleet-events", daemon=True)
        self._publisher.start()
        self._namer = threading.Thread(target=self._watch_names, name="fleet-names", daemon=True)
        self._namer.start()
        region.fleet = self  # type: ignore[attr-defined]
        self.commands.agents = Agents(self)
        self.groups.reconcile()

    @property
    def stopped(self) -> bool:
        """Whether the fleet is being stopped, or was."""
        return self._over.is_set()

    def stop(self) -> None:
        """Cut the power of everything. Safe to call twice."""
        if self._over.is_set():
            return
        self._over.set()
        self.region.fleet = None  # type: ignore[attr-defined]
        self.commands.agents = None
        for instance in list(self.instances.values()):
            self._disconnect(instance)
        _kill_all(f"AUTOJOIN_ROOT={self.root}/instances/".encode())
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
            kill_group(process)
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
        self,
        *,
        subnet_id: str,
        image_id: str,
        instance_type: str,
        profile: Mapping[str, str] | None,
        security_groups: Sequence[str],
        tags: Mapping[str, str],
        metadata_options: Mapping[str, Any] | None = None,
        group: str | None = None,
        address: str | None = None,
        launch_template: Mapping[str, Any] | None = None,
    ) -> Instance:
        """A new instance, `pending`. Raises LaunchFailed.

        profile   {"Arn": …} or {"Name": …} of the instance profile
        """
        from ministack.services import ec2

        if self._over.is_set():
            raise LaunchFailed("the fleet is stopped")
        subnet = ec2._subnets.get(subnet_id)
        if subnet is None:
            raise LaunchFailed(f"The subnet ID '{subnet_id}' does not exist")
        profile_record, role = profile_of(profile)
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
            instance_id=instance_id,
            group=group,
            address=address,
            subnet_id=subnet_id,
            subnet_cidr=str(subnet["CidrBlock"]),
            vpc_id=subnet["VpcId"],
            zone=subnet["AvailabilityZone"],
            root=self.root / "instances" / instance_id,
            mac=mac,
            image_id=image_id,
            instance_type=instance_type,
            profile_arn=profile_record["Arn"] if profile_record else None,
            role=role,
            launched_at=self.timers.now(),
            boot_s=self.boot_s,
            agent_s=self.agent_s,
            groups=self.groups,
            record=record,
            metadata_options={**METADATA_OPTIONS, **(metadata_options or {})},
            launch_template=dict(launch_template) if launch_template else None,
        )
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
            subnet_id=subnet_id,
            image_id=data.get("ImageId") or "ami-00000000",
            instance_type=data.get("InstanceType") or "t3.micro",
            profile=data.get("IamInstanceProfile"),
            security_groups=data.get("SecurityGroupIds") or interface.get("Groups") or [],
            tags=tags,
            metadata_options=data.get("MetadataOptions"),
            group=group.name,
            launch_template=shown,
        )
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
        self.journal.record("instance", instance_id=instance.instance_id, group=instance.group, event=event, address=instance.address)

    def _power_off(self, instance: Instance) -> None:
        if self._disconnect(instance):
            _kill_all(f"AUTOJOIN_ROOT={instance.root}".encode() + b"\0")

    def _disconnect(self, instance: Instance) -> bool:
        """Take away what the lab's process does for the node; False when that was done before."""
        with self._lock:
            if instance.off:
                return False
            instance.off = True
            instance.agent_online = False
        for part in (instance.control, instance.manager, instance.metadata):
            if part is not None:
                part.stop()
        return True

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
                instance.metadata = MetadataService(instance.address, SelfKnowledge(self.region, self.identities, instance))
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
        if not self.identities.agent_may_register(instance):
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

    # -- names, events -------------------------------------------------------------------------------------------------

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


def _in_thread(function: Callable[..., None], *arguments: Any, name: str) -> None:
    threading.Thread(target=function, args=arguments, name=name, daemon=True).start()


def _kill_all(mark: bytes) -> None:
    """Kill every process with a line in its environment that begins with `mark`, until none is left."""
    quiet = 0
    while quiet < 2:
        found = 0
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                with contextlib.suppress(OSError):
                    if b"\0" + mark in b"\0" + Path("/proc", entry, "environ").read_bytes():
                        os.kill(int(entry), signal.SIGKILL)
                        found += 1
        quiet = 0 if found else quiet + 1
        time.sleep(0.02)


def _write(path: Path, text: str) -> None:
    new = path.with_name(f".{path.name}.{threading.get_ident()}")
    new.write_text(text, encoding="utf-8")
    new.replace(path)
