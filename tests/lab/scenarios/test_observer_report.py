"""The report, the leftovers and the timelines on journals made by hand."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from lab import view
from lab.observer import leftovers, report
from lab.observer.journal import Journal
from lab.observer.leftovers import EtcdView, Node, World


def entry(kind: str, t: float, **fields: Any) -> dict[str, Any]:
    return {"t": t, "kind": kind, **fields}


def a_join(instance_id: str = "i-1", at: float = 100.0, cold: bool = False) -> list[dict[str, Any]]:
    hook = {"instance_id": instance_id, "group": "workers", "hook": "launch", "token": f"token-{instance_id}"}
    arn = f"arn:execution:{instance_id}"
    execution = {"machine": "autojoin-join", "arn": arn, "name": f"token-{instance_id}", "input": {"instance_id": instance_id}}
    return [
        entry("instance", at, instance_id=instance_id, group="workers", event="launched", address="127.20.0.12"),
        entry("hook", at, event="opened", deadline=at + 300, **hook),
        entry("execution", at + 0.2, status="RUNNING", transitions=0, **execution),
        entry("state", at + 0.2, arn=arn, machine="autojoin-join", state="Admit", event="entered"),
        entry("function", at + 0.4, name="autojoin-node", operation="Admit", cold=cold, ms=90, error=None),
        entry("state", at + 0.5, arn=arn, machine="autojoin-join", state="AwaitAgent", event="entered"),
        entry("instance", at + 1, instance_id=instance_id, group="workers", event="booted", address="127.20.0.12"),
        entry("instance", at + 1.5, instance_id=instance_id, group="workers", event="agent_online", address="127.20.0.12"),
        entry("state", at + 1.9, arn=arn, machine="autojoin-join", state="AgentDeadline", event="entered"),
        entry("state", at + 1.9, arn=arn, machine="autojoin-join", state="Join", event="entered"),
        entry("command", at + 2, command_id="c1", instance_id=instance_id, status="InProgress", started=at + 2, ended=None),
        entry("command", at + 4, command_id="c1", instance_id=instance_id, status="Success", started=at + 2, ended=at + 4),
        entry("command", at + 6, command_id="c2", instance_id=instance_id, status="Success", started=at + 4.5, ended=at + 6),
        entry("hook", at + 7, event="completed", result="CONTINUE", by="role", **hook),
        entry("execution", at + 7.1, status="SUCCEEDED", transitions=14, **execution),
    ]  # fmt: skip


def test_overhead_is_what_is_left_of_the_held_time_without_boot_agent_and_scripts() -> None:
    # Given
    journal = a_join()

    # When
    times = report.join_times(journal, report.hooks_of(journal)[0])

    # Then
    assert times is not None
    assert (round(times.held_s, 2), round(times.boot_s, 2), round(times.agent_s, 2), round(times.scripts_s, 2)) == (
        7.0,
        1.0,
        0.5,
        3.5,
    )
    assert round(times.overhead_s, 2) == 2.0


def test_cold_joins_are_reported_apart() -> None:
    # Given
    journal = a_join("i-1", 100, cold=True) + a_join("i-2", 200) + a_join("i-3", 300)

    # When / Then
    assert report.overheads(journal) == {"cold": [2.0], "warm": [2.0, 2.0]}


def test_the_report_has_a_row_per_instance_and_counts_by_kind() -> None:
    # Given
    role = "arn:aws:sts::000000000000:assumed-role/autojoin-node/x"
    journal = [
        *a_join(),
        entry("api_call", 101, service="ec2", operation="DescribeInstances", principal=role, status=200, error=None, detail={}),
        entry("api_call", 101, service="ec2", operation="DescribeInstances", principal="root", status=200, error=None, detail={}),
        entry("etcd", 90, partition="rp1", cluster_id="7", members=["a"]),
    ]
    world = World(nodes=[Node("rp1", "i-1", "uid", True, False, "127.20.128.0/24", "127.20.0.12")])
    members = [report.Member("i-1", "workers", "worker", "rp1", "InService", False)]

    # When
    made = report.assemble(entries=journal, members=members, world=world, invariants={"x": [], "y": ["why"]}, leftovers=[])

    # Then
    assert made["nodes"][0]["ready"] is True
    assert made["nodes"][0]["overhead_s"] == 2.0
    assert made["hooks"] == {"completed": 1, "abandoned": 0, "timed_out": 0, "left_waiting": 0}
    assert made["api_calls"] == {"ec2": {"DescribeInstances": 1}}
    assert made["state_transitions"] == {"autojoin-join/token-i-1": 14}
    assert made["etcd"]["rp1"] == {"cluster_ids": ["7"], "members_first": ["a"], "members_last": ["a"], "changes": 0}
    assert made["invariants"] == {"x": {"holds": True, "violations": []}, "y": {"holds": False, "violations": ["why"]}}


def test_every_place_that_names_a_gone_instance_is_a_leftover() -> None:
    # Given
    world = World(
        nodes=[Node("rp1", "i-1", "uid", False, True, "", "127.20.0.12")],
        routes=[("i-2", "127.20.129.0/24", "127.20.0.12")],
        records=[{"zone": "z", "name": "w.z", "type": "A", "set": None, "values": ["127.20.0.12"]}],
        targets=[{"group": "g", "id": "127.20.0.12", "port": 8080}],
        items=[{"table": "t", "key": "NODE#i-1 LEASE", "text": '{"pk": "NODE#i-1"}'}],
        etcd={"rp1": EtcdView("7", ("x http://127.20.0.12:2380",))},
    )

    # When
    found = leftovers.leftovers(world, {"i-1": "127.20.0.12"}, {"i-2": "127.20.0.13"})

    # Then
    assert [f.where for f in found] == ["nodes", "routes", "dns", "targets", "table", "etcd"]


def test_an_address_that_a_living_instance_took_over_is_no_leftover() -> None:
    # Given
    world = World(targets=[{"group": "g", "id": "127.20.0.12", "port": 8080}])

    # When / Then
    assert leftovers.leftovers(world, {"i-1": "127.20.0.12"}, {"i-2": "127.20.0.12"}) == []


def test_without_a_terminal_each_change_is_one_plain_line() -> None:
    # Given
    out = io.StringIO()
    journal = Journal()

    # When
    with view.follow(journal, Console(file=out, force_terminal=False)):
        for made in a_join():
            journal.record(made.pop("kind"), **{k: v for k, v in made.items() if k != "t"})

    # Then
    lines = out.getvalue().splitlines()
    assert any(line.endswith("AwaitAgent") and "i-1" in line for line in lines)
    assert any("hook completed: CONTINUE" in line for line in lines)


def test_a_timeline_shows_turns_of_one_wait_as_one_stretch() -> None:
    # Given
    out = io.StringIO()

    # When
    view.timelines(a_join(), ["i-1"], Console(file=out, width=200))

    # Then
    text = out.getvalue()
    assert "held 7.0 s = boot 1.0 + agent 0.5 + scripts 3.5 + workflow 2.0" in text
    assert text.count("AwaitAgent") == 1
