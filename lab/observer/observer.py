"""The observer of a running lab: polls etcd members and Nodes, and looks at a Node at the moment its hook is continued.

It asks the stand-ins' own APIs and the region, never Autojoin, and writes what it saw to the journal:
`etcd` and `nodes` when they change, `look` at every CONTINUE of a launch hook.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

from lab.observer import leftovers
from lab.observer.invariants import Leftover, gone_instances
from lab.observer.journal import Entry, Journal

POLL_S = 1.0
"""Seconds between two looks at the members and the Nodes of every partition."""

MASTER_ROLES = frozenset({"tp", "rp", "master"})
NODE_ROLES = frozenset({"rp", "master"})


class Observer:
    """Watches one lab. `start` it when the partitions serve, `stop` it before they end."""

    def __init__(self, journal: Journal, region: Any, instances: Callable[[], Iterable[Any]]) -> None:
        self._journal = journal
        self._region = region
        self._instances = instances
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._poll_lock = threading.Lock()
        self._known_etcd: dict[str, leftovers.EtcdView] = {}
        self._known_nodes: dict[str, dict[str, str]] = {}
        self.pod_cidrs: dict[str, str] = {}
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

    def addresses(self, roles: frozenset[str]) -> dict[str, str]:
        """Address of one living instance with such a role, by partition."""
        found: dict[str, str] = {}
        for instance in self._instances():
            role, partition = instance.tags.get("autojoin:role"), instance.tags.get("autojoin:partition")
            if role in roles and partition and instance.state == "running":
                found.setdefault(partition, instance.address)
        return found

    def poll(self) -> None:
        """Look once at every partition and record what changed."""
        with self._poll_lock:
            for partition, address in self.addresses(MASTER_ROLES).items():
                with contextlib.suppress(OSError, ValueError, KeyError):
                    seen = leftovers.etcd_of(address)
                    if self._known_etcd.get(partition) != seen:
                        self._known_etcd[partition] = seen
                        self.record_etcd(partition, seen)
            for partition, address in self.addresses(NODE_ROLES).items():
                with contextlib.suppress(OSError, ValueError):
                    nodes = {node.name: node.uid for node in leftovers.nodes_of(partition, address)}
                    if self._known_nodes.get(partition) != nodes:
                        self._known_nodes[partition] = nodes
                        self._journal.record("nodes", partition=partition, nodes=nodes)

    def record_etcd(self, partition: str, seen: leftovers.EtcdView) -> None:
        """Write one view of an etcd to the journal."""
        self._journal.record("etcd", partition=partition, cluster_id=seen.cluster_id, members=list(seen.members))

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
        if instance.tags.get("autojoin:role") != "worker":
            return
        partition = instance.tags.get("autojoin:partition", "")
        self._look_at(entry["instance_id"], partition)

    def _look_at(self, instance_id: str, partition: str) -> None:
        address = self.addresses(NODE_ROLES).get(partition)
        node, error = None, None
        try:
            node = leftovers.node_of(partition, address, instance_id) if address else None
        except (OSError, ValueError) as failure:
            error = repr(failure)
        shown = None
        if node is not None:
            shown = asdict(node) | {"pod_cidr_in_range": leftovers.in_range(node.pod_cidr, self.pod_cidrs.get(partition, ""))}
        self._journal.record("look", instance_id=instance_id, partition=partition, node=shown, error=error)
