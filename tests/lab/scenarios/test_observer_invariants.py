"""Each invariant on journals made by hand: it holds where nothing is wrong, and says what is wrong where something is."""

from __future__ import annotations

from typing import Any

import pytest

from lab.observer.invariants import INVARIANTS, Evidence, Leftover, hooks_of, judge

GOOD_NODE = {"ready": True, "tainted": False, "pod_cidr": "127.20.128.0/24", "pod_cidr_in_range": True}


def entry(kind: str, t: float = 10.0, **fields: Any) -> dict[str, Any]:
    return {"t": t, "kind": kind, **fields}


def hook(event: str, t: float = 10.0, **fields: Any) -> dict[str, Any]:
    given = {
        "instance_id": "i-1",
        "group": "workers",
        "hook": "launch",
        "token": "token-1",
        "result": None,
        "by": None,
        "deadline": None,
    }
    return entry("hook", t, event=event, **{**given, **fields})


def instance(event: str, t: float = 1.0, instance_id: str = "i-1", **fields: Any) -> dict[str, Any]:
    return entry("instance", t, instance_id=instance_id, group=fields.pop("group", "workers"), event=event, **fields)


def evidence(*entries: dict[str, Any], **fields: Any) -> Evidence:
    return Evidence(entries=list(entries), **{"ended_at": 100.0, **fields})


def violations(name: str, found: Evidence) -> list[str]:
    return judge(found)[name]


def test_a_quiet_journal_breaks_nothing() -> None:
    # When
    verdicts = judge(evidence())

    # Then
    assert verdicts == {name: [] for name in INVARIANTS}


def test_a_join_as_it_should_be_breaks_nothing() -> None:
    # Given
    journal = [
        instance("launched", 1, address="127.20.0.12"),
        entry("lifecycle", 1, instance_id="i-1", group="workers", state="Pending:Wait"),
        hook("opened", 1, deadline=301.0),
        entry("etcd", 2, partition="rp1", cluster_id="7", members=["rp1 http://127.20.0.11:2380"]),
        entry("nodes", 3, partition="rp1", nodes={"i-1": "uid"}),
        entry("look", 9, instance_id="i-1", partition="rp1", node=GOOD_NODE),
        hook("completed", 9, result="CONTINUE", by="arn:aws:sts::000000000000:assumed-role/hook/x"),
        entry("lifecycle", 9, instance_id="i-1", group="workers", state="InService"),
        entry("etcd", 50, partition="rp1", cluster_id="7", members=["rp1 http://127.20.0.11:2380"]),
    ]

    # When
    verdicts = judge(evidence(*journal))

    # Then
    assert all(not broken for broken in verdicts.values()), verdicts


def test_a_second_completion_of_one_hook_is_told() -> None:
    # Given
    found = evidence(hook("opened"), hook("completed", result="CONTINUE", by="a"), hook("completed", result="ABANDON", by="b"))

    # When
    told = violations("hook_completed_at_most_once", found)

    # Then
    assert len(told) == 1
    assert "completed 2 times: CONTINUE by a, ABANDON by b" in told[0]


def test_a_refused_completion_counts_for_nothing() -> None:
    # Given
    found = evidence(hook("opened"), hook("completed", result="CONTINUE"), hook("refused", result="CONTINUE"))

    # When / Then
    assert violations("hook_completed_at_most_once", found) == []


def test_a_hook_left_waiting_is_told_unless_it_was_expected() -> None:
    # Given
    journal = [hook("opened", 10, deadline=400.0)]

    # When
    told = violations("no_hook_outlives_its_deadline", evidence(*journal))
    expected = violations("no_hook_outlives_its_deadline", evidence(*journal, may_be_left_waiting=frozenset({"workers"})))

    # Then
    assert told == ["hook launch of i-1 (group workers) was left waiting at the end"]
    assert expected == []


def test_a_hook_that_outlives_its_deadline_is_told_even_where_waiting_is_expected() -> None:
    # Given
    found = evidence(hook("opened", 10, deadline=40.0), may_be_left_waiting=frozenset({"workers"}))

    # When / Then
    assert violations("no_hook_outlives_its_deadline", found) == ["hook launch of i-1 outlived its deadline by 60.0 s"]


def test_a_heartbeat_moves_the_deadline() -> None:
    # Given
    found = evidence(hook("opened", 10, deadline=40.0), hook("heartbeat", 39, deadline=69.0), hook("completed", 60, result="CONTINUE"))

    # When / Then
    assert violations("no_hook_outlives_its_deadline", found) == []


@pytest.mark.parametrize("end", ["killed", "terminated"])
def test_an_instance_that_is_gone_leaves_no_hook_waiting(end: str) -> None:
    # Given
    found = evidence(hook("opened", 10, deadline=400.0), instance(end, 20))

    # When / Then
    assert violations("no_hook_outlives_its_deadline", found) == []
    assert hooks_of(found.entries)[0].closed_at == 20


@pytest.mark.parametrize(
    ("node", "word"),
    [
        (None, "knows no such Node"),
        ({**GOOD_NODE, "ready": False}, "not Ready"),
        ({**GOOD_NODE, "tainted": True}, "taint"),
        ({**GOOD_NODE, "pod_cidr": "10.0.0.0/24", "pod_cidr_in_range": False}, "10.0.0.0/24"),
    ],
)
def test_a_continue_for_a_node_that_does_not_work_is_told(node: dict[str, Any] | None, word: str) -> None:
    # Given
    found = evidence(entry("look", instance_id="i-1", partition="rp1", node=node, error=None))

    # When
    told = violations("continue_only_when_the_node_works", found)

    # Then
    assert len(told) == 1
    assert word in told[0]


def test_what_names_a_gone_instance_is_told() -> None:
    # Given
    found = evidence(leftovers=(Leftover("dns", "record x A ['127.20.0.12']", "i-1"),))

    # When / Then
    assert violations("nothing_left_of_gone_instances", found) == ["dns: record x A ['127.20.0.12'] still names i-1"]


def test_a_second_cluster_id_of_a_partition_is_told() -> None:
    # Given
    first = entry("etcd", partition="rp1", cluster_id="7", members=["a"])

    # When
    told = violations("one_cluster_id_per_partition", evidence(first, {**first, "cluster_id": "8"}))
    other_partition = violations("one_cluster_id_per_partition", evidence(first, {**first, "partition": "tp1", "cluster_id": "8"}))

    # Then
    assert told == ["partition rp1 was seen with 2 cluster ids: 7, 8, while the other one lived"]
    assert other_partition == []


def etcd(cluster_id: str, t: float, instance_id: str = "i-1", **fields: Any) -> dict[str, Any]:
    given = {"partition": "tp1", "members": [f"{instance_id} http://127.20.0.12:2380"], "formed": False, "emptied": False}
    return entry("etcd", t, instance_id=instance_id, cluster_id=cluster_id, **{**given, **fields})


KILLED = instance("killed", 20)


@pytest.mark.parametrize(
    ("journal", "word"),
    [
        ((etcd("7", 10), KILLED, etcd("8", 30, "i-2")), ""),
        ((etcd("7", 10), etcd("8", 15, "i-2"), KILLED), "while the other one lived"),
        ((etcd("7", 10, formed=True), KILLED, etcd("8", 30, "i-2")), "although 7 was formed"),
        ((etcd("7", 10), etcd("7", 12, formed=True), KILLED, etcd("8", 30, "i-2")), "although 7 was formed"),
        ((etcd("7", 10), etcd("7", 15, emptied=True)), "started empty"),
        ((etcd("7", 10), etcd("8", 15)), "while the other one lived"),
    ],
    ids=["founder-gone-before-formed", "two-at-a-time", "formed-and-gone", "formed-later-and-gone", "same-id-anew", "other-id-anew"],
)
def test_a_partition_is_founded_again_only_when_its_founder_ended_before_it_was_formed(
    journal: tuple[dict[str, Any], ...], word: str
) -> None:
    # When
    told = violations("one_cluster_id_per_partition", evidence(*journal))

    # Then
    assert [word in sentence for sentence in told] == ([True] if word else [])


ABANDONED = hook("completed", 30, result="ABANDON", by="arn:aws:sts::000000000000:assumed-role/hook/x")
COMMAND = entry(
    "command", 40, instance_id="i-1", command_id="c", document="autojoin-leave-node", status="Success", started=25.0, ended=35.0
)
STOPPED = entry("process", 30, pid=7, argv0="/x/bin/etcd", instance_id="i-1", event="exited", rc=-15)
STARTED = entry("process", 31, pid=8, argv0="/x/bin/etcd", instance_id="i-1", event="started", rc=None)


@pytest.mark.parametrize(
    ("journal", "broken"),
    [
        ((etcd("7", 10, formed=True), ABANDONED), True),
        ((etcd("7", 10), ABANDONED), False),
        ((etcd("7", 10, formed=True), {**ABANDONED, "by": "timer"}), False),
        ((etcd("7", 10, formed=True), etcd("7", 11, "i-2", formed=True), ABANDONED), False),
        ((etcd("7", 10, formed=True), STOPPED, COMMAND), True),
        ((etcd("7", 10, formed=True), STOPPED, STARTED, COMMAND), False),
        ((etcd("7", 10, formed=True), STOPPED, {**COMMAND, "started": 31.0}), False),
        ((etcd("7", 10, formed=True), STOPPED, instance("killed", 30.1), COMMAND), False),
    ],
    ids=["abandoned", "not-formed", "timer", "another-copy", "stopped", "restarted", "stopped-by-nobody", "power-cut"],
)
def test_the_end_of_the_only_copy_by_us_is_told(journal: tuple[dict[str, Any], ...], broken: bool) -> None:
    # When / Then
    assert bool(violations("last_copy_is_not_destroyed", evidence(*journal))) == broken


@pytest.mark.parametrize(
    ("look", "broken"),
    [
        ({"role": "tp", "healthy": True}, False),
        ({"role": "tp", "healthy": False}, True),
        ({"role": "rp", "node": {**GOOD_NODE, "tainted": True}, "tenants": True}, True),
        ({"role": "rp", "node": {**GOOD_NODE, "tainted": True}, "tenants": False}, False),
        ({"role": "rp", "node": None, "tenants": False}, True),
    ],
    ids=["tp", "tp-that-does-not-serve", "rp-tainted", "rp-that-waits-for-tenants", "rp-without-node"],
)
def test_a_master_is_continued_only_when_it_works(look: dict[str, Any], broken: bool) -> None:
    # Given
    found = evidence(entry("look", instance_id="i-1", partition="p", **look))

    # When / Then
    assert bool(violations("continue_only_when_the_node_works", found)) == broken


@pytest.mark.parametrize(("formed", "status"), [(True, "RUNNING"), (False, "RUNNING"), (True, "FAILED")])
def test_only_a_formed_founder_under_clean_up_is_kept_without_working(formed: bool, status: str) -> None:
    # Given
    cleanup = entry("execution", 11, arn="arn", machine="autojoin-leave", status=status, input={"instance_id": "i-1"})
    look = entry("look", 12, instance_id="i-1", partition="tp1", role="tp", healthy=False)

    # When
    told = violations("continue_only_when_the_node_works", evidence(etcd("7", 10, formed=formed), cleanup, look))

    # Then
    assert (told == []) == (formed and status == "RUNNING")


def test_a_changed_member_list_is_told_whatever_its_order() -> None:
    # Given
    first = entry("etcd", partition="rp1", cluster_id="7", members=["a", "b"])

    # When
    turned = violations("etcd_members_unchanged", evidence(first, {**first, "members": ["b", "a"]}))
    grown = violations("etcd_members_unchanged", evidence(first, {**first, "members": ["a", "b", "c"]}))

    # Then
    assert turned == []
    assert grown == ["partition rp1 had members ['a', 'b'], then ['a', 'b', 'c']"]


def deletion(value: str, principal: str = "arn:aws:sts::000000000000:assumed-role/names/x", **fields: Any) -> dict[str, Any]:
    change = {"action": "DELETE", "name": "w.demo", "type": "A", "set": None, "ttl": "30", "values": [value]}
    return entry(
        "api_call", 50, service="route53", operation="ChangeResourceRecordSets", principal=principal,
        status=fields.get("status", 200),
        detail={"changes": [change]},
    )  # fmt: skip


SERVES = (instance("launched", address="127.20.0.12"), entry("lifecycle", 9, instance_id="i-1", group="workers", state="InService"))
LEAVES = (*SERVES, entry("lifecycle", 40, instance_id="i-1", group="workers", state="Terminating:Wait"))


@pytest.mark.parametrize(
    ("journal", "broken"),
    [
        ((*SERVES, deletion("127.20.0.12")), True),
        ((*LEAVES, deletion("127.20.0.12")), False),
        ((*SERVES, deletion("127.20.0.99")), True),
        ((*SERVES, deletion("127.20.0.12", principal="root")), False),
        ((*SERVES, deletion("127.20.0.12", status=400)), False),
        ((*SERVES, entry("nodes", 20, partition="rp1", nodes={"i-1": "u"}), entry("nodes", 30, partition="rp1", nodes={})), True),
        ((*LEAVES, entry("nodes", 20, partition="rp1", nodes={"i-1": "u"}), entry("nodes", 45, partition="rp1", nodes={})), False),
    ],
    ids=["serves", "leaves", "unknown", "operator", "refused", "node-of-serving", "node-of-leaving"],
)
def test_only_what_belongs_to_an_instance_on_its_way_out_is_deleted(journal: tuple[dict[str, Any], ...], broken: bool) -> None:
    # When / Then
    assert bool(violations("deletes_only_what_is_ours", evidence(*journal))) == broken


def test_a_foreign_instance_that_was_touched_is_told() -> None:
    # Given
    launched = instance("launched", instance_id="i-9", group="theirs")
    call = entry(
        "api_call", service="ssm", operation="SendCommand", status=200,
        principal="arn:aws:sts::000000000000:assumed-role/command/x", detail={"InstanceIds": ["i-9"]},
    )  # fmt: skip
    completed = hook("completed", instance_id="i-9", group="theirs", by="arn:aws:sts::000000000000:assumed-role/hook/x")
    foreign = frozenset({"theirs"})

    # When
    touched = violations("foreign_groups_untouched", evidence(launched, call, completed, foreign_groups=foreign))
    by_operator = violations(
        "foreign_groups_untouched",
        evidence(launched, {**call, "principal": "root"}, {**completed, "by": "root"}, foreign_groups=foreign),
    )
    by_timer = violations("foreign_groups_untouched", evidence(launched, {**completed, "by": "timer"}, foreign_groups=foreign))

    # Then
    assert len(touched) == 2
    assert by_operator == []
    assert by_timer == []


def test_a_private_key_is_told_wherever_it_is_and_a_task_token_in_a_log() -> None:
    # Given
    key = "-----BEGIN EC PRIVATE" + " KEY-----\nx"
    certificate = "-----BEGIN CERTIFICATE-----\nx"
    texts = (("history a", key), ("command b", certificate), ("log c", "answered TOKEN42"), ("history d", "TOKEN42"))

    # When
    told = violations("no_private_material_leaks", evidence(texts=texts, task_token_pattern="TOKEN[0-9]+"))

    # Then
    assert told == ["history a contains a private key", "log c contains a task token"]
