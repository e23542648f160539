"""What the world still says about instances that are gone: Nodes, routes, records, targets, table items, etcd members.

`look` reads the stand-ins and the region directly; `leftovers` is a pure function over what was seen.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import urllib.error
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab.fleet.network import FILE as NETWORK_FILE
from lab.loopback import ask
from lab.observer.invariants import Leftover

NOT_READY_TAINT = "node.kubernetes.io/not-ready"
ANSWER_S = 3.0
"""Longest time in seconds that the observer waits for one answer."""


@dataclass(frozen=True)
class Node:
    """A Node object of an RP, as its API server shows it."""

    partition: str
    name: str
    uid: str
    ready: bool
    tainted: bool
    pod_cidr: str
    address: str


@dataclass(frozen=True)
class EtcdView:
    """Who one etcd says its members are."""

    cluster_id: str  # 16 hexadecimal digits
    members: tuple[str, ...]  # "name peer-url", sorted
    revision: int = 0  # of the key-value store; grows with every write and never falls


@dataclass
class World:
    """Everything outside Autojoin that may name an instance."""

    nodes: list[Node] = field(default_factory=list)
    routes: list[tuple[str, str, str]] = field(default_factory=list)  # (on which instance, destination, gateway)
    records: list[dict[str, Any]] = field(default_factory=list)  # zone, name, type, set, values
    targets: list[dict[str, Any]] = field(default_factory=list)  # group, id, port
    items: list[dict[str, Any]] = field(default_factory=list)  # table, key, text
    etcd: dict[str, EtcdView] = field(default_factory=dict)


def leftovers(world: World, gone: Mapping[str, str], living: Mapping[str, str]) -> list[Leftover]:
    """What in `world` names an instance of `gone` (id -> address). An address that a living instance has is not theirs."""
    found: list[Leftover] = []
    taken = set(living.values())
    for instance_id, address in gone.items():
        mine = address if address and address not in taken else None

        def names(*texts: str, instance_id: str = instance_id, mine: str | None = mine) -> bool:
            return any(instance_id in text or (mine is not None and text == mine) for text in texts)

        for node in world.nodes:
            if names(node.name, node.address):
                found.append(Leftover("nodes", f"Node {node.name} of partition {node.partition}", instance_id))
        for on, destination, gateway in world.routes:
            if on not in gone and names(gateway):
                found.append(Leftover("routes", f"route {destination} via {gateway} on {on}", instance_id))
        for record in world.records:
            if names(record["name"], record.get("set") or "", *record["values"]):
                found.append(Leftover("dns", f"record {record['name']} {record['type']} {record['values']}", instance_id))
        for target in world.targets:
            if names(str(target["id"])):
                found.append(Leftover("targets", f"target {target['id']}:{target['port']} of {target['group']}", instance_id))
        for item in world.items:
            if instance_id in item["text"] and not item["key"].endswith(" MARKER"):  # a marker names its founder for ever
                found.append(Leftover("table", f"item {item['key']} of {item['table']}", instance_id))
        for partition, etcd in world.etcd.items():
            for member in etcd.members:
                host = member.rsplit("//", 1)[-1].partition(":")[0]
                if names(member, host):
                    found.append(Leftover("etcd", f"member {member} of partition {partition}", instance_id))
    return found


# -- looking -----------------------------------------------------------------------------------------------------------


def _node(partition: str, shown: Mapping[str, Any]) -> Node:
    metadata, spec, status = shown.get("metadata") or {}, shown.get("spec") or {}, shown.get("status") or {}
    conditions = {c.get("type"): c.get("status") for c in status.get("conditions") or []}
    addresses = {a.get("type"): a.get("address") for a in status.get("addresses") or []}
    return Node(
        partition=partition,
        name=str(metadata.get("name") or ""),
        uid=str(metadata.get("uid") or ""),
        ready=conditions.get("Ready") == "True",
        tainted=any(t.get("key") == NOT_READY_TAINT for t in spec.get("taints") or []),
        pod_cidr=str(spec.get("podCIDR") or ""),
        address=str(addresses.get("InternalIP") or ""),
    )


def nodes_of(partition: str, address: str) -> list[Node]:
    """Nodes of the partition whose API server serves on `address`. Raises OSError when it does not answer."""
    shown = ask(f"http://{address}:8080/api/v1/nodes", timeout_s=ANSWER_S)
    return [_node(partition, item) for item in shown.get("items") or []]


def node_of(partition: str, address: str, name: str) -> Node | None:
    """One Node, or None. Raises OSError when the API server does not answer."""
    try:
        return _node(partition, ask(f"http://{address}:8080/api/v1/nodes/{name}", timeout_s=ANSWER_S))
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return None
        raise


def etcd_of(address: str) -> EtcdView:
    """The members that the etcd on `address` lists. Raises OSError when it does not answer."""
    shown = ask(f"http://{address}:2379/v3/cluster/member/list", {}, timeout_s=ANSWER_S)
    members = [f"{m.get('name') or '(not started)'} {','.join(m.get('peerURLs') or [])}" for m in shown.get("members") or []]
    status = ask(f"http://{address}:2379/v3/maintenance/status", {}, timeout_s=ANSWER_S)
    return EtcdView(f"{int(shown['header']['cluster_id']):016x}", tuple(sorted(members)), int(status["header"].get("revision", 0)))


def formed_by_witness() -> set[tuple[str, str]]:
    """(partition, cluster id) of every founding that the witness in Parameter Store says is formed. Only in the lab's process."""
    from ministack.services import ssm

    found = set()
    for name, parameter in list(ssm._parameters.items()):
        parts = name.split("/")
        if len(parts) == 6 and parts[3] == "witness" and parts[5].startswith("formed-"):
            found.add((parts[4], str(json.loads(parameter["Value"]).get("cluster_id", ""))))
    return found


def in_range(pod_cidr: str, of: str) -> bool:
    """Whether a node's pod CIDR lies in its partition's."""
    try:
        inner, outer = ipaddress.IPv4Network(pod_cidr), ipaddress.IPv4Network(of)
    except ValueError:
        return False
    return inner.subnet_of(outer)


def routes_on(instance_id: str, root: Path) -> list[tuple[str, str, str]]:
    """Routes with a gateway in a node's routing table."""
    try:
        net = json.loads((root / NETWORK_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return [(instance_id, route["dst"], route["via"]) for route in net["routes"] if route.get("via")]


def records(region: Any) -> list[dict[str, Any]]:
    """Every address, alias-free record of every hosted zone."""
    route53 = region.client("route53")
    seen = []
    for zone in route53.list_hosted_zones()["HostedZones"]:
        for page in route53.get_paginator("list_resource_record_sets").paginate(HostedZoneId=zone["Id"]):
            for record in page["ResourceRecordSets"]:
                if record["Type"] not in ("NS", "SOA"):
                    seen.append(
                        {
                            "zone": zone["Name"].rstrip("."),
                            "name": record["Name"].rstrip("."),
                            "type": record["Type"],
                            "set": record.get("SetIdentifier"),
                            "values": [r["Value"] for r in record.get("ResourceRecords") or []],
                        }
                    )
    return seen


def targets(region: Any) -> list[dict[str, Any]]:
    """Every registered target of every target group; one that drains is deregistered already."""
    elb = region.client("elbv2")
    seen = []
    for group in elb.describe_target_groups()["TargetGroups"]:
        for health in elb.describe_target_health(TargetGroupArn=group["TargetGroupArn"])["TargetHealthDescriptions"]:
            if health["TargetHealth"]["State"] == "draining":
                continue
            target = health["Target"]
            seen.append({"group": group["TargetGroupName"], "id": target["Id"], "port": target.get("Port")})
    return seen


def items(region: Any) -> list[dict[str, Any]]:
    """Every item of every table, as text."""
    dynamodb = region.client("dynamodb")
    seen = []
    for table in dynamodb.list_tables()["TableNames"]:
        for page in dynamodb.get_paginator("scan").paginate(TableName=table):
            for item in page["Items"]:
                key = " ".join(str(next(iter(item[k].values()))) for k in ("pk", "sk") if k in item)
                seen.append({"table": table, "key": key, "text": json.dumps(item, default=str)})
    return seen


def look(region: Any, instances: Iterable[Any], api: Mapping[str, str], etcd: Mapping[str, str]) -> World:
    """See the whole world now. `api` and `etcd` are addresses by partition; what does not answer is left out."""
    world = World(records=records(region), targets=targets(region), items=items(region))
    for partition, address in api.items():
        with contextlib.suppress(OSError, ValueError):
            world.nodes.extend(nodes_of(partition, address))
    for partition, address in etcd.items():
        with contextlib.suppress(OSError, ValueError, KeyError):
            world.etcd[partition] = etcd_of(address)
    for instance in instances:
        world.routes.extend(routes_on(instance.instance_id, instance.root))
    return world
