"""Judged groups that training never sees, for measuring a scorer while it is trained."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import add
from pathlib import Path
from statistics import mean

from bandrank_training.batches import read_documents
from bandrank_training.groups import BadGroups, Group, read_groups
from bandrank_training.progress import progress
from bandrank_training.scoring import OfflineScorer, Question

CUTOFF = 10


@dataclass(frozen=True)
class DevSet:
    """Judged groups with the texts of their candidates."""

    groups: Sequence[Group]
    texts: dict[tuple[str, str], str]

    @classmethod
    def read(cls, path: Path) -> "DevSet":
        """Reads the judged groups of a file. Raises BadGroups, BadCollection."""
        groups = [group for group in read_groups(path) if group.has_relevant]
        if not groups:
            raise BadGroups(f"{path}: no group with a relevant candidate to measure with")
        return cls(groups, read_documents([path]))

    def measure(self, offline: OfflineScorer, fused: Mapping[str, float] | None = None) -> float:
        """Measures a scorer: `measure_scores` of its `sums`."""
        return self.measure_scores(self.sums(offline, fused))

    def sums(self, offline: OfflineScorer, fused: Mapping[str, float] | None = None) -> list[list[float]]:
        """The scorer's scores plus the groups' own scores that `fused` names, times their weights."""
        scores = self.scores(offline)
        added = [group.weighed(fused or {}) for group in self.groups]
        return [list(map(add, ours, theirs)) for ours, theirs in zip(scores, added, strict=True)]

    def scores(self, offline: OfflineScorer) -> list[list[float]]:
        """The scores of each group's candidates."""
        scores = offline.score(
            Question(group.query, [self.texts[group.collection, name] for name in group.candidates])
            for group in self.groups
        )
        return list(progress(scores, "measuring", len(self.groups), unit="query", leave=False))

    def measure_scores(self, scores: Sequence[Sequence[float]]) -> float:
        """The mean over collections, or over a mixture's domains, of the mean nDCG@10 of their groups.

        Ties count against the scorer. Otherwise equal scores for all would be perfect, as groups list the relevant
        candidates first.
        """
        return mean(self.by_area(scores).values())

    def by_area(self, scores: Sequence[Sequence[float]]) -> dict[str, float]:
        """The mean nDCG@10 of each collection or domain."""
        values: dict[str, list[float]] = {}
        for group, value in zip(self.groups, self.by_query(scores), strict=True):
            values.setdefault(group.area, []).append(value)
        return {area: sum(measures) / len(measures) for area, measures in sorted(values.items())}

    @property
    def relevant(self) -> list[bool]:
        """Whether each candidate is relevant, with all groups concatenated."""
        return [label > 0 for group in self.groups for label in group.labels or ()]

    def by_query(self, scores: Sequence[Sequence[float]]) -> list[float]:
        """nDCG@10 of each group, with ties as in `measure_scores`."""
        values = []
        for group, row in zip(self.groups, scores, strict=True):
            assert group.labels is not None, "an unjudged group. This is a bug."
            ranked = sorted(zip(row, group.labels, strict=True), key=lambda one: (-one[0], one[1]))
            values.append(ndcg([label for _, label in ranked]))
        return values


def ndcg(labels: Sequence[int], cutoff: int = CUTOFF) -> float:
    """NDCG of labels in ranked order, with linear gain (Jarvelin & Kekalainen 2002, as trec_eval computes it)."""

    def gain(ranked: Sequence[int]) -> float:
        return sum(max(0, label) / math.log2(rank + 2) for rank, label in enumerate(ranked[:cutoff]))

    best = gain(sorted(labels, reverse=True))
    return gain(labels) / best if best else 0.0
