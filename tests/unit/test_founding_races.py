"""No interleaving founds a partition twice: the use cases Member and Formed, side by side, call by call, with everything that can happen.

Any number of instances come, are terminated and forgotten by EC2; each call of a use case may be late by minutes, run beside
its own repetition, or die between two writes; the table is deleted, or restored to any earlier time; the witness is read
late. What must hold is said by `Foundings.invariant_*`, and at the end the partition must still be of use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, event, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from autojoin import errors
from autojoin.domain.founding import UNKNOWN_IS_GONE_MS, Marker, State
from autojoin.events.operations.membership import Formed, Founding, Member
from autojoin.events.operations.run import NodeRef, Run
from autojoin.ports import Instance, Lease, Membership, NodeRecord
from autojoin.use_cases.founding import formed, member
from tests.fakes.interleaving import Process
from tests.fakes.world import World

PARKED_AT = frozenset({"markers.get", "markers.put", "witness.read", "witness.write", "get"})
"""Calls between which others may come; the rest changes nothing that a founding depends on."""
pytestmark = pytest.mark.timeout(600)
"""A failure is shrunk before it is told."""
NUMBERS = st.integers(0, 59)
"""Which of those that there are; a rule that finds none does nothing."""
FORMED_OF_OTHERS = (errors.QuorumLost, errors.ReplicasNotSupported)


T = TypeVar("T")


def pick(found: Sequence[T], which: int) -> T | None:
    return found[which % len(found)] if found else None


class Table(World):
    """A world whose use cases are stepped, and whose witness may be read late."""

    def __init__(self) -> None:
        super().__init__()
        self.lag = 0
        real_read = self.witness.read

        def read_late(cluster: str, partition: str) -> tuple[Marker, ...]:
            found = real_read(cluster, partition)
            late, self.lag = found[: max(0, len(found) - self.lag)], 0
            return late

        self.witness.read = read_late  # type: ignore[method-assign]

    def _call(self, method: str) -> None:
        if method in PARKED_AT:
            Process.before_call(method)


@dataclass
class Node:
    """One instance, and how far its join is."""

    run: Run
    founding: Founding | None = None
    cluster_id: str = ""
    may_serve: bool = False
    processes: list[Process] = field(default_factory=list)


class Foundings(RuleBasedStateMachine):
    """One partition, and everything that can happen to its founding."""

    def __init__(self) -> None:
        super().__init__()
        self.world = Table()
        self.nodes: list[Node] = []
        self.tables: list[dict[tuple[str, str], Marker]] = [{}]
        self.granted: list[tuple[str, int]] = []
        self.founded: dict[str, str] = {}
        self.hidden: dict[str, Instance] = {}
        self.served: set[str] = set()

    # -- instances ---------------------------------------------------------------------------------------------------------

    @initialize()
    def two_instances(self) -> None:
        self.add()
        self.add()

    @rule()
    def launch(self) -> None:
        if len(self.nodes) < 5:
            self.add()

    def add(self) -> Node:
        instance_id = f"i-0000000000000000{len(self.nodes) + 1}"
        instance = self.world.launch_master("tp", instance_id)
        where = {"cluster": "demo", "partition": "tp1", "role": "tp", "group": "tp-masters", "address": instance.address}
        node = Node(
            Run(execution=instance_id, name="join", node=NodeRef(instance_id=instance_id, subnet_id="subnet-a", **where), hook=None)
        )
        self.world.leases[instance_id] = Lease(instance_id, 1, None)
        self.world.records[instance_id] = NodeRecord(instance_id=instance_id, **where)
        self.nodes.append(node)
        return node

    @rule(which=NUMBERS)
    def terminate(self, which: int) -> None:
        if node := pick(self.living(), which):
            self.show_in_ec2()
            self.world.terminate(node.run.node.instance_id)

    @rule()
    def terminate_founder(self) -> None:
        """The worst instance to lose: the one that was granted last."""
        if self.granted and not self.is_gone(self.granted[-1][0]):
            self.show_in_ec2()
            self.world.terminate(self.granted[-1][0])

    @rule(which=NUMBERS)
    def shut_down(self, which: int) -> None:
        """On its way out; it may still write."""
        if node := pick(self.living(), which):
            self.show_in_ec2()
            instance_id = node.run.node.instance_id
            self.world.ec2[instance_id] = replace(self.world.ec2[instance_id], state="shutting-down")
            self.world.lifecycle[instance_id] = Membership("tp-masters", "Terminating:Wait")

    @rule(which=NUMBERS)
    def hide_in_ec2(self, which: int) -> None:
        """EC2 does not know an instance in its first moments."""
        node = pick(self.living(), which)
        seen = self.world.ec2.get(node.run.node.instance_id) if node else None
        if seen and self.world.now_ms() - seen.launched_ms < UNKNOWN_IS_GONE_MS:
            self.hidden[seen.instance_id] = self.world.ec2.pop(seen.instance_id)

    @rule()
    def show_in_ec2(self) -> None:
        self.world.ec2.update(self.hidden)
        self.hidden.clear()

    @rule(which=NUMBERS)
    def forget_in_ec2(self, which: int) -> None:
        """An hour later EC2 has forgotten a terminated instance, and knows every other."""
        self.show_in_ec2()
        self.world.time.sleep(UNKNOWN_IS_GONE_MS / 1000 + 1)
        if instance_id := pick([i for i, seen in self.world.ec2.items() if seen.state == "terminated"], which):
            del self.world.ec2[instance_id]

    # -- use cases ---------------------------------------------------------------------------------------------------------

    @rule(which=NUMBERS)
    def come_as_far_as_formed(self, which: int) -> None:
        """A join without an accident, until it is about to write that the partition is formed."""
        node = pick([n for n in self.living() if not n.cluster_id], which)
        if node is None:
            return
        process = self.claiming(node)
        process.finish()
        self.take(node, process)
        if node.founding:
            self.start(node)
            self.forming(node)

    @rule(which=NUMBERS)
    def begin_member(self, which: int) -> None:
        """Begin, or repeat beside one that still runs."""
        if node := pick(self.nodes, which):
            self.claiming(node)

    @rule(which=NUMBERS)
    def begin_formed(self, which: int) -> None:
        if node := pick([n for n in self.nodes if n.cluster_id], which):
            self.forming(node)

    @rule(which=NUMBERS, calls=st.integers(1, 12))
    def go_on(self, which: int, calls: int) -> None:
        """Some calls further, or to the end."""
        if not self.running():
            return
        node, process = self.running()[which % len(self.running())]
        for _ in range(calls):
            if not process.ended:
                process.step()
                self.remember_table()
        self.take(node, process)

    @rule(which=NUMBERS)
    def finish(self, which: int) -> None:
        if self.running():
            node, process = self.running()[which % len(self.running())]
            process.finish()
            self.remember_table()
            self.take(node, process)

    @rule(which=NUMBERS)
    def form(self, which: int) -> None:
        """A join without an accident, where one was lost before."""
        if all(self.lives(n) for n in self.nodes):
            return
        self.come_as_far_as_formed(which)
        for node, process in self.running():
            if process is node.processes[-1] and node.cluster_id:
                process.finish()
                self.take(node, process)

    @rule(which=NUMBERS)
    def crash(self, which: int) -> None:
        if self.running():
            node, process = self.running()[which % len(self.running())]
            process.crash()
            self.take(node, process)

    def claiming(self, node: Node) -> Process:
        command = Member(operation="Member", run=node.run, until_ms=0)
        node.processes.append(Process(lambda: member(command, self.world)))
        return node.processes[-1]

    def forming(self, node: Node) -> Process:
        command = Formed(operation="Formed", run=node.run, cluster_id=node.cluster_id)
        node.processes.append(Process(lambda: formed(command, self.world)))
        return node.processes[-1]

    def take(self, node: Node, process: Process) -> None:
        """What the state machine does with an answer."""
        if not process.ended:
            return
        node.processes.remove(process)
        if isinstance(process.answer, Founding) and process.answer.done:
            self.grant(node, process.answer)
        elif process.answer is not None and not isinstance(process.answer, Founding):
            node.may_serve = True

    def grant(self, node: Node, answer: Founding) -> None:
        """Member let the node found or resume: this is where a second cluster would begin."""
        instance_id = node.run.node.instance_id
        assert answer.etcd_token == f"demo.tp1.{answer.epoch}.{instance_id}"
        for earlier, epoch in self.granted:
            assert earlier == instance_id or epoch != answer.epoch, "an epoch of two instances"
            assert earlier == instance_id or self.is_gone(earlier) or not self.lives(node), "two founders live"
        by = self.formed_by()
        assert by in (None, instance_id) or not self.lives(node), "a formed partition was given to another instance"
        assert answer.mode == "found" or answer.cluster_id
        self.granted.append((instance_id, answer.epoch))
        node.founding = answer

    # -- nodes -------------------------------------------------------------------------------------------------------------

    @rule(which=NUMBERS)
    def start_etcd(self, which: int) -> None:
        if node := pick([n for n in self.living() if n.founding], which):
            self.start(node)

    def start(self, node: Node) -> None:
        granted = node.founding
        assert granted
        address = node.run.node.address or ""
        node.cluster_id = self.world.etcd.start(address, granted.mode, granted.etcd_token, granted.cluster_id).cluster_id
        assert self.founded.setdefault(node.run.node.instance_id, node.cluster_id) == node.cluster_id

    @rule(which=NUMBERS)
    def start_api(self, which: int) -> None:
        if node := pick([n for n in self.living() if n.may_serve], which):
            self.served.add(node.cluster_id)

    # -- what happens to the records -----------------------------------------------------------------------------------------

    @rule()
    def delete_table(self) -> None:
        self.world.markers.items.clear()

    @rule(which=NUMBERS)
    def restore_table(self, which: int) -> None:
        self.world.markers.items.clear()
        self.world.markers.items.update(self.tables[which % len(self.tables)])

    @rule(lag=st.integers(1, 4))
    def read_the_witness_late(self, lag: int) -> None:
        self.world.lag = lag

    def remember_table(self) -> None:
        if self.world.markers.items != self.tables[-1]:
            self.tables.append(dict(self.world.markers.items))

    # -- what must hold ------------------------------------------------------------------------------------------------------

    @invariant()
    def invariant_one_cluster_is_ever_formed(self) -> None:
        assert len(self.formed()) <= 1
        for marker in self.formed():
            assert self.founded[marker.instance_id] == marker.cluster_id

    @invariant()
    def invariant_only_the_formed_cluster_ever_served(self) -> None:
        assert self.served <= {m.cluster_id for m in self.formed()}

    @invariant()
    def invariant_the_claim_after_one_that_was_taken_over_stands_on_its_void(self) -> None:
        slots = {(m.state, m.epoch): m for m in self.world.witness.parameters.values()}
        for state, epoch in slots:
            if state is State.CLAIMED and epoch > 1:
                assert slots[(State.FORMED, epoch - 1)].is_void

    # -- the end: it must still be of use --------------------------------------------------------------------------------------

    def teardown(self) -> None:
        for node, process in self.running():
            process.finish()
            self.take(node, process)
        self.world.lag = 0
        self.show_in_ec2()
        event(f"formed: {bool(self.formed())}")
        event(f"epochs: {max((epoch for _, epoch in self.granted), default=0)}")
        self.world.time.sleep(UNKNOWN_IS_GONE_MS / 1000 + 1)
        holder = self.formed_by()
        late = self.add()
        if holder is None:
            for node in self.nodes:
                if node is not late and self.world.ec2.get(node.run.node.instance_id):
                    self.world.terminate(node.run.node.instance_id)
            self.founds(late)
        else:
            error = self.refused(late)
            seen = self.world.ec2.get(holder)
            assert isinstance(error, errors.ReplicasNotSupported if seen and seen.state == "running" else errors.QuorumLost)
        self.invariant_one_cluster_is_ever_formed()

    def founds(self, late: Node) -> None:
        """Nothing was formed, and no other instance lives: the next one founds, within a few looks."""
        answers = [member(Member(operation="Member", run=late.run, until_ms=0), self.world) for _ in range(3)]
        assert answers[-1].done
        self.grant(late, answers[-1])
        self.start(late)
        formed(Formed(operation="Formed", run=late.run, cluster_id=late.cluster_id), self.world)
        assert self.formed_by() == late.run.node.instance_id

    def refused(self, late: Node) -> errors.AutojoinError | None:
        try:
            member(Member(operation="Member", run=late.run, until_ms=0), self.world)
        except FORMED_OF_OTHERS as error:
            return error
        return None

    # -- views -----------------------------------------------------------------------------------------------------------------

    def seen(self, instance_id: str) -> Instance | None:
        """As it really is, whatever EC2 says."""
        return self.world.ec2.get(instance_id) or self.hidden.get(instance_id)

    def lives(self, node: Node) -> bool:
        seen = self.seen(node.run.node.instance_id)
        return seen is not None and seen.state == "running"

    def is_gone(self, instance_id: str) -> bool:
        seen = self.seen(instance_id)
        return seen is None or seen.state == "terminated"

    def living(self) -> list[Node]:
        return [n for n in self.nodes if self.lives(n)]

    def running(self) -> list[tuple[Node, Process]]:
        return [(n, p) for n in self.nodes for p in n.processes]

    def formed(self) -> list[Marker]:
        return [m for m in self.world.witness.parameters.values() if m.state is State.FORMED and not m.is_void]

    def formed_by(self) -> str | None:
        return next((m.instance_id for m in self.formed()), None)


TestFoundings: Any = Foundings.TestCase
TestFoundings.settings = settings(
    max_examples=200, stateful_step_count=50, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


# -- three races, step by step ---------------------------------------------------------------------------------------------


def until(process: Process, method: str) -> Process:
    """Run to just before this call."""
    while not process.ended and process.at != method:
        process.step()
    return process


def two_nodes() -> tuple[Foundings, Node, Node]:
    made = Foundings()
    return made, made.add(), made.add()


def test_a_formed_that_is_late_loses_against_the_takeover_that_was_faster() -> None:
    made, first, second = two_nodes()
    made.come_as_far_as_formed(0)
    late = until(first.processes[0], "witness.write")
    made.world.terminate(first.run.node.instance_id)

    made.founds(second)
    late.finish()

    assert isinstance(late.error, errors.PartitionClaimed)
    assert made.formed_by() == second.run.node.instance_id
    made.invariant_one_cluster_is_ever_formed()


def test_a_takeover_that_is_late_loses_against_the_formed_that_was_faster() -> None:
    made, first, second = two_nodes()
    made.come_as_far_as_formed(0)
    made.world.terminate(first.run.node.instance_id)
    late = until(made.claiming(second), "witness.write")

    first.processes[0].finish()
    late.finish()

    assert isinstance(late.error, errors.QuorumLost) or not late.answer.done
    assert isinstance(made.refused(second), errors.QuorumLost)
    assert made.formed_by() == first.run.node.instance_id


def test_a_claim_that_the_table_forgot_is_nobodys_once_another_was_taken_over() -> None:
    """The table is deleted between two claims of one epoch and restored to the first, whose instance dies before its testimony."""
    made, first, second = two_nodes()
    dying = until(until(made.claiming(first), "markers.put"), "witness.write")
    before = dict(made.world.markers.items)
    made.delete_table()
    slow = until(until(made.claiming(second), "markers.put"), "witness.write")
    dying.crash()
    made.world.terminate(first.run.node.instance_id)
    made.world.markers.items.update(before)

    made.founds(made.add())
    slow.finish()

    assert slow.answer is None or not slow.answer.done
