"""A worker-to-be beside a hand-made cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from node_scripts import Scripts, ready

from lab.arktos.bench import Bench, Node


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """One TP, one RP, healthy; nodes are added by the tests."""
    with Bench(tmp_path_factory.mktemp("bench")) as made:
        made.cluster()
        made.until(lambda: ready(made, made.master("rp1").instance_id), "the RP's own Node to be Ready")
        yield made


@pytest.fixture(scope="module")
def script(bench: Bench) -> Scripts:
    return Scripts(bench)


@pytest.fixture
def node(bench: Bench) -> Iterator[Node]:
    """A fresh instance in the subnet of its RP; gone, with its Node, after the test."""
    made = bench.node()
    yield made
    made.power_off()
    bench.api("rp1", "DELETE", f"/api/v1/nodes/{made.instance_id}")


@pytest.fixture
def worker(bench: Bench, script: Scripts, node: Node) -> Node:
    """A node that joined and is Ready."""
    done = script("join-worker", node)
    assert done.code == 0, (done.result, done.stderr)
    bench.until(lambda: ready(bench, node.instance_id), "the worker to be Ready")
    return node


@pytest.fixture(scope="module")
def serving(bench: Bench, script: Scripts) -> Node:
    """A worker that stays for all tests of a module, which must leave it as it was."""
    made = bench.node()
    done = script("join-worker", made)
    assert done.code == 0, (done.result, done.stderr)
    bench.until(lambda: ready(bench, made.instance_id), "the worker to be Ready")
    return made
