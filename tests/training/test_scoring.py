"""Scoring offline: no score depends on other candidates, nothing is encoded twice, and no thread is left behind."""

import math
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
import torch
from support.models import random_text, score_batch, tiny_bi_encoder, tiny_cross_encoder
from support.precomputing import tiny_colbert, tiny_mix_encoder
from support.scorers import encoded_lookup, loaded, lookup
from support.training import saved

from bandrank.models.fusion import Fusion
from bandrank.models.layers.patterns import sparse
from bandrank.models.loading import load_model
from bandrank.models.ragged import Ragged
from bandrank.models.scorer import Scorer
from bandrank_training.errors import BadInput
from bandrank_training.scoring import (
    CANDIDATES_IN_FLIGHT,
    SETTINGS,
    OfflineScorer,
    Question,
    score_offline,
    usable_memory,
)

TOLERANCE = 1e-5  # in float32, between a candidate's score alone and in company, for any scorer
SCORERS: dict[str, Callable[[], Scorer]] = {
    "cross-encoder": tiny_cross_encoder,
    "sparse cross-encoder": lambda: tiny_cross_encoder(pattern=sparse(4)),
    "bi-encoder": tiny_bi_encoder,
    "MixEncoder": lambda: tiny_mix_encoder(similarity="cosine"),
}


def questions() -> list[Question]:
    """Returns three questions, one of them without candidates; texts have 0 to 60 words, and two of them are shared."""
    rng = random.Random(0)
    shared = [random_text(rng, 30), random_text(rng, 3)]
    return [
        Question(random_text(rng, 4), [*(random_text(rng, rng.randint(0, 60)) for _ in range(6)), *shared]),
        Question(random_text(rng, 9), []),
        Question(random_text(rng, 1), [*shared, "", *(random_text(rng, rng.randint(0, 60)) for _ in range(2)), ""]),
    ]


@cache
def one_by_one(kind: str) -> list[list[float]]:
    """Returns the scores of candidates that are scored one at a time."""
    scorer = score_offline(loaded(SCORERS[kind]()))
    return [
        [next(scorer.score([Question(question.query, [text])]))[0] for text in question.candidates]
        for question in questions()
    ]


@pytest.mark.parametrize("kind", SCORERS)
def test_scores_do_not_depend_on_company(kind: str) -> None:
    """Scores are those of candidates scored one by one, in the given order; a question without candidates has none."""
    scores = list(score_offline(loaded(SCORERS[kind]())).score(questions()))

    assert [len(row) for row in scores] == [8, 0, 6]
    for row, expected in zip(scores, one_by_one(kind), strict=True):
        assert row == pytest.approx(expected, abs=TOLERANCE)
        assert not row or max(row) - min(row) > 1000 * TOLERANCE


def test_fused_scorers_are_summed(tmp_path: Path) -> None:
    """The checkpoint asks for its own score plus half of that of the fast scorer that it names."""
    fast, accurate = tmp_path / "fast", tmp_path / "accurate"
    saved(fast, tiny_bi_encoder())
    saved(accurate, tiny_cross_encoder(), Fusion(str(fast), 0.5))

    fused = list(score_offline(load_model(str(accurate))).score(questions()))

    parts = zip(one_by_one("cross-encoder"), one_by_one("bi-encoder"), strict=True)
    for row, (ours, theirs) in zip(fused, parts, strict=True):
        assert row == pytest.approx([a + 0.5 * b for a, b in zip(ours, theirs, strict=True)], abs=2 * TOLERANCE)


def test_a_representation_is_made_once() -> None:
    """However many questions share a candidate, it is encoded once until `forget` is called."""
    batches: list[Ragged] = []
    scorer = score_offline(loaded(encoded_lookup(batches.append, man=1.0, she=2.0)))

    def encoded() -> int:
        return sum(map(len, batches))

    asked = [Question("who", ["man", "she", "man"]), Question("he", ["she", "you"])]
    assert list(scorer.score(asked)) == [[1.0, 2.0, 1.0], [2.0, 0.0]]
    assert encoded() == 3
    assert list(scorer.score(asked[::-1])) == [[2.0, 0.0], [1.0, 2.0, 1.0]]
    assert encoded() == 3
    scorer.forget()
    assert list(scorer.score(asked[1:])) == [[2.0, 0.0]]
    assert encoded() == 5


@pytest.mark.parametrize("size", [1, CANDIDATES_IN_FLIGHT // 4, 2 * CANDIDATES_IN_FLIGHT])
def test_questions_are_read_as_scores_are_taken(size: int) -> None:
    """Only enough questions to fill batches are read ahead, so that a progress bar moves."""
    asked = 0

    def endless() -> Iterator[Question]:
        nonlocal asked
        while True:
            asked += 1
            yield Question("who", [f"man {number}" for number in range(size)])

    scores = score_offline(loaded(lookup(man=1.0))).score(endless())
    for taken in range(1, 4):
        assert next(scores) == [1.0] * size
        assert asked == taken + CANDIDATES_IN_FLIGHT // (size + 1)
    scores.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("end", ["all scores are taken", "closed", "a score is NaN"])
def test_the_scoring_thread_ends_with_the_scores(end: str) -> None:
    """The thread ends however the scores do, also with questions in flight."""
    before = set(threading.enumerate())
    words = ["man"] * CANDIDATES_IN_FLIGHT
    asked = [Question("who", words), Question("which", ["she"]), Question("what", words)]
    scores = score_offline(loaded(lookup(man=1.0, she=math.nan if end == "a score is NaN" else 2.0))).score(asked)

    assert next(scores) == [1.0] * len(words)
    assert "scoring" in {thread.name for thread in set(threading.enumerate()) - before}
    if end == "all scores are taken":
        assert [len(row) for row in scores] == [1, len(words)]
    elif end == "closed":
        scores.close()  # type: ignore[attr-defined]
    else:
        with pytest.raises(BadInput, match="query 'which': the model gave a score that is not a number"):
            next(scores)
    assert set(threading.enumerate()) <= before


@pytest.mark.slow
def test_a_process_ends_while_scores_are_left() -> None:
    """After an error elsewhere, the traceback keeps the iterator alive, which must not keep the process alive."""
    code = """
from support.models import tiny_cross_encoder
from support.scorers import loaded
from bandrank_training.scoring import Question, score_offline
scores = score_offline(loaded(tiny_cross_encoder())).score(Question("who", ["man"] * 9) for _ in range(999))
next(scores)
raise SystemExit("something else went wrong")
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60, check=False
    )

    assert (ended.returncode, ended.stderr) == (1, "something else went wrong\n")


@pytest.mark.parametrize("make", [tiny_cross_encoder, tiny_colbert])
def test_a_scorer_in_training_is_scored_between_steps(make: Callable[[], Scorer]) -> None:
    """A scorer in training is scored with its current weights, and no tensor it needs is left in inference mode."""
    model, (first, *_) = loaded(make().train()), questions()
    offline = OfflineScorer.in_training(model)
    before = next(offline.score([first]))
    model.scorer(score_batch([[1, 2]], [[[3, 4], [5]]])).sum().backward()
    with torch.no_grad():
        for parameter in model.scorer.parameters():
            if parameter.grad is not None:
                parameter.sub_(0.1 * parameter.grad)
    offline.forget()
    after = next(offline.score([first]))

    assert model.scorer.training
    assert max(abs(old - new) for old, new in zip(before, after, strict=True)) > 100 * TOLERANCE
    assert after == pytest.approx(next(score_offline(model).score([first])), abs=1e-4)


@pytest.mark.parametrize(("kind", "words"), [("cross-encoder", 6), ("bi-encoder", 5)])
def test_a_limit_on_candidates_cuts_the_long_ones(kind: str, words: int) -> None:
    """A long candidate keeps as many words as fit beside the tokens of the template. The scorer's own template does not
    change, and a limit above its own does nothing.
    """
    model, limited = loaded(SCORERS[kind]()), loaded(SCORERS[kind]())
    text = random_text(random.Random(5), 30)
    asked = [Question("who", [text, " ".join(text.split()[:words]), "man"])]
    whole = next(score_offline(model).score(asked))
    cut = next(score_offline(limited, max_candidate_tokens=7).score(asked))

    assert cut == pytest.approx([whole[1], whole[1], whole[2]], abs=TOLERANCE)
    assert abs(whole[0] - whole[1]) > 1000 * TOLERANCE
    assert limited.scorer.candidate_template == model.scorer.candidate_template
    assert next(score_offline(model, max_candidate_tokens=10**6).score(asked)) == pytest.approx(whole, abs=TOLERANCE)


def test_representations_of_many_rows_stay_apart() -> None:
    """Each candidate of a ColBERT keeps its own number of token embeddings."""
    scorer = score_offline(loaded(tiny_colbert()))
    first, _, _ = questions()
    texts = list(first.candidates)
    forth = next(scorer.score([first]))
    back = next(scorer.score([Question(first.query, texts[::-1])]))

    assert back[::-1] == pytest.approx(forth, abs=1e-4)  # sums over 32 rows


def test_long_documents_are_not_turned_away() -> None:
    """Offline there is no limit on the characters in the queue, as there is nobody else to keep room for."""
    texts = ["man" + " " * SETTINGS.max_candidate_characters + str(number) for number in range(150)]

    assert next(score_offline(loaded(lookup(man=1.0))).score([Question("who", texts)])) == [1.0] * len(texts)


def test_representations_leave_most_of_the_memory() -> None:
    """A large collection should be scored more slowly rather than killed for its memory."""
    assert SETTINGS.cache_memory_bytes <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4


@pytest.mark.parametrize(
    ("listed", "name"),
    [
        ("0::/", "memory.max"),
        ("0::/a/b", "a/memory.max"),
        ("2:memory:/\n0::/", "memory/memory.limit_in_bytes"),
    ],
)
def test_a_container_has_the_memory_that_it_may_use(tmp_path: Path, listed: str, name: str) -> None:
    groups = tmp_path / "groups"
    groups.write_text(listed, encoding="ascii")
    machine = usable_memory(groups, tmp_path)
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    for written, memory in (("max\n", machine), ("1000000\n", 1_000_000), (str(2**63 - 4096), machine)):
        file.write_text(written, encoding="ascii")
        assert usable_memory(groups, tmp_path) == memory
