"""The observer of a running lab: polls every etcd and all Nodes, and looks at a node at the moment its hook is continued.

It asks the stand-ins' own APIs, the region and the witness, never Autojoin, and writes what it saw to the journal:
`etcd` and `nodes` when they change, `look` at every CONTINUE of a launch hook.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

from lab.loopback import is_healthy
from lab.observer import leftovers
from lab.observer.invariants import Leftover, gone_instances
from lab.observer.journal import Entry, Journal

POLL_S = 0.5
"""Seconds between two looks at the masters of every partition."""
SETTLED_S = 15.0
"""A node that a verify script looked at seconds ago need not know of a tenant partition that answers for a shorter time."""

MASTER_ROLES = frozenset({"tp", "rp", "master"})
NODE_ROLES = frozenset({"rp", "master"})
TENANT_ROLES = frozenset({"tp", "master"})


class Observer:
    """Watches one lab. `start` it when everything that is made by hand is there, `stop` it before that ends."""

    def __init__(self, journal: Journal, region: Any, instances: Callable[[], Iterable[Any]]) -> None:
        self._journal = journal
        self._region = region
        self._instances = instances
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._poll_lock = threading.Lock()
        self._known_etcd: dict[str, tuple[leftovers.EtcdView, bool]] = {}  # instance -> what was told, formed or not
        self._known_nodes: dict[str, dict[str, str]] = {}
        self._serving_since: dict[str, float] = {}  # instance whose API server answers -> since when
        self.pod_cidrs: dict[str, str] = {}
        self.tenants: set[str] = set()
        self.foreign_groups: set[str] = set()

    def start(self) -> None:
        """Take a first look, then poll in a thread of its own."""
        self.poll()
        self._journal.subscribe(self._on_entry)
        self._thread = threading.Thread(target=self._run, name="observer", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop watching. Safe to call twice."""
        self._stop.set()
        self._journal.unsubscribe(self._on_entry)
        if self._thread:
            self._thread.join(timeout=10)
            self._thread = None

    def masters(self, roles: frozenset[str]) -> dict[str, Any]:
        """One living instance with such a role by partition, of several the one whose API server answers."""
        found: dict[str, Any] = {}
        for instance in sorted(self._living(roles), key=lambda i: i.instance_id not in self._serving_since):
            found.setdefault(instance.tags["autojoin:partition"], instance)
        return found

    def addresses(self, roles: frozenset[str]) -> dict[str, str]:
        """Addresses of `masters`."""
        return {partition: instance.address for partition, instance in self.masters(roles).items()}

    def _living(self, roles: frozenset[str]) -> list[Any]:
        return [
            i for i in self._instances()
            if i.state == "running" and i.tags.get("autojoin:role") in roles and i.tags.get("autojoin:partition")
        ]  # fmt: skip

    def poll(self) -> None:
        """Look once at every master and record what changed."""
        with self._poll_lock:
            witness = leftovers.formed_by_witness()
            serving = {}
            for instance in self._living(MASTER_ROLES):
                serves = is_healthy(instance.address)
                if serves:
                    serving[instance.instance_id] = self._serving_since.get(instance.instance_id, time.time())
                with contextlib.suppress(OSError, ValueError, KeyError):
                    self._look_at_etcd(instance, serves, witness)
            self._serving_since = serving
            for partition, address in self.addresses(NODE_ROLES).items():
                with contextlib.suppress(OSError, ValueError):
                    nodes = {node.name: node.uid for node in leftovers.nodes_of(partition, address)}
                    if self._known_nodes.get(partition) != nodes:
                        self._known_nodes[partition] = nodes
                        self._journal.record("nodes", partition=partition, nodes=nodes)

    def _look_at_etcd(self, instance: Any, serves: bool, witness: set[tuple[str, str]]) -> None:
        partition, instance_id = instance.tags["autojoin:partition"], instance.instance_id
        seen = leftovers.etcd_of(instance.address)
        before, was_formed = self._known_etcd.get(instance_id, (None, False))
        formed = was_formed or serves or (partition, seen.cluster_id) in witness
        emptied = before is not None and before.cluster_id == seen.cluster_id and seen.revision < before.revision
        self._known_etcd[instance_id] = seen, formed
        if before is None or emptied or formed != was_formed or (before.cluster_id, before.members) != (seen.cluster_id, seen.members):
            self.record_etcd(partition, instance_id, seen, formed=formed, emptied=emptied)

    def record_etcd(self, partition: str, instance_id: str, seen: leftovers.EtcdView, *, formed: bool, emptied: bool = False) -> None:
        """Write one view of an etcd to the journal. `formed`: its API server answered, or the witness says so."""
        self._journal.record(
            "etcd", partition=partition, instance_id=instance_id, cluster_id=seen.cluster_id, members=list(seen.members),
            formed=formed, emptied=emptied,
        )  # fmt: skip

    def remember(self) -> None:
        """Record what is known anew, so that a run which begins now has a first look in its own entries."""
        with self._poll_lock:
            self._known_etcd.clear()
            self._known_nodes.clear()
        self.poll()

    def world(self) -> leftovers.World:
        """Look at everything now."""
        living = [i for i in self._instances() if i.state == "running"]
        return leftovers.look(self._region, living, self.addresses(NODE_ROLES), self.addresses(MASTER_ROLES))

    def left_of_gone(self, entries: Iterable[Entry]) -> list[Leftover]:
        """What still names an instance that ended within `entries`."""
        gone_ids = gone_instances(entries)
        addresses = {i.instance_id: (i.address, i.state) for i in self._instances()}
        for entry in self._journal.entries("instance"):
            if entry.get("address"):
                addresses.setdefault(entry["instance_id"], (entry["address"], "terminated"))
        gone = {i: addresses.get(i, ("", ""))[0] for i in gone_ids}
        living = {i: a for i, (a, state) in addresses.items() if i not in gone and state == "running"}
        return leftovers.leftovers(self.world(), gone, living)

    def _run(self) -> None:
        while not self._stop.wait(POLL_S):
            self.poll()

    def _on_entry(self, entry: Entry) -> None:
        if entry["kind"] != "hook" or entry["event"] != "completed" or entry.get("result") != "CONTINUE":
            return
        if entry.get("group") in self.foreign_groups:
            return
        instance = next((i for i in self._instances() if i.instance_id == entry["instance_id"]), None)
        if instance is None or str(instance.lifecycle_state or "").startswith("Terminat"):
            return
        role, partition = str(instance.tags.get("autojoin:role")), instance.tags.get("autojoin:partition", "")
        if role == "tp":
            self._journal.record(
                "look", instance_id=entry["instance_id"], partition=partition, role=role, healthy=is_healthy(instance.address)
            )
        elif role in ("worker", "rp"):
            self._look_at(entry["instance_id"], partition, role)

    def _look_at(self, instance_id: str, partition: str, role: str) -> None:
        address = self.addresses(NODE_ROLES).get(partition)
        node, error = None, None
        try:
            node = leftovers.node_of(partition, address, instance_id) if address else None
        except (OSError, ValueError) as failure:
            error = repr(failure)
        shown = None
        if node is not None:
            shown = asdict(node) | {"pod_cidr_in_range": leftovers.in_range(node.pod_cidr, self.pod_cidrs.get(partition, ""))}
        self._journal.record(
            "look", instance_id=instance_id, partition=partition, role=role, node=shown, error=error, tenants=self._tenants_answer()
        )

    def _tenants_answer(self) -> bool:
        """Whether every declared tenant partition has answered for a while."""
        tenants = self.masters(TENANT_ROLES)
        since = [self._serving_since.get(tenants[t].instance_id, time.time()) if t in tenants else time.time() for t in self.tenants]
        return all(time.time() - s >= SETTLED_S for s in since)
