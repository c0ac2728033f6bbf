"""Scoring offline: neither budget nor company changes a score, and nothing is encoded twice."""

import random
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from support.models import loaded, random_text, tiny_bi_encoder, tiny_cross_encoder
from support.precomputing import tiny_colbert, tiny_mix_encoder
from support.scorers import Recorder, WatchedScorer, encoded_lookup
from support.tokenizer import TOKENIZER_FILE

from bandrank.models import checkpoint
from bandrank.models.fusion import Fusion
from bandrank.models.layers.patterns import sparse
from bandrank.models.loading import load_model
from bandrank.models.ragged import Ragged
from bandrank.models.scorer import Scorer
from bandrank_training.scoring import OfflineScorer, Question, score_offline

TOLERANCE = 1e-5  # of a score alone and in company, in float32: the law of every scorer
SCORERS: dict[str, Callable[[], Scorer]] = {
    "cross-encoder": tiny_cross_encoder,
    "sparse cross-encoder": lambda: tiny_cross_encoder(pattern=sparse(4)),
    "bi-encoder": tiny_bi_encoder,
    "MixEncoder": lambda: tiny_mix_encoder(similarity="cosine"),
}


def questions(seed: int = 0) -> list[Question]:
    """Three, one of them without candidates; texts of 0 to 60 words, two of them shared."""
    rng = random.Random(seed)
    shared = [random_text(rng, 30), random_text(rng, 3)]
    return [
        Question(random_text(rng, 4), [*(random_text(rng, rng.randint(0, 60)) for _ in range(6)), *shared]),
        Question(random_text(rng, 9), []),
        Question(random_text(rng, 1), [*shared, "", *(random_text(rng, rng.randint(0, 60)) for _ in range(2)), ""]),
    ]


@cache
def one_by_one(kind: str) -> list[list[float]]:
    """The scores of candidates that come one at a time."""
    scorer = OfflineScorer(loaded(SCORERS[kind]()))
    return [
        [next(scorer.score([Question(question.query, [text])]))[0] for text in question.candidates]
        for question in questions()
    ]


@pytest.mark.parametrize("max_batch_tokens", [64, 100_000])
@pytest.mark.parametrize("kind", SCORERS)
def test_scores_do_not_depend_on_the_budget(kind: str, max_batch_tokens: int) -> None:
    """They are those of candidates scored one by one, in the order given; no candidates, no scores."""
    scorer = OfflineScorer(loaded(SCORERS[kind]()), max_batch_tokens=max_batch_tokens)
    scores = list(scorer.score(questions()))

    assert [len(row) for row in scores] == [8, 0, 6]
    for row, expected in zip(scores, one_by_one(kind), strict=True):
        assert row == pytest.approx(expected, abs=TOLERANCE)
        assert not row or max(row) - min(row) > 1000 * TOLERANCE


def test_fused_scorers_are_summed(tmp_path: Path) -> None:
    """As a checkpoint says: its own score, and half of that of the fast scorer that it names."""
    fast, accurate = tmp_path / "fast", tmp_path / "accurate"
    checkpoint.save(tiny_bi_encoder(), fast, tokenizer=TOKENIZER_FILE)
    checkpoint.save(tiny_cross_encoder(), accurate, tokenizer=TOKENIZER_FILE, fusion=Fusion(str(fast), 0.5))

    fused = list(score_offline(load_model(str(accurate))).score(questions()))

    parts = zip(one_by_one("cross-encoder"), one_by_one("bi-encoder"), strict=True)
    for row, (ours, theirs) in zip(fused, parts, strict=True):
        assert row == pytest.approx([a + 0.5 * b for a, b in zip(ours, theirs, strict=True)], abs=2 * TOLERANCE)


def test_a_batch_stays_within_the_budget() -> None:
    """Save for a candidate that is longer by itself."""
    watch = Recorder()
    scorer = OfflineScorer(loaded(WatchedScorer(tiny_cross_encoder(), watch)), max_batch_tokens=80)
    asked = questions()
    list(scorer.score(asked))

    assert sum(len(batch.candidates) for batch in watch.batches) == sum(len(each.candidates) for each in asked)
    assert max(len(batch.candidates) for batch in watch.batches) > 1
    for batch in watch.batches:
        assert len(batch.candidates.values) <= 80 or len(batch.candidates) == 1


def test_representations_are_made_within_the_budget() -> None:
    """Those of one question together, as far as they fit."""
    batches: list[Ragged] = []
    scorer = OfflineScorer(loaded(encoded_lookup(batches.append)), max_batch_tokens=80)
    list(scorer.score(questions()))

    assert max(map(len, batches)) > 1
    for batch in batches:
        assert len(batch.values) <= 80 or len(batch) == 1


def test_a_representation_is_made_once() -> None:
    """However many questions share it, and until it is forgotten."""
    batches: list[Ragged] = []
    scorer = OfflineScorer(loaded(encoded_lookup(batches.append, man=1.0, she=2.0)))

    def encoded() -> int:
        return sum(map(len, batches))

    asked = [Question("who", ["man", "she", "man"]), Question("he", ["she", "you"])]
    assert list(scorer.score(asked)) == [[1.0, 2.0, 1.0], [2.0, 0.0]]
    assert encoded() == 3
    scorer.encode(["you", "he"])
    assert encoded() == 4
    scorer.forget()
    assert list(scorer.score(asked[1:])) == [[2.0, 0.0]]
    assert encoded() == 6


def test_scores_come_while_candidates_are_encoded() -> None:
    """Not after all of them: whoever waits sees a bar that moves."""
    batches: list[Ragged] = []
    scorer = OfflineScorer(loaded(encoded_lookup(batches.append)), max_batch_tokens=40)
    rng = random.Random(1)
    asked = [Question("who", [random_text(rng, 30) for _ in range(2)]) for _ in range(5)]

    counts = [sum(map(len, batches)) for _ in scorer.score(asked)]
    assert counts == [2, 4, 6, 8, 10]


@pytest.mark.parametrize(("kind", "words"), [("cross-encoder", 6), ("bi-encoder", 5)])
def test_a_limit_on_candidates_cuts_the_long_ones(kind: str, words: int) -> None:
    """To as many words as leave room for what the template adds; the scorer's template is as it was, and a limit above
    its own does nothing.
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
    scorer = OfflineScorer(loaded(tiny_colbert()))
    first, _, _ = questions()
    texts = list(first.candidates)
    forth = next(scorer.score([first]))
    back = next(scorer.score([Question(first.query, texts[::-1])]))

    assert back[::-1] == pytest.approx(forth, abs=1e-4)  # sums over 32 rows
