"""join-worker: what it writes, what it cleans, that it may be repeated, and what a failure leaves behind."""

from __future__ import annotations

import json
import signal
import stat

import pytest
from node_scripts import Scripts, ended, files, ready

from lab.arktos.bench import Bench, Node

pytestmark = [pytest.mark.slow]

UNITS = ("arktos-kubelet", "arktos-flanneld", "arktos-kube-proxy")


def test_a_worker_joins_and_a_second_run_changes_nothing(script: Scripts, bench: Bench, node: Node) -> None:
    first = script("join-worker", node)
    written, pids = files(node), [node.systemctl(f"show -p MainPID {unit}") for unit in UNITS]
    second = script("join-worker", node)

    assert (first.code, first.result["already"]) == (0, False)
    assert (second.code, second.result["already"]) == (0, True)
    assert first.result["node_uid"] == second.result["node_uid"]
    assert files(node) == written
    assert [node.systemctl(f"show -p MainPID {unit}") for unit in UNITS] == pids
    assert ready(bench, node.instance_id)
    assert all(node.is_active(unit) for unit in UNITS)


def test_the_configuration_is_one_folder_by_partition_id_and_private(worker: Node) -> None:
    folder = worker.root / "etc/arktos"

    assert sorted(p.name for p in folder.iterdir()) == [
        "10-flannel.conflist", "client-ca.crt", "kube-proxy.yaml", "net-conf.json", "rp1.kubeconfig", "tp1.kubeconfig", "worker.json",
    ]  # fmt: skip
    assert {stat.S_IMODE(p.stat().st_mode) for p in folder.iterdir()} == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    server = json.loads((folder / "tp1.kubeconfig").read_text())["clusters"][0]["cluster"]["server"]
    assert server == "http://api.tp1.demo.arktos.internal:8080"


def test_units_carry_the_topology(worker: Node, bench: Bench) -> None:
    units = {name: (worker.root / f"etc/systemd/system/{name}.service").read_text() for name in UNITS}
    config = worker.root / "etc/arktos"

    assert f"--hostname-override={worker.instance_id} --node-ip={worker.address}" in units["arktos-kubelet"]
    assert f"--kubeconfig={config}/rp1.kubeconfig --tenant-server-kubeconfig={config}/tp1.kubeconfig" in units["arktos-kubelet"]
    assert f"--client-ca-file={config}/client-ca.crt" in units["arktos-kubelet"]
    assert "--kube-subnet-mgr --kube-api-url=http://api.rp1.demo.arktos.internal:8080" in units["arktos-flanneld"]
    assert f"NODE_NAME={worker.instance_id}" in units["arktos-flanneld"]
    assert json.loads((config / "net-conf.json").read_text()) == {"Network": bench.pod_cidr, "Backend": {"Type": "host-gw"}}
    assert json.loads((config / "kube-proxy.yaml").read_text())["tenantPartitionKubeConfig"] == f"{config}/tp1.kubeconfig"


def test_stale_pod_network_state_is_removed(script: Scripts, bench: Bench, node: Node) -> None:
    third = bench.pod_cidr.split("/")[0].rsplit(".", 2)[0]
    stale = f"{third}.190.0/24"
    leftovers = ["etc/cni/net.d/bridge.conf", "var/lib/cni/networks/cbr0/last_reserved_ip", "run/flannel/subnet.env"]
    for name in leftovers:
        (node.root / name).parent.mkdir(parents=True, exist_ok=True)
        (node.root / name).write_text("FLANNEL_NETWORK=10.9.0.0/16\n")
    master = bench.master("rp1").address
    for command in (
        "link add cni0 type bridge",
        "addr add 10.9.1.1/24 dev cni0",
        f"route add {stale} via {master} dev ens5",
        f"route add 10.77.0.0/24 via {master}",
    ):
        assert node.network.run(command.split())[0] == 0, command

    done = script("join-worker", node)

    assert done.code == 0
    assert not (node.root / leftovers[0]).exists()
    assert not (node.root / leftovers[1]).exists()
    assert f"FLANNEL_NETWORK={bench.pod_cidr}" in (node.root / leftovers[2]).read_text()
    assert node.network.read()["links"].get("cni0") != ["10.9.1.1/24"]
    assert stale not in node.routes()
    assert "10.77.0.0/24" in node.routes(), "a route outside the pod range is not ours"
    assert script("verify", node).code == 0


def test_another_subnet_is_refused_before_anything_starts_and_taken_with_vxlan(script: Scripts, bench: Bench) -> None:
    far = bench.node("b")

    refused = script("join-worker", far)
    left = files(far)

    assert refused.error == "SubnetNotAdjacent"
    assert f"{far.address} in subnet {bench.subnets['b']}" in refused.result["seen"]
    assert bench.master("rp1").address in refused.result["seen"]
    assert "one subnet" in refused.result["todo"]
    assert "vxlan" in refused.result["todo"]
    assert left == {}
    assert bench.get("rp1", f"/api/v1/nodes/{far.instance_id}") is None

    with_vxlan = script("join-worker", far, CniBackend="vxlan")
    bench.until(lambda: ready(bench, far.instance_id), "the far worker to be Ready")
    proved = script("verify", far, CniBackend="vxlan")
    bench.api("rp1", "DELETE", f"/api/v1/nodes/{far.instance_id}")

    assert with_vxlan.code == 0
    assert (proved.code, proved.result.get("routes")) == (0, 1), proved.result


def test_a_failed_first_join_stops_what_it_started(script: Scripts, bench: Bench, node: Node) -> None:
    rp = bench.master("rp1")
    rp.systemctl("stop arktos-kube-controller-manager")
    try:
        done = script("join-worker", node, env={"AUTOJOIN_LIMIT_S": "6"})
    finally:
        rp.systemctl("start arktos-kube-controller-manager")

    assert done.error == "NodeNotReady"
    assert done.result["undone"] == {"stopped": ["arktos-kubelet"]}
    assert not any(node.is_active(unit) for unit in UNITS)
    assert script("join-worker", node).code == 0, "the same instance can join when the cause is gone"


def test_a_failed_re_join_leaves_a_serving_node_serving(script: Scripts, bench: Bench, worker: Node) -> None:
    before = files(worker)
    broken = worker.root / "opt/broken/bin"
    broken.mkdir(parents=True)
    for name in ("hyperkube", "flanneld", "flannel", "bridge", "host-local", "loopback", "portmap"):
        (broken / name).write_text("#!/bin/sh\nexit 1\n")
        (broken / name).chmod(0o755)

    done = script("join-worker", worker, BinDir="/opt/broken/bin")
    bench.until(lambda: all(worker.is_active(unit) for unit in UNITS), "the units to be active again")

    assert done.error == "UnitFailed"
    assert done.result["undone"] == {"serving_again": True}
    assert files(worker) == before
    assert script("verify", worker).code == 0


def test_a_changed_peer_list_restarts_with_it_and_keeps_the_pod_network(script: Scripts, bench: Bench, worker: Node) -> None:
    done_before = script("verify", worker)
    subnet = (worker.root / "run/flannel/subnet.env").read_text()
    bridge = worker.network.read()["links"]["cni0"]

    changed = script("join-worker", worker, Cluster="renamed")

    assert done_before.code == 0
    assert (changed.code, changed.result["already"]) == (0, False)
    assert (worker.root / "run/flannel/subnet.env").read_text() == subnet
    assert worker.network.read()["links"]["cni0"] == bridge
    assert script("verify", worker).code == 0


def test_a_run_that_was_killed_half_way_is_finished_by_the_next(script: Scripts, bench: Bench, node: Node) -> None:
    rp = bench.master("rp1")
    rp.systemctl("stop arktos-kube-controller-manager")
    try:
        process = script.start("join-worker", node)
        bench.until(lambda: bench.get("rp1", f"/api/v1/nodes/{node.instance_id}"), "the Node to be registered")
        process.send_signal(signal.SIGKILL)
        process.communicate()
    finally:
        rp.systemctl("start arktos-kube-controller-manager")

    done = script("join-worker", node)

    assert done.code == 0, (done.result, done.stderr)
    bench.until(lambda: ready(bench, node.instance_id), "the worker to be Ready")


def test_a_run_that_is_told_to_stop_puts_back_what_it_changed(script: Scripts, bench: Bench, node: Node) -> None:
    rp = bench.master("rp1")
    rp.systemctl("stop arktos-kube-controller-manager")
    try:
        process = script.start("join-worker", node)
        bench.until(lambda: bench.get("rp1", f"/api/v1/nodes/{node.instance_id}"), "the Node to be registered")
        process.send_signal(signal.SIGTERM)
        done = ended(process)
    finally:
        rp.systemctl("start arktos-kube-controller-manager")

    assert done.error == "ScriptFailed"
    assert done.result["undone"] == {"stopped": ["arktos-kubelet"]}
    assert not node.is_active("arktos-kubelet")


def test_a_command_for_another_instance_is_refused(script: Scripts, node: Node) -> None:
    done = script("join-worker", node, InstanceId="i-0123456789abcdef0")

    assert done.error == "InvalidParameter"
    assert files(node) == {}


def test_a_pod_range_that_is_not_the_controllers_is_told_apart(script: Scripts, bench: Bench, node: Node) -> None:
    done = script("join-worker", node, PodCidr="127.250.0.0/16")

    assert done.error == "NodeNotReady"
    assert "--cluster-cidr" in done.result["todo"]
    assert not node.is_active("arktos-kubelet")
