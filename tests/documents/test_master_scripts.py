"""Masters that the documents made: a second run, a changed list, a reboot, a failed re-join leave them serving."""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from node_scripts import HELD, etcd_env, files, formed, founder, proved, state

from lab.arktos.bench import CLUSTER, ZONE, Bench, Node

pytestmark = [pytest.mark.slow]

SOON = {"AUTOJOIN_LIMIT_S": "8"}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """tp1 and rp1, made by the documents; tests leave them serving."""
    with Bench(tmp_path_factory.mktemp("pair")) as made:
        for partition, kind in (("tp1", "tp"), ("rp1", "rp")):
            made.declare(partition, kind)
        for partition in ("tp1", "rp1"):
            formed(made, partition)
        made.until(lambda: proved(made, "tp1") and proved(made, "rp1"), "both to see each other")
        yield made


def start_after_reboot(bench: Bench, node: Node, partition: str) -> None:
    node.reboot()
    bench.until(lambda: bench.healthy(partition), "the API server to be healthy again")


# ---- again -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("partition", ["tp1", "rp1"])
def test_a_second_run_of_everything_changes_and_restarts_nothing(partition: str, pair: Bench) -> None:
    node = pair.master(partition)
    written, pids, secret = files(node), node.pids(), pair.secret(partition).read_text()
    (pair.root / "aws.log").unlink(missing_ok=True)

    done = formed(pair, partition)

    assert [result.get("already") for result in done.values()] == [True, True, True, None]
    assert done["start-api"]["secret"] == "read"
    assert (files(node), node.pids(), pair.secret(partition).read_text()) == (written, pids, secret)
    assert not re.search("put-parameter|create-secret", (pair.root / "aws.log").read_text())


def test_a_node_resumes_with_its_own_cluster_id(pair: Bench) -> None:
    recorded = etcd_env(pair.master("tp1"))["AUTOJOIN_CLUSTER_ID"]

    done = pair.send("start-etcd", "tp1", Mode="resume", ClusterId=recorded)

    assert (done.code, done.result["already"], done.result["cluster_id"]) == (0, True, recorded)


def test_an_api_server_that_serves_is_not_restarted_when_its_configuration_changes(pair: Bench) -> None:
    rp = pair.master("rp1")
    pids, before = rp.pids(), files(rp)

    changed = pair.send("start-api", "rp1", ServiceCidr="127.250.0.0/24")
    unit = (rp.root / "etc/systemd/system/arktos-apiserver.service").read_text()
    back = pair.send("start-api", "rp1")

    assert (changed.code, changed.result["already"]) == (0, False)
    assert "--service-cluster-ip-range=127.250.0.0/24" in unit
    assert back.code == 0
    assert rp.pids() == pids
    assert files(rp).keys() == before.keys()


@pytest.mark.parametrize(("partition", "listed"), [("tp1", {"ResourcePartitions": "rp1,rp9"}), ("rp1", {"TenantPartitions": "tp1,tp9"})])
def test_a_serving_master_keeps_its_list_while_a_listed_partition_is_silent(partition: str, listed: dict[str, str], pair: Bench) -> None:
    node = pair.master(partition)
    written, pids = files(node), node.pids()

    done = pair.send(f"join-{partition[:2]}", partition, env=SOON, **listed)

    assert (done.error, node.pids()) == ("ApiUnreachable", pids)
    assert files(node) == written


def test_a_longer_list_is_applied_when_all_of_it_answers_and_taken_back(pair: Bench) -> None:
    tp = pair.master("tp1")
    written, kept = files(tp), {unit: tp.pids()[unit] for unit in ("arktos-etcd", "arktos-apiserver")}

    longer = pair.send("join-tp", "tp1", ResourcePartitions="rp1,tp1")
    seen = pair.send("verify-master", "tp1", ResourcePartitions="rp1,tp1")
    shorter = pair.send("join-tp", "tp1")

    assert (longer.code, longer.result["already"], shorter.result["already"]) == (0, False, False)
    assert seen.result["resource_partitions_seen"] == 2
    assert {unit: tp.pids()[unit] for unit in kept} == kept
    assert files(tp) == written


# ---- a reboot --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("partition", ["tp1", "rp1"])
def test_a_reboot_brings_everything_back_with_the_same_cluster_id(partition: str, pair: Bench) -> None:
    node = pair.master(partition)
    before = pair.send("start-etcd", partition).result

    start_after_reboot(pair, node, partition)
    pair.until(lambda: all(node.is_active(unit) for unit in node.units()), "every unit")

    assert pair.send("start-etcd", partition).result == before
    pair.until(lambda: proved(pair, "tp1") and proved(pair, "rp1"), "both to see each other again")


def test_after_a_reboot_a_scheduler_waits_for_its_resource_partitions_again(pair: Bench) -> None:
    tp, rp = pair.master("tp1"), pair.master("rp1")
    rp.systemctl("stop arktos-apiserver")

    start_after_reboot(pair, tp, "tp1")
    pair.until(lambda: "waiting for rp1" in tp.log("arktos-kube-controller-manager"), "the controller-manager to wait")
    held = [state(tp, unit) for unit in HELD]
    rp.systemctl("start arktos-apiserver")
    pair.until(lambda: all(tp.is_active(unit) for unit in HELD), "the held units")

    assert held == ["activating", "activating"]


# ---- founding --------------------------------------------------------------------------------------------------------------


def test_two_founders_never_mix_tokens_nor_clusters(pair: Bench) -> None:
    tp, rp = pair.master("tp1"), pair.master("rp1")
    with founder(pair) as other:
        wrong = pair.send("start-etcd", "tp5", Token=f"{CLUSTER}.tp1.1.{other.instance_id}")
        of_another = pair.send("start-etcd", "tp5", Token=f"{CLUSTER}.tp5.1.{tp.instance_id}")
        left = (other.root / "var/lib/etcd").exists()

    tokens = {etcd_env(node)["ETCD_INITIAL_CLUSTER_TOKEN"] for node in (tp, rp)}
    ids = {etcd_env(node)["AUTOJOIN_CLUSTER_ID"] for node in (tp, rp)}
    assert (wrong.error, of_another.error) == ("InvalidParameter", "InvalidParameter")
    assert not left
    assert tokens == {f"{CLUSTER}.tp1.1.{tp.instance_id}", f"{CLUSTER}.rp1.1.{rp.instance_id}"}
    assert len(ids) == 2


# ---- keys ------------------------------------------------------------------------------------------------------------------


def test_the_secure_port_has_a_certificate_for_the_partitions_name_by_its_server_ca(pair: Bench, tmp_path: Path) -> None:
    tp = pair.master("tp1")
    pki = tp.root / "etc/arktos/pki"

    def ask(path: str, context: ssl.SSLContext) -> str:
        plain = socket.create_connection((tp.address, 6443), 5)
        with context.wrap_socket(plain, server_hostname=f"api.tp1.{ZONE}") as link:
            link.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
            return link.recv(65536).decode().split("\r\n")[0]

    anonymous = ssl.create_default_context(cafile=str(pki / "server-ca.crt"))
    known = ssl.create_default_context(cafile=str(pki / "server-ca.crt"))
    known.load_cert_chain(pki / "client-kube-apiserver.crt", pki / "client-kube-apiserver.key")

    assert ask("/healthz", anonymous).endswith("200 OK")
    assert " 401 " in ask("/api/v1/nodes", anonymous)
    assert ask("/api/v1/nodes", known).endswith("200 OK")


# ---- what a failure leaves behind ------------------------------------------------------------------------------------------


def test_a_failed_first_join_stops_what_it_started_and_neither_etcd_nor_the_api(pair: Bench) -> None:
    with founder(pair) as own:
        assert [pair.send(name, "tp5").code for name in ("start-etcd", "start-api")] == [0, 0]
        kept = own.pids()
        broken = own.root / "opt/broken/bin"
        broken.mkdir(parents=True)
        for name in ("hyperkube", "arktos-network-controller"):
            (broken / name).write_text("#!/bin/sh\necho F1201 broken on purpose\nexit 1\n")
            (broken / name).chmod(0o755)

        done = pair.send("join-tp", "tp5", BinDir="/opt/broken/bin")
        after = {unit: pid for unit, pid in own.pids().items() if pid != "0"}
        again = pair.send("join-tp", "tp5")

    assert done.error == "UnitFailed"
    assert "arktos-network-controller" in done.result["undone"]["stopped"]
    assert after == kept
    assert again.code == 0


def test_a_failed_re_join_of_a_serving_master_leaves_it_serving(pair: Bench) -> None:
    tp = pair.master("tp1")
    written = files(tp)
    broken = tp.root / "opt/broken/bin"
    broken.mkdir(parents=True)
    for name in ("hyperkube", "arktos-network-controller"):
        (broken / name).write_text("#!/bin/sh\nexit 1\n")
        (broken / name).chmod(0o755)

    done = pair.send("join-tp", "tp1", BinDir="/opt/broken/bin")
    pair.until(lambda: all(tp.is_active(unit) for unit in tp.units()), "every unit to be active again")

    assert done.error == "UnitFailed"
    assert done.result["undone"] == {"serving_again": True}
    assert files(tp) == written
    assert proved(pair, "tp1")
