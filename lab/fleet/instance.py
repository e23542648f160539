"""One instance: what EC2, its group, Systems Manager and its own folder know of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lab.fleet.control import ControlSocket
    from lab.fleet.groups import Groups
    from lab.fleet.metadata import MetadataService
    from lab.fleet.network import Network
    from lab.fleet.service_manager import ServiceManager

STATE_CODES = {"pending": 0, "running": 16, "shutting-down": 32, "terminated": 48, "stopping": 64, "stopped": 80}


@dataclass
class Instance:
    """An instance of the lab. `root` is its AUTOJOIN_ROOT, `state` its EC2 state."""

    instance_id: str
    group: str | None
    address: str
    subnet_id: str
    subnet_cidr: str
    vpc_id: str
    zone: str
    root: Path
    mac: str
    image_id: str
    instance_type: str
    profile_arn: str | None
    role: str | None
    launched_at: float
    boot_s: float
    agent_s: float
    groups: Groups
    record: dict[str, Any]
    """ministack's own record of the instance."""
    metadata_options: dict[str, Any] = field(default_factory=dict)
    launch_template: dict[str, Any] | None = None
    state: str = "pending"
    source_dest_check: bool = True
    booted_at: float | None = None
    agent_online_at: float | None = None
    agent_registered: bool = False
    agent_online: bool = False
    agent_version: str = "3.3.2746.0"
    terminated_at: float | None = None
    off: bool = False
    """The power is gone: no process of it runs any more."""
    manager: ServiceManager | None = None
    network: Network | None = None
    metadata: MetadataService | None = None
    control: ControlSocket | None = None

    @property
    def tags(self) -> dict[str, str]:
        """Its tags in EC2 as they are now."""
        from ministack.services import ec2

        return {tag["Key"]: tag["Value"] for tag in ec2._tags.get(self.instance_id, [])}

    @property
    def lifecycle_state(self) -> str | None:
        """Its state in its group, Terminated when the group has let it go; None without a group."""
        if self.group is None:
            return None
        found = self.groups.member(self.instance_id)
        return found[1].state if found else "Terminated"

    @property
    def alive(self) -> bool:
        """Whether EC2 says that it is there."""
        return self.state in ("pending", "running")
