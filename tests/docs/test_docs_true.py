"""The documents of this repository are true, and what tools write into them is not stale."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from autojoin.domain import partitions, plan
from autojoin.domain.identity import Role
from autojoin.errors import AutojoinError
from autojoin.use_cases.waiting import OLDEST_AGENT
from tools import check_docs, generated_parts, render_budgets, render_machines

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_no_document_says_what_is_not_so() -> None:
    assert [str(p) for p in check_docs.check(ROOT)] == []


@pytest.mark.parametrize("tool", [render_budgets, render_machines], ids=["budgets", "machines"])
def test_generated_parts_are_not_stale(tool: object) -> None:
    text = tool.DOCUMENT.read_text(encoding="utf-8")  # type: ignore[attr-defined]

    assert generated_parts.put(text, tool.parts()) == text  # type: ignore[attr-defined]


def test_a_part_without_its_marks_is_an_error() -> None:
    with pytest.raises(ValueError, match="part limits: 0 pairs of marks"):
        generated_parts.put("# nothing here\n", {"limits": "x"})


def test_a_limit_without_a_meaning_is_an_error() -> None:
    class WithOneMore:
        NEW_S = 1

    with pytest.raises(KeyError):
        render_budgets.limits(WithOneMore)  # type: ignore[arg-type]


def test_the_first_two_commands_of_the_readme_are_the_demo_and_the_tests() -> None:
    blocks = re.findall(r"```bash\n(.*?)```", README, re.DOTALL)

    assert [block.strip() for block in blocks[:2]] == ["make demo", "make test"]


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("kind", partitions.PartitionKind)
@pytest.mark.parametrize("cni", ["host-gw", "vxlan", "bridge", "mizar"])
def test_the_readme_s_matrix_is_what_the_plan_does(role: Role, kind: partitions.PartitionKind, cni: str) -> None:
    partition = partitions.Partition(id="p1", kind=kind, cni_backend=cni, service_cidr="10.0.0.0/16")

    try:
        plan.plan_join(role, partition)
        outcome = "joins"
    except AutojoinError as error:
        outcome = type(error).__name__

    assert outcome == said_by_the_matrix(role, kind, cni)


def said_by_the_matrix(role: Role, kind: partitions.PartitionKind, cni: str) -> str:
    """The README's table, row by row; a role in a partition of a kind that stands nowhere beside it does not fit."""
    table = README.partition("## What this version joins")[2].partition("\n\n")[2].partition("\n\n")[0]
    fits = {Role.TP: {"tp"}, Role.RP: {"rp"}, Role.MASTER: {"master"}, Role.ETCD: {"tp", "rp", "master"}}
    for roles, where, network, answer in re.findall(r"^\| (`.*?) \| (.*?) \| ?(.*?) \| (.*?) \|$", table, re.M):
        kinds = set(re.findall(r"`(\w+)`", where)) or fits.get(role, set())
        if f"`{role.value}`" not in roles or kind.value not in kinds or "a second instance" in where:
            continue
        if network.lower() in ("", "any") or cni in network.lower():
            refusal = re.search(r"`(\w+)`", answer)
            return refusal[1] if refusal else "joins"
    return "PartitionKindMismatch"


@pytest.mark.parametrize("name", ["docs/golden-image.md", "docs/runbook.md"])
def test_the_oldest_agent_is_the_one_that_the_code_takes(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")

    assert set(re.findall(r"\b3\.\d+\.\d+\.\d+\b", text)) == {".".join(map(str, OLDEST_AGENT))}
