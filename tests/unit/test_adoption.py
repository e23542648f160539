"""autojoin adopt and enroll: what is refused, what is done in which order, and that a run that was killed can be repeated."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autojoin import errors
from autojoin.domain.founding import Marker, State
from autojoin.domain.identity import ClusterName, Identity, PartitionId, Role
from autojoin.domain.lifecycle import Hook
from autojoin.domain.partitions import Partition, PartitionKind
from autojoin.ports import AddressSet, GroupTag, Lease, NodeRecord
from autojoin.use_cases.adoption import OWNER, Claim, adopt
from autojoin.use_cases.enrolment import Planned, Refused, enroll
from tests.fakes.account import CLUSTER_ID, MASTER, RP1, TP1, ZONE_ID, Account, Killed, empty_account, hand_made, launch_hook, topology
from tools.render_documents import parameters_of

ROOT = Path(__file__).resolve().parents[2]
RP = Claim("demo", "rp1", "rp")
WORKERS = Claim("demo", "rp1", "worker")
TAGS = {"autojoin:cluster": "demo", "autojoin:role": "rp", "autojoin:partition": "rp1"}
WORKER = "i-0123456789abcde01"


def apply(planned: Planned) -> None:
    for change in planned.changes:
        change.do()


def adopt_rp(account: Account, claim: Claim = RP) -> Planned:
    return adopt("demo-rp1-masters", claim, account)  # type: ignore[arg-type]


def identity(role: Role = Role.RP, partition: str = "rp1", cluster: str = "demo") -> Identity:
    return Identity(ClusterName(cluster), role, PartitionId(partition))


def enroll_rp(account: Account, who: Identity | None = None, group: str = "demo-rp1-masters") -> Planned:
    return enroll(group, who or identity(), account)  # type: ignore[arg-type]


# -- adopt: a master ------------------------------------------------------------------------------------------------------


def test_a_plan_changes_nothing_and_asks_the_node_only_to_look() -> None:
    account = hand_made()

    adopt_rp(account)

    assert account.writes == []
    assert [(document, who, p["Store"]) for document, who, p in account.sent] == [("inspect", MASTER, "no")]


def test_records_stand_before_anything_can_start() -> None:
    account = hand_made()

    apply(adopt_rp(account))

    assert account.writes == [
        "witness",
        "witness",
        "marker",
        "lease",
        "intent",
        "record",
        "release",
        "declaration",
        "store",
        "lease",
        "intent",
        "release",
        "name",
        "instance tags",
        "group tags",
        "hook",
    ]


def test_an_adopted_partition_is_formed_by_its_instance_for_ever() -> None:
    account = hand_made()

    apply(adopt_rp(account))

    formed = Marker("demo", "rp1", State.FORMED, MASTER, 1, account.time_ms, CLUSTER_ID)
    assert account.testimony == [replace(formed, state=State.CLAIMED, cluster_id=""), formed]
    assert account.marked == {("demo", "rp1"): formed}
    assert account.records[MASTER] == NodeRecord(
        MASTER, "demo", "rp1", "rp", "demo-rp1-masters", "10.0.0.10", "7c1d", account.time_ms, OWNER
    )
    assert account.lease(MASTER).owner is None
    assert json.loads(account.parameters["/autojoin/demo/partitions/rp1"]) == {"id": "rp1", "kind": "rp", "pod_cidr": "10.244.0.0/16"}
    assert account.parameters["/autojoin/demo/public/rp1/client-ca.crt"] == "-----BEGIN CERTIFICATE-----"
    assert account.secrets == {"autojoin/demo/rp1/kubernetes"}
    assert account.ec2[MASTER].tags == TAGS
    assert account.group_views["demo-rp1-masters"].tags == {k: GroupTag(v, True) for k, v in TAGS.items()}
    assert account.group_hooks["demo-rp1-masters"] == [launch_hook("demo-rp1-masters")]


def test_a_second_run_finds_nothing_to_do() -> None:
    account = hand_made()
    apply(adopt_rp(account))

    again = adopt_rp(account, Claim())

    assert again.changes == ()


@pytest.mark.parametrize("killed_after", range(16))
def test_a_run_that_was_killed_is_repeated_to_the_same_end(killed_after: int) -> None:
    whole, account = hand_made(), hand_made()
    apply(adopt_rp(whole))
    account.fail_after = killed_after
    with pytest.raises(Killed):
        apply(adopt_rp(account))
    account.fail_after = None
    account.time_ms += 60_000

    apply(adopt_rp(account))

    assert account.state() == whole.state()
    assert adopt_rp(account).changes == ()


def test_a_tenant_partition_is_declared_by_its_services() -> None:
    account = hand_made()
    account.declared = topology(RP1)
    account.answer |= {"kind_hint": "tp", "service_cidr": "10.96.0.0/16", "pod_cidr": "", "nodes": []}

    apply(adopt("demo-rp1-masters", Claim("demo", "tp1", "tp"), account))  # type: ignore[arg-type]

    assert account.declared.get("tp1") == TP1
    assert account.records[MASTER].node_uid is None
    assert [kind for _, kind, _ in account.intended] == ["record"]


def test_what_the_tags_say_need_not_be_said_again() -> None:
    account = hand_made()
    account.ec2[MASTER] = replace(account.ec2[MASTER], tags=TAGS)

    says = [c.says for c in adopt_rp(account, Claim()).changes]

    assert not any(s.startswith("tag instance") for s in says)
    assert any(s.startswith("tag group") for s in says)


def test_a_secret_that_exists_is_left_alone() -> None:
    account = hand_made()
    account.secrets.add("autojoin/demo/rp1/kubernetes")
    account.parameters["/autojoin/demo/public/rp1/client-ca.crt"] = "-----BEGIN CERTIFICATE-----\n"

    apply(adopt_rp(account))

    assert "store" not in account.writes


def test_a_table_without_the_marker_is_healed_from_the_witness() -> None:
    account = hand_made()
    apply(adopt_rp(account))
    account.marked.clear()

    says = [c.says for c in adopt_rp(account).changes]

    assert says == [f"write the marker: rp1 was formed by {MASTER} with cluster id {CLUSTER_ID}, epoch 1"]


def test_the_zone_id_goes_into_a_declaration_that_has_none() -> None:
    account = hand_made()
    account.declared = topology(TP1, zone_id=None)
    account.parameters["/autojoin/demo/cluster"] = '{"zone": "demo.arktos.internal", "canary_image": "mine:1"}'

    apply(adopt_rp(account, replace(RP, zone_id=ZONE_ID)))

    declared = json.loads(account.parameters["/autojoin/demo/cluster"])
    assert declared == {"zone": "demo.arktos.internal", "canary_image": "mine:1", "zone_id": ZONE_ID}
    assert adopt_rp(account, replace(RP, zone_id=ZONE_ID)).changes == ()


def test_where_etcd_and_keys_are_is_passed_on_each_time() -> None:
    account = hand_made()

    apply(adopt_rp(account, replace(RP, etcd_url="http://127.0.0.1:2379", cert_dir="/etc/keys")))

    assert [(p["EtcdUrl"], p["CertDir"], p["Store"]) for _, _, p in account.sent] == [
        ("http://127.0.0.1:2379", "/etc/keys", "no"),
        ("http://127.0.0.1:2379", "/etc/keys", "yes"),
    ]


def test_the_name_becomes_one_record_set_of_the_instance() -> None:
    account = hand_made()
    account.names["api.rp1.demo.arktos.internal"] = [AddressSet(None, 300, ("10.0.0.10",))]

    apply(adopt_rp(account))

    assert account.names["api.rp1.demo.arktos.internal"] == [AddressSet(MASTER, 10, ("10.0.0.10",))]
    assert account.intended[(MASTER, "record", "api.rp1.demo.arktos.internal")].value.endswith(f"|{MASTER}|10|10.0.0.10")
    assert adopt_rp(account).changes == ()


@pytest.mark.parametrize("identifier", [None, "i-0123456789abcde77"])
def test_a_name_that_leads_elsewhere_is_refused(identifier: str | None) -> None:
    account = hand_made()
    account.names["api.rp1.demo.arktos.internal"] = [AddressSet(identifier, 300, ("10.0.0.99",))]

    with pytest.raises(Refused, match=r"10\.0\.0\.99"):
        adopt_rp(account)

    assert account.writes == []


def test_a_node_of_another_name_is_recorded_but_not_for_deletion() -> None:
    account = hand_made()
    account.answer["nodes"][0]["name"] = "ip-10-0-0-10"

    apply(adopt_rp(account))

    assert account.records[MASTER].node_uid == "7c1d"
    assert [kind for _, kind, _ in account.intended] == ["record"]


def test_notes_say_what_will_disappoint() -> None:
    account = hand_made()
    account.declared = topology(TP1, zone_id=None)
    account.answer |= {"keys": False, "client_ca": "", "nodes": [{**account.answer["nodes"][0], "name": "ip-10-0-0-10"}]}
    view = account.group_views["demo-rp1-masters"]
    account.group_views["demo-rp1-masters"] = replace(
        view, max_size=3, protects_new=False, has_profile=False, subnet_ids=("subnet-a", "subnet-b")
    )

    notes = " / ".join(adopt_rp(account).notes)

    for word in ("zone_id", "keys were not found", "client CA", "ip-10-0-0-10", "profile", "2 subnets", "MaxSize is 3", "scale-in"):
        assert word in notes


def with_answer(**more: Any) -> Account:
    account = hand_made()
    account.answer |= more
    return account


def with_etcd(**more: Any) -> Account:
    account = hand_made()
    account.answer["etcd"] |= more
    return account


def with_marker(state: State = State.FORMED, instance_id: str = MASTER, cluster_id: str = CLUSTER_ID, *, witness: bool = False) -> Account:
    account = hand_made()
    marker = Marker("demo", "rp1", state, instance_id, 1, 0, cluster_id)
    if witness:
        account.testimony.append(marker)
    else:
        account.marked[("demo", "rp1")] = marker
    return account


def with_record(**more: Any) -> Account:
    account = hand_made()
    account.records[MASTER] = replace(NodeRecord(MASTER, "demo", "rp1", "rp", None, None, joined_ms=1), **more)
    return account


def with_declared(*partitions: Partition) -> Account:
    account = hand_made()
    account.declared = topology(*partitions)
    return account


def with_parameter(name: str, value: str) -> Account:
    account = hand_made()
    account.parameters[name] = value
    return account


def with_second(lifecycle_state: str = "InService") -> Account:
    account = hand_made()
    account.add_instance(WORKER, "demo-rp1-masters", lifecycle_state=lifecycle_state)
    return account


def with_stray() -> Account:
    account = hand_made()
    account.add_instance(WORKER, None, tags=TAGS)
    return account


def with_agent(ping: str) -> Account:
    account = hand_made()
    account.pings[MASTER] = ping
    return account


def with_hooks(*hooks: Hook) -> Account:
    account = hand_made()
    account.group_hooks["demo-rp1-masters"] = list(hooks)
    return account


def with_tags(**more: str) -> Account:
    account = hand_made()
    view = account.group_views["demo-rp1-masters"]
    tags = {f"autojoin:{k}": GroupTag(v, True) for k, v in more.items()}
    account.group_views["demo-rp1-masters"] = replace(view, tags=tags)
    return account


def undeclared() -> Account:
    account = hand_made()
    account.declared = None
    return account


MEMBER = {"id": "8e9e05c52164694d", "name": MASTER, "client_urls": []}
TWO = [{**MEMBER, "peer_urls": ["http://10.0.0.10:2380"]}, {**MEMBER, "peer_urls": ["http://10.0.0.11:2380"]}]
NAMED_LIKE_IT = [{**MEMBER, "peer_urls": ["http://localhost:2380"]}]
FAILED = {"status": "Failed", "exit_code": 26, "stdout": '{"ok": false, "seen": "denied", "expected": "allowed", "todo": "allow"}'}


@pytest.mark.parametrize(
    ("account", "claim", "error", "words"),
    [
        (empty_account(), RP, Refused, "autojoin enroll"),
        (with_second(), RP, errors.ReplicasNotSupported, "2 instances"),
        (with_second("Pending:Wait"), RP, Refused, "Pending:Wait"),
        (with_stray(), RP, errors.ReplicasNotSupported, "run with the tags"),
        (hand_made(), Claim(), errors.TagsMissing, "--cluster"),
        (hand_made(), Claim("demo", "rp1"), errors.TagsMissing, "--role"),
        (hand_made(), replace(RP, role="etcd"), errors.RoleNotSupported, "etcd"),
        (with_tags(cluster="other"), RP, errors.TagsContradict, "other by group demo-rp1-masters"),
        (
            undeclared(),
            replace(RP, zone_id=ZONE_ID),
            errors.PartitionNotConfigured,
            f'"zone_id": "{ZONE_ID}"',
        ),
        (undeclared(), RP, errors.PartitionNotConfigured, "/autojoin/demo/cluster"),
        (with_agent("ConnectionLost"), RP, errors.AgentNeverOnline, "ConnectionLost"),
        (with_answer(etcd=None), RP, errors.InvalidInput, "etcd"),
        (with_etcd(members=[]), RP, errors.ReplicasNotSupported, "0 members"),
        (with_etcd(members=TWO), RP, errors.ReplicasNotSupported, "2 members"),
        (with_etcd(members=NAMED_LIKE_IT), RP, Refused, "etcdctl member update 8e9e05c52164694d --peer-urls=http://10.0.0.10:2380"),
        (with_answer(healthz=False), RP, errors.ApiUnreachable, "healthz"),
        (with_answer(kind_hint="tp"), RP, errors.PartitionKindMismatch, "those of a tp"),
        (with_answer(pod_cidr=""), RP, errors.ConfigurationInvalid, "pod_cidr"),
        (with_answer(pod_cidr="10.96.0.0/12"), RP, errors.ConfigurationInvalid, "overlap"),
        (with_declared(TP1, replace(RP1, pod_cidr="10.10.0.0/16")), RP, errors.ConfigurationInvalid, "10.10.0.0/16, as it is declared"),
        (with_declared(replace(RP1, kind=PartitionKind.TP)), RP, errors.PartitionKindMismatch, "which is a tp"),
        (with_declared(TP1, replace(RP1, cni_backend="mizar")), RP, errors.CniNotSupported, "mizar"),
        (with_marker(State.CLAIMED, WORKER, ""), RP, errors.PartitionClaimed, f"claimed by {WORKER}"),
        (with_marker(instance_id=WORKER), RP, errors.PartitionClaimed, f"formed by {WORKER}"),
        (with_marker(instance_id=WORKER, witness=True), RP, errors.PartitionClaimed, f"formed by {WORKER}"),
        (with_marker(cluster_id="f" * 16), RP, errors.ClusterIdMismatch, "f" * 16),
        (with_marker(cluster_id="f" * 16, witness=True), RP, errors.ClusterIdMismatch, "f" * 16),
        (with_record(partition="rp2"), RP, Refused, "of rp2"),
        (with_record(joined_ms=None), RP, Refused, "has not ended well"),
        (with_parameter("/autojoin/demo/public/rp1/client-ca.crt", "another"), RP, Refused, "another certificate"),
        (hand_made(), replace(RP, zone_id="ZOTHER"), errors.ZoneNotConfigured, "leave --zone-id out"),
        (with_hooks(launch_hook("demo-rp1-masters", metadata=None)), RP, Refused, "no launch hook with NotificationMetadata"),
        (with_hooks(launch_hook("demo-rp1-masters", heartbeat_timeout_s=60)), RP, errors.HookTooShort, "60 s"),
        (with_hooks(launch_hook("g", "a"), launch_hook("g", "b")), RP, errors.SeveralHooksOfOurs, "a, b"),
    ],
)
def test_adopting_a_master_is_refused_and_changes_nothing(
    account: Account, claim: Claim, error: type[errors.AutojoinError], words: str
) -> None:
    with pytest.raises(error) as refused:
        adopt_rp(account, claim)

    assert words in str(refused.value)
    assert account.writes == []


def test_a_group_that_does_not_exist_is_refused() -> None:
    with pytest.raises(Refused, match="no Auto Scaling group nobody"):
        adopt("nobody", RP, hand_made())  # type: ignore[arg-type]


def test_what_the_document_failed_with_is_the_command_s_failure() -> None:
    account = hand_made()
    account.ended = FAILED

    with pytest.raises(errors.SecretMissing, match="denied"):
        adopt_rp(account)


def test_a_busy_node_is_to_be_asked_again() -> None:
    account = hand_made()
    account.ended = {"status": "Failed", "exit_code": 15, "stdout": ""}

    with pytest.raises(errors.Busy, match="run the command again"):
        adopt_rp(account)


def test_a_node_that_never_answers_is_not_waited_for_without_end() -> None:
    account = hand_made()
    account.ended = {"status": "InProgress"}

    with pytest.raises(errors.ScriptTimedOut, match="210 s"):
        adopt_rp(account)


def test_keys_that_vanished_in_the_meantime_are_an_error() -> None:
    account = hand_made()
    planned = adopt_rp(account)
    account.answer["keys"] = False

    with pytest.raises(errors.SecretMissing):
        apply(planned)


def test_a_claim_that_came_in_the_meantime_stops_the_command_before_the_marker() -> None:
    account = hand_made()
    planned = adopt_rp(account)
    account.marked[("demo", "rp1")] = Marker("demo", "rp1", State.CLAIMED, WORKER, 1, 0)

    with pytest.raises(errors.PartitionClaimed):
        apply(planned)

    assert account.writes == ["witness", "witness"]


def test_a_witness_that_came_in_the_meantime_stops_the_command_before_its_own() -> None:
    account = hand_made()
    planned = adopt_rp(account)
    account.testimony.append(Marker("demo", "rp1", State.FORMED, WORKER, 1, 0, CLUSTER_ID))

    with pytest.raises(errors.PartitionClaimed):
        apply(planned)

    assert [m.state for m in account.testimony if m.instance_id == MASTER] == [State.CLAIMED]


@pytest.mark.parametrize("lease", [Lease("arn:aws:states:x", 3, None), Lease(None, 3, 1)])
def test_a_node_that_an_execution_works_on_is_not_recorded(lease: Lease) -> None:
    account = hand_made()
    account.leases[MASTER] = lease

    with pytest.raises(errors.LeaseLost):
        apply(adopt_rp(account))

    assert MASTER not in account.records


# -- adopt: workers -------------------------------------------------------------------------------------------------------


def with_workers(*instance_ids: str) -> Account:
    account = hand_made()
    apply(adopt_rp(account))
    account.writes.clear()
    for instance_id in instance_ids:
        made = account.add_instance(instance_id, "demo-rp1-workers")
        account.answer["nodes"].append({"name": instance_id, "uid": f"uid-{instance_id[-2:]}", "pod_cidr": "", "address": made.address})
    return account


def adopt_workers(account: Account, claim: Claim = WORKERS) -> Planned:
    return adopt("demo-rp1-workers", claim, account)  # type: ignore[arg-type]


TWO_WORKERS = (WORKER, "i-0123456789abcde02")


def test_workers_are_recorded_with_their_nodes_before_they_and_their_group_are_tagged() -> None:
    account = with_workers(*TWO_WORKERS)

    apply(adopt_workers(account))

    each = ["lease", "intent", "record", "release"]
    assert account.writes == [*each, *each, "instance tags", "instance tags", "group tags", "hook"]
    assert {i: account.records[i].node_uid for i in TWO_WORKERS} == {WORKER: "uid-01", TWO_WORKERS[1]: "uid-02"}
    assert adopt_workers(account).changes == ()


@pytest.mark.parametrize("killed_after", range(12))
def test_adopting_workers_can_be_killed_and_repeated(killed_after: int) -> None:
    whole, account = with_workers(*TWO_WORKERS), with_workers(*TWO_WORKERS)
    apply(adopt_workers(whole))
    account.fail_after = killed_after
    with pytest.raises(Killed):
        apply(adopt_workers(account))
    account.fail_after = None

    apply(adopt_workers(account))

    assert account.state() == whole.state()
    assert adopt_workers(account).changes == ()


def test_a_worker_on_its_way_out_is_left_alone() -> None:
    account = with_workers(WORKER)
    account.add_instance(TWO_WORKERS[1], "demo-rp1-workers", lifecycle_state="Terminating:Wait")

    apply(adopt_workers(account))

    assert TWO_WORKERS[1] not in account.records


def test_an_instance_without_a_node_is_no_worker() -> None:
    account = with_workers(WORKER)
    account.add_instance(TWO_WORKERS[1], "demo-rp1-workers")

    with pytest.raises(Refused, match=f"{TWO_WORKERS[1]}: none of the 2 Nodes has their address"):
        adopt_workers(account)


def test_workers_need_a_master_that_can_be_asked() -> None:
    account = with_workers(WORKER)
    account.pings[MASTER] = "Inactive"

    with pytest.raises(errors.NoMasterOnline):
        adopt_workers(account)


def test_workers_of_a_partition_that_is_not_declared_are_refused() -> None:
    account = with_workers(WORKER)

    with pytest.raises(errors.PartitionNotConfigured, match="rp9"):
        adopt_workers(account, replace(WORKERS, partition="rp9"))


def test_workers_of_a_tenant_partition_are_refused() -> None:
    account = with_workers(WORKER)

    with pytest.raises(errors.PartitionKindMismatch):
        adopt_workers(account, replace(WORKERS, partition="tp1"))


# -- enroll ---------------------------------------------------------------------------------------------------------------


def test_a_group_is_enrolled_with_the_hook_last() -> None:
    account = empty_account()

    apply(enroll_rp(account))

    assert account.writes == ["soa", "group tags", "hook"]
    assert account.group_views["demo-rp1-masters"].tags == {k: GroupTag(v, True) for k, v in TAGS.items()}
    assert account.group_hooks["demo-rp1-masters"] == [launch_hook("demo-rp1-masters")]
    assert enroll_rp(account).changes == ()


def test_only_the_minimum_of_the_soa_changes() -> None:
    account = empty_account()

    apply(enroll_rp(account))

    zone = account.zones[ZONE_ID]
    assert zone.soa == "ns-1536.awsdns-00.co.uk. awsdns-hostmaster.amazon.com. 1 7200 900 1209600 10"
    assert zone.soa_ttl_s == 900


@pytest.mark.parametrize(("ttl_s", "minimum_s"), [(900, 5), (10, 86400)])
def test_a_zone_whose_missing_names_are_soon_forgotten_stays(ttl_s: int, minimum_s: int) -> None:
    account = empty_account()
    account.zones[ZONE_ID] = replace(account.zones[ZONE_ID], soa=f"a. b. 1 7200 900 1209600 {minimum_s}", soa_ttl_s=ttl_s)

    assert not [c for c in enroll_rp(account).changes if "SOA" in c.says]


@pytest.mark.parametrize("killed_after", range(3))
def test_enrolling_can_be_killed_and_repeated(killed_after: int) -> None:
    whole, account = empty_account(), empty_account()
    apply(enroll_rp(whole))
    account.fail_after = killed_after
    with pytest.raises(Killed):
        apply(enroll_rp(account))
    account.fail_after = None

    apply(enroll_rp(account))

    assert account.state() == whole.state()


def test_workers_need_no_zone_and_are_told_of_a_missing_client_ca() -> None:
    account = empty_account()
    account.zones.clear()

    planned = enroll_rp(account, identity(Role.WORKER), "demo-rp1-workers")

    assert len(planned.changes) == 2
    assert [n.split(":")[0] for n in planned.notes] == ["/autojoin/demo/public/rp1/client-ca.crt does not exist"]


def test_an_enrolled_group_with_instances_needs_nothing() -> None:
    account = empty_account()
    apply(enroll_rp(account))
    account.add_instance(MASTER, "demo-rp1-masters", tags=TAGS)

    assert enroll_rp(account).changes == ()


def test_a_tag_that_does_not_propagate_is_set_again() -> None:
    account = empty_account()
    apply(enroll_rp(account))
    view = account.group_views["demo-rp1-masters"]
    account.group_views["demo-rp1-masters"] = replace(view, tags={**view.tags, "autojoin:role": GroupTag("rp", False)})

    assert [c.says for c in enroll_rp(account).changes] == ["tag group demo-rp1-masters, propagated at launch: autojoin:role=rp"]


def without_zone() -> Account:
    account = empty_account()
    account.zones.clear()
    return account


def of_topology(*partitions: Partition, zone_id: str | None = ZONE_ID) -> Account:
    account = empty_account()
    account.declared = topology(*partitions, zone_id=zone_id)
    return account


def of_group(**more: Any) -> Account:
    account = empty_account()
    account.group_views["demo-rp1-masters"] = replace(account.group_views["demo-rp1-masters"], **more)
    return account


@pytest.mark.parametrize(
    ("account", "who", "error", "words"),
    [
        (hand_made(), identity(), errors.PartitionNotConfigured, "declared is: tp1"),
        (with_declared(TP1, RP1), identity(), Refused, "adopt demo-rp1-masters --cluster demo --partition rp1 --role rp"),
        (empty_account(), identity(partition="rp9"), errors.PartitionNotConfigured, "rp9"),
        (empty_account(), identity(partition="tp1"), errors.PartitionKindMismatch, "which is a tp"),
        (of_topology(RP1, zone_id=None), identity(), errors.ZoneNotConfigured, "without zone_id"),
        (without_zone(), identity(), errors.ZoneNotConfigured, "does not exist"),
        (of_group(subnet_ids=("subnet-a", "subnet-b")), identity(), errors.SubnetNotAdjacent, "2 subnets"),
        (of_group(subnet_ids=()), identity(), errors.SubnetNotAdjacent, "none named"),
        (of_group(tags={"autojoin:cluster": GroupTag("other", True)}), identity(), errors.TagsContradict, "autojoin:cluster=other"),
        (of_group(tags={"autojoin:role": GroupTag("worker", True)}), identity(), errors.TagsContradict, "autojoin:role=worker"),
    ],
)
def test_enrolling_is_refused_and_changes_nothing(account: Account, who: Identity, error: type[errors.AutojoinError], words: str) -> None:
    with pytest.raises(error) as refused:
        enroll_rp(account, who)

    assert words in str(refused.value)
    assert account.writes == []


def test_vxlan_takes_several_subnets() -> None:
    account = of_topology(replace(RP1, cni_backend="vxlan"))
    account.group_views["demo-rp1-masters"] = replace(account.group_views["demo-rp1-masters"], subnet_ids=("subnet-a", "subnet-b"))

    assert enroll_rp(account).changes


def test_a_group_of_masters_that_may_grow_is_noted() -> None:
    notes = enroll_rp(of_group(max_size=2, protects_new=False, has_profile=False)).notes

    assert [n.split(":")[0] for n in notes] == [
        "the launch template gives no instance profile",
        "MaxSize is 2",
        "instances are not protected from scale-in, and one holds the only copy of the partition's data",
    ]


# -- the document ---------------------------------------------------------------------------------------------------------


def test_what_is_sent_is_what_the_document_takes() -> None:
    declared = parameters_of((ROOT / "documents/src/inspect.sh").read_text(encoding="utf-8"))
    account = hand_made()

    apply(adopt_rp(account, replace(RP, etcd_url="http://10.0.0.10:2379", cert_dir="/etc/kubernetes/keys")))

    required = {name for name, shape in declared.items() if "default" not in shape}
    for _, _, sent in account.sent:
        assert required <= sent.keys() <= declared.keys()
        assert [name for name, value in sent.items() if not re.search(declared[name]["allowedPattern"], value)] == []
