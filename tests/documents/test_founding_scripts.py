"""start-etcd, start-api, join-tp and join-rp on instances that have nothing: in either order, interrupted, forbidden, rolled back."""

from __future__ import annotations

import json
import signal
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from node_scripts import HELD, ended, etcd_env, files, formed, state, tainted, wrap

from lab.arktos.bench import CLUSTER, Bench

pytestmark = [pytest.mark.slow]

SECRET = {
    "client-ca.crt", "client-ca.key", "server-ca.crt", "server-ca.key", "request-header-ca.crt", "request-header-ca.key",
    "service-account.key", "service-account.pub",
}  # fmt: skip


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Bench]:
    """No partition at all."""
    with Bench(tmp_path / "bench") as made:
        yield made


# ---- in either order -------------------------------------------------------------------------------------------------------


def test_a_tenant_partition_without_resource_partitions_waits_and_goes_on_by_itself_when_they_come(empty: Bench) -> None:
    tp = empty.declare("tp1", "tp")
    empty.declare("rp1", "rp")

    first = formed(empty, "tp1")
    held = [state(tp, unit) for unit in HELD]
    rest = [unit for unit in tp.units() if unit not in HELD]
    alone = {unit: tp.pids()[unit] for unit in rest}
    again = empty.send("join-tp", "tp1")
    formed(empty, "rp1")
    empty.until(lambda: all(tp.is_active(unit) for unit in HELD), "the held units to start")
    then = empty.send("verify-master", "tp1")

    assert first["join-tp"]["waiting_for"] == first["verify-master"]["waiting_for"] == ["rp1"]
    assert first["verify-master"]["resource_partitions_seen"] == 0
    assert held == ["activating", "activating"]
    assert (again.result["already"], again.result["waiting_for"]) == (True, ["rp1"])
    assert "waiting for rp1.kubeconfig" in tp.log("arktos-kube-controller-manager")
    assert (then.code, then.result["waiting_for"], then.result["resource_partitions_seen"]) == (0, [], 1)
    assert {unit: tp.pids()[unit] for unit in rest} == alone


def test_a_resource_partition_without_tenant_partitions_is_tainted_until_they_come(empty: Bench) -> None:
    rp = empty.declare("rp1", "rp")
    empty.declare("tp1", "tp")

    first = formed(empty, "rp1")
    before = tainted(empty, "rp1")
    formed(empty, "tp1")
    empty.until(lambda: not tainted(empty, "rp1"), "the taint to go")
    then = empty.send("verify-master", "rp1")

    node = empty.get("rp1", f"/api/v1/nodes/{rp.instance_id}")
    assert node is not None
    assert first["join-rp"]["waiting_for"] == first["verify-master"]["waiting_for"] == ["tp1"]
    assert first["join-rp"]["pod_cidr"] == node["spec"]["podCIDR"]
    assert first["join-rp"]["node_uid"] == node["metadata"]["uid"]
    assert first["join-rp"]["address"] == rp.address
    assert before
    assert (then.code, then.result["waiting_for"]) == (0, [])


def test_without_any_resource_partition_a_scheduler_never_takes_its_partition_for_the_cluster(empty: Bench) -> None:
    tp = empty.declare("tp1", "tp")

    done = formed(empty, "tp1")

    assert done["join-tp"]["waiting_for"] == []
    assert [state(tp, unit) for unit in HELD] == ["activating", "activating"]
    assert "no resource partition is declared" in tp.log("arktos-kube-scheduler")
    assert "local cluster" not in tp.log("arktos-kube-scheduler")


# ---- a reboot --------------------------------------------------------------------------------------------------------------


def test_a_reboot_without_the_data_does_not_found_again(empty: Bench) -> None:
    tp = empty.declare("tp1", "tp")
    formed(empty, "tp1")
    recorded = etcd_env(tp)["AUTOJOIN_CLUSTER_ID"]

    for unit in tp.units():
        tp.systemctl(f"stop {unit}")
    (tp.root / "var/lib/etcd").rename(tp.root / "var/lib/lost")
    tp.manager.start_enabled()
    empty.until(lambda: "is not founded again" in tp.log("arktos-etcd"), "etcd to refuse")
    resumed = empty.send("start-etcd", "tp1", Mode="resume", ClusterId=recorded)

    assert not list((tp.root / "var/lib").glob("etcd/member"))
    assert resumed.error == "QuorumLost"
    assert not empty.healthy("tp1")


def test_without_its_guard_etcd_itself_refuses_to_start_without_data(empty: Bench) -> None:
    tp = empty.declare("tp1", "tp")
    assert empty.send("start-etcd", "tp1").code == 0
    tp.systemctl("stop arktos-etcd")
    (tp.root / "var/lib/etcd").rename(tp.root / "var/lib/lost")
    (tp.root / "etc/arktos/etcd/guard.sh").write_text("exit 0\n")

    tp.systemctl("start arktos-etcd")
    empty.until(lambda: "Main process exited" in tp.log("arktos-etcd"), "etcd to end")

    assert not list((tp.root / "var/lib/etcd").glob("member/wal/*.wal"))


# ---- founding --------------------------------------------------------------------------------------------------------------


def test_a_founding_that_was_killed_half_way_is_finished_by_the_next_run(empty: Bench) -> None:
    tp = empty.declare("tp1", "tp")
    process = empty.start("start-etcd", tp, empty.parameters("tp1"))
    empty.until(lambda: list((tp.root / "var/lib/etcd").glob("member/wal/*.wal")), "etcd to have begun")
    process.send_signal(signal.SIGKILL)
    process.communicate()

    done = empty.send("start-etcd", "tp1")

    assert done.code == 0, done.stderr
    assert etcd_env(tp) == {
        "ETCD_INITIAL_CLUSTER_STATE": "existing",
        "ETCD_INITIAL_CLUSTER_TOKEN": f"{CLUSTER}.tp1.1.{tp.instance_id}",
        "AUTOJOIN_CLUSTER_ID": done.result["cluster_id"],
    }


def test_data_of_another_cluster_id_is_stopped_and_kept(empty: Bench) -> None:
    tp = empty.declare("tp1", "tp")
    assert empty.send("start-etcd", "tp1").code == 0
    tp.systemctl("stop arktos-etcd")
    tp.systemctl("disable arktos-etcd")

    done = empty.send("start-etcd", "tp1", Mode="resume", ClusterId="00c0ffee00c0ffee")

    assert done.error == "ClusterIdMismatch"
    assert done.result["undone"] == {"stopped": ["arktos-etcd"]}
    assert state(tp, "arktos-etcd") == "inactive"
    assert list((tp.root / "var/lib/etcd").glob("member/wal/*.wal"))


def test_data_of_another_instance_is_refused_though_the_cluster_id_fits(empty: Bench) -> None:
    tp, other = empty.declare("tp1", "tp"), empty.declare("tp2", "tp")
    cluster_id = empty.send("start-etcd", "tp1").result["cluster_id"]
    tp.systemctl("stop arktos-etcd")
    (tp.root / "var/lib/etcd").rename(other.root / "var/lib/etcd")

    done = empty.send("start-etcd", "tp2", Mode="resume", ClusterId=cluster_id)

    assert done.error == "EtcdDataForeign"
    assert f"http://{tp.address}:2380" in done.result["seen"]
    assert state(other, "arktos-etcd") == "inactive"


def test_etcd_without_a_binary_is_told_and_nothing_is_written(empty: Bench) -> None:
    tp = empty.declare("tp1", "tp")

    done = [empty.send(name, "tp1", BinDir="/opt/elsewhere/bin") for name in ("start-etcd", "start-api", "join-tp")]

    assert [d.error for d in done] == ["BinariesMissing"] * 3
    assert files(tp) == {}
    assert not (tp.root / "var/lib/etcd").exists()


# ---- keys ------------------------------------------------------------------------------------------------------------------


def test_keys_are_made_once_and_stay_private(empty: Bench) -> None:
    tp = empty.declare("tp1", "tp")
    done = empty.form("tp1")
    secret = json.loads(empty.secret("tp1").read_text())
    private = {p: stat.S_IMODE(p.stat().st_mode) for p in (tp.root / "etc/arktos").rglob("*.key")}
    texts = [d.stderr + d.before + json.dumps(d.result) for d in done.values()]
    texts += [p.read_text(errors="replace") for p in (tp.root / "var/log").glob("*.log")]
    texts += [(empty.root / "aws.log").read_text()]
    texts += [p.read_text() for p in (tp.root / "etc/systemd/system").glob("*.service")]

    assert all(d.code == 0 for d in done.values())
    assert done["start-api"].result["secret"] == "created"
    assert secret.keys() == SECRET
    assert set(private.values()) == {0o600}
    assert {p.name for p in private} == {
        "service-account.key", "serving-kube-apiserver.key", "client-kube-apiserver.key", "client-auth-proxy.key",
    }  # fmt: skip
    keys = [value for value in [*secret.values(), *(p.read_text() for p in private)] if "PRIVATE" in value]
    bodies = [line for key in keys for line in key.split("\n")[1:3]]
    assert bodies
    assert not any(body in text for body in bodies for text in texts)
    assert not any("PRIVATE KEY" in text for text in texts)
    assert list((tp.root / "run/autojoin").iterdir()) == [tp.root / "run/autojoin/node.lock"]
    assert empty.parameter(f"/autojoin/{CLUSTER}/public/tp1/client-ca.crt") == secret["client-ca.crt"]


def test_keys_that_another_run_made_first_are_read(empty: Bench) -> None:
    other, _ = empty.declare("tp1", "tp"), empty.declare("tp2", "tp")
    assert [empty.send(name, "tp2").code for name in ("start-etcd", "start-api")] == [0, 0]
    empty.secret("tp1").write_text(empty.secret("tp2").read_text())

    assert empty.send("start-etcd", "tp1").code == 0
    done = empty.send("start-api", "tp1")

    secret = json.loads(empty.secret("tp2").read_text())
    assert (done.code, done.result["secret"]) == (0, "read")
    assert (other.root / "etc/arktos/pki/service-account.key").read_text() == secret["service-account.key"]


@pytest.mark.parametrize(
    ("denied", "error"),
    [
        ("secretsmanager:CreateSecret", "SecretMissing"),
        ("secretsmanager:GetSecretValue", "SecretMissing"),
        ("ssm:PutParameter", "ClientCaMissing"),
    ],
)
def test_what_the_instance_profile_forbids_is_told_before_the_node_changes(denied: str, error: str, empty: Bench) -> None:
    tp = empty.declare("tp1", "tp")
    assert empty.send("start-etcd", "tp1").code == 0
    before = files(tp)
    empty.deny(denied)

    done = empty.send("start-api", "tp1")

    assert done.error == error
    assert "AccessDenied" in done.result["seen"]
    assert denied in done.result["todo"]
    assert files(tp) == before


def test_a_secret_without_all_keys_is_no_secret(empty: Bench) -> None:
    empty.declare("tp1", "tp")
    empty.secret("tp1").write_text('{"client-ca.crt": "none"}')
    assert empty.send("start-etcd", "tp1").code == 0

    done = empty.send("start-api", "tp1")

    assert (done.error, "client-ca.crt" in done.result["seen"]) == ("SecretMissing", True)


# ---- what a failure leaves behind ------------------------------------------------------------------------------------------


def test_a_run_that_is_told_to_stop_puts_back_what_it_changed(empty: Bench) -> None:
    tp = empty.declare("tp1", "tp")
    slow = wrap(tp, "curl", '#!/bin/sh\ncase "$*" in *2379/health*) sleep 1; exit 7;; esac\nexec /usr/bin/curl "$@"\n')
    process = empty.start("start-etcd", tp, empty.parameters("tp1"), slow)
    empty.until(lambda: tp.is_active("arktos-etcd"), "etcd to run")
    time.sleep(0.5)
    process.send_signal(signal.SIGTERM)
    done = ended(process)

    assert done.error == "ScriptFailed"
    assert done.result["undone"] == {"stopped": ["arktos-etcd"]}
    assert state(tp, "arktos-etcd") == "inactive"
    assert etcd_env(tp)["ETCD_INITIAL_CLUSTER_STATE"] == "new"
    assert empty.send("start-etcd", "tp1").code == 0


def test_an_api_server_without_keys_and_a_join_without_an_api_server_are_told(empty: Bench) -> None:
    tp = empty.declare("tp1", "tp")

    without_etcd = empty.send("start-api", "tp1")
    without_api = empty.send("join-tp", "tp1")
    without_range = empty.send("start-api", "tp1", ServiceCidr="")

    assert (without_etcd.error, "2379" in without_etcd.result["seen"]) == ("UnitFailed", True)
    assert (without_api.error, "client-ca.crt is missing" in without_api.result["seen"]) == ("UnitFailed", True)
    assert without_range.error == "InvalidParameter"
    assert files(tp) == {}


# ---- leaving ---------------------------------------------------------------------------------------------------------------


def test_a_master_that_is_rolled_back_stops_etcd_last_and_keeps_its_data(empty: Bench) -> None:
    tp = empty.declare("tp1", "tp")
    cluster_id = formed(empty, "tp1")["start-etcd"]["cluster_id"]
    noted = wrap(tp, "systemctl", f'#!/bin/sh\necho "$*" >>{tp.root}/tmp/told\nexec "{empty.root}/shims/systemctl" "$@"\n')

    first, second = empty.send("leave-node", "tp1", noted), empty.send("leave-node", "tp1")
    stops = [line.split()[1] for line in (tp.root / "tmp/told").read_text().splitlines() if line.startswith("stop ")]
    again = empty.send("start-etcd", "tp1")

    assert (first.code, first.result["stopped"], first.result["left"]) == (0, 7, [])
    assert (second.code, second.result["stopped"]) == (0, 0)
    assert stops[-2:] == ["arktos-apiserver.service", "arktos-etcd.service"]
    assert not (tp.root / "etc/arktos/pki").exists()
    assert (again.code, again.result["cluster_id"]) == (0, cluster_id)


def test_a_resource_partitions_master_leaves_without_routes_or_keys(empty: Bench) -> None:
    rp = empty.declare("rp1", "rp")
    formed(empty, "rp1")

    done = empty.send("leave-node", "rp1")

    assert (done.code, done.result["stopped"], done.result["left"]) == (0, 6, [])
    assert set(files(rp)) == {"etc/arktos/etcd/etcd.env", "etc/arktos/etcd/guard.sh"}
    assert not any(rp.is_active(unit) for unit in ("arktos-etcd", "arktos-apiserver", "arktos-kubelet"))
