"""inspect: what it says of masters made by hand, that it changes nothing, and how it stores their keys."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from node_scripts import Scripts, files

from lab.arktos.bench import CLUSTER, Bench

pytestmark = [pytest.mark.slow]

CERTIFICATES = ("client-ca", "server-ca", "request-header-ca")


def make_keys(folder: Path) -> None:
    """What Arktos' own scripts leave in their folder."""
    folder.mkdir(parents=True)
    for name in CERTIFICATES:
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", f"/CN={name}",
             "-keyout", folder / f"{name}.key", "-out", folder / f"{name}.crt"],
            check=True, capture_output=True,
        )  # fmt: skip
    subprocess.run(["openssl", "genrsa", "-out", folder / "service-account.key", "2048"], check=True, capture_output=True)


@pytest.mark.parametrize("kind", ["tp", "rp"])
def test_a_hand_made_master_is_described_and_nothing_changes(kind: str, script: Scripts, bench: Bench) -> None:
    node = bench.master(f"{kind}1")
    written, pids = files(node), node.pids()

    done = script("inspect", node)

    partition = next(p for p in bench.partitions if p.kind == kind)
    said = done.result
    assert done.code == 0, done.stderr
    assert (files(node), node.pids()) == (written, pids)
    member = said["etcd"]["members"][0]
    assert (member["name"], member["peer_urls"]) == (node.instance_id, [f"http://{node.address}:2380"])
    assert all(len(identity) == 16 and int(identity, 16) for identity in (said["etcd"]["cluster_id"], member["id"]))
    assert said["etcd"]["version"].startswith("3.")
    assert (said["healthz"], said["kind_hint"]) == (True, kind)
    assert said["service_cidr" if kind == "tp" else "pod_cidr"] == partition.cidr
    assert said["pod_cidr" if kind == "tp" else "service_cidr"] == ""
    assert [n["name"] for n in said["nodes"]] == ([] if kind == "tp" else [node.instance_id])
    assert all(n["uid"] and n["pod_cidr"] and n["address"] == node.address for n in said["nodes"])
    assert (said["client_ca"], said["keys"]) == ("", False)
    assert "stored" not in said


def test_flags_are_those_of_the_units_while_nothing_runs(script: Scripts, bench: Bench) -> None:
    rp = bench.master("rp1")
    rp.systemctl("stop arktos-kube-controller-manager")
    try:
        done = script("inspect", rp)
    finally:
        rp.systemctl("start arktos-kube-controller-manager")

    assert (done.result["kind_hint"], done.result["pod_cidr"]) == ("rp", bench.pod_cidr)


def test_keys_are_stored_once_and_never_shown(script: Scripts, bench: Bench) -> None:
    tp = bench.master("tp1")
    make_keys(tp.root / "var/run/kubernetes")
    given = {"Partition": "tp1", "Store": "yes"}

    looked = script("inspect", tp, Partition="tp1")
    absent = bench.secret("tp1").exists()
    first = script("inspect", tp, **given)
    secret = json.loads(bench.secret("tp1").read_text())
    second = script("inspect", tp, **given)

    assert (looked.result["keys"], looked.result["client_ca"].startswith("-----BEGIN CERTIFICATE")) == (True, True)
    assert not absent
    assert (first.result["stored"], second.result["stored"]) == ("created", "exists")
    assert secret["service-account.pub"].startswith("-----BEGIN PUBLIC KEY")
    assert secret["client-ca.key"] == (tp.root / "var/run/kubernetes/client-ca.key").read_text()
    assert json.loads(bench.secret("tp1").read_text()) == secret
    assert bench.parameter(f"/autojoin/{CLUSTER}/public/tp1/client-ca.crt") == secret["client-ca.crt"]
    told = "".join(d.stderr + d.before + json.dumps(d.result) for d in (looked, first, second)) + (bench.root / "aws.log").read_text()
    assert "PRIVATE KEY" not in told
    assert secret["client-ca.key"].splitlines()[1] not in told


def test_a_master_without_keys_stores_none(script: Scripts, bench: Bench) -> None:
    done = script("inspect", bench.master("rp1"), Store="yes", CertDir="/var/run/elsewhere")

    assert (done.code, done.result["stored"]) == (0, "no-keys")
    assert not bench.secret("rp1").exists()


def test_without_etcd_there_is_nothing_to_adopt(script: Scripts, bench: Bench) -> None:
    node = bench.master("tp1")

    done = script("inspect", node, env={"AUTOJOIN_LIMIT_S": "5"}, EtcdUrl=f"http://{node.address}:4001")

    assert (done.error, "EtcdUrl" in done.result["todo"]) == ("ApiUnreachable", True)
