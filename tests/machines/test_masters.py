"""Joins of masters on virtual time: the order of what is done, every deadline, what is undone and what is kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from autojoin import errors
from autojoin.domain import budgets
from autojoin.domain.founding import State
from autojoin.domain.naming import RECORD, TARGET
from autojoin.ports import Membership
from lab import asl
from tests.fakes.world import TP_TAGS, ZONE_ID, Action, Script, World, hook, masters_topology, refusal

NODE, OTHER, THIRD = (f"i-0000000000000000{n}" for n in (1, 2, 3))
ROLES = ["tp", "rp"]


@pytest.fixture
def world() -> World:
    made = World()
    made.declared = masters_topology(made)
    made.hooks_expire = True
    made.abandoned_dies_after_s = 40.0
    for role in ROLES:
        made.add_masters(role, hook(f"{role}-masters", heartbeat_s=budgets.SHORTEST_HEARTBEAT_S))
    return made


def join(world: World, role: str, instance_id: str = NODE, name: str = "test", **more: Any) -> asl.Execution:
    world.launch_master(role, instance_id, **more)
    return world.join(instance_id, name)


def cleanup_of(world: World, name: str = "test") -> asl.Execution:
    return world.execution_named(f"{name}-cleanup")


def sent(world: World) -> list[str]:
    return [s[0] for s in world.sent]


def formed(world: World) -> list[str]:
    return [m.instance_id for m in world.witness.parameters.values() if m.state is State.FORMED and not m.is_void]


# -- the way ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ROLES)
def test_a_master_founds_its_partition_and_its_hook_is_continued(world: World, role: str) -> None:
    execution = join(world, role)

    assert execution.status == "SUCCEEDED", (execution.error, execution.cause)
    assert execution.output["outcome"] == "joined"
    assert world.actions[NODE].result == "CONTINUE"
    assert world.records[NODE].joined_by == execution.arn
    assert world.leases[NODE].owner is None
    assert (NODE in world.dest_check_off) == (role == "rp")


@pytest.mark.parametrize("role", ROLES)
def test_nothing_is_done_before_what_it_stands_on(world: World, role: str) -> None:
    join(world, role)

    assert [what for _, what, _ in world.done] == [
        "marker", "witness", "sent start-etcd", "etcd founded", "witness", "marker", "sent start-api", "api started",
        "record", "target", f"sent join-{role}", "sent verify-master", "target", "CONTINUE",
    ]  # fmt: skip
    claimed, ready = world.done_to("marker")
    assert (claimed.state, ready.state) == (State.CLAIMED, State.FORMED)
    assert world.done_to("witness") == [claimed, ready]
    assert ready.cluster_id == world.done_to("etcd founded")[0]


def test_the_path_of_a_master_is_twenty_seven_transitions(world: World) -> None:
    execution = join(world, "tp")

    assert execution.visited == [
        "Admit", "Admitted", "Preflight", "AwaitAgent", "AgentDeadline", "HostsEtcd", "Member", "MemberDeadline", "StartEtcd",
        "StartEtcdDeadline", "Synced", "SyncedDeadline", "Formed", "ServesApi", "StartApi", "StartApiDeadline", "ApiName",
        "ApiNameDeadline", "Join", "JoinDeadline", "Verify", "VerifyDeadline", "HasFrontDoor", "FrontDoor", "FrontDoorDeadline",
        "Complete", "Joined",
    ]  # fmt: skip
    assert execution.transitions == 27


def test_a_partition_without_target_groups_has_a_name_and_no_front_door(world: World) -> None:
    assert world.declared
    world.declared = replace(
        world.declared,
        partitions=tuple(replace(p, api_target_groups=(), front_door_target_groups=()) for p in world.declared.partitions),
    )

    execution = join(world, "rp")

    assert execution.status == "SUCCEEDED"
    assert "FrontDoor" not in execution.visited
    assert [r.name for r in world.names.records.values()] == ["api.rp1.demo.arktos.internal"]
    assert world.targets.registered == {}


@pytest.mark.parametrize("role", ROLES)
def test_what_stays_in_the_table_is_the_node_its_founding_and_its_names(world: World, role: str) -> None:
    join(world, role)

    kinds = sorted(kind for _, kind, _ in world.intended)
    assert kinds == sorted([*(["node"] if role == "rp" else []), "founding", RECORD, TARGET, TARGET])


def test_each_target_is_of_the_kind_and_port_of_its_group(world: World) -> None:
    join(world, "tp")

    assert {(t.target_id, t.port) for t in world.targets.registered} == {(world.ec2[NODE].address, 8080), (NODE, 443)}
    (record,) = world.names.records.values()
    assert (record.zone_id, record.instance_id, record.ttl_s, record.address) == (ZONE_ID, NODE, 10, world.ec2[NODE].address)


def test_a_target_group_that_auto_scaling_manages_is_left_to_it(world: World) -> None:
    assert world.declared
    attached = world.declared.partitions[0].api_target_groups
    world.asg["tp-masters"].target_groups = frozenset(attached)

    execution = join(world, "tp")

    assert execution.status == "SUCCEEDED"
    assert {t.group_arn for t in world.targets.registered} == set(world.declared.partitions[0].front_door_target_groups)


def test_a_target_group_without_a_listener_is_said_and_not_waited_for(world: World) -> None:
    assert world.declared
    world.targets.without_listener = set(world.declared.partitions[0].api_target_groups)

    assert join(world, "tp").status == "SUCCEEDED"
    assert "no listener forwards to the target group" in [message for _, message, _ in world.telemetry.lines]


COMMON = {"Cluster": "demo", "InstanceId": NODE}
ZONE = {"Zone": "demo.arktos.internal"}
PEERS = {"TenantPartitions": "tp1", "ResourcePartitions": "rp1"}
TOLD: dict[str, dict[str, dict[str, str]]] = {
    "tp": {
        "start-etcd": {"Mode": "found", "Token": f"demo.tp1.1.{NODE}", "ClusterId": ""},
        "start-api": {**ZONE, "Kind": "tp", "ServiceCidr": "10.0.0.0/16"},
        "join-tp": {**ZONE, **PEERS, "ServiceCidr": "10.0.0.0/16"},
        "verify-master": {**ZONE, **PEERS, "Kind": "tp", "PodCidr": "", "CniBackend": "", "Execution": "test"},
    },
    "rp": {
        "start-etcd": {"Mode": "found", "Token": f"demo.rp1.1.{NODE}", "ClusterId": ""},
        "start-api": {**ZONE, "Kind": "rp", "ServiceCidr": ""},
        "join-rp": {**ZONE, **PEERS, "PodCidr": "10.244.0.0/16", "CniBackend": "host-gw"},
        "verify-master": {**ZONE, **PEERS, "Kind": "rp", "PodCidr": "10.244.0.0/16", "CniBackend": "host-gw", "Execution": "test"},
    },
}


@pytest.mark.parametrize("role", ROLES)
def test_scripts_are_told_what_was_decided_and_declared(world: World, role: str) -> None:
    join(world, role)

    told = {document: parameters for document, _, parameters, _, _ in world.sent}
    for document, expected in TOLD[role].items():
        limit = {"ExecutionTimeout": str(budgets.COMMAND_EXECUTION_S[document])}
        assert told[document] == {**COMMON, "Partition": f"{role}1", **expected, **limit}
    assert told.keys() == TOLD[role].keys()


@pytest.mark.parametrize("role", ROLES)
def test_a_master_that_joins_again_resumes_with_the_same_cluster(world: World, role: str) -> None:
    join(world, role)
    before = dict(world.intended)

    again = world.join(NODE, "again", by_event=False)

    assert again.status == "SUCCEEDED"
    starts = [p for d, _, p, _, _ in world.sent if d == "start-etcd"]
    assert [(p["Mode"], p["ClusterId"]) for p in starts] == [("found", ""), ("resume", world.done_to("etcd founded")[0])]
    assert world.intended.keys() == before.keys()
    assert len(world.done_to("etcd founded")) == 1


def test_a_dry_run_says_what_would_be_decided_and_changes_nothing(world: World) -> None:
    world.launch_master("tp", NODE)

    first = world.join(NODE, "dry", dry_run=True)
    nothing_done = list(world.done)
    world.join(NODE)
    second = world.join(NODE, "dry-again", by_event=False, dry_run=True)

    assert (first.output["founding"], second.output["founding"]) == ("claim", "resume")
    assert nothing_done == []


# -- deadlines and failures before the partition is formed -------------------------------------------------------------------


BEFORE_FORMED = {
    "StartEtcdTimedOut": {"start-etcd": [Script(ends=False)]},
    "PortInUse": {"start-etcd": [refusal(17, "PortInUse")]},
    "EtcdDataForeign": {"start-etcd": [refusal(24, "EtcdDataForeign")]},
    "ScriptTimedOut": {"start-etcd": [Script(status="TimedOut", status_details="Execution Timed Out", stdout="", acts=True)]},
}


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("error", BEFORE_FORMED)
def test_what_fails_before_the_partition_is_formed_leaves_a_claim_that_the_next_takes_over(world: World, role: str, error: str) -> None:
    world.scripts = {**BEFORE_FORMED[error]}

    failed = join(world, role)
    world.scripts = {}
    world.launch_master(role, OTHER)
    taken_over = world.join(OTHER, "next")

    assert failed.error == error
    assert cleanup_of(world).visited[-1] == "RolledBack"
    assert "incomplete" not in (cleanup_of(world).cause or "")
    assert world.left_of(NODE) == []
    assert taken_over.status == "SUCCEEDED", (taken_over.error, taken_over.cause)
    assert world.markers.items[("demo", f"{role}1")].epoch == 2
    assert formed(world) == [OTHER]
    assert not [d for d in world.etcd.disks.values() if d.running and d.token.endswith(NODE)]


def test_an_etcd_that_only_its_node_sees_is_given_up_in_time_with_its_hook_alive_to_the_end(world: World) -> None:
    world.etcd.unreachable = True

    execution = join(world, "tp")

    assert execution.error == "EtcdNeverHealthy"
    assert "EtcdSecurityGroupIds" in (execution.cause or "")
    assert world.completions == [(NODE, "ABANDON")]
    assert world.done_to("etcd stopped")
    assert sent(world).count("start-etcd") == 1
    assert formed(world) == []


def test_an_instance_that_its_group_lets_go_while_etcd_starts_forms_nothing(world: World) -> None:
    world.scripts["start-etcd"] = [Script(takes_s=20)]
    world.engine.call_later(15, lambda: world.end_action(NODE, "Terminating:Proceed"))

    execution = join(world, "rp")

    assert execution.error == "HookOver"
    assert formed(world) == []
    assert world.left_of(NODE) == []


def test_a_claim_of_a_living_instance_is_waited_for_and_never_taken_over(world: World) -> None:
    world.abandoned_dies_after_s = None
    world.scripts["start-etcd"] = [refusal(17, "PortInUse"), Script()]
    join(world, "tp", NODE, "first")

    second = join(world, "tp", OTHER, "second")

    assert second.error == "PartitionClaimed"
    assert second.visited.count("Member") > 2
    assert world.markers.items[("demo", "tp1")].instance_id == NODE
    assert (OTHER, "ABANDON") in world.completions
    assert world.left_of(OTHER) == []


def test_a_replacement_that_comes_early_waits_until_the_claimant_is_terminated(world: World) -> None:
    world.scripts["start-etcd"] = [refusal(17, "PortInUse"), Script()]
    world.abandoned_dies_after_s = 150
    join_both = [world.launch_master("tp", i) for i in (NODE, OTHER)]
    world.agents_at[OTHER] = (world.time.time() + 20, "3.3.2746.0")
    runs = [world.start("join", {"instance_id": i.instance_id}, i.instance_id) for i in join_both]
    world.engine.run()

    assert [r.error for r in runs] == ["PortInUse", None]
    assert world.actions[OTHER].result == "CONTINUE"
    assert world.markers.items[("demo", "tp1")].epoch == 2


@pytest.mark.parametrize("apart_s", [0.0, 3.0, 30.0])
def test_of_two_masters_at_once_one_founds_and_the_other_is_given_back(world: World, apart_s: float) -> None:
    for n, instance_id in enumerate((NODE, OTHER)):
        world.launch_master("rp", instance_id, agent_after_s=1.0 + n * apart_s)
    runs = [world.start("join", {"instance_id": i}, i) for i in (NODE, OTHER)]
    world.engine.run()

    assert sorted(r.error or "" for r in runs) == ["", "ReplicasNotSupported"]
    assert sorted(result for _, result in world.completions) == ["ABANDON", "CONTINUE"]
    assert len(formed(world)) == len(world.done_to("etcd founded")) == 1


def test_beside_a_running_master_that_nobody_recorded_nothing_is_founded(world: World) -> None:
    world.add_instance(OTHER, TP_TAGS, group=None)

    execution = join(world, "tp")

    assert execution.error == "PartitionNotAdopted"
    assert OTHER in (execution.cause or "")
    assert world.witness.parameters == {}
    assert world.markers.items == {}
    assert world.completions == [(NODE, "ABANDON")]


def test_a_cluster_without_the_id_of_its_zone_is_refused_before_anything_is_sent(world: World) -> None:
    assert world.declared
    world.declared = replace(world.declared, zone_id=None)

    assert join(world, "tp").error == "ZoneNotConfigured"
    assert world.sent == []
    assert world.left_of(NODE) == []


# -- deadlines and failures after that: the founder is kept --------------------------------------------------------------------


AFTER_FORMED: dict[str, dict[str, list[Script]]] = {
    "StartApiTimedOut": {"start-api": [Script(ends=False)]},
    "SecretMissing": {"start-api": [refusal(26, "SecretMissing")]},
    "TargetsNeverHealthy": {"start-api": [Script(acts=False, stdout='{"ok":true}')]},
    "JoinTimedOut": {"join-tp": [Script(ends=False)], "join-rp": [Script(ends=False)]},
    "VerifyTimedOut": {"verify-master": [Script(ends=False)]},
    "PeersNotSeen": {"verify-master": [refusal(28, "PeersNotSeen")]},
}


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("error", AFTER_FORMED)
def test_a_founder_that_fails_once_its_partition_is_formed_is_kept_and_joins_by_hand(world: World, role: str, error: str) -> None:
    world.scripts = {**AFTER_FORMED[error]}

    failed = join(world, role)

    assert failed.error == error
    assert "kept" in (cleanup_of(world).cause or "")
    assert "incomplete" not in (cleanup_of(world).cause or "")
    assert world.completions == [(NODE, "CONTINUE")]
    assert "leave-node" not in sent(world)
    assert world.done_to("etcd stopped") == []
    assert world.telemetry.counts.count(("FoundersKept", {})) == 1
    assert world.names.records == {}
    assert world.targets.registered == {}
    assert world.records[NODE].joined_ms is None

    world.scripts = {}
    again = world.join(NODE, "again", by_event=False)

    assert again.status == "SUCCEEDED", (again.error, again.cause)
    assert len(world.done_to("etcd founded")) == 1
    assert len(world.names.records) == 1
    assert len(world.targets.registered) == 2


def test_a_front_door_that_never_becomes_healthy_keeps_the_founder_too(world: World) -> None:
    assert world.declared
    door = world.declared.partitions[0].front_door_target_groups[0]
    world.targets.is_served = lambda target: target.group_arn != door

    failed = join(world, "tp")

    assert failed.error == "TargetsNeverHealthy"
    assert failed.visited[-3:] == ["FrontDoorDeadline", "HandOver", "NotJoined"]
    assert world.completions == [(NODE, "CONTINUE")]
    assert world.targets.registered == {}


def test_a_target_group_that_does_not_exist_is_named_and_keeps_the_founder(world: World) -> None:
    assert world.declared
    del world.targets.known[world.declared.partitions[0].api_target_groups[0]]

    failed = join(world, "tp")

    assert failed.error == "TargetGroupUnusable"
    assert world.completions == [(NODE, "CONTINUE")]


def test_a_kept_founder_that_fails_again_by_hand_is_kept_again(world: World) -> None:
    world.scripts["verify-master"] = [refusal(20, "NodeNotReady")]
    join(world, "rp")

    world.join(NODE, "again", by_event=False)

    assert "kept" in (cleanup_of(world, "again").cause or "")
    assert world.done_to("etcd stopped") == []
    assert world.telemetry.counts.count(("FoundersKept", {})) == 2


def test_a_serving_master_whose_re_join_fails_goes_on_serving_under_its_name(world: World) -> None:
    first = join(world, "rp")
    world.scripts["verify-master"] = [refusal(20, "NodeNotReady")]
    before = dict(world.intended)

    again = world.join(NODE, "again", by_event=False)

    assert again.error == "NodeNotReady"
    assert world.records[NODE].joined_by == first.arn
    assert world.intended.keys() == before.keys()
    assert len(world.names.records) == 1
    assert len(world.targets.registered) == 2
    assert "leave-node" not in sent(world)


def test_a_master_that_is_held_again_and_fails_gives_all_its_names_back_and_is_kept(world: World) -> None:
    """It came back from a warm pool: it holds the data, but serves no more until it has joined again."""
    join(world, "tp")
    world.lifecycle[NODE] = Membership("tp-masters", "Pending:Wait")
    world.actions[NODE] = Action("22222222-2222-3333-4444-555555555555", "autojoin-launching", touched_at=world.time.time())
    world.scripts["verify-master"] = [refusal(28, "PeersNotSeen")]

    world.join(NODE, "again")

    assert world.completions == [(NODE, "CONTINUE"), (NODE, "CONTINUE")]
    assert world.names.records == {}
    assert world.targets.registered == {}


def test_names_that_cannot_be_taken_back_are_named_by_their_intents(world: World) -> None:
    from autojoin import errors

    world.scripts["verify-master"] = [refusal(28, "PeersNotSeen")]
    world.break_next("names.delete", errors.AwsRefused("denied", "allowed", "look"))

    join(world, "tp")

    assert "incomplete" in (cleanup_of(world).cause or "")
    assert world.completions == [(NODE, "CONTINUE")]
    assert RECORD in {kind for _, kind, _ in world.intended}
    assert len(world.names.records) == 1


# -- what was formed is lost, and never founded again --------------------------------------------------------------------------


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("with_table", [True, False])
def test_the_replacement_of_a_lost_master_ends_in_quorum_lost_and_alarms(world: World, role: str, with_table: bool) -> None:
    join(world, role)
    world.terminate(NODE)
    if not with_table:
        world.markers.items.clear()

    replacement = join(world, role, OTHER, "next")

    assert replacement.error == "QuorumLost"
    assert "never found it again" in (replacement.cause or "")
    assert ("QuorumLost", {}) in world.telemetry.counts
    assert (OTHER, "ABANDON") in world.completions
    assert world.left_of(OTHER) == []
    assert "start-etcd" not in sent(world)[sent(world).index("verify-master") :]
    assert world.markers.items[("demo", f"{role}1")].instance_id == NODE


def test_a_second_master_beside_the_living_one_is_given_back(world: World) -> None:
    join(world, "tp")

    second = join(world, "tp", OTHER, "second")

    assert second.error == "ReplicasNotSupported"
    assert (OTHER, "ABANDON") in world.completions
    assert [d.running for d in world.etcd.disks.values()] == [True]
    assert len(world.names.records) == 1


def test_a_master_whose_disk_is_lost_is_not_founded_anew(world: World) -> None:
    join(world, "tp")
    world.etcd.disks.clear()

    again = world.join(NODE, "again", by_event=False)

    assert again.error == "QuorumLost"
    assert ("QuorumLost", {}) in world.telemetry.counts
    assert len(world.done_to("etcd founded")) == 1


@pytest.mark.parametrize("at", ["start-etcd", "start-api", "join-rp", "verify-master"])
def test_a_master_killed_while_a_script_runs_leaves_nothing_that_its_clean_up_could_not_remove(world: World, at: str) -> None:
    """Its Node, if it had one, was in its own etcd."""
    world.scripts[at] = [Script(ends=False)]
    world.launch_master("rp", NODE)
    world.fault = lambda point: kill_once(world, point, at)

    world.join(NODE)

    assert "incomplete" not in (cleanup_of(world).cause or "")
    assert world.left_of(NODE) == []
    assert world.names.records == {}
    assert world.targets.registered == {}
    assert "remove-node" not in sent(world)

    world.fault, world.scripts = None, {}
    replacement = join(world, "rp", OTHER, "next")
    assert replacement.error == (None if at == "start-etcd" else "QuorumLost")


def kill_once(world: World, point: Any, document: str) -> None:
    if point.edge == "after" and document in sent(world) and world.ec2[NODE].state == "running":
        world.terminate(NODE)


def test_a_join_of_both_partitions_and_a_worker_brings_up_a_cluster(world: World) -> None:
    world.add_group("workers")
    world.launch_master("rp", NODE)
    world.launch_master("tp", OTHER)
    world.add_instance(THIRD)
    runs = [world.start("join", {"instance_id": i}, i) for i in (NODE, OTHER, THIRD)]
    world.engine.run()

    assert [r.status for r in runs] == ["SUCCEEDED"] * 3
    assert sorted(formed(world)) == [NODE, OTHER]


# -- the only copy, and what cannot be found out ---------------------------------------------------------------------------


def at(state: str, do: Callable[[], None]) -> Callable[[asl.FaultPoint], Any]:
    """A fault that does something right before a state."""

    def fault(point: asl.FaultPoint) -> Any:
        if (point.state, point.edge) == (state, "before"):
            do()
        return None

    return fault


def test_a_founder_that_was_stopped_is_kept_since_its_data_are_there(world: World) -> None:
    world.scripts["start-api"] = [refusal(26, "SecretMissing")]

    def stop() -> None:
        world.ec2[NODE] = replace(world.ec2[NODE], state="stopped")

    world.fault = at("HandOver", stop)
    join(world, "tp")

    assert "kept" in (cleanup_of(world).cause or "")
    assert world.completions == [(NODE, "CONTINUE")]


def test_a_master_is_kept_when_nobody_can_read_what_was_decided(world: World) -> None:
    world.scripts["start-api"] = [refusal(26, "SecretMissing")]

    def spoil() -> None:
        world.witness.read = refuse  # type: ignore[method-assign]

    def refuse(cluster: str, partition: str) -> Any:
        raise errors.ConfigurationInvalid("parameter note is no witness", "claimed-<epoch>", "put it back")

    world.fault = at("HandOver", spoil)
    join(world, "tp")

    assert "kept" in (cleanup_of(world).cause or "")
    assert world.completions == [(NODE, "CONTINUE")]


def test_what_outlived_its_execution_forms_nothing(world: World) -> None:
    def lose() -> None:
        world.leases[NODE] = replace(world.leases[NODE], owner="arn:another")

    world.fault = at("Formed", lose)
    execution = join(world, "tp")

    assert execution.error == "LeaseLost"
    assert formed(world) == []


def test_beside_a_joined_master_whose_decisions_were_lost_nothing_is_founded(world: World) -> None:
    join(world, "tp")
    world.markers.items.clear()
    world.witness.parameters.clear()

    second = join(world, "tp", OTHER, "second")

    assert second.error == "PartitionNotAdopted"
    assert formed(world) == []


def test_a_master_in_service_on_a_new_table_keeps_its_names_when_its_join_by_hand_fails(world: World) -> None:
    join(world, "tp")
    for things in (world.records, world.leases, world.intended, world.markers.items):
        things.clear()
    world.scripts["verify-master"] = [refusal(28, "PeersNotSeen")]

    again = world.join(NODE, "again", by_event=False)

    assert again.error == "PeersNotSeen"
    assert len(world.names.records) == 1
    assert "leave-node" not in sent(world)
