"""Deformer on the layers of `transformers`' BERT: each text alone in the lower ones, then one pair at a time."""

from functools import partial
from typing import Any

import pytest
import torch
from support.dense_scorers import assert_scores_are, bert_of, linear, states_of, weights_of
from support.models import NUM_HEADS
from support.precomputing import tiny_deformer
from support.tokenizer import CLS_ID, SEP_ID
from transformers import BertModel

from bandrank.models.architectures import Deformer

CLOSE = 1e-5  # float32 in another order of summation; scores are of the order of 1

VARIANTS: dict[str, dict[str, Any]] = {
    "one of three": {},
    "two of three": {"split": 2},
    "two of four": {"num_layers": 4, "split": 2},
    "own cls": {"candidate_cls": True, "num_layers": 4, "split": 2},
}
every_variant = pytest.mark.parametrize("variant", VARIANTS)


def dense_score(scorer: Deformer, bert: BertModel, query: list[int], candidate: list[int]) -> float:
    """The score of one candidate."""
    split = scorer.config.split
    ours, theirs = states_of(bert, query)[split], states_of(bert, candidate, token_type=1)[split]
    hidden = torch.cat([ours, theirs])[None]
    for layer in bert.encoder.layer[split:]:
        hidden = layer(hidden)
    pooled = torch.tanh(linear(hidden[0, 0], weights_of(scorer, "head."), "pooler"))
    return float(linear(pooled, weights_of(scorer, "head."), "classifier"))


@every_variant
@pytest.mark.parametrize("prepared", [False, True], ids=["as trained", "as served"])
def test_scores_are_the_joined_layers(variant: str, prepared: bool) -> None:
    scorer = tiny_deformer(**VARIANTS[variant])
    score = partial(dense_score, scorer, bert_of(weights_of(scorer, "encoder."), num_heads=NUM_HEADS))
    pieces = [[0, 1, 9, 70], [], [12], [40, 2, 2]]
    assert_scores_are(score, scorer, [12, 3, 0, 2], pieces, prepared=prepared, close=CLOSE)


def test_templates() -> None:
    """The query has a [CLS]; the candidate has one only in the variant of the MixEncoder paper's code."""
    assert tiny_deformer().query_template.apply([9]) == ([CLS_ID, 9, SEP_ID], 0)
    assert tiny_deformer().candidate_template.apply([9]) == ([9, SEP_ID], 0)
    assert tiny_deformer(candidate_cls=True).candidate_template.apply([9]) == ([CLS_ID, 9, SEP_ID], 0)
