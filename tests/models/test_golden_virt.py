"""VIRT against its reconstructed equations: towers on `transformers`' BERT, and the interaction head by head."""

import random
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from support.dense_scorers import (
    attention,
    batch_scores,
    bert_of,
    linear,
    pair_scores,
    similarity_of,
    states_of,
    weights_of,
)
from support.models import HIDDEN_SIZE, NUM_HEADS, random_ids
from support.precomputing import tiny_virt
from support.tokenizer import CLS_ID
from transformers import BertModel

from bandrank.models.architectures import VIRT
from bandrank.models.architectures.virt import padded_groups
from bandrank.models.encoders.families import build_encoder
from bandrank_kernels.arrays import offsets

CPU = torch.device("cpu")
CLOSE = 1e-5  # float32 in another order of summation; dot products of these vectors are of the order of 1 too

VARIANTS: dict[str, dict[str, Any]] = {"cosine": {}, "dot": {"similarity": "dot"}, "deeper": {"num_layers": 4}}
every_variant = pytest.mark.parametrize("variant", VARIANTS)


def dense_score(scorer: VIRT, bert: BertModel, query: list[int], candidate: list[int]) -> float:
    """Returns the score of one candidate, from the equations."""
    ours, theirs = (
        linear(states_of(bert, ids)[-1], weights_of(scorer), "interaction").chunk(3, -1) for ids in (query, candidate)
    )
    seen = [
        torch.stack([attention(row, other[1], other[2], NUM_HEADS) for row in own[0]]).mean(0)
        for own, other in ((ours, theirs), (theirs, ours))
    ]
    return similarity_of(seen[0], seen[1], scorer.config.similarity)


@every_variant
@pytest.mark.parametrize("prepared", [False, True], ids=["as trained", "as served"])
def test_scores_are_the_equations(variant: str, prepared: bool) -> None:
    """The batch has several queries, one of them without candidates, and candidates of very different lengths."""
    scorer = tiny_virt(**VARIANTS[variant])
    rng = random.Random(0)
    queries = [[CLS_ID, *random_ids(rng, num_pieces)] for num_pieces in (12, 3, 0, 2)]
    lengths = [[0, 70, 1, 9, 71, 30, 0], [], [12], [40, 2]]
    candidates = [[[CLS_ID, *random_ids(rng, n)] for n in group] for group in lengths]
    bert = bert_of(weights_of(scorer, "encoder."), num_heads=NUM_HEADS)
    expected = pair_scores(partial(dense_score, scorer, bert), queries, candidates)

    scores = batch_scores(scorer, queries, candidates, prepared=prepared)

    assert scores == pytest.approx(expected, abs=CLOSE)
    assert max(expected) - min(expected) > 1000 * CLOSE


def test_initialised_from_an_encoder() -> None:
    """All layers but the last are taken over; query, key and value of the last become the interaction."""
    scorer = tiny_virt(num_layers=3)
    donor = build_encoder(scorer.config.encoder)

    scorer.initialise(donor)

    theirs = weights_of(donor)
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in weights_of(scorer, "encoder.").items())
    assert torch.equal(scorer.interaction.weight, theirs["layers.2.qkv.weight"])
    assert torch.equal(scorer.interaction.bias, theirs["layers.2.qkv.bias"])
    assert scorer.interaction.weight.shape == (3 * HIDDEN_SIZE, HIDDEN_SIZE)


@pytest.mark.parametrize("lengths", [[], [0], [3], [0, 5, 0, 500, 1, 40, 41, 42, 499], list(range(200))])
@pytest.mark.parametrize("max_rows", [1, 64, 1 << 20])
def test_groups_of_like_lengths(lengths: list[int], max_rows: int) -> None:
    """Each row of each sequence is in exactly one group, and a group is small and has little padding."""
    cu_seqlens = offsets(lengths)
    grouped: list[int] = []
    for chosen, rows, real in padded_groups(cu_seqlens, max_rows):
        for index, indices, kept in zip(chosen, rows, real, strict=True):
            assert indices[kept].tolist() == list(range(cu_seqlens[index], cu_seqlens[index + 1]))
        assert rows.size == 0 or ((rows >= 0).all() and (rows < max(1, cu_seqlens[-1])).all())
        assert len(chosen) == 1 or rows.size <= max_rows
        assert np.diff(cu_seqlens)[chosen].max() <= max(1.15 * np.diff(cu_seqlens)[chosen].min(), 8 + real.sum(1).min())
        grouped += chosen.tolist()
    assert sorted(grouped) == list(range(len(lengths)))


def test_one_layer_leaves_no_tower() -> None:
    """The last layer becomes the interaction, so a tower needs at least two."""
    with pytest.raises(ValueError, match="at least 2 layers is needed, got 1"):
        tiny_virt(num_layers=1)
