"""What the document inspect says of a running master."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from autojoin.events.configuration import CIDR


class Seen(BaseModel):
    """Base: fields that a newer document adds are left aside."""

    model_config = ConfigDict(extra="ignore", frozen=True, defer_build=True)


class EtcdMember(Seen):
    """A member of the etcd that answered."""

    id: str
    name: str = ""
    peer_urls: tuple[str, ...] = ()
    client_urls: tuple[str, ...] = ()


class EtcdSeen(Seen):
    """The etcd that answered on the node."""

    cluster_id: str = Field(pattern=r"^[0-9a-f]{16}$")
    members: tuple[EtcdMember, ...]
    version: str = ""


class NodeSeen(Seen):
    """A Node of the partition."""

    name: str
    uid: str
    pod_cidr: str | None = None
    address: str | None = None


class Inspection(Seen):
    """The result of the document inspect. CIDRs are empty where no flag says them; `stored` only with Store=yes,
    `nodes_in_all` only where `nodes` are not all."""

    etcd: EtcdSeen
    healthz: bool
    kind_hint: str = ""
    service_cidr: str = Field("", pattern=f"^$|{CIDR}")
    pod_cidr: str = Field("", pattern=f"^$|{CIDR}")
    nodes: tuple[NodeSeen, ...] = ()
    nodes_in_all: int | None = None
    client_ca: str = ""
    keys: bool = False
    stored: Literal["created", "exists", "no-keys"] | None = None
