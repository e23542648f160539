"""verify, leave-node and remove-node: proofs, canaries that never stay, removal of what is ours alone."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from node_scripts import Scripts, ended, files, ready

from lab.arktos.bench import Bench, Node

pytestmark = [pytest.mark.slow]

PODS = "/api/v1/tenants/system/namespaces/default/pods"


def canaries(bench: Bench) -> list[dict[str, Any]]:
    return [p for p in bench.items("tp1", PODS) if p["metadata"]["name"].startswith("autojoin-canary-")]


def test_a_worker_is_proved_twice_and_no_canary_stays(script: Scripts, bench: Bench, serving: Node) -> None:
    first, second = script("verify", serving), script("verify", serving)

    found = bench.get("rp1", f"/api/v1/nodes/{serving.instance_id}")
    assert found is not None
    for done in (first, second):
        assert done.code == 0, (done.result, done.stderr)
        assert done.result["node_uid"] == found["metadata"]["uid"]
        assert done.result["pod_cidr"] == found["spec"]["podCIDR"]
        assert done.result["routes"] == len(bench.items("rp1", "/api/v1/nodes")) - 1
        assert [c["partition"] for c in done.result["canaries"]] == ["tp1"]
    assert canaries(bench) == []


def test_a_canary_goes_through_the_scheduler_and_names_its_execution(script: Scripts, bench: Bench, serving: Node) -> None:
    long_name = "manual-" + serving.instance_id + "-20260101T000000Z-" + "x" * 20 + "-cleanup-tail"
    tp = bench.master("tp1")
    tp.systemctl("stop arktos-kube-scheduler")
    try:
        process = script.start("verify", serving, Execution=long_name)
        bench.until(lambda: canaries(bench), "the canary")
        pod = canaries(bench)[0]
    finally:
        tp.systemctl("start arktos-kube-scheduler")
    done = ended(process)

    assert done.code == 0, (done.result, done.stderr)
    assert pod["metadata"]["name"] == f"autojoin-canary-{serving.instance_id}-tp1"
    assert pod["metadata"]["annotations"] == {"autojoin/execution": long_name}
    assert pod["metadata"]["labels"]["autojoin/execution"] == long_name[:63]
    assert "nodeName" not in pod["spec"]
    assert pod["spec"]["nodeSelector"] == {"kubernetes.io/hostname": serving.instance_id}
    assert canaries(bench) == []


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_canaries_go_when_a_run_is_told_to_stop(stop: signal.Signals, script: Scripts, bench: Bench, serving: Node) -> None:
    tp = bench.master("tp1")
    tp.systemctl("stop arktos-kube-scheduler")
    try:
        process = script.start("verify", serving)
        bench.until(lambda: canaries(bench), "the canary")
        process.send_signal(stop)
        done = ended(process)
    finally:
        tp.systemctl("start arktos-kube-scheduler")

    assert done.error == "ScriptFailed"
    assert canaries(bench) == []


def test_a_canary_of_a_killed_run_is_replaced_by_the_next(script: Scripts, bench: Bench, serving: Node) -> None:
    tp = bench.master("tp1")
    tp.systemctl("stop arktos-kube-scheduler")
    try:
        process = script.start("verify", serving)
        left = bench.until(lambda: canaries(bench), "the canary")
        process.send_signal(signal.SIGKILL)
        process.communicate()
    finally:
        tp.systemctl("start arktos-kube-scheduler")

    done = script("verify", serving)

    assert left
    assert done.code == 0, (done.result, done.stderr)
    assert canaries(bench) == []


def test_a_refused_route_in_flannels_log_counts_until_flannel_starts_again(script: Scripts, serving: Node) -> None:
    log = serving.root / "var/log/arktos-flanneld.log"
    with log.open("a") as text:
        text.write("E Error adding route to 10.244.9.0/24 via 172.31.5.191: network is unreachable\n")

    refused = script("verify", serving, env={"AUTOJOIN_LIMIT_S": "5"})
    serving.systemctl("restart arktos-flanneld")
    after = script("verify", serving)

    assert refused.error == "RoutesMissing"
    assert "172.31.5.191" in refused.result["seen"]
    assert after.code == 0


def test_a_unit_that_is_down_is_no_joined_node(script: Scripts, worker: Node) -> None:
    worker.systemctl("stop arktos-kube-proxy")

    done = script("verify", worker, env={"AUTOJOIN_LIMIT_S": "20"})

    assert done.error == "UnitFailed"
    assert "arktos-kube-proxy" in done.result["seen"]


def test_leaving_stops_and_forgets_and_may_be_repeated(script: Scripts, worker: Node) -> None:
    routed = worker.routes()

    first, second = script("leave-node", worker), script("leave-node", worker)

    assert routed
    assert (first.code, first.result["stopped"], first.result["left"]) == (0, 3, [])
    assert (second.code, second.result["stopped"], second.result["left"]) == (0, 0, [])
    assert files(worker) == {}
    assert worker.routes() == {}
    assert "cni0" not in worker.network.read()["links"]
    assert worker.systemctl("is-active arktos-kubelet")[1].strip() == "inactive"


def test_leaving_is_refused_on_another_instance(script: Scripts, serving: Node) -> None:
    done = script("leave-node", serving, InstanceId="i-0123456789abcdef0")

    assert done.error == "InvalidParameter"
    assert serving.is_active("arktos-kubelet")


def test_a_node_that_left_can_join_again(script: Scripts, bench: Bench, worker: Node) -> None:
    script("leave-node", worker)

    done = script("join-worker", worker)
    bench.until(lambda: ready(bench, worker.instance_id), "the worker to be Ready again")

    assert done.code == 0
    assert script("verify", worker).code == 0


def test_a_node_is_removed_with_its_canaries_and_removal_may_be_repeated(script: Scripts, bench: Bench, worker: Node) -> None:
    found = bench.get("rp1", f"/api/v1/nodes/{worker.instance_id}")
    assert found is not None
    labels = {"autojoin/canary": "true", "autojoin/node": worker.instance_id}
    other = {"autojoin/canary": "true", "autojoin/node": "i-0fedcba9876543210"}
    for name, given in (("mine", labels), ("of-another", other), ("tenants", {})):
        bench.api("tp1", "POST", PODS, {"metadata": {"name": name, "labels": given}, "spec": {"nodeSelector": {"none": "such"}}})
    worker.power_off()

    first = script("remove-node", worker, on=bench.master("rp1"), NodeUid=found["metadata"]["uid"])
    second = script("remove-node", worker, on=bench.master("rp1"), NodeUid=found["metadata"]["uid"])
    left = {p["metadata"]["name"] for p in bench.items("tp1", PODS)}
    for name in left:
        bench.api("tp1", "DELETE", f"{PODS}/{name}")

    assert (first.code, first.result["node"], first.result["canaries"]) == (0, "deleted", 1)
    assert (second.code, second.result["node"], second.result["canaries"]) == (0, "absent", 0)
    assert bench.get("rp1", f"/api/v1/nodes/{worker.instance_id}") is None
    assert left == {"of-another", "tenants"}


def test_without_a_uid_only_a_name_that_is_never_used_again_is_removed(script: Scripts, bench: Bench, worker: Node) -> None:
    bench.api("rp1", "POST", "/api/v1/nodes", {"metadata": {"name": "ip-10-0-0-1"}, "status": {"conditions": []}})

    refused = script("remove-node", worker, on=bench.master("rp1"), NodeName="ip-10-0-0-1")
    removed = script("remove-node", worker, on=bench.master("rp1"))
    kept = bench.get("rp1", "/api/v1/nodes/ip-10-0-0-1")
    bench.api("rp1", "DELETE", "/api/v1/nodes/ip-10-0-0-1")

    assert refused.error == "NodeRefused"
    assert kept is not None
    assert removed.result["node"] == "deleted"


def test_of_a_serving_node_only_the_canaries_are_removed(script: Scripts, bench: Bench, serving: Node) -> None:
    done = script("remove-node", serving, on=bench.master("rp1"), Scope="canaries")

    assert (done.code, done.result["node"]) == (0, "kept")
    assert bench.get("rp1", f"/api/v1/nodes/{serving.instance_id}") is not None


def test_a_dead_tenant_partition_does_not_keep_the_node(script: Scripts, bench: Bench, worker: Node) -> None:
    done = script("remove-node", worker, on=bench.master("rp1"), TenantPartitions="tp1,tp9", env={"AUTOJOIN_LIMIT_S": "8"})

    assert done.error == "ApiUnreachable"
    assert "tp9" in done.result["seen"]
    assert bench.get("rp1", f"/api/v1/nodes/{worker.instance_id}") is None
