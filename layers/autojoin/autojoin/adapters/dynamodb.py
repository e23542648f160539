"""Ports Registry and Markers on one DynamoDB table. Keys: pk, sk (strings). Shapes: docs/table.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from botocore.exceptions import ClientError

from autojoin import errors
from autojoin.adapters.aws import as_ours, translated
from autojoin.domain import budgets
from autojoin.domain.founding import Marker, State
from autojoin.domain.intents import Intent
from autojoin.records import Lease, NodeRecord

CONDITION = frozenset({"ConditionalCheckFailedException"})
CANCELLED = frozenset({"TransactionCanceledException"})
NAMES = {"#owner": "owner", "#tombstone": "tombstone_at"}
MINE = "#owner = :me AND attribute_not_exists(#tombstone)"


def _s(value: str) -> dict[str, str]:
    return {"S": value}


def _n(value: int) -> dict[str, str]:
    return {"N": str(value)}


def _string(item: Mapping[str, Any], name: str) -> str | None:
    return item[name]["S"] if name in item and "S" in item[name] else None


def _number(item: Mapping[str, Any], name: str) -> int | None:
    return int(item[name]["N"]) if name in item and "N" in item[name] else None


def _node_key(instance_id: str, sort_key: str) -> dict[str, dict[str, str]]:
    return {"pk": _s(f"NODE#{instance_id}"), "sk": _s(sort_key)}


class DynamoDbRegistry:
    """Leases, records, intents, and the item on which a command's token and end meet."""

    def __init__(self, dynamodb: Any, table: str, now_ms: Callable[[], int]) -> None:
        self._dynamodb, self._table, self._now_ms = dynamodb, table, now_ms

    def lease(self, instance_id: str) -> Lease:
        """The lease as it is, read consistently."""
        item = self._get(_node_key(instance_id, "LEASE"))
        return Lease(_string(item, "owner"), _number(item, "fence") or 0, _number(item, "tombstone_at"))

    def take_lease(self, instance_id: str, owner: str, *, instead_of: str | None = None) -> Lease | None:
        """Take the lease by one condition; each taking raises its fence."""
        try:
            with translated("dynamodb:UpdateItem", unless=CONDITION):
                answer = self._dynamodb.update_item(
                    TableName=self._table,
                    Key=_node_key(instance_id, "LEASE"),
                    UpdateExpression="SET #owner = :me ADD #fence :one",
                    ConditionExpression="attribute_not_exists(#tombstone) AND (attribute_not_exists(#owner) OR #owner IN (:me, :instead))",
                    ExpressionAttributeNames={**NAMES, "#fence": "fence"},
                    ExpressionAttributeValues={":me": _s(owner), ":instead": _s(instead_of or owner), ":one": _n(1)},
                    ReturnValues="ALL_NEW",
                )
        except ClientError:
            return None
        return Lease(owner, _number(answer["Attributes"], "fence") or 0, None)

    def release_lease(self, instance_id: str, owner: str) -> bool:
        """Give the lease back, keeping its fence; False if it was not `owner`'s."""
        try:
            with translated("dynamodb:UpdateItem", unless=CONDITION):
                self._dynamodb.update_item(
                    TableName=self._table,
                    Key=_node_key(instance_id, "LEASE"),
                    UpdateExpression="REMOVE #owner",
                    ConditionExpression="#owner = :me",
                    ExpressionAttributeNames={"#owner": "owner"},
                    ExpressionAttributeValues={":me": _s(owner)},
                )
        except ClientError:
            return False
        return True

    def record(self, instance_id: str) -> NodeRecord | None:
        """The node's record, read consistently; None if there is none."""
        item = self._get(_node_key(instance_id, "RECORD"))
        if not item:
            return None
        return NodeRecord(
            instance_id=instance_id,
            cluster=_string(item, "cluster") or "",
            partition=_string(item, "partition") or "",
            role=_string(item, "role") or "",
            group=_string(item, "group"),
            address=_string(item, "address"),
            node_uid=_string(item, "node_uid"),
            joined_ms=_number(item, "joined_at"),
            joined_by=_string(item, "joined_by"),
        )

    def put_record(self, record: NodeRecord, owner: str) -> None:
        """Write the record in one transaction with a check of the lease. Raises LeaseLost."""
        texts = {
            "cluster": record.cluster,
            "partition": record.partition,
            "role": record.role,
            "group": record.group,
            "address": record.address,
            "node_uid": record.node_uid,
            "joined_by": record.joined_by,
        }
        item = {**_node_key(record.instance_id, "RECORD"), **{k: _s(v) for k, v in texts.items() if v}}
        if record.joined_ms is not None:
            item["joined_at"] = _n(record.joined_ms)
        self._with_lease(record.instance_id, owner, {"Put": {"TableName": self._table, "Item": item}})

    def intents(self, instance_id: str) -> tuple[Intent, ...]:
        """All intents of the node, read consistently, in the order of their keys."""
        return tuple(
            Intent(
                kind=(_string(item, "sk") or "").split("#", 2)[1],
                key=(_string(item, "sk") or "").split("#", 2)[2],
                execution=_string(item, "execution") or "",
                value=_string(item, "value") or "",
                effect_ms=_number(item, "effect_at"),
            )
            for item in self._query(instance_id, "INTENT#")
        )

    def put_intent(self, instance_id: str, intent: Intent, owner: str) -> None:
        """Write or overwrite the intent in one transaction with a check of the lease. Raises LeaseLost."""
        item = {
            **_node_key(instance_id, f"INTENT#{intent.kind}#{intent.key}"),
            "execution": _s(intent.execution),
            "value": _s(intent.value),
        }
        if intent.effect_ms is not None:
            item["effect_at"] = _n(intent.effect_ms)
        self._with_lease(instance_id, owner, {"Put": {"TableName": self._table, "Item": item}})

    def delete_intent(self, instance_id: str, intent: Intent) -> None:
        """Delete the intent if it is still of the same execution, and a command's meeting item; done before is done."""
        self._delete_meeting(instance_id, intent)
        try:
            with translated("dynamodb:DeleteItem", unless=CONDITION):
                self._dynamodb.delete_item(
                    TableName=self._table,
                    Key=_node_key(instance_id, f"INTENT#{intent.kind}#{intent.key}"),
                    ConditionExpression="attribute_not_exists(pk) OR execution = :execution",
                    ExpressionAttributeValues={":execution": _s(intent.execution)},
                )
        except ClientError:
            return

    def forget(self, instance_id: str, owner: str) -> None:
        """Delete everything of the node, its lease last and only if it is `owner`'s. Raises LeaseLost."""
        if self.lease(instance_id).owner != owner:
            raise _lost(instance_id, owner)
        for intent in self.intents(instance_id):
            self._delete_meeting(instance_id, intent)
        for item in self._query(instance_id, ""):
            if _string(item, "sk") != "LEASE":
                with translated("dynamodb:DeleteItem"):
                    self._dynamodb.delete_item(TableName=self._table, Key={"pk": item["pk"], "sk": item["sk"]})
        try:
            with translated("dynamodb:DeleteItem", unless=CONDITION):
                self._dynamodb.delete_item(
                    TableName=self._table,
                    Key=_node_key(instance_id, "LEASE"),
                    ConditionExpression="#owner = :me",
                    ExpressionAttributeNames={"#owner": "owner"},
                    ExpressionAttributeValues={":me": _s(owner)},
                )
        except ClientError as error:
            raise _lost(instance_id, owner) from error

    def meet_token(self, command_id: str, instance_id: str, token: str) -> str | None:
        """Leave the task token; return the terminal status that the answering rule left before."""
        return self._meet(command_id, instance_id, "token", token, "status")

    def meet_status(self, command_id: str, instance_id: str, status: str) -> str | None:
        """Leave the terminal status; return the token of the task that waits for it."""
        return self._meet(command_id, instance_id, "status", status, "token")

    def _meet(self, command_id: str, instance_id: str, mine: str, value: str, theirs: str) -> str | None:
        with translated("dynamodb:UpdateItem"):
            answer = self._dynamodb.update_item(
                TableName=self._table,
                Key={"pk": _s(f"COMMAND#{command_id}"), "sk": _s(instance_id)},
                UpdateExpression="SET #mine = :value, #ttl = :ttl",
                ExpressionAttributeNames={"#mine": mine, "#ttl": "ttl"},
                ExpressionAttributeValues={
                    ":value": _s(value),
                    ":ttl": _n(self._now_ms() // 1000 + budgets.COMMAND_ITEM_TTL_S),
                },
                ReturnValues="ALL_OLD",
            )
        return _string(answer.get("Attributes", {}), theirs)

    def _delete_meeting(self, instance_id: str, intent: Intent) -> None:
        if intent.command_id:
            key = {"pk": _s(f"COMMAND#{intent.command_id}"), "sk": _s(intent.target or instance_id)}
            with translated("dynamodb:DeleteItem"):
                self._dynamodb.delete_item(TableName=self._table, Key=key)

    def _get(self, key: Mapping[str, Any]) -> Mapping[str, Any]:
        with translated("dynamodb:GetItem"):
            found = self._dynamodb.get_item(TableName=self._table, Key=key, ConsistentRead=True)
        item: Mapping[str, Any] = found.get("Item", {})
        return item

    def _query(self, instance_id: str, prefix: str) -> list[Mapping[str, Any]]:
        condition, values = "pk = :pk", {":pk": _s(f"NODE#{instance_id}")}
        if prefix:
            condition, values = condition + " AND begins_with(sk, :prefix)", {**values, ":prefix": _s(prefix)}
        with translated("dynamodb:Query"):
            pages = self._dynamodb.get_paginator("query").paginate(
                TableName=self._table,
                KeyConditionExpression=condition,
                ExpressionAttributeValues=values,
                ConsistentRead=True,
            )
            return [item for page in pages for item in page["Items"]]

    def _with_lease(self, instance_id: str, owner: str, write: Mapping[str, Any]) -> None:
        check = {
            "ConditionCheck": {
                "TableName": self._table,
                "Key": _node_key(instance_id, "LEASE"),
                "ConditionExpression": MINE,
                "ExpressionAttributeNames": NAMES,
                "ExpressionAttributeValues": {":me": _s(owner)},
            }
        }
        try:
            with translated("dynamodb:TransactWriteItems", unless=CANCELLED):
                self._dynamodb.transact_write_items(TransactItems=[check, write])
        except ClientError as error:
            codes = [r.get("Code") for r in error.response.get("CancellationReasons", [])]
            if "ConditionalCheckFailed" in codes:
                raise _lost(instance_id, owner) from error
            if "TransactionConflict" in codes or "ThrottlingError" in codes:
                raise errors.AwsThrottled(
                    f"dynamodb:TransactWriteItems was cancelled: {codes}",
                    "no writer beside us",
                    "nothing: it is tried again",
                ) from error
            raise as_ours(error, "dynamodb:TransactWriteItems") from error


def _lost(instance_id: str, owner: str) -> errors.LeaseLost:
    return errors.LeaseLost(
        f"the lease of {instance_id} is not held by {owner}, or a leave has begun",
        f"held by {owner}",
        "look at the execution that holds it; this one changes nothing more",
    )


class DynamoDbMarkers:
    """The marker of each partition, changed by conditional writes only."""

    def __init__(self, dynamodb: Any, table: str) -> None:
        self._dynamodb, self._table = dynamodb, table

    def get(self, cluster: str, partition: str) -> Marker | None:
        """The marker as it is, read consistently."""
        with translated("dynamodb:GetItem"):
            answer = self._dynamodb.get_item(TableName=self._table, Key=_marker_key(cluster, partition), ConsistentRead=True)
        item = answer.get("Item")
        if item is None:
            return None
        return Marker(
            cluster=cluster,
            partition=partition,
            state=State(_string(item, "state") or ""),
            instance_id=_string(item, "instance") or "",
            epoch=_number(item, "epoch") or 0,
            at_ms=_number(item, "at") or 0,
            cluster_id=_string(item, "cluster_id") or "",
        )

    def put(self, marker: Marker, instead_of: Marker | None) -> bool:
        """Write the marker if what stands is exactly `instead_of`; False if it is something else."""
        item = {
            **_marker_key(marker.cluster, marker.partition),
            "state": _s(marker.state.value),
            "instance": _s(marker.instance_id),
            "epoch": _n(marker.epoch),
            "at": _n(marker.at_ms),
            **({"cluster_id": _s(marker.cluster_id)} if marker.cluster_id else {}),
        }
        condition: dict[str, Any] = {"ConditionExpression": "attribute_not_exists(pk)"}
        if instead_of is not None:
            condition = {
                "ConditionExpression": "#state = :state AND #instance = :instance AND #epoch = :epoch",
                "ExpressionAttributeNames": {"#state": "state", "#instance": "instance", "#epoch": "epoch"},
                "ExpressionAttributeValues": {
                    ":state": _s(instead_of.state.value),
                    ":instance": _s(instead_of.instance_id),
                    ":epoch": _n(instead_of.epoch),
                },
            }
        try:
            with translated("dynamodb:PutItem", unless=CONDITION):
                self._dynamodb.put_item(TableName=self._table, Item=item, **condition)
        except ClientError:
            return False
        return True


def _marker_key(cluster: str, partition: str) -> dict[str, dict[str, str]]:
    return {"pk": _s(f"PARTITION#{cluster}#{partition}"), "sk": _s("MARKER")}
