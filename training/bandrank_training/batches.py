"""Makes batches of token ids from groups, in an order that depends on the recipe alone."""

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor

from bandrank.models.batch import ScoreBatch
from bandrank.models.ids import ID_BYTES, Ids, PackedIds, RaggedIds
from bandrank.models.ragged import Ragged
from bandrank.models.texts import TextEncoder
from bandrank_kernels.arrays import offsets
from bandrank_training.collection import documents_of, numbered_lines, open_collection
from bandrank_training.contents import digest
from bandrank_training.groups import BadGroups, Group, check_areas, read_groups
from bandrank_training.losses import UNKNOWN, LossRecipe, Scored
from bandrank_training.recipe import DataRecipe


@dataclass(frozen=True)
class TrainingBatch:
    """What a step scores, and what its losses compare the scores with.

    queries, texts: texts of the queries and of the candidates.  labels: one per candidate, UNKNOWN if it is unjudged.
    teachers: one score per candidate, by teacher; only teachers that scored the whole batch.
    groups_read: groups read since the start of the run.  answers: for each query, all texts known to be
    relevant to it, drawn or not.
    """

    batch: ScoreBatch
    queries: list[str]
    texts: list[str]
    labels: Tensor
    teachers: dict[str, Tensor]
    groups_read: int
    answers: Sequence[set[str]]

    def scored(self, scores: Tensor) -> Scored:
        """The scores with labels and teachers, padded so that each group is a row. scores: (C,)."""
        sizes = torch.from_numpy(self.batch.cu_candidates).diff()
        mask = (torch.arange(int(sizes.max())) < sizes[:, None]).to(scores.device)

        def padded(values: Tensor) -> Tensor:
            return values.new_zeros(mask.shape).masked_scatter(mask, values)

        return Scored(
            padded(scores),
            mask,
            padded(self.labels.to(scores.device)),
            {name: padded(values.to(scores.device)) for name, values in self.teachers.items()},
        )

    def everyone_scored(self, scores: Tensor) -> Scored:
        """Each query is a row with all candidates of the batch; other queries' candidates count as irrelevant to it.

        Of these, UNKNOWN marks copies of the query's own candidates and texts that answer it. Teachers, which scored
        each query's own candidates only, are left out. scores: (Q * C,).
        """
        count, device = len(self.batch.queries), scores.device
        owner = torch.from_numpy(self.batch.candidate_query).to(device)
        owned = owner == torch.arange(count, device=device)[:, None]
        known = [
            {*self.texts[own], *answers} for (_, own), answers in zip(self.batch.groups(), self.answers, strict=True)
        ]
        copied = torch.tensor([[text in texts for text in self.texts] for texts in known], device=device)
        labels = torch.where(owned, self.labels.to(device), torch.where(copied, UNKNOWN, 0))
        judged = ((self.labels.to(device) != UNKNOWN) & owned).any(1, keepdim=True)
        mask = torch.ones_like(owned)
        return Scored(scores.view_as(owned), mask, torch.where(judged, labels, UNKNOWN), {})


class GroupReader:
    """Reads the recipe's files over and over. All candidate texts stay in memory; groups do not.

    Raises BadGroups, BadCollection.
    """

    def __init__(self, recipe: DataRecipe, texts: TextEncoder, *, seed: int) -> None:
        self._recipe, self._texts, self._seed = recipe, texts, seed
        template = texts.scorer.candidate_template
        self._most_pieces = max(0, recipe.max_candidate_tokens - len(template.prefix) - len(template.suffix))
        self._files = [Path(name) for name in recipe.groups]
        self._kinds: dict[tuple[frozenset[str], bool], str] = {}
        self.documents = _documents(self._noted())
        self._pieces: dict[str, PackedIds] = {}

    @cached_property
    def contents(self) -> str:
        """A digest of everything that is read."""
        return of_groups(self._files, self.documents)

    def batches(self, groups_read: int = 0) -> Iterator[TrainingBatch]:
        """Yields batches without end, starting after the first `groups_read` groups."""
        ready: list[_Ready] = []
        rows = 0
        for number, group in enumerate(self._groups()):
            if number < groups_read:
                continue
            one = self._prepare(group, random.Random(f"{self._seed} {number}"))
            full = len(ready) == self._recipe.batch_groups or rows + one.rows > self._recipe.batch_rows
            if ready and full:
                yield _join(ready, number)
                ready, rows = [], 0
            ready.append(one)
            rows += one.rows

    def check(self, losses: Sequence[LossRecipe], fused: Iterable[str]) -> None:
        """Raises BadGroups if a group lacks scores that the losses or the fusion need, or if no loss can learn from any
        group. Otherwise a run would fail late, or end as it began.
        """
        needed = {*fused, *chain.from_iterable(loss.teacher for loss in losses)}
        for (teachers, _), query in self._kinds.items():
            if missing := sorted(needed - teachers):
                said = f"the group of {query[:80]!r} has no scores of {', '.join(missing)}"
                raise BadGroups(f"{said}; it has those of {', '.join(sorted(teachers))}, and `score` adds others")
        labels_teach = any(has_relevant for _, has_relevant in self._kinds)
        if losses and not labels_teach and all(loss.learns_from_labels for loss in losses):
            named = " and ".join(sorted({loss.name for loss in losses}))
            raise BadGroups(f"no group has a relevant candidate, and {named} can learn from nothing else")

    def _noted(self) -> Iterator[Group]:
        """Yields the groups of all files, and notes each kind of group to train on (its teachers, and whether it has a
        relevant candidate) with its first query.
        """
        areas = set()
        for group in chain.from_iterable(map(read_groups, self._files)):
            areas.add(group.area)
            if group.area not in self._recipe.without:
                self._kinds.setdefault((frozenset(group.scores), group.has_relevant), group.query)
            yield group
        check_areas("without", self._recipe.without, areas)
        if not self._kinds:
            left = f" but of {', '.join(self._recipe.without)}" if areas else ""
            raise BadGroups(f"no groups in {', '.join(map(str, self._files))}{left}")

    def _groups(self) -> Iterator[Group]:
        while True:
            for group in chain.from_iterable(map(read_groups, self._files)):
                if group.area not in self._recipe.without:
                    yield group

    def _prepare(self, group: Group, chance: random.Random) -> "_Ready":
        indices = choose(group, self._recipe.group_size, self._recipe.max_relevant, chance)
        texts = [self.documents[group.collection, group.candidates[index]] for index in indices]
        query, _ = self._texts.query(group.query)
        if unread := [text for text in texts if text not in self._pieces]:
            whole, most = self._texts.pieces(unread), ID_BYTES * self._most_pieces
            self._pieces.update((text, each[:most]) for text, each in zip(unread, whole, strict=True))
        pieces = [self._pieces[text] for text in texts]
        return _Ready(
            query=query,
            texts=texts,
            candidates=self._texts.candidates(pieces, query_tokens=len(query))[0],
            labels=[UNKNOWN if group.labels is None else group.labels[index] for index in indices],
            teachers={name: [scores[index] for index in indices] for name, scores in group.scores.items()},
            asks=group.query,
            answers={
                self.documents[group.collection, name]
                for name, label in zip(group.candidates, group.labels or (), strict=False)
                if label > 0
            },
        )


def of_groups(files: Sequence[Path], documents: Mapping[tuple[str, str], str]) -> str:
    """A digest of the files' groups, with labels and scores, and of the texts that `read_documents` returned."""
    lines = (line for path in files for _, line in numbered_lines(path))
    return digest(chain(lines, chain.from_iterable((*place, text) for place, text in sorted(documents.items()))))


def read_documents(files: Sequence[Path]) -> dict[tuple[str, str], str]:
    """Reads the texts of all candidates in the files, by collection and id. Raises BadGroups, BadCollection."""
    return _documents(chain.from_iterable(map(read_groups, files)))


def _documents(groups: Iterable[Group]) -> dict[tuple[str, str], str]:
    named: dict[str, set[str]] = {}
    for group in groups:
        named.setdefault(group.collection, set()).update(group.candidates)
    documents = {}
    for source, ids in named.items():
        texts = documents_of(open_collection(source), ids)
        if missing := ids - texts.keys():
            raise BadGroups(f"{source} lacks {len(missing)} candidates that groups name, such as {min(missing)}")
        documents.update({(source, document_id): text for document_id, text in texts.items()})
    return documents


def choose(group: Group, size: int, max_relevant: int, chance: random.Random) -> list[int]:
    """Draws the indices of `size` candidates, at most `max_relevant` of them relevant, in random order."""
    labels = group.labels or [0] * len(group.candidates)
    relevant = [index for index, label in enumerate(labels) if label > 0]
    others = [index for index, label in enumerate(labels) if label <= 0]
    chosen = chance.sample(relevant, min(max_relevant, len(relevant), size))
    chosen += chance.sample(others, min(size - len(chosen), len(others)))
    chance.shuffle(chosen)
    return chosen


@dataclass
class _Ready:
    query: Ids
    texts: list[str]
    candidates: RaggedIds
    labels: list[int]
    teachers: dict[str, list[float]]
    asks: str
    answers: set[str]

    @property
    def rows(self) -> int:
        return len(self.query) + len(self.candidates.values) + len(self.candidates)


def _join(groups: Sequence[_Ready], groups_read: int) -> TrainingBatch:
    names = set.intersection(*(set(group.teachers) for group in groups))
    answers: dict[str, set[str]] = {}
    for group in groups:
        answers.setdefault(group.asks, set()).update(group.answers)
    return TrainingBatch(
        batch=ScoreBatch(
            Ragged.from_token_ids([group.query for group in groups]),
            Ragged.from_ids([group.candidates for group in groups]),
            offsets([len(group.candidates) for group in groups]),
        ),
        queries=[group.asks for group in groups],
        texts=[text for group in groups for text in group.texts],
        labels=torch.tensor([label for group in groups for label in group.labels]),
        teachers={name: torch.tensor([x for group in groups for x in group.teachers[name]]) for name in sorted(names)},
        groups_read=groups_read,
        answers=[answers[group.asks] for group in groups],
    )
