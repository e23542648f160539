"""The join machine on virtual time, with our handlers in process."""

from __future__ import annotations

import json

import pytest

from autojoin import errors
from autojoin.domain.partitions import Partition, PartitionKind, Topology
from autojoin.ports import Lease
from lab import asl
from tests.fakes.world import WORKER_TAGS, Script, World, hook, refusal

NODE = "i-0000000000000001a"[:19]


@pytest.fixture
def world() -> World:
    made = World()
    made.add_group()
    made.add_master()
    return made


def test_a_worker_joins_and_its_hook_is_continued(world: World) -> None:
    world.add_instance(NODE)

    execution = world.join(NODE)

    assert execution.status == "SUCCEEDED", (execution.error, execution.cause)
    assert execution.output["outcome"] == "joined"
    assert world.actions[NODE].result == "CONTINUE"
    assert world.records[NODE].node_uid == "uid-1"
    assert world.records[NODE].joined_by == execution.arn
    assert world.leases[NODE].owner is None
    assert NODE in world.dest_check_off


def test_the_path_of_a_worker_is_fourteen_transitions_and_six_invocations(world: World) -> None:
    world.add_instance(NODE)

    execution = world.join(NODE)

    assert execution.visited == [
        "Admit", "Admitted", "Preflight", "AwaitAgent", "AgentDeadline", "HostsEtcd", "ServesApi",
        "Join", "JoinDeadline", "Verify", "VerifyDeadline", "HasFrontDoor", "Complete", "Joined",
    ]  # fmt: skip
    assert execution.transitions == 14


def test_what_stays_in_the_table_is_the_node_and_not_the_way_to_it(world: World) -> None:
    world.add_instance(NODE)

    world.join(NODE)

    assert sorted(world.left_of(NODE)) == [f"INTENT#node#{NODE}", "LEASE", "RECORD"]


def test_scripts_are_given_the_declared_topology(world: World) -> None:
    world.add_instance(NODE)

    world.join(NODE)

    document, target, parameters, comment, _ = world.sent[0]
    assert (document, target, comment) == ("join-worker", NODE, "test/Join")
    assert parameters["TenantPartitions"] == "tp1"
    assert parameters["PodCidr"] == "10.244.0.0/16"
    assert parameters["ClientCaParameter"] == "/autojoin/demo/public/rp1/client-ca.crt"


def test_a_hook_is_kept_alive_while_the_agent_boots(world: World) -> None:
    world.add_instance(NODE, agent_after_s=400)

    execution = world.join(NODE)

    assert execution.status == "SUCCEEDED"
    assert world.actions[NODE].heartbeats >= 400 // 90


def test_a_lost_event_costs_a_turn_and_no_more(world: World) -> None:
    world.add_instance(NODE)
    world.lose_events = True

    execution = world.join(NODE)

    assert execution.status == "SUCCEEDED"
    assert execution.visited.count("Join") == 2
    assert [s[0] for s in world.sent] == ["join-worker", "verify"]


def test_an_event_that_comes_twice_changes_nothing(world: World) -> None:
    world.add_instance(NODE)
    execution = world.join(NODE)

    world.tell_end(world.sent[0][4])
    world.engine.run()

    assert execution.status == "SUCCEEDED"


def test_an_event_that_comes_before_the_token_is_not_lost(world: World) -> None:
    world.add_instance(NODE)
    world.scripts["join-worker"] = [Script(takes_s=0.0)]

    execution = world.join(NODE)

    assert execution.status == "SUCCEEDED"
    assert execution.visited.count("Join") == 1


@pytest.mark.parametrize(
    ("document", "script", "error"),
    [
        ("join-worker", refusal(11, "BinariesMissing"), "BinariesMissing"),
        ("join-worker", refusal(12, "ClientCaMissing"), "ClientCaMissing"),
        ("join-worker", refusal(13, "SubnetNotAdjacent"), "SubnetNotAdjacent"),
        ("join-worker", refusal(1, "x"), "ScriptFailed"),
        ("join-worker", Script(stdout="all is well\n"), "ScriptAnswerInvalid"),
        ("join-worker", Script(status="TimedOut", status_details="Execution Timed Out", stdout=""), "ScriptTimedOut"),
        ("join-worker", Script(status="TimedOut", status_details="Delivery Timed Out", stdout=""), "ScriptUndelivered"),
        ("join-worker", Script(status="Cancelled", status_details="Cancelled", stdout=""), "ScriptCancelled"),
        ("verify", refusal(20, "NodeNotReady"), "NodeNotReady"),
        ("verify", refusal(21, "RoutesMissing"), "RoutesMissing"),
        ("verify", refusal(22, "CanaryFailed"), "CanaryFailed"),
    ],
)
@pytest.mark.parametrize("events_lost", [False, True])
def test_a_script_that_fails_abandons_and_leaves_nothing(
    world: World, document: str, script: Script, error: str, events_lost: bool
) -> None:
    world.add_instance(NODE)
    world.scripts[document] = [script]
    world.lose_events = events_lost

    execution = world.join(NODE)

    assert (execution.status, execution.error) == ("FAILED", error)
    cleanup = world.execution_named("test-cleanup")
    assert (cleanup.status, cleanup.error) == ("FAILED", error)
    assert world.actions[NODE].result == "ABANDON"
    assert world.left_of(NODE) == []
    assert "remove-node" in [s[0] for s in world.sent]


def test_a_script_that_never_ends_is_cancelled_and_rolled_back(world: World) -> None:
    world.add_instance(NODE)
    world.scripts["join-worker"] = [Script(ends=False)]

    execution = world.join(NODE)

    assert execution.error == "JoinTimedOut"
    assert "to do" in (execution.cause or "")
    assert world.sent[0][4] in world.cancelled
    assert world.actions[NODE].result == "ABANDON"
    assert world.left_of(NODE) == []


def test_a_busy_node_is_sent_the_script_again(world: World) -> None:
    world.add_instance(NODE)
    world.scripts["join-worker"] = [refusal(15, "Busy"), refusal(14, "ApiUnreachable"), Script()]

    execution = world.join(NODE)

    assert execution.status == "SUCCEEDED"
    assert [s[0] for s in world.sent].count("join-worker") == 3


def test_an_agent_that_never_comes_ends_by_name(world: World) -> None:
    world.add_instance(NODE, agent_after_s=None)

    execution = world.join(NODE)

    assert execution.error == "AgentNeverOnline"
    assert world.actions[NODE].result == "ABANDON"
    assert world.left_of(NODE) == []


def test_an_old_agent_is_refused(world: World) -> None:
    world.add_instance(NODE, agent_version="3.2.0.0")

    assert world.join(NODE).error == "AgentTooOld"
    assert world.actions[NODE].result == "ABANDON"


REFUSALS = [
    ("NotOurs", {}, None, {}),
    ("TagsMissing", {"autojoin:cluster": "demo", "autojoin:role": "worker"}, None, {}),
    ("UnknownRole", {**WORKER_TAGS, "autojoin:role": "boss"}, None, {}),
    ("TagsContradict", WORKER_TAGS, {**WORKER_TAGS, "autojoin:partition": "rp2"}, {}),
    ("PartitionNotConfigured", {**WORKER_TAGS, "autojoin:partition": "rp9"}, None, {}),
    ("PartitionKindMismatch", {**WORKER_TAGS, "autojoin:partition": "tp1"}, None, {}),
    ("RoleNotSupported", {**WORKER_TAGS, "autojoin:role": "etcd"}, None, {}),
]


@pytest.mark.parametrize(("error", "group_tags", "instance_tags", "more"), REFUSALS)
def test_wrong_tags_are_refused_by_name(
    world: World, error: str, group_tags: dict[str, str], instance_tags: dict[str, str] | None, more: dict[str, str]
) -> None:
    world.add_group("odd", group_tags)
    world.add_instance(NODE, instance_tags if instance_tags is not None else group_tags, group="odd")

    execution = world.join(NODE)

    assert execution.error == error
    assert "seen:" in (execution.cause or "")
    assert world.left_of(NODE) == []
    assert world.sent == []
    assert world.actions[NODE].result == (None if error == "NotOurs" else "ABANDON")


@pytest.mark.parametrize(
    ("error", "hooks", "result"),
    [
        ("NoHookOfOurs", [hook("odd", metadata=None)], None),
        ("SeveralHooksOfOurs", [hook("odd", "a"), hook("odd", "b")], "ABANDON"),
        ("HookTooShort", [hook("odd", heartbeat_s=120)], "ABANDON"),
    ],
)
def test_wrong_hooks_are_refused_and_completed_only_where_ours(world: World, error: str, hooks: list, result: str | None) -> None:
    world.add_group("odd", WORKER_TAGS, *hooks)
    world.add_instance(NODE, group="odd")

    execution = world.join(NODE)

    assert execution.error == error
    assert world.actions[NODE].result == result
    assert world.left_of(NODE) == []


@pytest.mark.parametrize("lifecycle_state", ["Warmed:Pending:Wait", "Warmed:Stopped", "Terminating:Wait", "Detaching", "Quarantined"])
def test_an_instance_that_is_not_on_its_way_into_service_is_left_alone(world: World, lifecycle_state: str) -> None:
    world.add_instance(NODE, lifecycle_state=lifecycle_state)

    execution = world.join(NODE, by_event=False)

    assert execution.status == "FAILED"
    assert NODE not in world.actions or world.actions[NODE].result is None
    assert world.left_of(NODE) == []


def test_an_unknown_instance_is_refused_by_name(world: World) -> None:
    execution = world.join("i-0123456789abcdef0")

    assert execution.error == "UnknownInstance"
    assert world.left_of("i-0123456789abcdef0") == []


@pytest.mark.parametrize("request_", [{"instance_id": "worker-1"}, {}, {"instance_id": NODE, "force": True}, {"instance_id": 7}])
def test_an_input_that_fits_no_model_is_refused_by_name(world: World, request_: dict) -> None:
    execution = world.start("join", request_)
    world.engine.run()

    assert execution.error == "InvalidInput"
    assert "expected" in (execution.cause or "")


def test_a_partition_without_configuration_is_refused(world: World) -> None:
    world.declared = None
    world.add_instance(NODE)

    assert world.join(NODE).error == "PartitionNotConfigured"
    assert world.actions[NODE].result == "ABANDON"


def test_a_network_that_is_not_supported_is_refused(world: World) -> None:
    world.declared = Topology("z", (Partition("rp1", PartitionKind.RP, "10.244.0.0/16", cni_backend="mizar"),))
    world.add_instance(NODE)

    assert world.join(NODE).error == "CniNotSupported"


def test_a_subnet_that_host_gw_cannot_route_is_refused_before_anything_runs(world: World) -> None:
    world.add_instance(NODE, subnet="subnet-b")

    execution = world.join(NODE)

    assert execution.error == "SubnetNotAdjacent"
    assert "10.0.16.0/20" in (execution.cause or "")
    assert "10.0.0.0/20" in (execution.cause or "")
    assert world.sent == []
    assert world.actions[NODE].result == "ABANDON"


def test_a_dry_run_returns_the_plan_and_changes_nothing(world: World) -> None:
    world.add_instance(NODE)

    execution = world.join(NODE, dry_run=True)

    assert execution.output["outcome"] == "planned"
    assert execution.output["plan"]["steps"] == ["Admit", "Preflight", "AwaitAgent", "Join", "Verify", "Complete"]
    assert world.left_of(NODE) == []
    assert world.actions[NODE].open
    assert world.sent == []


def test_a_dry_run_says_why_a_real_one_would_be_refused_and_abandons_nothing(world: World) -> None:
    world.add_group("odd", {**WORKER_TAGS, "autojoin:role": "boss"})
    world.add_instance(NODE, {**WORKER_TAGS, "autojoin:role": "boss"}, group="odd")

    execution = world.join(NODE, dry_run=True)

    assert execution.status == "SUCCEEDED"
    assert execution.output["refusals"][0].startswith("UnknownRole:")
    assert world.actions[NODE].open


def test_a_second_start_for_a_node_in_flight_touches_nothing(world: World) -> None:
    world.add_instance(NODE, agent_after_s=60)
    first = world.start("join", {"instance_id": NODE}, "first")
    second = world.start("join", {"instance_id": NODE}, "second")
    world.engine.run()

    assert first.status == "SUCCEEDED"
    assert second.output == {"outcome": "in_progress", "owner": first.arn}
    assert world.actions[NODE].result == "CONTINUE"


def test_a_serving_node_joins_again_by_hand(world: World) -> None:
    world.add_instance(NODE)
    world.join(NODE)

    again = world.join(NODE, "again", by_event=False)

    assert again.status == "SUCCEEDED"
    assert again.output["hook"] == "none"
    assert world.records[NODE].joined_by == again.arn


def test_a_failed_re_join_of_a_serving_node_leaves_it_serving(world: World) -> None:
    world.add_instance(NODE)
    first = world.join(NODE)
    world.scripts["verify"] = [refusal(22, "CanaryFailed")]

    again = world.join(NODE, "again", by_event=False)

    assert again.error == "CanaryFailed"
    assert world.records[NODE].joined_by == first.arn
    assert sorted(world.left_of(NODE)) == [f"INTENT#node#{NODE}", "LEASE", "RECORD"]
    assert world.leases[NODE].owner is None
    assert "leave-node" not in [s[0] for s in world.sent]
    assert [s[2]["Scope"] for s in world.sent if s[0] == "remove-node"] == ["canaries"]


def test_an_instance_killed_while_its_script_runs_leaves_nothing(world: World) -> None:
    world.add_instance(NODE)
    world.scripts["join-worker"] = [Script(ends=False)]
    world.engine.call_later(30, lambda: world.terminate(NODE))

    execution = world.join(NODE)

    assert execution.error == "HookOver"
    assert world.left_of(NODE) == []


def test_a_hook_that_is_over_is_not_continued(world: World) -> None:
    world.add_instance(NODE)
    world.scripts["verify"] = [Script(takes_s=20, stdout=json.dumps({"ok": True, "node_uid": "u"}))]
    world.engine.call_later(15, lambda: world.terminate(NODE, "Terminating:Proceed"))

    execution = world.join(NODE)

    assert execution.error == "HookOver"
    assert world.left_of(NODE) == []


def test_a_completion_whose_answer_was_lost_is_repeated_safely(world: World) -> None:
    world.add_instance(NODE)
    lost = errors.AwsUnavailable("no answer", "one", "again")
    world.break_next("release_lease", lost)

    execution = world.join(NODE)

    assert execution.status == "SUCCEEDED"
    assert world.actions[NODE].result == "CONTINUE"
    assert world.leases[NODE].owner is None


@pytest.mark.parametrize(
    "method", ["get", "membership", "take_lease", "put_record", "agents", "send", "put_intent", "heartbeat", "complete"]
)
def test_a_throttled_call_is_tried_again(world: World, method: str) -> None:
    world.add_instance(NODE)
    world.break_next(method, errors.AwsThrottled("rate", "less", "again"), errors.AwsThrottled("rate", "less", "again"))

    assert world.join(NODE).status == "SUCCEEDED"
    assert [s[0] for s in world.sent] == ["join-worker", "verify"]


def test_a_send_whose_answer_was_lost_is_found_again_and_not_sent_twice(world: World) -> None:
    world.add_instance(NODE)
    world.break_next("meet_token", errors.AwsUnavailable("no answer", "one", "again"))
    real_put = world.put_intent
    lost = iter([True])

    def put_intent(instance_id: str, intent, owner: str) -> None:
        if intent.value and next(lost, False):
            raise errors.AwsUnavailable("no answer", "one", "again")
        real_put(instance_id, intent, owner)

    world.put_intent = put_intent  # type: ignore[method-assign]

    assert world.join(NODE).status == "SUCCEEDED"
    assert [s[0] for s in world.sent] == ["join-worker", "verify"]


def test_an_aborted_join_is_cleaned_up_by_the_finalizer(world: World) -> None:
    world.add_instance(NODE, agent_after_s=30)
    world.scripts["join-worker"] = [Script(ends=False)]
    action = world.actions[NODE]
    execution = world.start("join", {"instance_id": NODE}, "aborted")
    world.engine.call_later(50, lambda: world.engine.stop(execution.arn))
    world.engine.run()

    assert execution.status == "ABORTED"
    cleanup = world.execution_named("aborted-cleanup")
    assert cleanup.error == "ExecutionAborted"
    assert action.result == "ABANDON"
    assert world.left_of(NODE) == []


def test_a_hand_over_that_cannot_be_made_is_made_by_the_finalizer(world: World) -> None:
    world.add_instance(NODE)
    world.scripts["join-worker"] = [refusal(11, "BinariesMissing")]
    world.break_next("start_leave", errors.AwsRefused("denied", "allowed", "look"))

    execution = world.join(NODE)

    assert execution.error == "BinariesMissing"
    assert world.execution_named("test-cleanup").error == "BinariesMissing"
    assert world.actions[NODE].result == "ABANDON"


def test_a_clean_up_that_cannot_remove_the_node_still_lets_the_instance_go_and_keeps_the_intents(world: World) -> None:
    world.add_instance(NODE)
    world.scripts["join-worker"] = [refusal(16, "UnitFailed")]
    world.agents_at.pop("i-0000000000000aaaa")

    world.join(NODE)

    cleanup = world.execution_named("test-cleanup")
    assert cleanup.error == "UnitFailed"
    assert "incomplete" in (cleanup.cause or "")
    assert world.actions[NODE].result == "ABANDON"
    assert f"INTENT#node#{NODE}" in world.left_of(NODE)
    assert world.leases[NODE].owner is None


def test_a_lease_that_a_dead_clean_up_kept_does_not_block_the_node_for_ever(world: World) -> None:
    world.add_instance(NODE)
    world.scripts["join-worker"] = [refusal(11, "BinariesMissing"), Script()]
    world.break_next("complete", *[errors.AwsRefused("denied", "allowed", "look")] * 1)
    world.join(NODE)
    cleanup = world.execution_named("test-cleanup")
    assert (cleanup.error, world.leases[NODE].owner) == ("AwsRefused", cleanup.arn)

    too_early = world.join(NODE, "early", by_event=False)
    world.time.sleep(3600)
    later = world.join(NODE, "later", by_event=False)

    assert too_early.output["outcome"] == "in_progress"
    assert later.status == "SUCCEEDED"
    assert world.actions[NODE].result == "CONTINUE"


def test_no_task_token_is_in_any_output_of_a_state(world: World) -> None:
    world.add_instance(NODE)
    execution = world.join(NODE)

    left = [e for e in execution.history if e["type"].endswith(("StateExited", "Succeeded"))]

    assert len(world.tokens) == 2
    assert not any(token in json.dumps(left) for token in world.tokens)


def test_executions_are_refused_names_that_aws_refuses(world: World) -> None:
    with pytest.raises(asl.InvalidName):
        world.start("join", {"instance_id": NODE}, "a name with blanks")


def test_a_lease_of_an_execution_that_step_functions_forgot_does_not_block_the_node(world: World) -> None:
    world.add_instance(NODE)
    world.leases[NODE] = Lease("arn:aws:states:eu-central-1:123456789012:execution:autojoin-leave:forgotten", 3, None)

    execution = world.join(NODE)

    assert execution.status == "SUCCEEDED"
    assert world.leases[NODE].owner is None
