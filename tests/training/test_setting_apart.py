"""Groups that are set apart to measure with: how many, and what of them is seen in training."""

import pytest

from bandrank_training.groups import Group
from bandrank_training.setting_apart import caution, set_apart


def group(query: str, *relevant: str, collection: str = "own") -> Group:
    """Returns a group with these relevant candidates and an irrelevant one."""
    return Group(collection, query, [*relevant, "other"], [1] * len(relevant) + [0], {})


def test_what_is_connected_stays_together() -> None:
    """Queries that share a relevant document, also by way of a third query, are set apart together or not at all."""
    chain = [group("a", "1", "2"), group("b", "2", "3"), group("c", "3")]
    pairs = [group(f"{name}{n}", f"{n}") for n in (4, 5, 6) for name in "xy"]
    groups = [*chain, *pairs, group("alone", "7")]

    dev, train = set_apart(groups, 100)

    assert (dev, train) == (pairs[:2], [*chain, *pairs[2:], groups[-1]])
    assert not caution(dev, train)


@pytest.mark.parametrize(("alone", "shared"), [(4, 0), (1, 3), (0, 4)])
def test_one_document_that_answers_most_queries_is_trained_on(alone: int, shared: int) -> None:
    """If too few queries are about other documents, some that share this one are set apart, and `caution` says so."""
    groups = [group(f"common {n}", "most") for n in range(20 - alone)] + [group(f"q{n}", f"{n}") for n in range(alone)]

    dev, train = set_apart(groups, 100)

    assert (len(dev), len(train)) == (4, 16)
    assert sum("most" in one.candidates for one in dev) == shared
    said = f"{shared} of the 4 queries set apart share a relevant document with queries to train on"
    assert caution(dev, train).partition(":")[0] == (said if shared else "")


def test_each_collection_has_its_own_fifth() -> None:
    """The same id in two collections is two documents."""
    groups = [group(f"{name}{n}", f"{n}", collection=name) for name in ("one", "two") for n in range(6)]

    dev, train = set_apart(groups, 1)

    assert [one.query for one in dev] == ["one0", "two0"]
    assert len(train) == 10
