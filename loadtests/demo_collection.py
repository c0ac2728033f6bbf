"""The demo's judged questions and its first stage: a collection in BEIR layout, BM25 over it by SQLite FTS5, nDCG.

BEIR layout (Thakur et al. 2021): corpus.jsonl, queries.jsonl and qrels/<split>.tsv; here each may be plain or .gz.
"""

from __future__ import annotations

import gzip
import json
import math
import random
import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

CUTOFF = 10
SPLITS = ("test2k", "test", "dev")  # the first that a collection has is used; test2k is a smaller cut of a large test
# Frequent words say little about a passage and would make every passage of a large corpus a match.
STOP_WORDS = frozenset(
    """a an and are as at be been but by can could did do does for from had has have how i if in into is it its me my
    of on or our so than that the their them then there these they this to was we were what when where which who whom
    whose why will with would you your""".split()  # noqa: SIM905  # a list of 80 quoted words reads worse
)


class DemoError(Exception):
    """The demo cannot go on; the message says what was expected and what came."""


@dataclass(frozen=True)
class Collection:
    """Passages and questions by id; judgements[question][passage] is the relevance of a judged pair.

    passages are what is searched and scored, title and text; excerpts are what is shown, the text alone.
    """

    name: str
    split: str
    passages: dict[str, str]
    excerpts: dict[str, str]
    questions: dict[str, str]
    judgements: dict[str, dict[str, int]]

    def is_relevant(self, question_id: str, passage_id: str) -> bool:
        """Whether the pair was judged, and judged above 0."""
        return self.judgements[question_id].get(passage_id, 0) > 0

    def sample(self, count: int, seed: int) -> list[str]:
        """At most `count` question ids without repetition; the same for the same seed, whatever the order on disk."""
        return random.Random(seed).sample(sorted(self.questions), min(count, len(self.questions)))


def load_collection(folder: Path, split: str | None = None) -> Collection:
    """Reads a BEIR folder; only questions with a relevant passage are kept, since the rest cannot be measured.

    Raises DemoError if a part is missing, cannot be read, or names an unknown passage or question.
    """
    names = (split,) if split else SPLITS
    chosen = next((name for name in names if _find(folder / "qrels" / f"{name}.tsv")), None)
    if chosen is None:
        raise DemoError(f"{folder} is no collection in BEIR layout: no qrels/{{{','.join(names)}}}.tsv[.gz] there")
    try:
        rows = list(_json_lines(folder / "corpus.jsonl"))
        passages = {row["_id"]: _join(row.get("title"), row["text"]) for row in rows}
        texts = {row["_id"]: row["text"] for row in _json_lines(folder / "queries.jsonl")}
        judgements = _read_qrels(folder / "qrels" / f"{chosen}.tsv")
    except (OSError, ValueError, KeyError) as error:
        raise DemoError(f"cannot read the collection {folder}: {type(error).__name__}: {error}") from error
    unknown = judgements.keys() - texts.keys() | {p for judged in judgements.values() for p in judged} - passages.keys()
    if unknown:
        raise DemoError(f"{folder}/qrels/{chosen}.tsv names {len(unknown)} unknown ids, such as {min(unknown)}")
    if not judgements:
        raise DemoError(f"{folder}/qrels/{chosen}.tsv has no question with a relevant passage")
    questions = {question_id: texts[question_id] for question_id in judgements}
    excerpts = {row["_id"]: row["text"] for row in rows}
    return Collection(folder.resolve().name, chosen, passages, excerpts, questions, judgements)


def build_index(passages: Mapping[str, str]) -> sqlite3.Connection:
    """A full-text index in memory, English stems. Raises DemoError if this Python's SQLite has no FTS5."""
    index = sqlite3.connect(":memory:")
    try:
        index.execute("CREATE VIRTUAL TABLE passages USING fts5(id UNINDEXED, text, tokenize='porter unicode61')")
    except sqlite3.OperationalError as error:
        raise DemoError(f"this Python's SQLite has no FTS5: {error}") from error
    index.executemany("INSERT INTO passages VALUES (?, ?)", passages.items())
    return index


def fts_query(question: str) -> str:
    """The question as an FTS5 expression: any of its words, quoted, so that AND, OR, NEAR and quotes are plain words.

    Stop words are left out unless there is nothing else ("to be or not to be"). No word at all gives "".
    """
    words = list(dict.fromkeys(re.findall(r"[^\W_]+", question.lower())))
    chosen = [word for word in words if word not in STOP_WORDS] or words
    return " OR ".join(f'"{word}"' for word in chosen)


def search(index: sqlite3.Connection, question: str, depth: int) -> list[str]:
    """Ids of the `depth` best passages by bm25(), best first; ties by position in the corpus. No word finds nothing."""
    expression = fts_query(question)
    if not expression:
        return []
    statement = "SELECT id FROM passages WHERE passages MATCH ? ORDER BY bm25(passages), rowid LIMIT ?"
    return [row[0] for row in index.execute(statement, (expression, depth))]


def ndcg(ranking: Sequence[str], relevance: Mapping[str, int], cutoff: int = CUTOFF) -> float:
    """Normalised discounted cumulative gain with linear gain, as trec_eval's ndcg_cut (Jarvelin & Kekalainen 2002).

    The sum of relevance / log2(rank + 1) over the first `cutoff` ranks, divided by that of the best possible ranking of
    ALL judged passages, those that the first stage missed included. Unjudged passages and negative judgements gain
    nothing. 0.0 when nothing is relevant.
    """
    ideal = _discounted(sorted(relevance.values(), reverse=True)[:cutoff])
    return _discounted([relevance.get(passage_id, 0) for passage_id in ranking[:cutoff]]) / ideal if ideal else 0.0


def _discounted(gains: Sequence[int]) -> float:
    return sum(max(gain, 0) / math.log2(rank + 1) for rank, gain in enumerate(gains, start=1))


def _read_qrels(path: Path) -> dict[str, dict[str, int]]:
    judgements: dict[str, dict[str, int]] = {}
    with _open_text(path) as lines:
        next(lines, None)  # the header
        for line in lines:
            question_id, passage_id, relevance = line.split()
            judgements.setdefault(question_id, {})[passage_id] = int(relevance)
    return {question: judged for question, judged in judgements.items() if max(judged.values()) > 0}


def _json_lines(path: Path) -> Iterator[dict[str, str]]:
    with _open_text(path) as lines:
        yield from map(json.loads, lines)


def _open_text(path: Path) -> TextIO:
    found = _find(path)
    if found is None:
        raise FileNotFoundError(f"neither {path} nor {path}.gz is there")
    return gzip.open(found, "rt", encoding="utf-8") if found.suffix == ".gz" else found.open(encoding="utf-8")


def _find(path: Path) -> Path | None:
    return next((p for p in (path, path.with_name(f"{path.name}.gz")) if p.is_file()), None)


def _join(title: str | None, text: str) -> str:
    return f"{title}. {text}" if title else text
