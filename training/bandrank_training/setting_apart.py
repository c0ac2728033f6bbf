"""Sets groups apart to measure with, whose queries and, where possible, relevant documents training never sees."""

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence

from bandrank_training.forms import asked_for
from bandrank_training.groups import Group


def set_apart(groups: Sequence[Group], most: int) -> tuple[list[Group], list[Group]]:
    """Returns the groups set apart, at most `most` per collection and at most a fifth, rounded up, all with a relevant
    candidate; and the groups that are left.

    Groups that ask the same or share a relevant document stay together, transitively. If that makes too large a set, as
    when one document answers most queries, some of its groups are set apart alone, which `caution` reports.
    """
    usable = Counter(group.collection for group in groups if group.has_relevant)
    room = {name: min(most, math.ceil(count / 5)) for name, count in usable.items()}
    apart: set[int] = set()
    for together in _connected(groups):
        needed = Counter(groups[index].collection for index in together if groups[index].has_relevant)
        if needed and all(count <= room[name] for name, count in needed.items()):
            apart.update(together)
            room = {name: left - needed[name] for name, left in room.items()}
    for index, group in enumerate(groups):
        if index not in apart and group.has_relevant and room[group.collection] > 0:
            apart.add(index)
            room[group.collection] -= 1
    dev = [group for index, group in enumerate(groups) if index in apart and group.has_relevant]
    asked = {asked_for(group.query) for group in dev}
    return dev, [group for group in groups if asked_for(group.query) not in asked]


def caution(dev: Iterable[Group], trained: Iterable[Group]) -> str:
    """A warning if groups set apart share a relevant document with groups to train on; else empty."""
    known = {document for group in trained for document in _answers(group)}
    shared = [not known.isdisjoint(_answers(group)) for group in dev]
    if not any(shared):
        return ""
    return (
        f"{sum(shared)} of the {len(shared)} queries set apart share a relevant document with queries to train on: "
        "there are too few others, and measures on them flatter"
    )


def _connected(groups: Sequence[Group]) -> list[list[int]]:
    """Lists the indices of each set of connected groups, in the order of their first groups."""
    parents = list(range(len(groups)))

    def root(index: int) -> int:
        while parents[index] != index:
            parents[index] = index = parents[parents[index]]
        return index

    first: dict[Hashable, int] = {}
    for index, group in enumerate(groups):
        for shared in (asked_for(group.query), *_answers(group)):
            one, other = sorted((root(index), root(first.setdefault(shared, index))))
            parents[other] = one
    lists: dict[int, list[int]] = {}
    for index in range(len(groups)):
        lists.setdefault(root(index), []).append(index)
    return list(lists.values())


def _answers(group: Group) -> Iterator[tuple[str, str]]:
    """The collection and the id of each relevant candidate."""
    for document_id, label in zip(group.candidates, group.labels or (), strict=False):
        if label > 0:
            yield group.collection, document_id
