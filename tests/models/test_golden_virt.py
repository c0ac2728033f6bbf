"""VIRT against its reconstructed equations: towers on `transformers`' BERT, and the interaction head by head."""

from functools import partial
from typing import Any

import pytest
import torch
from support.dense_scorers import assert_scores_are, attention, bert_of, linear, similarity_of, states_of, weights_of
from support.models import HIDDEN_SIZE, NUM_HEADS
from support.precomputing import tiny_virt
from transformers import BertModel

from bandrank.models.architectures import VIRT
from bandrank.models.encoders.families import build_encoder

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
    score = partial(dense_score, scorer, bert_of(weights_of(scorer, "encoder."), num_heads=NUM_HEADS))
    pieces = [[0, 70, 1, 9, 71, 30, 0], [], [12], [40, 2]]
    assert_scores_are(score, scorer, [12, 3, 0, 2], pieces, prepared=prepared, close=CLOSE)


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


def test_one_layer_leaves_no_tower() -> None:
    """The last layer becomes the interaction, so a tower needs at least two."""
    with pytest.raises(ValueError, match="at least 2 layers is needed, got 1"):
        tiny_virt(num_layers=1)
