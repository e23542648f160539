"""Every error class of the scripts can be provoked, comes with its exit code, and says what was seen, expected and to do."""

from __future__ import annotations

import fcntl
import socket

import pytest
from node_scripts import CODES, Ended, Provoke, Scripts, founder, ready, wrap

from lab.arktos.bench import Bench, Node

pytestmark = [pytest.mark.slow]

SOON = {"AUTOJOIN_LIMIT_S": "5"}
BROKEN = "#!/bin/sh\necho F1201 broken on purpose\nexit 1\n"


def script_failed(script: Scripts, bench: Bench, node: Node) -> Ended:
    return script("join-worker", node, env={"AWS_EC2_METADATA_SERVICE_ENDPOINT": f"http://{node.address}:9"})


def invalid_parameter(script: Scripts, bench: Bench, node: Node) -> Ended:
    return script("join-worker", node, PodCidr="10.244.0.0/16; reboot")


def binaries_missing(script: Scripts, bench: Bench, node: Node) -> Ended:
    return script("join-worker", node, BinDir="/opt/elsewhere/bin")


def client_ca_missing(script: Scripts, bench: Bench, node: Node) -> Ended:
    return script("join-worker", node, ClientCaParameter="/autojoin/demo/public/rp9/client-ca.crt")


def subnet_not_adjacent(script: Scripts, bench: Bench, node: Node) -> Ended:
    return script("join-worker", bench.node("b"))


def api_unreachable(script: Scripts, bench: Bench, node: Node) -> Ended:
    return script("join-worker", node, env=SOON, TenantPartitions="tp1,tp9")


def busy(script: Scripts, bench: Bench, node: Node) -> Ended:
    lock = node.root / "run/autojoin/node.lock"
    lock.parent.mkdir(parents=True)
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        return script("join-worker", node)


def unit_failed(script: Scripts, bench: Bench, node: Node) -> Ended:
    broken = node.root / "opt/broken/bin"
    broken.mkdir(parents=True)
    for name in ("hyperkube", "flanneld", "flannel", "bridge", "host-local", "loopback", "portmap"):
        (broken / name).write_text(BROKEN)
        (broken / name).chmod(0o755)
    return script("join-worker", node, BinDir="/opt/broken/bin")


def node_not_ready(script: Scripts, bench: Bench, node: Node) -> Ended:
    assert script("join-worker", node).code == 0
    (node.root / "etc/cni/net.d/10-flannel.conflist").unlink()
    bench.until(lambda: not ready(bench, node.instance_id), "the kubelet to have noticed")
    return script("verify", node, env={"AUTOJOIN_LIMIT_S": "8"})


def routes_missing(script: Scripts, bench: Bench, node: Node) -> Ended:
    assert script("join-worker", node).code == 0
    master = bench.get("rp1", f"/api/v1/nodes/{bench.master('rp1').instance_id}")
    assert master is not None
    bench.until(lambda: node.routes(), "a route to the master")
    node.network.run(["route", "del", master["spec"]["podCIDR"]])
    return script("verify", node, env={"AUTOJOIN_LIMIT_S": "8"})


def canary_failed(script: Scripts, bench: Bench, node: Node) -> Ended:
    assert script("join-worker", node).code == 0
    tp = bench.master("tp1")
    tp.systemctl("stop arktos-kube-scheduler")
    try:
        return script("verify", node, env={"AUTOJOIN_LIMIT_S": "8"})
    finally:
        tp.systemctl("start arktos-kube-scheduler")


def node_refused(script: Scripts, bench: Bench, node: Node) -> Ended:
    assert script("join-worker", node).code == 0
    return script("remove-node", node, on=bench.master("rp1"), NodeUid="00000000-0000-4000-8000-000000000000")


def port_in_use(script: Scripts, bench: Bench, node: Node) -> Ended:
    with founder(bench) as own, socket.create_server((own.address, 2380)):
        return bench.send("start-etcd", "tp5")


def etcd_data_foreign(script: Scripts, bench: Bench, node: Node) -> Ended:
    with founder(bench) as own:
        assert bench.send("start-etcd", "tp5").code == 0
        return bench.send("start-etcd", "tp5", Token=f"demo.tp5.2.{own.instance_id}")


def quorum_lost(script: Scripts, bench: Bench, node: Node) -> Ended:
    with founder(bench):
        return bench.send("start-etcd", "tp5", Mode="resume", ClusterId="00c0ffee00c0ffee")


def secret_missing(script: Scripts, bench: Bench, node: Node) -> Ended:
    with founder(bench):
        assert [bench.send(name, "tp5").code for name in ("start-etcd", "start-api")] == [0, 0]
        bench.secret("tp5").unlink()
        return bench.send("start-api", "tp5")


def cluster_id_mismatch(script: Scripts, bench: Bench, node: Node) -> Ended:
    with founder(bench):
        assert bench.send("start-etcd", "tp5").code == 0
        return bench.send("start-etcd", "tp5", Mode="resume", ClusterId="00c0ffee00c0ffee")


def peers_not_seen(script: Scripts, bench: Bench, node: Node) -> Ended:
    """The scheduler knows rp1 alone; of the list, another one answers, too."""
    with founder(bench):
        assert [done.code for done in bench.form("tp5").values()] == [0, 0, 0, 0]
        return bench.send("verify-master", "tp5", env={"AUTOJOIN_LIMIT_S": "8"}, ResourcePartitions="rp1,tp1")


PROVOKED: dict[str, tuple[Provoke, str]] = {
    "ScriptFailed": (script_failed, "metadata"),
    "InvalidParameter": (invalid_parameter, "10.244.0.0/16; reboot"),
    "BinariesMissing": (binaries_missing, "hyperkube flanneld flannel bridge host-local loopback portmap"),
    "ClientCaMissing": (client_ca_missing, "ParameterNotFound"),
    "SubnetNotAdjacent": (subnet_not_adjacent, "outside it"),
    "ApiUnreachable": (api_unreachable, "api.tp9.demo.arktos.internal"),
    "Busy": (busy, "node.lock"),
    "UnitFailed": (unit_failed, "broken on purpose"),
    "NodeNotReady": (node_not_ready, "ready=False"),
    "RoutesMissing": (routes_missing, "1 of 1 routes missing"),
    "CanaryFailed": (canary_failed, "Pending, node none"),
    "NodeRefused": (node_refused, "has uid"),
    "PortInUse": (port_in_use, ":2380 takes connections"),
    "EtcdDataForeign": (etcd_data_foreign, "data of demo.tp5.1."),
    "QuorumLost": (quorum_lost, "no write-ahead log"),
    "SecretMissing": (secret_missing, "ResourceNotFoundException"),
    "ClusterIdMismatch": (cluster_id_mismatch, "etcd answers with cluster id"),
    "PeersNotSeen": (peers_not_seen, "started with 1 resource partition"),
}


def test_every_class_is_provoked() -> None:
    assert PROVOKED.keys() == CODES.keys()


@pytest.mark.parametrize("name", PROVOKED)
def test_a_failure_has_its_class_and_its_reason(name: str, script: Scripts, bench: Bench, node: Node) -> None:
    provoke, seen = PROVOKED[name]

    done = provoke(script, bench, node)

    assert (done.error, done.code) == (name, CODES[name]), done.stderr
    assert done.result["ok"] is False
    assert seen in done.result["seen"]
    assert done.result["expected"]
    assert done.result["todo"]
    assert done.before == ""
    assert len(done.stderr) < 8000


def test_a_unit_that_does_not_stop_is_a_failure_of_leaving(script: Scripts, bench: Bench, node: Node) -> None:
    assert script("join-worker", node).code == 0
    deaf = wrap(node, "systemctl", f'#!/bin/sh\n[ "$1" = stop ] && exit 1\nexec "{bench.root}/shims/systemctl" "$@"\n')

    done = script("leave-node", node, env={**deaf, **SOON})

    assert (done.error, done.code) == ("UnitFailed", CODES["UnitFailed"])
