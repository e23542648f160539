"""What the stand-ins of Arktos' processes do as the real ones do, as far as workers depend on it."""

from __future__ import annotations

import json
import os
import shlex
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from lab.arktos import masters
from lab.arktos.bench import ZONE, Bench, Node

pytestmark = [pytest.mark.slow]

PODS = "/api/v1/tenants/{}/namespaces/default/pods"
NOT_READY = "node.kubernetes.io/not-ready"


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """Two TPs and one RP."""
    with Bench(tmp_path_factory.mktemp("bench")) as made:
        made.cluster(tenants=2)
        made.until(lambda: ready(made, made.master("rp1").instance_id), "the RP's own Node to be Ready")
        yield made


@pytest.fixture
def node(bench: Bench) -> Iterator[Node]:
    made = bench.node()
    yield made
    made.power_off()
    bench.api("rp1", "DELETE", f"/api/v1/nodes/{made.instance_id}")


def unit(node: Node, name: str, command: str, environment: str = "A=b") -> None:
    text = masters.UNIT.format(name=name, command=command, environment=environment)
    (node.root / f"etc/systemd/system/{name}.service").write_text(text)
    node.systemctl("daemon-reload")
    node.systemctl(f"start {name}")


def worker(bench: Bench, node: Node, tenants: tuple[str, ...] = ("tp1", "tp2"), *, cni: bool = True) -> None:
    """kubelet, flanneld and kube-proxy on a node, without the scripts."""
    config, binaries = node.root / "etc/arktos", node.root / "opt/arktos/bin"
    config.mkdir(parents=True, exist_ok=True)
    for partition in ("rp1", *tenants):
        (config / f"{partition}.kubeconfig").write_text(masters.kubeconfig(partition, ZONE))
    peers = ",".join(str(config / f"{t}.kubeconfig") for t in tenants)
    rp = next(p for p in bench.partitions if p.kind == "rp")
    (config / "net-conf.json").write_text(json.dumps({"Network": rp.cidr, "Backend": {"Type": "host-gw"}}))
    (config / "kube-proxy.yaml").write_text(json.dumps({"tenantPartitionKubeConfig": peers}))
    if cni:
        (node.root / "etc/cni/net.d").mkdir(parents=True, exist_ok=True)
        (node.root / "etc/cni/net.d/10-flannel.conflist").write_text("{}")
    kubelet = f"--hostname-override={node.instance_id} --node-ip={node.address} --kubeconfig={config}/rp1.kubeconfig"
    unit(node, "kubelet", f"{binaries}/hyperkube kubelet {kubelet} --tenant-server-kubeconfig={peers}")
    flannel = f"--kube-subnet-mgr --kube-api-url=http://api.rp1.{ZONE}:8080 --net-config-path={config}/net-conf.json"
    unit(
        node, "flanneld", f"{binaries}/flanneld {flannel} --subnet-file={node.root}/run/flannel/subnet.env", f"NODE_NAME={node.instance_id}"
    )
    unit(node, "kube-proxy", f"{binaries}/hyperkube kube-proxy --config={config}/kube-proxy.yaml")


def found(bench: Bench, name: str) -> dict[str, Any]:
    return bench.get("rp1", f"/api/v1/nodes/{name}") or {"spec": {}, "status": {"conditions": []}}


def condition(bench: Bench, name: str) -> str:
    return next((c["status"] for c in found(bench, name)["status"]["conditions"] if c["type"] == "Ready"), "")


def tainted(bench: Bench, name: str) -> bool:
    return any(t["key"] == NOT_READY for t in found(bench, name)["spec"].get("taints", []))


def ready(bench: Bench, name: str) -> bool:
    return condition(bench, name) == "True" and not tainted(bench, name) and bool(found(bench, name)["spec"].get("podCIDR"))


def send(bench: Bench, tenant_partition: str, name: str, node: str | None = None, tenant: str = "system", **labels: str) -> str:
    selector = {"nodeSelector": {"kubernetes.io/hostname": node}} if node else {}
    body = {"metadata": {"name": name, "labels": labels}, "spec": {**selector, "containers": []}}
    status, _ = bench.api(tenant_partition, "POST", PODS.format(tenant), body)
    assert status == 201
    return f"{PODS.format(tenant)}/{name}"


def running(bench: Bench, partition: str, path: str) -> str:
    """The address of a pod that runs, or an empty text."""
    pod = bench.get(partition, path)
    return str(pod["status"].get("podIP", "")) if pod and pod["status"].get("phase") == "Running" else ""


def test_a_new_node_is_tainted_until_the_controller_manager_has_seen_all(bench: Bench, node: Node) -> None:
    bench.api("rp1", "POST", "/api/v1/nodes", {"metadata": {"name": "just-made"}, "status": {"conditions": []}})
    made = tainted(bench, "just-made")
    bench.api("rp1", "DELETE", "/api/v1/nodes/just-made")

    worker(bench, node)
    bench.until(lambda: ready(bench, node.instance_id), "the worker to be Ready and untainted")

    assert made
    cidrs = [n["spec"]["podCIDR"] for n in bench.items("rp1", "/api/v1/nodes")]
    assert len(cidrs) == len(set(cidrs))
    assert all(cidr.endswith("/24") for cidr in cidrs)


def test_without_a_network_configuration_a_node_is_not_ready(bench: Bench, node: Node) -> None:
    worker(bench, node, cni=False)
    bench.until(lambda: found(bench, node.instance_id)["spec"].get("podCIDR"), "a pod CIDR")
    before = condition(bench, node.instance_id)

    (node.root / "etc/cni/net.d").mkdir(parents=True)
    (node.root / "etc/cni/net.d/10-flannel.conflist").write_text("{}")
    bench.until(lambda: ready(bench, node.instance_id), "the worker to be Ready")

    assert before == "False"


def test_a_missing_tenant_kubeconfig_is_fatal_to_a_kubelet(bench: Bench, node: Node) -> None:
    config = node.root / "etc/arktos"
    config.mkdir(parents=True)
    (config / "rp1.kubeconfig").write_text(masters.kubeconfig("rp1", ZONE))

    done = node.run(
        [node.root / "opt/arktos/bin/hyperkube", "kubelet", f"--hostname-override={node.instance_id}",
         f"--kubeconfig={config}/rp1.kubeconfig", f"--tenant-server-kubeconfig={config}/tp1.kubeconfig"]
    )  # fmt: skip

    assert done.returncode == 1
    assert "tp1.kubeconfig" in done.stdout
    assert bench.get("rp1", f"/api/v1/nodes/{node.instance_id}") is None


def test_pods_of_every_tenant_partition_run_on_a_worker_and_answer_everywhere(bench: Bench, node: Node) -> None:
    worker(bench, node)
    bench.until(lambda: ready(bench, node.instance_id), "the worker to be Ready")
    master = bench.master("rp1")
    bench.until(lambda: found(bench, node.instance_id)["spec"]["podCIDR"] in master.routes(), "the route on the master")

    paths = {partition: send(bench, partition, "everywhere", node.instance_id) for partition in ("tp1", "tp2")}
    addresses = {p: bench.until(lambda p=p: running(bench, p, paths[p]), f"the pod of {p}") for p in paths}  # type: ignore[misc]
    answers = [
        json.loads(source.run(["curl", "-sS", "-m", "5", f"http://{address}:8080/"]).stdout)
        for source in (node, master)
        for address in addresses.values()
    ]
    for partition, path in paths.items():
        bench.api(partition, "DELETE", path)

    prefix = found(bench, node.instance_id)["spec"]["podCIDR"].rsplit(".", 1)[0]
    assert all(address.startswith(prefix) for address in addresses.values())
    assert answers == [{"pod": "everywhere", "node": node.instance_id}] * 4


def test_a_kubelet_serves_only_the_tenant_partitions_of_its_start(bench: Bench, node: Node) -> None:
    worker(bench, node, tenants=("tp1",))
    bench.until(lambda: ready(bench, node.instance_id), "the worker to be Ready")

    known, unknown = send(bench, "tp1", "known", node.instance_id), send(bench, "tp2", "unknown", node.instance_id)
    bench.until(lambda: running(bench, "tp1", known), "the pod of the known partition")
    bench.until(lambda: (bench.get("tp2", unknown) or {})["spec"].get("nodeName"), "the other pod to be bound")
    pod = bench.get("tp2", unknown)
    for partition, path in (("tp1", known), ("tp2", unknown)):
        bench.api(partition, "DELETE", path)

    assert pod is not None
    assert pod["status"]["phase"] == "Pending"


def test_pods_are_unreachable_from_other_nodes_while_the_source_destination_check_is_on(bench: Bench, node: Node) -> None:
    worker(bench, node)
    bench.until(lambda: ready(bench, node.instance_id), "the worker to be Ready")
    master = bench.master("rp1")
    bench.until(lambda: found(bench, node.instance_id)["spec"]["podCIDR"] in master.routes(), "the route on the master")
    path = send(bench, "tp1", "checked", node.instance_id)
    address = bench.until(lambda: running(bench, "tp1", path), "the pod")
    curl = ["curl", "-sS", "-m", "5", f"http://{address}:8080/"]

    (node.root / "run/lab/source_dest_check").write_text("true")
    checked = master.run(curl).returncode, node.run(curl).returncode
    (node.root / "run/lab/source_dest_check").write_text("false")
    unchecked = master.run(curl).returncode
    master.network.run(["route", "del", found(bench, node.instance_id)["spec"]["podCIDR"]])
    unrouted = master.run(curl).returncode
    bench.api("tp1", "DELETE", path)

    assert checked[0] != 0
    assert checked[1] == 0
    assert unchecked == 0
    assert unrouted != 0


def test_host_gw_across_subnets_is_refused_in_the_log_alone(bench: Bench) -> None:
    far = bench.node("b")
    worker(bench, far)
    bench.until(lambda: ready(bench, far.instance_id), "the far worker to be Ready all the same")

    bench.until(lambda: "Error adding route" in far.log("flanneld"), "the refusal in the log")
    routes = far.routes()
    far.power_off()
    bench.api("rp1", "DELETE", f"/api/v1/nodes/{far.instance_id}")

    assert routes == {}
    assert "network is unreachable" in far.log("flanneld")


def test_a_bridge_with_another_address_keeps_pods_from_starting(bench: Bench, node: Node) -> None:
    for command in ("link add cni0 type bridge", "addr add 10.9.1.1/24 dev cni0"):
        node.network.run(command.split())
    worker(bench, node)
    bench.until(lambda: ready(bench, node.instance_id), "the worker to be Ready")

    path = send(bench, "tp1", "stuck", node.instance_id)
    pod = bench.until(lambda: (p := bench.get("tp1", path)) and p["status"].get("conditions") and p, "the reason")
    node.network.run(["link", "del", "cni0"])
    bench.until(lambda: running(bench, "tp1", path), "the pod to run once the bridge is gone")
    bench.api("tp1", "DELETE", path)

    assert "cni0" in pod["status"]["conditions"][0]["message"]


def test_a_cluster_ip_answers_from_the_pods_of_its_service(bench: Bench, node: Node) -> None:
    worker(bench, node)
    master = bench.master("rp1").instance_id
    bench.until(lambda: ready(bench, node.instance_id), "the worker to be Ready")
    paths = [send(bench, "tp1", f"web-{n}", name, app="web") for n, name in enumerate((node.instance_id, master))]
    service = {"metadata": {"name": "web"}, "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]}}
    _, made = bench.api("tp1", "POST", "/api/v1/tenants/system/namespaces/default/services", service)
    url = f"http://{made['spec']['clusterIP']}/"

    def answered() -> set[str]:
        done = [node.run(["curl", "-s", "-m", "5", url]).stdout for _ in range(4)]
        return {json.loads(text)["node"] for text in done if text}

    bench.until(lambda: answered() == {node.instance_id, master}, "both pods to answer")
    for path in [*paths, "/api/v1/tenants/system/namespaces/default/services/web"]:
        bench.api("tp1", "DELETE", path)


def test_a_dead_nodes_lease_runs_out(bench: Bench, node: Node) -> None:
    worker(bench, node)
    bench.until(lambda: ready(bench, node.instance_id), "the worker to be Ready")

    node.power_off()

    bench.until(lambda: condition(bench, node.instance_id) == "Unknown" and tainted(bench, node.instance_id), "the Node to be given up")


def test_a_scheduler_binds_only_where_the_selector_and_the_taints_allow(bench: Bench) -> None:
    bench.api(
        "rp1",
        "POST",
        "/api/v1/nodes",
        {"metadata": {"name": "dark", "labels": {"kubernetes.io/hostname": "dark"}}, "status": {"conditions": []}},
    )
    path = send(bench, "tp1", "nowhere", "dark")
    free = send(bench, "tp1", "anywhere")
    bench.until(lambda: running(bench, "tp1", free), "the pod without a selector")
    pod = bench.get("tp1", path)
    for one in (path, free):
        bench.api("tp1", "DELETE", one)
    bench.api("rp1", "DELETE", "/api/v1/nodes/dark")

    assert pod is not None
    assert "nodeName" not in pod["spec"]


def test_tenants_are_apart_and_the_short_form_means_tenant_system(bench: Bench) -> None:
    unknown, _ = bench.api("tp1", "POST", PODS.format("acme"), {"metadata": {"name": "a"}, "spec": {"nodeSelector": {"no": "where"}}})
    bench.api("tp1", "POST", "/api/v1/tenants", {"metadata": {"name": "acme"}})
    send(bench, "tp1", "a", "none", tenant="acme")
    bench.api("tp1", "POST", "/api/v1/namespaces/default/pods", {"metadata": {"name": "s"}, "spec": {"nodeSelector": {"no": "where"}}})

    of_acme = [p["metadata"]["name"] for p in bench.items("tp1", PODS.format("acme"))]
    of_system = [p["metadata"]["name"] for p in bench.items("tp1", "/api/v1/namespaces/default/pods")]
    of_all = {p["metadata"]["name"] for p in bench.items("tp1", "/api/v1/pods")}
    for path in (f"{PODS.format('acme')}/a", "/api/v1/namespaces/default/pods/s", "/api/v1/tenants/acme"):
        bench.api("tp1", "DELETE", path)

    assert unknown == 404
    assert of_acme == ["a"]
    assert of_system == ["s"]
    assert {"a", "s"} <= of_all


def test_the_api_refuses_stale_writes_wrong_uids_and_a_second_binding(bench: Bench) -> None:
    path = send(bench, "tp1", "guarded", "none")
    pod = bench.get("tp1", path)
    assert pod is not None

    bound = [bench.api("tp1", "POST", f"{path}/binding", {"target": {"name": name}})[0] for name in ("x", "y")]
    stale = bench.api("tp1", "PUT", path, pod)[0]
    again = bench.api("tp1", "POST", PODS.format("system"), {"metadata": {"name": "guarded"}, "spec": {}})[0]
    wrong = bench.api("tp1", "DELETE", path, {"preconditions": {"uid": "other"}})[0]
    right = bench.api("tp1", "DELETE", path, {"preconditions": {"uid": pod["metadata"]["uid"]}})[0]

    assert (bound, stale, again, wrong, right) == ([200, 409], 409, 409, 409, 200)


def test_api_server_is_healthy_only_while_its_etcd_is(bench: Bench) -> None:
    tp2 = bench.master("tp2")
    tp2.systemctl("stop arktos-etcd")
    sick = bench.api("tp2", "GET", "/healthz")
    tp2.systemctl("start arktos-etcd")
    bench.until(lambda: bench.healthy("tp2"), "the API server to be healthy again")

    assert sick[0] == 500


def test_an_unreachable_tenant_partition_keeps_new_nodes_tainted(bench: Bench, node: Node) -> None:
    rp, tp2 = bench.master("rp1"), bench.master("tp2")
    tp2.systemctl("stop arktos-apiserver")
    rp.systemctl("restart arktos-kube-controller-manager")
    worker(bench, node, tenants=("tp1",))
    bench.until(lambda: condition(bench, node.instance_id) == "True", "the worker to be Ready")
    bench.until(lambda: "waiting for the caches" in rp.log("arktos-kube-controller-manager"), "the controller-manager to wait")
    waited = tainted(bench, node.instance_id)

    tp2.systemctl("start arktos-apiserver")
    bench.until(lambda: ready(bench, node.instance_id), "the taint to go")

    assert waited


def test_a_tenant_partition_deletes_the_pods_of_nodes_that_it_cannot_see(bench: Bench) -> None:
    path = send(bench, "tp1", "victim", bench.master("rp1").instance_id)
    bench.until(lambda: running(bench, "tp1", path), "the pod")

    bench.master("rp1").systemctl("stop arktos-apiserver")
    bench.until(lambda: bench.get("tp1", path) is None, "the pod to be lost")
    bench.master("rp1").systemctl("start arktos-apiserver")
    bench.until(lambda: bench.healthy("rp1"), "the RP to answer again")


def test_a_missing_resource_provider_file_is_only_a_warning(bench: Bench) -> None:
    tp = bench.master("tp1")
    config = tp.root / "etc/arktos"
    unit(tp, "lone-scheduler", shlex.join([f"{tp.root}/opt/arktos/bin/hyperkube", "kube-scheduler", f"--kubeconfig={config}/tp1.kubeconfig",
                                           f"--resource-providers={config}/rp9.kubeconfig"]))  # fmt: skip

    bench.until(lambda: "using the local cluster" in tp.log("lone-scheduler"), "the warning")
    active = tp.is_active("lone-scheduler")
    tp.systemctl("stop lone-scheduler")

    assert active


def test_an_api_server_ends_when_a_file_that_a_flag_names_is_missing(bench: Bench, node: Node) -> None:
    done = node.run(
        [node.root / "opt/arktos/bin/hyperkube", "kube-apiserver", f"--etcd-servers=http://{node.address}:2379",
         f"--client-ca-file={node.root}/etc/arktos/pki/client-ca.crt"]
    )  # fmt: skip

    assert done.returncode == 1
    assert "client-ca.crt is missing" in done.stdout


def test_an_api_server_without_etcd_answers_and_says_that_it_is_not_healthy(bench: Bench, node: Node) -> None:
    unit(
        node, "lone-api", f"{node.root}/opt/arktos/bin/hyperkube kube-apiserver --etcd-servers=http://{node.address}:2379"
        f" --insecure-bind-address={node.address}",
    )  # fmt: skip

    code = ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", f"http://{node.address}:8080/healthz"]
    bench.until(lambda: node.run(code).stdout == "500", "the API server to answer")


def test_a_kubelet_without_tenant_partitions_registers_in_its_own_partition(bench: Bench, node: Node) -> None:
    config = node.root / "etc/arktos"
    config.mkdir(parents=True)
    (config / "tp1.kubeconfig").write_text(masters.kubeconfig("tp1", ZONE))
    kubelet = f"--hostname-override={node.instance_id} --kubeconfig={config}/tp1.kubeconfig"

    unit(node, "kubelet", f"{node.root}/opt/arktos/bin/hyperkube kubelet {kubelet}")
    unit(
        node,
        "network",
        f"{node.root}/opt/arktos/bin/arktos-network-controller --kubeconfig={config}/tp1.kubeconfig --resource-name-salt=tp1",
    )
    bench.until(lambda: bench.get("tp1", f"/api/v1/nodes/{node.instance_id}"), "the Node in its own partition")
    bench.until(lambda: "salt tp1" in node.log("network"), "the network controller")
    node.systemctl("stop kubelet")
    bench.api("tp1", "DELETE", f"/api/v1/nodes/{node.instance_id}")

    assert bench.get("rp1", f"/api/v1/nodes/{node.instance_id}") is None


def test_a_scheduler_says_how_many_resource_partitions_it_sees(bench: Bench) -> None:
    assert "Scheduler started with resource provider number=1\n" in bench.master("tp1").log("arktos-kube-scheduler")


def test_a_range_that_comes_back_behind_another_node_keeps_its_route(bench: Bench) -> None:
    """A Node is replaced, range and all, between two looks of flanneld."""
    master = bench.master("rp1")
    first, second = (f"127.{bench.n}.0.250", f"127.{bench.n}.0.251")

    def node(name: str, address: str) -> dict[str, Any]:
        cidr = f"127.{bench.n}.191.0/24"
        status = {"addresses": [{"type": "InternalIP", "address": address}], "conditions": []}
        return {"apiVersion": "v1", "metadata": {"name": name}, "spec": {"podCIDR": cidr}, "status": status}

    bench.api("rp1", "POST", "/api/v1/nodes", node("i-first", first))
    bench.until(lambda: first in master.routes().values(), "the route to the first")
    flanneld = int(master.systemctl("show -p MainPID --value arktos-flanneld")[1])
    os.kill(flanneld, signal.SIGSTOP)
    bench.api("rp1", "DELETE", "/api/v1/nodes/i-first")
    bench.api("rp1", "POST", "/api/v1/nodes", node("i-second", second))
    os.kill(flanneld, signal.SIGCONT)
    bench.until(lambda: second in master.routes().values(), "the route to the second")
    time.sleep(1)
    kept = master.routes().get(f"127.{bench.n}.191.0/24")
    bench.api("rp1", "DELETE", "/api/v1/nodes/i-second")

    assert kept == second
