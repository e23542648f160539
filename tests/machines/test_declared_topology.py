"""A join is refused at its beginning for what the cluster's declarations lack."""

from __future__ import annotations

from autojoin.domain.partitions import Partition, PartitionKind, Topology
from tests.fakes.world import World

NODE = "i-00000000000000001"


def test_a_cluster_without_a_tenant_partition_is_refused_before_anything_is_sent() -> None:
    world = World()
    world.declared = Topology("demo.arktos.internal", (Partition("rp1", PartitionKind.RP, pod_cidr="10.244.0.0/16"),))
    world.add_instance(NODE)

    execution = world.join(NODE)

    assert execution.error == "PartitionNotConfigured"
    assert "declares no tenant partition" in (execution.cause or "")
    assert world.sent == []
    assert world.actions[NODE].result == "ABANDON"
