"""Ports Configuration and Witness on Parameter Store."""

from __future__ import annotations

import json
import re
from typing import Any

from botocore.exceptions import ClientError
from pydantic import ValidationError

from autojoin import errors
from autojoin.adapters.aws import translated
from autojoin.domain.founding import Marker, State
from autojoin.domain.partitions import Partition, PartitionKind, Topology
from autojoin.events.configuration import ClusterDeclaration, PartitionDeclaration
from autojoin.events.problems import problems_of

CLUSTER = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?")
"""Names that a cluster can be declared under; the documents take no others."""
NO_PARAMETER = frozenset({"ParameterNotFound"})
STANDS = frozenset({"ParameterAlreadyExists"})
TESTIMONY = re.compile(r"(claimed|formed)-([0-9]{1,9})")


class SsmConfiguration:
    """The declared configuration under /autojoin/<cluster>/, read anew each time: it may change between two joins."""

    def __init__(self, ssm: Any) -> None:
        self._ssm = ssm

    def topology(self, cluster: str) -> Topology | None:
        """The cluster's zone and partitions, oldest first; None if the cluster is not declared. Raises ConfigurationInvalid."""
        if not CLUSTER.fullmatch(cluster):
            return None
        name = f"/autojoin/{cluster}/cluster"
        try:
            with translated("ssm:GetParameter", unless=NO_PARAMETER):
                found = self._ssm.get_parameter(Name=name)
        except ClientError:
            return None
        declared = _parse(ClusterDeclaration, name, found["Parameter"]["Value"])
        with translated("ssm:GetParametersByPath"):
            pages = self._ssm.get_paginator("get_parameters_by_path").paginate(Path=f"/autojoin/{cluster}/partitions")
            parameters = [p for page in pages for p in page["Parameters"]]
        partitions = [_parse(PartitionDeclaration, p["Name"], p["Value"]) for p in parameters]
        partitions.sort(key=lambda p: (p.ordinal, p.id))
        topology = Topology(
            zone=declared.zone,
            canary_image=declared.canary_image,
            zone_id=declared.zone_id,
            partitions=tuple(
                Partition(
                    p.id,
                    PartitionKind(p.kind),
                    p.pod_cidr,
                    p.service_cidr,
                    p.cni_backend,
                    p.api_target_groups,
                    p.front_door_target_groups,
                )
                for p in partitions
            ),
        )
        problem = topology.problem()
        if problem:
            raise errors.ConfigurationInvalid(
                f"the partitions of {cluster}: {problem}",
                "ranges that are disjoint, and target groups of one partition each",
                "put corrected declarations (docs/configuration.md)",
            )
        return topology


class SsmWitness:
    """Decisions under /autojoin/<cluster>/witness/<partition>/, each a parameter that is written once."""

    def __init__(self, ssm: Any) -> None:
        self._ssm = ssm

    def read(self, cluster: str, partition: str) -> tuple[Marker, ...]:
        """Every decision about the partition. Raises ConfigurationInvalid for one that cannot be read: it must not count as none."""
        with translated("ssm:GetParametersByPath"):
            pages = self._ssm.get_paginator("get_parameters_by_path").paginate(Path=_testimonies(cluster, partition))
            found = [p for page in pages for p in page["Parameters"]]
        return tuple(_testimony(cluster, partition, p["Name"], p["Value"]) for p in found)

    def write(self, marker: Marker) -> Marker:
        """Write the decision unless one of its epoch and state stands; returns the one that stands."""
        name = f"{_testimonies(marker.cluster, marker.partition)}/{marker.state.value}-{marker.epoch}"
        value = {"instance": marker.instance_id, "at_ms": marker.at_ms}
        if marker.cluster_id:
            value["cluster_id"] = marker.cluster_id
        try:
            with translated("ssm:PutParameter", unless=STANDS):
                self._ssm.put_parameter(Name=name, Value=json.dumps(value), Type="String", Overwrite=False)
        except ClientError:
            try:
                with translated("ssm:GetParameter", unless=NO_PARAMETER):
                    stands = self._ssm.get_parameter(Name=name)["Parameter"]
            except ClientError as unseen:
                raise errors.AwsUnavailable(
                    f"ssm:GetParameter does not know {name}, which ssm:PutParameter says exists",
                    "the decision that stands",
                    "nothing: it is tried again",
                ) from unseen
            return _testimony(marker.cluster, marker.partition, name, stands["Value"])
        return marker


def _testimonies(cluster: str, partition: str) -> str:
    return f"/autojoin/{cluster}/witness/{partition}"


def _testimony(cluster: str, partition: str, name: str, value: str) -> Marker:
    try:
        state, epoch = TESTIMONY.fullmatch(name.rsplit("/", 1)[-1]).groups()  # type: ignore[union-attr]
        said = json.loads(value)
        return Marker(
            cluster, partition, State(state), str(said["instance"]), int(epoch), int(said["at_ms"]), str(said.get("cluster_id", ""))
        )
    except (AttributeError, KeyError, TypeError, ValueError):
        raise errors.ConfigurationInvalid(
            f"parameter {name} is no witness of a founding",
            "claimed-<epoch> or formed-<epoch> with instance, at_ms and cluster_id, as Autojoin wrote it",
            "find out who changed it and put its first version back; never delete it: it keeps a partition from being founded twice",
        ) from None


def _parse(model: Any, name: str, value: str) -> Any:
    try:
        return model.model_validate_json(value)
    except ValidationError as error:
        raise errors.ConfigurationInvalid(
            f"parameter {name}: {problems_of(error)}",
            f"a JSON object with {', '.join(model.model_fields)}",
            "put a corrected value (docs/configuration.md)",
        ) from None
