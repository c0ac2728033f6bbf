"""Groups to measure with: how many, and what training sees of them."""

import pytest

from bandrank_training.groups import Group
from bandrank_training.setting_apart import caution, set_apart


def group(query: str, *relevant: str, collection: str = "own") -> Group:
    """One with these relevant candidates, and an irrelevant one."""
    return Group(collection, query, [*relevant, "other"], [1] * len(relevant) + [0], {})


def answers(groups: list[Group]) -> set[str]:
    """The relevant candidates."""
    return {name for one in groups for name, label in zip(one.candidates, one.labels or [], strict=True) if label > 0}


def test_what_is_connected_stays_together() -> None:
    """Through a third query, too; a fifth of ten groups is two."""
    chain = [group("a", "1", "2"), group("b", "2", "3"), group("c", "3")]
    pairs = [group(f"{name}{n}", f"{n}") for n in (4, 5, 6) for name in "xy"]
    groups = [*chain, *pairs, group("alone", "7")]

    dev, train = set_apart(groups, 100)

    assert dev == pairs[:2]
    assert train == [one for one in groups if one not in dev]
    assert not answers(dev) & answers(train)
    assert not caution(dev, train)


@pytest.mark.parametrize(("alone", "shared"), [(4, 0), (1, 3), (0, 4)])
def test_one_document_that_answers_most_queries_is_trained_on(alone: int, shared: int) -> None:
    """Queries of other documents measure; where these are too few, some of that one do too, which is said."""
    groups = [group(f"common {n}", "most") for n in range(20 - alone)] + [group(f"q{n}", f"{n}") for n in range(alone)]

    dev, train = set_apart(groups, 100)

    assert (len(dev), len(train)) == (4, 16)
    assert sum("most" in one.candidates for one in dev) == shared
    said = f"{shared} of the 4 queries set apart share a relevant document with queries to train on"
    assert caution(dev, train).startswith(said if shared else "")
    assert bool(caution(dev, train)) == bool(shared)


def test_forms_of_a_query_stay_together() -> None:
    """Whatever is relevant to each; a form without a relevant candidate neither measures nor teaches."""
    unjudged = Group("own", "river", ["other"], None, {})
    groups = [group("what is the river?", "1"), group("River", "2"), unjudged, *(group(f"q{n}", "3") for n in range(6))]

    dev, train = set_apart(groups, 100)

    assert dev == groups[:2]
    assert train == groups[3:]


def test_each_collection_has_its_own_fifth() -> None:
    """And one id in two collections is two documents."""
    groups = [group(f"{name}{n}", f"{n}", collection=name) for name in ("one", "two") for n in range(6)]

    dev, train = set_apart(groups, 1)

    assert [one.query for one in dev] == ["one0", "two0"]
    assert len(train) == 10
