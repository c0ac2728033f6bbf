"""The requests of the load test, and the check of its answers. Knows the wire format and none of the service's code.

Popularity follows Zipf's law, for questions and for documents: a few come again and again, most are rare, so caches
see about what a search page would show them. Everything is drawn from a seed: two runs send the same requests.
"""

import bisect
import csv
import itertools
import json
import math
import random
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COLLECTION = Path(__file__).resolve().parent.parent / "tests" / "data" / "demo"


@dataclass(frozen=True)
class Subject:
    """Questions about one subject, and sentences about it."""

    questions: list[str]
    sentences: list[str]


def read_subjects(collection: Path) -> list[Subject]:
    """The judged questions of a collection in BEIR layout, and its passages in sentences, by subject: that of a passage
    is what its id has before a hyphen.
    """
    subjects: defaultdict[str, Subject] = defaultdict(lambda: Subject([], []))
    for passage in _lines(collection / "corpus.jsonl"):
        subjects[_subject_of(passage["_id"])].sentences.extend(re.split(r"(?<=[.!?]) ", passage["text"]))
    questions = {question["_id"]: question["text"] for question in _lines(collection / "queries.jsonl")}
    with (collection / "qrels" / "test.tsv").open(encoding="utf-8") as judgements:
        for row in csv.DictReader(judgements, delimiter="\t"):
            subjects[_subject_of(row["corpus-id"])].questions.append(questions[row["query-id"]])
    return list(subjects.values())


def _lines(path: Path) -> Iterator[dict[str, str]]:
    return map(json.loads, path.read_text(encoding="utf-8").splitlines())


def _subject_of(passage_id: str) -> str:
    return passage_id.partition("-")[0]


class WrongAnswerError(Exception):
    """The service answered 200, and the answer contradicts the request."""


class Zipf:
    """Draws indices from 0 to size - 1, index i with a weight of 1 / (i + 1) ** exponent."""

    def __init__(self, size: int, exponent: float) -> None:
        self._cumulative = list(itertools.accumulate((i + 1) ** -exponent for i in range(size)))

    def draw(self, rng: random.Random) -> int:
        """Draws an index."""
        return bisect.bisect_left(self._cumulative, rng.random() * self._cumulative[-1])


class Workload:
    """An endless supply of rerank requests.

    `document(i)` is the same text in every process. Lengths are log-normal: half of the documents have three
    sentences or fewer (about 65 tokens), one in twenty has more than 15 (about 300). One candidate in two is on the
    question's subject, as after a first-stage search.
    """

    def __init__(self, *, seed: int, num_documents: int, candidate_counts: Sequence[int], exponent: float) -> None:
        if max(candidate_counts) > num_documents // 4:
            needed = 4 * max(candidate_counts)
            raise ValueError(f"num_documents must be at least {needed} for these counts, got {num_documents}")
        self._subjects = read_subjects(COLLECTION)
        self._questions = [(n, q) for n, subject in enumerate(self._subjects) for q in subject.questions]
        random.Random(seed).shuffle(self._questions)
        self._candidate_counts = tuple(candidate_counts)
        self._question_rank = Zipf(len(self._questions), exponent)
        self._document_rank = Zipf(num_documents, exponent)

    def document(self, index: int) -> str:
        """The text at this rank of popularity; its subject is `index` modulo the number of subjects."""
        rng = random.Random(index)
        sentences = self._subjects[index % len(self._subjects)].sentences
        num_sentences = min(60, math.ceil(rng.lognormvariate(math.log(3), 1.0)))
        return " ".join(rng.choice(sentences) for _ in range(num_sentences))

    def request(self, rng: random.Random) -> dict[str, Any]:
        """A body for `POST /rerank`, using each of the optional parts of the format now and then."""
        subject, question = self._questions[self._question_rank.draw(rng)]
        chosen: dict[int, None] = {}  # a set that keeps the order of drawing
        num_candidates = rng.choice(self._candidate_counts)
        while len(chosen) < num_candidates:
            index = self._document_rank.draw(rng)
            if rng.random() < 0.5:
                index -= (index - subject) % len(self._subjects)
            if index >= 0:
                chosen[index] = None
        body: dict[str, Any] = {"query": question}
        if rng.random() < 0.5:
            body["candidates"] = [{"id": f"doc-{i}", "text": self.document(i)} for i in chosen]
        else:
            body["documents"] = [self.document(i) for i in chosen]
        if rng.random() < 0.3:
            body["top_n"] = rng.choice((1, 3, 10, num_candidates))
        if rng.random() < 0.1:
            body["return_documents"] = True
        return body


def candidates_of(request: dict[str, Any]) -> list[Any]:
    """The request's candidates, under either of their names."""
    candidates: list[Any] = request["candidates"] if "candidates" in request else request["documents"]
    return candidates


def check_answer(request: dict[str, Any], answer: Any) -> None:
    """Raises WrongAnswerError unless the answer ranks the request's candidates.

    It must hold exactly min(top_n, candidates) results with distinct indices into the input, finite scores that never
    rise, each candidate's id, and its text if the request asks for it.
    """
    candidates = candidates_of(request)
    _expect(isinstance(answer, dict) and isinstance(answer.get("results"), list), "the answer has no list of results")
    results = answer["results"]
    expected = min(request.get("top_n", len(candidates)), len(candidates))
    _expect(len(results) == expected, f"expected {expected} results, got {len(results)}")
    indices = [result.get("index") for result in results]
    inside = all(type(index) is int and 0 <= index < len(candidates) for index in indices)
    _expect(inside, "an index points outside of the input")
    _expect(len(set(indices)) == len(indices), "a candidate is ranked twice")
    scores = [result.get("relevance_score") for result in results]
    finite = all(isinstance(score, int | float) and math.isfinite(score) for score in scores)
    _expect(finite, "a score is not a finite number")
    descending = all(later <= earlier for earlier, later in itertools.pairwise(scores))
    _expect(descending, "the scores are not in descending order")
    for result in results:
        candidate = candidates[result["index"]]
        text = candidate["text"] if isinstance(candidate, dict) else candidate
        if isinstance(candidate, dict):
            _expect(result.get("id") == candidate["id"], "a result carries another candidate's id")
        if request.get("return_documents"):
            _expect((result.get("document") or {}).get("text") == text, "a result carries another candidate's text")


def _expect(holds: bool, message: str) -> None:  # noqa: FBT001
    if not holds:
        raise WrongAnswerError(message)
