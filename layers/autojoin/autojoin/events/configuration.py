"""The declared configuration: one parameter each under /autojoin/<cluster>/."""

from __future__ import annotations

import ipaddress
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator, model_validator

CIDR = r"^([0-9]{1,3}\.){3}[0-9]{1,3}/[0-9]{1,2}$"

TargetGroupArn = Annotated[str, StringConstraints(pattern=r"^arn:[a-z-]+:elasticloadbalancing:[a-z0-9-]+:[0-9]{12}:targetgroup/.+$")]


class Declared(BaseModel):
    """Base: a misspelt field is refused, never ignored."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class ClusterDeclaration(Declared):
    """/autojoin/<cluster>/cluster: what holds for the whole cluster."""

    zone: str = Field(pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$", max_length=200, description="The private hosted zone.")
    zone_id: str | None = Field(
        None, pattern=r"^Z[A-Z0-9]{1,31}$", description="Route 53 id of that zone; masters need it for their names."
    )
    canary_image: str = Field(
        "autojoin/canary:1",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:@-]{0,254}$",
        description="Image of the canary pod, preloaded on every node; answers GET / on port 8080.",
    )


class PartitionDeclaration(Declared):
    """/autojoin/<cluster>/partitions/<id>: one partition."""

    id: str = Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$")
    kind: Literal["tp", "rp", "master"]
    ordinal: int = Field(0, ge=0, le=99, description="Order in lists of peers: the oldest tenant partition first.")
    pod_cidr: str | None = Field(None, pattern=CIDR, description="Range of the pods of its nodes (rp, master).")
    service_cidr: str | None = Field(None, pattern=CIDR, description="Range of its services (tp, master).")
    cni_backend: str = Field("host-gw", max_length=20, description="flannel backend of its nodes: host-gw or vxlan.")

    api_target_groups: tuple[TargetGroupArn, ...] = Field(
        (), max_length=10, description="ARNs of the target groups that an API server enters as soon as it is healthy."
    )
    front_door_target_groups: tuple[TargetGroupArn, ...] = Field(
        (), max_length=10, description="ARNs of the target groups for clients, entered last, once the node is verified."
    )

    @field_validator("pod_cidr", "service_cidr")
    @classmethod
    def _is_a_range(cls, value: str | None) -> str | None:
        if value is not None:
            ipaddress.ip_network(value)
        return value

    @model_validator(mode="after")
    def _nodes_have_a_range(self) -> PartitionDeclaration:
        if self.kind in ("rp", "master") and self.pod_cidr is None:
            raise ValueError(f"a partition of kind {self.kind} needs pod_cidr")
        return self
