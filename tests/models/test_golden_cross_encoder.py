"""Cross-encoders against `transformers`: its own scores for full attention, its BERT under dense masks for the rest."""

import random
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from support.dense_bert import allowed, dense_score, full_score
from support.dense_scorers import pair_scores
from support.models import (
    as_served,
    edit_json,
    random_ids,
    save_cross_encoder,
    save_sparse_cross_encoder,
    score_batch,
    tiny_cross_encoder,
    tiny_hf_cross_encoder,
)
from support.tokenizer import SENTENCE_ID, SEP_ID
from transformers import BertForSequenceClassification

from bandrank.models import hf
from bandrank.models.architectures import CrossEncoder
from bandrank.models.layers.block import Block
from bandrank.models.layers.execution import Execution
from bandrank.models.layers.patterns import FULL, longformer, sparse
from bandrank_kernels import Backend
from bandrank_kernels.windowed_attention import AttentionPattern

# float32 through three layers in another order of summation; scores are of the order of 1.
CLOSE = 1e-5


@dataclass(frozen=True)
class Options:
    """How a forward pass is run."""

    backend: Backend
    cls_only: bool = True


OPTIONS = [
    Options("vectorized"),
    Options("vectorized", cls_only=False),
    Options("reference"),
    Options("reference", cls_only=False),
]
SPARSE_4 = sparse(4)
PATTERNS = {
    "full": FULL,
    **{f"sparse-{window}": sparse(window) for window in (0, 1, 4, 16, 64, None)},
    **{f"longformer-{window}": longformer(window) for window in (0, 1, 4, 16, 64)},
    **{
        f"window-4-without-{switch}": replace(longformer(4), **{switch: False})
        for switch in (
            "cls_to_query",
            "cls_to_candidate",
            "query_to_cls",
            "query_to_candidate",
            "candidate_to_cls",
            "candidate_to_query",
        )
    },
    "sparse-4-without-candidate_to_cls": replace(SPARSE_4, candidate_to_cls=False),
    "sparse-4-without-candidate_to_query": replace(SPARSE_4, candidate_to_query=False),
    "sparse-4-without-cls_to_query": replace(SPARSE_4, cls_to_query=False),
    "groups apart": AttentionPattern(4, *[False] * 6),
}


@pytest.fixture(scope="module")
def bert() -> BertForSequenceClassification:
    """A model of three layers with 1,024 positions, which have room for a candidate of 600 tokens."""
    return tiny_hf_cross_encoder(num_layers=3, positions=1024)


@pytest.fixture(scope="module")
def folder(bert: BertForSequenceClassification, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_cross_encoder(tmp_path_factory.mktemp("full"), bert)


def ragged_texts(pattern: AttentionPattern, seed: int = 0) -> tuple[list[list[int]], list[list[list[int]]]]:
    """Returns three queries with 6, 0 and 2 candidates of 0 to 600 pieces, among them 2w and 2w + 1 for a window w."""
    rng = random.Random(seed)
    window = pattern.window or 0
    lengths = [[0, 1, 2 * window, 2 * window + 1, 63, 12], [], [600, 5]]
    queries = [random_ids(rng, num_pieces) for num_pieces in (7, 3, 1)]
    return queries, [[random_ids(rng, num_pieces) for num_pieces in group] for group in lengths]


def scores_of(
    scorer: CrossEncoder, queries: list[list[int]], candidates: list[list[list[int]]], options: Options
) -> list[float]:
    """Our scores of one batch."""
    scorer.encoder.prepare_for(Execution(options.backend))
    with torch.inference_mode():
        run = partial(scorer.launch, cls_only=options.cls_only)
        return scorer.score_packed(score_batch(queries, candidates), run).tolist()


def load_sparse(bert: BertForSequenceClassification, folder: Path, pattern: AttentionPattern) -> CrossEncoder:
    """Loads `bert` under a pattern from a sparse cross-encoder's folder."""
    scorer = hf.load(save_sparse_cross_encoder(folder, pattern, model=bert))
    assert isinstance(scorer, CrossEncoder)
    assert scorer.config.pattern == pattern
    return scorer


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_full_attention_is_bert(bert: BertForSequenceClassification, folder: Path, options: Options) -> None:
    """A plain cross-encoder's folder gives the logits of BertForSequenceClassification."""
    scorer = hf.load(folder)
    assert isinstance(scorer, CrossEncoder)
    queries, candidates = ragged_texts(longformer(16))

    ours = scores_of(scorer, queries, candidates, options)

    theirs = pair_scores(partial(full_score, bert), queries, candidates)
    assert ours == pytest.approx(theirs, abs=CLOSE)


@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS)
def test_every_pattern_is_bert_under_its_mask(
    bert: BertForSequenceClassification, tmp_path: Path, pattern: AttentionPattern
) -> None:
    scorer = load_sparse(bert, tmp_path, pattern)
    queries, candidates = ragged_texts(pattern)
    theirs = pair_scores(partial(dense_score, bert, pattern=pattern), queries, candidates)
    for options in OPTIONS:
        assert scores_of(scorer, queries, candidates, options) == pytest.approx(theirs, abs=CLOSE)


def test_patterns_give_different_scores(bert: BertForSequenceClassification) -> None:
    """The comparison above can fail: each pattern moves the score of a text of 63 pieces by far more than rounding."""
    rng = random.Random(1)
    query, text = random_ids(rng, 7), random_ids(rng, 63)

    scores = sorted(dense_score(bert, query, text, pattern) for pattern in PATTERNS.values() if pattern.window != 64)

    assert min(high - low for low, high in pairwise(scores)) > 10 * CLOSE


def test_dense_mask_of_sentence_tokens_drawn_by_hand() -> None:
    """Two sentence tokens see all and are seen by all, and leave no gap in the windows of other tokens."""
    drawn = """
        XXX XXXXXX
        XXX XXXXXX
        XXX XXXXXX
        XXX XXXXXX
        XXX XXXX..
        XXX XXXXX.
        XXX XXXXXX
        XXX X.XXXX
        XXX X..XXX
    """
    # The sentence tokens are the candidate's tokens 0 and 3; columns and rows 3 and 6.
    rows = [[cell == "X" for cell in row.replace(" ", "")] for row in drawn.strip().splitlines()]
    candidate = [SENTENCE_ID, 9, 9, SENTENCE_ID, 9, SEP_ID]

    assert allowed([9, SEP_ID], candidate, longformer(1), SENTENCE_ID).tolist() == rows


@pytest.mark.parametrize("window", [0, 4, 64])
def test_sentence_tokens_are_global(bert: BertForSequenceClassification, tmp_path: Path, window: int) -> None:
    """In a QDS-Transformer, sentence tokens keep position and type, and the windows of others close over their gap."""
    plain = load_sparse(bert, tmp_path, longformer(window))
    scorer = CrossEncoder(replace(plain.config, sentence_token=SENTENCE_ID)).eval()
    scorer.load_state_dict(plain.state_dict())
    rng = random.Random(0)

    def sentences(*num_pieces: int) -> list[int]:
        pieces = [[SENTENCE_ID, *random_ids(rng, n)[:-1]] for n in num_pieces]
        return [*(piece for sentence in pieces for piece in sentence), SEP_ID]

    queries = [random_ids(rng, 5), random_ids(rng, 2)]
    candidates = [[sentences(6, 9, 1), sentences(), sentences(0, 0), random_ids(rng, 20)], [sentences(*range(12))]]

    score = partial(dense_score, bert, pattern=longformer(window), sentence_token=SENTENCE_ID)
    theirs = pair_scores(score, queries, candidates)
    for options in OPTIONS:
        assert scores_of(scorer, queries, candidates, options) == pytest.approx(theirs, abs=CLOSE)


def test_without_token_types_all_rows_have_type_0(bert: BertForSequenceClassification, tmp_path: Path) -> None:
    """If `token_type_embedding` is false in config.json, candidates have type 0 too."""
    folder = save_sparse_cross_encoder(tmp_path, model=bert)
    edit_json(folder / "config.json", {"token_type_embedding": False})
    scorer = hf.load(folder)
    queries, candidates = ragged_texts(sparse(4))

    with torch.inference_mode():
        ours = scorer(score_batch(queries, candidates)).tolist()

    score = partial(dense_score, bert, pattern=sparse(4), token_types=False)
    theirs = pair_scores(score, queries, candidates)
    assert ours == pytest.approx(theirs, abs=CLOSE)


@pytest.mark.parametrize("pattern", [FULL, sparse(4)], ids=["full", "sparse-4"])
def test_prepared_scorer_scores_the_same(
    bert: BertForSequenceClassification, tmp_path: Path, pattern: AttentionPattern
) -> None:
    """Weights laid out for the CPU's matrix units, and blocks of the feed-forward, change no score beyond rounding."""
    scorer = load_sparse(bert, tmp_path, pattern)
    queries, candidates = ragged_texts(pattern)
    queries, candidates = queries * 4, candidates * 4  # more rows than a block

    before = scores_of(scorer, queries, candidates, OPTIONS[0])

    assert scores_of(as_served(scorer), queries, candidates, OPTIONS[0]) == pytest.approx(before, abs=CLOSE)


def test_options_are_those_of_the_scorer() -> None:
    """A scorer starts with the fast options, which the other tests hold against the slow ones."""
    scorer = tiny_cross_encoder()
    rows: list[int] = []
    last: Block = scorer.encoder.layers[-1]  # type: ignore[assignment]  # a ModuleList forgets
    last.up.register_forward_pre_hook(lambda _, inputs: rows.append(len(inputs[0])))
    scorer(score_batch([[9, SEP_ID]], [[[9, SEP_ID], [SEP_ID]]]))

    assert (scorer.encoder.execution.backend, rows) == ("auto", [2])
