"""The demo's judged questions, a collection in BEIR layout (Thakur et al. 2021), and its first stage, BM25."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from bandrank_training.bm25 import BM25
from bandrank_training.collection import BadCollection, open_collection
from bandrank_training.measures import judged

SPLITS = ("test2k", "test", "dev")  # the first that a collection has is used; test2k is a smaller cut of a large test


class DemoError(Exception):
    """The demo cannot go on; the message says what was expected and what came."""


@dataclass(frozen=True)
class Collection:
    """Passages and questions by id; judgements[question][passage] is the relevance of a judged pair."""

    name: str
    split: str
    passages: dict[str, str]
    questions: dict[str, str]
    judgements: dict[str, dict[str, int]]

    def is_relevant(self, question_id: str, passage_id: str) -> bool:
        """Whether the pair was judged, and judged above 0."""
        return self.judgements[question_id].get(passage_id, 0) > 0

    def sample(self, count: int, seed: int) -> list[str]:
        """At most `count` question ids without repetition; the same for the same seed, whatever the order on disk."""
        return random.Random(seed).sample(sorted(self.questions), min(count, len(self.questions)))


class FirstStage:
    """BM25 over all passages."""

    def __init__(self, passages: dict[str, str]) -> None:
        self._ids = list(passages)
        self._index = BM25(list(passages.values()))

    def search(self, question: str, depth: int) -> list[str]:
        """Ids of the `depth` best passages, best first; fewer where fewer share a word with the question."""
        ((indices, _),) = self._index.search([question], depth)
        return [self._ids[index] for index in indices]


def load_collection(folder: Path, split: str | None = None) -> Collection:
    """Reads a BEIR folder; only questions with a relevant passage are kept, since the rest cannot be measured.

    Raises DemoError if a part is missing, cannot be read, or names an unknown passage or question.
    """
    names = (split,) if split else SPLITS
    chosen = next((name for name in names if any((folder / "qrels").glob(f"{name}.tsv*"))), None)
    if chosen is None:
        raise DemoError(f"{folder} is no collection in BEIR layout: no qrels/{{{','.join(names)}}}.tsv[.gz] there")
    try:
        source = open_collection(folder)
        passages, texts = dict(source.documents()), source.queries()
        judgements = judged(source.qrels(chosen), min_relevance=1)
    except BadCollection as error:
        raise DemoError(f"cannot read the collection: {error}") from error
    unknown = judgements.keys() - texts.keys() | {p for row in judgements.values() for p in row} - passages.keys()
    if unknown:
        raise DemoError(f"{folder}/qrels/{chosen}.tsv names {len(unknown)} unknown ids, such as {min(unknown)}")
    if not judgements:
        raise DemoError(f"{folder}/qrels/{chosen}.tsv has no question with a relevant passage")
    questions = {question_id: texts[question_id] for question_id in judgements}
    return Collection(source.name, chosen, passages, questions, judgements)
