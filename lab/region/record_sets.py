"""Route 53 refuses the changes of records that it refuses on AWS, with AWS's words.

ministack keeps record sets well, multivalue ones by their set identifier, and changes a batch as a whole. It accepts a
simple record beside a multivalue one, a CNAME beside another record, several values in a multivalue set, bad addresses,
names outside the zone, the same change twice and the deletion of a zone's own records; its messages name no set
identifier. Made true: these are refused before ministack sees the batch; names are compared in lower case.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lab.region.region import Region

Record = dict[str, Any]
Change = tuple[str, Record]
POLICIES = ("Weight", "Region", "Failover", "MultiValueAnswer", "GeoLocation", "CidrRoutingConfig")


class Refused(Exception):
    """A change that AWS refuses: its code and what is wrong."""

    def __init__(self, code: str, *problems: str) -> None:
        super().__init__(*problems)
        self.code = code
        self.message = f"[{', '.join(problems)}]" if code == "InvalidChangeBatch" else problems[0]


def apply(region: Region) -> None:
    """Look at each batch before ministack does."""
    from ministack.services import route53

    normalise, change = route53._normalise_name, route53._change_resource_record_sets

    def change_resource_record_sets(zone_id: str, body: bytes) -> Any:
        with route53._lock:
            zone = route53._zones.get(zone_id)
            if zone is not None:
                try:
                    check(zone["name"], list(route53._records[zone_id]), _changes(body))
                except Refused as refused:
                    return route53._error_response(refused.code, refused.message)
        return change(zone_id, body)

    route53._normalise_name = lambda name: normalise(name).lower()
    route53._change_resource_record_sets = change_resource_record_sets


def _changes(body: bytes) -> list[Change]:
    """The batch; empty where ministack will refuse the request as such."""
    from ministack.services import route53

    root = route53._parse_body(body)
    batch = route53._find(root, "ChangeBatch") if root is not None else None
    listed = route53._find(batch, "Changes") if batch is not None else None
    found = []
    for one in route53._findall(listed, "Change") if listed is not None else []:
        record = route53._find(one, "ResourceRecordSet")
        if record is not None:
            found.append((route53._text(one, "Action"), route53._parse_record_set(record)))
    return found


def check(zone: str, records: list[Record], changes: list[Change]) -> None:
    """Raise Refused unless AWS takes the batch. `records` are the zone's, and are changed as the batch says."""
    from ministack.services import route53

    problems: list[str] = []
    seen: set[tuple[Any, ...]] = set()
    for action, record in changes:
        _check_request(action, record)
        key = route53._rs_key(record)
        if (key, action) in seen:
            problems.append(f"The request contains an invalid set of changes for a resource record set '{record['Type']} {record['Name']}'")
        seen.add((key, action))
        there = next((one for one in records if route53._rs_key(one) == key), None)
        if action == "DELETE":
            problem = _deletion(zone, there, record)
        else:
            others = [one for one in records if one["Name"] == record["Name"] and one is not there]
            problem = _addition(zone, action, there, others, record)
        if problem:
            problems.append(problem)
            continue
        if there is not None:
            records.remove(there)
        if action != "DELETE":
            records.append(record)
    if problems:
        raise Refused("InvalidChangeBatch", *problems)


def _check_request(action: str, record: Record) -> None:
    """What is refused by its form."""
    where = (
        f"in Change with [Action={action}, Name={record['Name']}, Type={record['Type']}, "
        f"SetIdentifier={record.get('SetIdentifier', 'null')}]"
    )
    policies = [name for name in POLICIES if name in record]
    if record.get("SetIdentifier") and len(policies) != 1:
        raise Refused(
            "InvalidInput",
            f"Invalid request: Expected exactly one of [{', '.join(POLICIES)}], "
            f"but found {'more than one' if policies else 'none'} {where}",
        )
    if policies and not record.get("SetIdentifier"):
        raise Refused("InvalidInput", f"Invalid request: Missing field 'SetIdentifier' {where}")
    if "AliasTarget" not in record and "TTL" not in record:
        raise Refused("InvalidInput", f"Invalid request: Missing field 'TTL' {where}")


def _named(record: Record) -> str:
    identifier = f", set-identifier='{record['SetIdentifier']}'" if record.get("SetIdentifier") else ""
    return f"resource record set [name='{record['Name']}', type='{record['Type']}'{identifier}]"


def _deletion(zone: str, there: Record | None, record: Record) -> str | None:
    from ministack.services import route53

    if there is None:
        return f"Tried to delete {_named(record)} but it was not found"
    if route53._rs_values(there) != route53._rs_values(record):
        return f"Tried to delete {_named(record)} but the values provided do not match the current values"
    if record["Name"] == zone and record["Type"] in ("SOA", "NS"):
        needed = "exactly one SOA record." if record["Type"] == "SOA" else "at least one NS record for the zone itself."
        return f"A HostedZone must contain {needed}"
    return None


def _addition(zone: str, action: str, there: Record | None, others: list[Record], record: Record) -> str | None:
    name, kind, values = record["Name"], record["Type"], record.get("ResourceRecords") or []
    rrset = f"RRSet with DNS name {name}, type {kind}, SetIdentifier {record.get('SetIdentifier', 'null')}"
    if name != zone and not name.endswith(f".{zone}"):
        return f"RRSet with DNS name {name} is not permitted in zone {zone}"
    if action == "CREATE" and there is not None:
        return f"Tried to create {_named(record)} but it already exists"
    for value in values if kind == "A" else []:
        if not _is_address(value):
            return (
                "Invalid Resource Record: 'FATAL problem: ARRDATAIllegalIPv4Address (Value is not a valid IPv4 address) "
                f"encountered with '{value}''"
            )
    same = [one for one in others if one["Type"] == kind]
    if record.get("MultiValueAnswer"):
        if len(values) != 1:
            return f"{rrset} cannot be created because a multivalue answer rrset must have exactly one resource record"
        if any(not one.get("MultiValueAnswer") for one in same):
            return f"{rrset} cannot be created because a non multivalue answer rrset exists with the same name and type."
    elif same:
        return f"{rrset} cannot be created as other RRSets exist with the same name and type."
    if kind == "CNAME" and any(one["Type"] != "CNAME" for one in others):
        return (
            f"RRSet of type CNAME with DNS name {name} is not permitted as it conflicts with other records with the same DNS name "
            f"in zone {zone}"
        )
    if kind != "CNAME" and any(one["Type"] == "CNAME" for one in others):
        return (
            f"RRSet of type {kind} with DNS name {name} is not permitted because a conflicting RRSet of type CNAME with the same "
            f"DNS name already exists in zone {zone}"
        )
    return None


def _is_address(value: str) -> bool:
    try:
        ipaddress.IPv4Address(value)
    except ValueError:
        return False
    return True
