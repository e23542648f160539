"""Port Names on Route 53."""

from __future__ import annotations

from typing import Any

from botocore.exceptions import ClientError

from autojoin import errors
from autojoin.adapters.aws import message_of, translated
from autojoin.domain.naming import Record

NO_ZONE = frozenset({"NoSuchHostedZone"})
NOT_THIS = frozenset({"InvalidChangeBatch", "NoSuchHostedZone"})


class Route53Names:
    """One multivalue record set per instance."""

    def __init__(self, route53: Any) -> None:
        self._route53 = route53

    def put(self, record: Record) -> None:
        """Make or change the instance's record set. Raises ZoneNotConfigured if there is no such zone."""
        try:
            with translated("route53:ChangeResourceRecordSets", unless=NO_ZONE):
                self._change("UPSERT", record)
        except ClientError as refused:
            raise errors.ZoneNotConfigured(
                f"hosted zone {record.zone_id}: {message_of(refused)}",
                "the cluster's private zone",
                "correct zone_id in the cluster's declaration (docs/configuration.md)",
            ) from refused

    def delete(self, record: Record) -> bool:
        """Delete exactly this record set: Route 53 takes a delete only with its name, type, identifier, TTL and value."""
        try:
            with translated("route53:ChangeResourceRecordSets", unless=NOT_THIS):
                self._change("DELETE", record)
        except ClientError:
            return False
        return True

    def _change(self, action: str, record: Record) -> None:
        change = {"Action": action, "ResourceRecordSet": record_set(record)}
        self._route53.change_resource_record_sets(HostedZoneId=record.zone_id, ChangeBatch={"Changes": [change]})


def record_set(record: Record) -> dict[str, Any]:
    """The record as Route 53 describes it."""
    return {
        "Name": record.name,
        "Type": "A",
        "SetIdentifier": record.instance_id,
        "MultiValueAnswer": True,
        "TTL": record.ttl_s,
        "ResourceRecords": [{"Value": record.address}],
    }
