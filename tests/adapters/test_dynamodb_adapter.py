"""Port Registry on one table, on moto: leases, records, intents, and where a token and an end meet."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import permutations
from typing import Any

import boto3
import pytest

from autojoin import errors
from autojoin.adapters.dynamodb import DynamoDbRegistry
from autojoin.domain import budgets
from autojoin.ports import Intent, Lease, NodeRecord
from tests.adapters.conftest import REGION, Stubs

NODE = "i-0123456789abcdef0"
OTHER = "i-0000000000000000b"
NOW_MS = 1_800_000_000_000
COMMAND = "11111111-2222-3333-4444-555555555555"
RECORD = NodeRecord(NODE, "demo", "rp1", "worker", "workers", "10.0.0.10")


@pytest.fixture(scope="module")
def client(region: None) -> Any:
    return boto3.client("dynamodb", region_name=REGION)


@pytest.fixture
def dynamodb(client: Any) -> Iterator[Any]:
    """A client of a region with an empty table."""
    client.create_table(
        TableName="nodes",
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[{"AttributeName": n, "AttributeType": "S"} for n in ("pk", "sk")],
        KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}, {"AttributeName": "sk", "KeyType": "RANGE"}],
    )
    yield client
    client.delete_table(TableName="nodes")


@pytest.fixture
def registry(dynamodb: Any) -> DynamoDbRegistry:
    return DynamoDbRegistry(dynamodb, "nodes", lambda: NOW_MS)


def items(dynamodb: Any) -> set[tuple[str, str]]:
    return {(i["pk"]["S"], i["sk"]["S"]) for i in dynamodb.scan(TableName="nodes")["Items"]}


def tombstone(dynamodb: Any, instance_id: str = NODE) -> None:
    dynamodb.update_item(
        TableName="nodes",
        Key={"pk": {"S": f"NODE#{instance_id}"}, "sk": {"S": "LEASE"}},
        UpdateExpression="SET tombstone_at = :at",
        ExpressionAttributeValues={":at": {"N": "5"}},
    )


# -- leases ----------------------------------------------------------------------------------------------------------


def test_a_node_that_nobody_knows_has_a_free_lease(registry: DynamoDbRegistry) -> None:
    assert registry.lease(NODE) == Lease(None, 0, None)


def test_a_free_lease_is_taken_and_its_fence_raised(registry: DynamoDbRegistry) -> None:
    assert registry.take_lease(NODE, "a") == Lease("a", 1, None)
    assert registry.lease(NODE) == Lease("a", 1, None)


def test_a_lease_is_taken_again_by_its_owner(registry: DynamoDbRegistry) -> None:
    registry.take_lease(NODE, "a")

    assert registry.take_lease(NODE, "a") == Lease("a", 2, None)


def test_a_lease_of_somebody_else_is_not_taken(registry: DynamoDbRegistry) -> None:
    registry.take_lease(NODE, "a")

    assert registry.take_lease(NODE, "b") is None
    assert registry.lease(NODE).owner == "a"


@pytest.mark.parametrize(("instead_of", "owner"), [("a", "b"), ("c", "a")])
def test_a_lease_is_taken_over_only_from_the_named_owner(registry: DynamoDbRegistry, instead_of: str, owner: str) -> None:
    registry.take_lease(NODE, "a")

    registry.take_lease(NODE, "b", instead_of=instead_of)

    assert registry.lease(NODE).owner == owner


def test_a_released_lease_keeps_its_fence(registry: DynamoDbRegistry) -> None:
    registry.take_lease(NODE, "a")

    assert registry.release_lease(NODE, "a") is True
    assert registry.lease(NODE) == Lease(None, 1, None)
    assert registry.take_lease(NODE, "b") == Lease("b", 2, None)


def test_only_its_owner_releases_a_lease(registry: DynamoDbRegistry) -> None:
    registry.take_lease(NODE, "a")

    assert registry.release_lease(NODE, "b") is False
    assert registry.release_lease(OTHER, "a") is False
    assert registry.lease(NODE).owner == "a"


@pytest.mark.parametrize("owner", ["a", "b"])
def test_a_tombstone_wins_over_everybody(registry: DynamoDbRegistry, dynamodb: Any, owner: str) -> None:
    registry.take_lease(NODE, "a")
    tombstone(dynamodb)

    assert registry.take_lease(NODE, owner, instead_of="a") is None
    assert registry.lease(NODE) == Lease("a", 1, 5)


def test_of_many_that_take_a_lease_at_once_exactly_one_gets_it(registry: DynamoDbRegistry, dynamodb: Any) -> None:
    # What DynamoDB promises of one write is that it is atomic; moto's is not, so requests are put in a row.
    atomic = threading.Lock()
    dynamodb.meta.events.register("before-call", lambda **_: atomic.acquire() and None, unique_id="before")
    dynamodb.meta.events.register("after-call", lambda **_: atomic.release(), unique_id="after")
    at_once = threading.Barrier(8)

    def take(owner: str) -> str | None:
        at_once.wait(timeout=30)
        lease = registry.take_lease(NODE, owner)
        return lease.owner if lease else None

    with ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            winners = [w for w in pool.map(take, "abcdefgh") if w]
            assert len(winners) == 1
            assert registry.lease(NODE).owner == winners[0]
            registry.release_lease(NODE, winners[0])

    assert registry.lease(NODE).fence == 5
    dynamodb.meta.events.unregister("before-call", unique_id="before")
    dynamodb.meta.events.unregister("after-call", unique_id="after")


# -- records and intents ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("record", [RECORD, NodeRecord(NODE, "demo", "rp1", "worker", None, None, "uid", 7, "a")])
def test_a_record_is_read_as_it_was_written(registry: DynamoDbRegistry, record: NodeRecord) -> None:
    registry.take_lease(NODE, "a")

    registry.put_record(record, "a")

    assert registry.record(NODE) == record
    assert registry.record(OTHER) is None


def test_nothing_is_written_without_the_lease(registry: DynamoDbRegistry, dynamodb: Any) -> None:
    registry.take_lease(NODE, "a")

    with pytest.raises(errors.LeaseLost):
        registry.put_record(RECORD, "b")
    with pytest.raises(errors.LeaseLost):
        registry.put_intent(NODE, Intent("node", NODE, "b"), "b")
    with pytest.raises(errors.LeaseLost):
        registry.put_intent(OTHER, Intent("node", OTHER, "a"), "a")

    assert items(dynamodb) == {(f"NODE#{NODE}", "LEASE")}


def test_nothing_is_written_once_a_leave_began(registry: DynamoDbRegistry, dynamodb: Any) -> None:
    registry.take_lease(NODE, "a")
    tombstone(dynamodb)

    with pytest.raises(errors.LeaseLost):
        registry.put_intent(NODE, Intent("node", NODE, "a"), "a")


def test_intents_are_read_as_they_were_written_keys_with_separators_included(registry: DynamoDbRegistry) -> None:
    intents = (Intent("canary", "a#b/c", "a"), Intent("command", "Join", "a", f"{COMMAND}@{NODE}", 7))
    registry.take_lease(NODE, "a")

    for intent in intents:
        registry.put_intent(NODE, intent, "a")

    assert registry.intents(NODE) == intents
    assert registry.intents(OTHER) == ()


def test_an_intent_is_deleted_only_while_it_is_of_the_same_execution(registry: DynamoDbRegistry) -> None:
    registry.take_lease(NODE, "a")
    registry.put_intent(NODE, Intent("canary", "c", "a"), "a")

    registry.delete_intent(NODE, Intent("canary", "c", "b"))
    assert len(registry.intents(NODE)) == 1

    registry.delete_intent(NODE, Intent("canary", "c", "a"))
    registry.delete_intent(NODE, Intent("canary", "c", "a"))
    assert registry.intents(NODE) == ()


@pytest.mark.parametrize("target", [NODE, OTHER])
def test_where_a_command_met_goes_with_its_intent_wherever_it_ran(registry: DynamoDbRegistry, dynamodb: Any, target: str) -> None:
    intent = Intent("command", "RemoveNode", "a", f"{COMMAND}@{target}")
    registry.take_lease(NODE, "a")
    registry.put_intent(NODE, intent, "a")
    registry.meet_token(COMMAND, target, "token")

    registry.delete_intent(NODE, intent)

    assert items(dynamodb) == {(f"NODE#{NODE}", "LEASE")}


# -- forgetting ------------------------------------------------------------------------------------------------------


def fill(registry: DynamoDbRegistry, instance_id: str, owner: str) -> None:
    registry.take_lease(instance_id, owner)
    registry.put_record(NodeRecord(instance_id, "demo", "rp1", "worker", None, None), owner)
    registry.put_intent(instance_id, Intent("node", instance_id, owner), owner)
    registry.put_intent(instance_id, Intent("command", "Join", owner, f"{owner}-command@{instance_id}"), owner)
    registry.meet_status(f"{owner}-command", instance_id, "Success")


def test_forgetting_a_node_leaves_nothing_of_it_and_everything_of_others(registry: DynamoDbRegistry, dynamodb: Any) -> None:
    fill(registry, OTHER, "b")
    before = items(dynamodb)
    fill(registry, NODE, "a")

    registry.forget(NODE, "a")

    assert items(dynamodb) == before


@pytest.mark.parametrize("owner", ["b", ""])
def test_only_the_owner_of_the_lease_forgets(registry: DynamoDbRegistry, dynamodb: Any, owner: str) -> None:
    fill(registry, NODE, "a")
    before = items(dynamodb)

    with pytest.raises(errors.LeaseLost):
        registry.forget(NODE, owner)

    assert items(dynamodb) == before


@pytest.mark.parametrize("calls", range(1, 6))
def test_a_forgetting_that_was_cut_short_is_finished_by_the_next(registry: DynamoDbRegistry, dynamodb: Any, calls: int) -> None:
    fill(registry, NODE, "a")
    left = iter(range(calls - 1))

    def cut(**_: Any) -> None:
        if next(left, None) is None:
            raise ConnectionError("the function was killed")

    dynamodb.meta.events.register("before-call.dynamodb.DeleteItem", cut, unique_id="cut")
    with pytest.raises(ConnectionError):
        registry.forget(NODE, "a")
    dynamodb.meta.events.unregister("before-call.dynamodb.DeleteItem", unique_id="cut")
    assert registry.lease(NODE).owner == "a"

    registry.forget(NODE, "a")

    assert items(dynamodb) == set()


# -- meetings --------------------------------------------------------------------------------------------------------


def test_a_token_that_comes_first_is_given_to_the_end(registry: DynamoDbRegistry) -> None:
    assert registry.meet_token(COMMAND, NODE, "token") is None
    assert registry.meet_status(COMMAND, NODE, "Success") == "token"


def test_an_end_that_comes_first_is_given_to_the_token(registry: DynamoDbRegistry) -> None:
    assert registry.meet_status(COMMAND, NODE, "Failed") is None
    assert registry.meet_token(COMMAND, NODE, "token") == "Failed"


@pytest.mark.parametrize("order", list(permutations(["token-1", "token-2", "end"])))
def test_whatever_the_order_whoever_comes_second_learns_of_the_other(registry: DynamoDbRegistry, order: tuple[str, ...]) -> None:
    learnt: list[str | None] = []
    for who in order:
        learnt.append(registry.meet_status(COMMAND, NODE, "Success") if who == "end" else registry.meet_token(COMMAND, NODE, who))

    end = order.index("end")
    assert learnt[end] == (order[end - 1] if end else None)
    assert learnt[end + 1 :] == ["Success"] * (2 - end)


def test_an_end_that_is_told_twice_is_told_twice(registry: DynamoDbRegistry) -> None:
    registry.meet_token(COMMAND, NODE, "token")

    assert [registry.meet_status(COMMAND, NODE, "Success") for _ in range(2)] == ["token", "token"]


def test_commands_and_instances_meet_apart(registry: DynamoDbRegistry) -> None:
    registry.meet_token(COMMAND, NODE, "token")

    assert registry.meet_status(COMMAND, OTHER, "Success") is None
    assert registry.meet_status("another", NODE, "Success") is None


def test_a_meeting_is_forgotten_by_the_table_itself_after_its_time(registry: DynamoDbRegistry, dynamodb: Any) -> None:
    registry.meet_status(COMMAND, NODE, "Success")

    (item,) = dynamodb.scan(TableName="nodes")["Items"]

    assert int(item["ttl"]["N"]) == NOW_MS // 1000 + budgets.COMMAND_ITEM_TTL_S


# -- refusals --------------------------------------------------------------------------------------------------------


def cancelled(stubs: Stubs, *codes: str) -> DynamoDbRegistry:
    stubs.refuse(
        "dynamodb", "transact_write_items", "TransactionCanceledException", "cancelled", CancellationReasons=[{"Code": c} for c in codes]
    )
    return DynamoDbRegistry(stubs.client("dynamodb"), "nodes", lambda: NOW_MS)


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        (("ConditionalCheckFailed", "None"), errors.LeaseLost),
        (("None", "TransactionConflict"), errors.AwsThrottled),
        (("ThrottlingError", "None"), errors.AwsThrottled),
        (("None", "ValidationError"), errors.AwsRefused),
    ],
)
def test_a_cancelled_transaction_is_lost_throttled_or_refused_by_its_reasons(
    stubs: Stubs, codes: tuple[str, ...], expected: type[Exception]
) -> None:
    with pytest.raises(errors.AutojoinError) as raised:
        cancelled(stubs, *codes).put_record(RECORD, "a")

    assert type(raised.value) is expected


@pytest.mark.parametrize(
    ("code", "status", "expected"),
    [
        ("ProvisionedThroughputExceededException", 400, errors.AwsThrottled),
        ("InternalServerError", 500, errors.AwsUnavailable),
        ("ResourceNotFoundException", 400, errors.AwsRefused),
    ],
)
def test_a_refused_write_is_never_taken_for_a_lease_in_other_hands(stubs: Stubs, code: str, status: int, expected: type[Exception]) -> None:
    registry = DynamoDbRegistry(stubs.client("dynamodb"), "nodes", lambda: NOW_MS)
    for _ in range(2):
        stubs.refuse("dynamodb", "update_item", code, status=status)

    with pytest.raises(expected):
        registry.take_lease(NODE, "a")
    with pytest.raises(expected):
        registry.release_lease(NODE, "a")
