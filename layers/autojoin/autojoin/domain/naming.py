"""What a node is called and where it is reached: its record in the partition's name, and its places in target groups."""

from __future__ import annotations

from typing import NamedTuple

RECORD = "record"
"""Intent; key: the name. Value: the whole record, since Route 53 deletes only what is given exactly."""
TARGET = "target"
"""Intent; key: ARN of the target group. Value: the target's id and port."""

API_PORT = 8080
TTL_S = 10
"""Of an API server's record: a client that resolves it anew looks at most this many seconds behind."""


class Record(NamedTuple):
    """One A record of a multivalue answer; `instance_id` is its set identifier."""

    zone_id: str
    name: str
    instance_id: str
    ttl_s: int
    address: str

    @property
    def value(self) -> str:
        """As an intent keeps it."""
        return "|".join((self.zone_id, self.name, self.instance_id, str(self.ttl_s), self.address))

    @classmethod
    def of(cls, value: str) -> Record:
        """The record that an intent's value names. Raises ValueError."""
        zone_id, name, instance_id, ttl_s, address = value.split("|")
        return cls(zone_id, name, instance_id, int(ttl_s), address)


class Target(NamedTuple):
    """One target of a group. `target_id` is an instance id or an address, as the group's type wants."""

    group_arn: str
    target_id: str
    port: int

    @property
    def value(self) -> str:
        """As an intent keeps it."""
        return f"{self.target_id}:{self.port}"

    @classmethod
    def of(cls, group_arn: str, value: str) -> Target:
        """The target that an intent's key and value name. Raises ValueError."""
        target_id, _, port = value.rpartition(":")
        return cls(group_arn, target_id, int(port))


def name_of_api(partition: str, zone: str) -> str:
    """The name of a partition's API servers."""
    return f"api.{partition}.{zone}"
