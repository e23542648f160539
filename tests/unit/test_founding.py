"""Founding, rule by rule: what an instance does about its partition's etcd, and which of two records counts."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autojoin import errors
from autojoin.domain.founding import UNKNOWN_IS_GONE_MS, Holder, Marker, State, Step, decide, formed, standing, void

ME, OTHER = "i-00000000000000001", "i-00000000000000002"
NOW_MS = 10 * UNKNOWN_IS_GONE_MS
ID = "0123456789abcdef"


def claimed(instance_id: str = OTHER, epoch: int = 1, at_ms: int = NOW_MS) -> Marker:
    return Marker("demo", "tp1", State.CLAIMED, instance_id, epoch, at_ms)


def formed_by(instance_id: str = OTHER, epoch: int = 1, cluster_id: str = ID) -> Marker:
    return Marker("demo", "tp1", State.FORMED, instance_id, epoch, NOW_MS, cluster_id)


def decision(decided: Marker | None, holder: Holder | None = None, not_adopted: tuple[str, ...] = ()) -> tuple[Step, Marker]:
    made = decide("demo", "tp1", ME, decided, holder, not_adopted, NOW_MS)
    return made.step, made.marker


# -- what to do ------------------------------------------------------------------------------------------------------------


def test_where_nothing_was_decided_the_first_epoch_is_claimed() -> None:
    assert decision(None) == (Step.CLAIM, claimed(ME, 1))


@pytest.mark.parametrize("decided", [None, claimed()])
def test_beside_a_running_instance_that_nobody_recorded_nothing_is_claimed(decided: Marker | None) -> None:
    with pytest.raises(errors.PartitionNotAdopted, match="i-00000000000000009"):
        decision(decided, Holder.GONE if decided else None, ("i-00000000000000009",))


@pytest.mark.parametrize("holder", Holder)
def test_my_own_claim_is_found_again_with_its_token(holder: Holder) -> None:
    step, marker = decision(claimed(ME, 3), holder)

    assert step is Step.FOUND
    assert marker.etcd_token == f"demo.tp1.3.{ME}"


@pytest.mark.parametrize("holder", Holder)
def test_what_i_formed_is_resumed_whatever_else_runs(holder: Holder) -> None:
    assert decision(formed_by(ME, 2), holder, ("i-00000000000000009",)) == (Step.RESUME, formed_by(ME, 2))


@pytest.mark.parametrize("holder", [Holder.ALIVE, Holder.GOING])
def test_the_claim_of_an_instance_that_is_not_terminated_is_waited_for(holder: Holder) -> None:
    made = decide("demo", "tp1", ME, claimed(), holder, (), NOW_MS)

    assert made.step is Step.WAIT
    assert OTHER in made.waits_for
    assert holder.value in made.waits_for


def test_the_claim_of_a_terminated_instance_is_taken_over_with_the_next_epoch() -> None:
    assert decision(claimed(epoch=4), Holder.GONE) == (Step.CLAIM, claimed(ME, 5))


@pytest.mark.parametrize(("age_ms", "step"), [(0, Step.WAIT), (UNKNOWN_IS_GONE_MS, Step.WAIT), (UNKNOWN_IS_GONE_MS + 1, Step.CLAIM)])
def test_an_instance_that_ec2_does_not_know_is_gone_only_after_an_hour(age_ms: int, step: Step) -> None:
    assert decision(claimed(at_ms=NOW_MS - age_ms), Holder.UNKNOWN)[0] is step


def test_a_second_instance_beside_the_living_one_is_refused() -> None:
    with pytest.raises(errors.ReplicasNotSupported, match=OTHER):
        decision(formed_by(), Holder.ALIVE)


@pytest.mark.parametrize("holder", [Holder.GOING, Holder.GONE, Holder.UNKNOWN])
def test_a_formed_partition_without_its_instance_is_lost_and_never_claimed(holder: Holder) -> None:
    with pytest.raises(errors.QuorumLost, match=ID):
        decision(formed_by(), holder)


markers = st.builds(
    Marker,
    cluster=st.just("demo"),
    partition=st.just("tp1"),
    state=st.sampled_from(State),
    instance_id=st.sampled_from([ME, OTHER, "i-00000000000000003"]),
    epoch=st.integers(1, 4),
    at_ms=st.integers(0, NOW_MS),
    cluster_id=st.just(""),
).map(lambda m: replace(m, cluster_id=ID) if m.state is State.FORMED else m)


@given(
    decided=st.none() | markers, holder=st.sampled_from(Holder), not_adopted=st.lists(st.just("i-00000000000000009"), max_size=1).map(tuple)
)
def test_whatever_was_decided_a_claim_is_new_and_nobody_elses(decided: Marker | None, holder: Holder, not_adopted: tuple[str, ...]) -> None:
    try:
        step, marker = decision(decided, holder if decided else None, not_adopted)
    except (errors.PartitionNotAdopted, errors.QuorumLost, errors.ReplicasNotSupported):
        return

    if step is Step.CLAIM:
        assert decided is None or (decided.state is State.CLAIMED and holder in (Holder.GONE, Holder.UNKNOWN))
        assert marker.epoch == (decided.epoch if decided else 0) + 1
        assert not not_adopted
    if step in (Step.CLAIM, Step.FOUND, Step.RESUME):
        assert marker.instance_id == ME
    if step is Step.RESUME:
        assert marker.cluster_id


# -- which record counts ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "witness", "decided"),
    [
        (None, [], None),
        (claimed(), [], claimed()),
        (None, [claimed()], claimed()),
        (claimed(), [claimed(), formed_by()], formed_by()),
        (formed_by(), [claimed()], formed_by()),
        (claimed(ME, 2), [claimed(), formed_by()], claimed(ME, 2)),
        (claimed(epoch=1), [claimed(epoch=1), claimed(ME, 2)], claimed(ME, 2)),
        (claimed(ME, 1), [claimed(OTHER, 1)], claimed(OTHER, 1)),
        (claimed(), [claimed(), void(claimed())], claimed()),
        (None, [claimed(), void(claimed()), claimed(ME, 2), formed_by(ME, 2)], formed_by(ME, 2)),
    ],
)
def test_the_greater_of_marker_and_witness_was_decided(table: Marker | None, witness: list[Marker], decided: Marker | None) -> None:
    assert standing(table, witness) == decided


@given(table=st.none() | markers, witness=st.lists(markers, max_size=5), order=st.randoms())
def test_the_order_of_the_witness_and_a_lesser_table_change_nothing(table: Marker | None, witness: list[Marker], order: object) -> None:
    unique = list({(m.state, m.epoch): m for m in witness}.values())
    decided = standing(table, unique)
    shuffled = list(unique)
    order.shuffle(shuffled)  # type: ignore[attr-defined]

    assert standing(table, shuffled) == decided
    assert all(decided is not None and decided.rank >= m.rank for m in unique)
    if decided is not None and decided in unique:
        assert standing(None, unique) == decided


@given(ends=st.lists(st.integers(1, 4), max_size=4))
def test_an_epoch_that_was_given_up_never_counts_as_formed(ends: list[int]) -> None:
    witness = list(itertools.chain.from_iterable((claimed(epoch=e), void(claimed(epoch=e))) for e in set(ends)))

    decided = standing(None, witness)

    assert decided == (claimed(epoch=max(ends)) if ends else None)


# -- formed ----------------------------------------------------------------------------------------------------------------


def test_a_claim_is_formed_with_the_cluster_id_and_stays_so() -> None:
    made = formed(claimed(ME, 2), ID, NOW_MS + 5)

    assert made == replace(formed_by(ME, 2), at_ms=NOW_MS + 5)
    assert formed(made, ID, NOW_MS + 99) == made
    assert not made.is_void


def test_what_was_formed_with_another_cluster_id_is_refused() -> None:
    with pytest.raises(errors.ClusterIdMismatch, match=ID):
        formed(formed_by(ME), "ffffffffffffffff", NOW_MS)


def test_tokens_of_two_claims_differ() -> None:
    tokens = {claimed(i, e).etcd_token for i in (ME, OTHER) for e in (1, 2)}

    assert len(tokens) == 4
