"""Who an instance is, from the tags of its group and its own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autojoin import errors
from autojoin.domain.identity import CLUSTER_TAG, PARTITION_TAG, ROLE_TAG, Identity, Role, identify, is_ours

TAGS = {CLUSTER_TAG: "demo", ROLE_TAG: "worker", PARTITION_TAG: "rp1"}
OUR_TAGS = (CLUSTER_TAG, ROLE_TAG, PARTITION_TAG)

values = st.one_of(st.sampled_from(["demo", "worker", "tp", "rp1", "", "gardener"]), st.text("aé :#1", max_size=8))
tag_sets = st.dictionaries(st.sampled_from([*OUR_TAGS, "Name"]), values)


def without(name: str) -> dict[str, str]:
    return {k: v for k, v in TAGS.items() if k != name}


def test_an_instance_that_agrees_with_its_group_is_what_both_say() -> None:
    found = identify(TAGS, TAGS, "i-1")

    assert found == Identity("demo", Role.WORKER, "rp1")


def test_a_lone_instance_is_what_its_own_tags_say() -> None:
    found = identify(TAGS, None, "i-1")

    assert found.role is Role.WORKER


def test_other_tags_do_not_matter() -> None:
    found = identify({**TAGS, "Name": "a"}, {**TAGS, "Name": "b"}, "i-1")

    assert found == Identity("demo", Role.WORKER, "rp1")


@pytest.mark.parametrize("group", [{}, without(CLUSTER_TAG), {**TAGS, CLUSTER_TAG: ""}])
def test_a_group_without_a_cluster_is_not_ours_whatever_the_instance_says(group: dict[str, str]) -> None:
    with pytest.raises(errors.NotOurs):
        identify(TAGS, group, "i-1")


@pytest.mark.parametrize("missing", [ROLE_TAG, PARTITION_TAG])
def test_ours_without_role_or_partition_is_refused_by_the_tags_name(missing: str) -> None:
    with pytest.raises(errors.TagsMissing, match=missing):
        identify(without(missing), without(missing), "i-1")


@pytest.mark.parametrize("name", OUR_TAGS)
def test_an_instance_that_says_something_else_than_its_group_is_refused(name: str) -> None:
    with pytest.raises(errors.TagsContradict, match=f"{name}=other"):
        identify({**TAGS, name: "other"}, TAGS, "i-1")


@pytest.mark.parametrize("name", OUR_TAGS)
def test_an_instance_without_its_groups_tag_is_refused(name: str) -> None:
    with pytest.raises(errors.TagsContradict, match=r"\(none\)"):
        identify(without(name), TAGS, "i-1")


@pytest.mark.parametrize("role", ["Worker", "workers", "node", " worker"])
def test_a_role_that_is_none_is_refused(role: str) -> None:
    tags = {**TAGS, ROLE_TAG: role}

    with pytest.raises(errors.UnknownRole, match="one of tp, rp, master, worker, etcd"):
        identify(tags, tags, "i-1")


@given(instance=tag_sets, group=st.none() | tag_sets)
def test_an_identity_is_never_read_from_tags_that_contradict_each_other(instance: dict[str, str], group: dict[str, str] | None) -> None:
    try:
        found = identify(instance, group, "i-1")
    except errors.AutojoinError:
        return

    for tags in (instance, group if group is not None else instance):
        assert {name: tags.get(name) for name in OUR_TAGS} == {
            CLUSTER_TAG: found.cluster,
            ROLE_TAG: found.role.value,
            PARTITION_TAG: found.partition,
        }
    assert all((found.cluster, found.role, found.partition))


@given(instance=tag_sets, group=tag_sets)
def test_what_is_not_ours_is_never_identified(instance: dict[str, str], group: dict[str, str]) -> None:
    foreign = {k: v for k, v in group.items() if k != CLUSTER_TAG}

    assert not is_ours(foreign)
    with pytest.raises(errors.NotOurs):
        identify(instance, foreign, "i-1")
