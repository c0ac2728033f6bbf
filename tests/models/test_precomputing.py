"""Scorers that precompute: which settings they refuse, as some cross-encoders do, and what an encoder initialises."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from support.decoders import tiny_decoder_config
from support.dense_scorers import weights_of
from support.models import tiny_cross_encoder, tiny_encoder_config
from support.precomputing import tiny_colbert, tiny_deformer, tiny_mix_encoder, tiny_poly_encoder, tiny_virt
from support.t5 import tiny_t5_config

from bandrank.models.encoders.mpnet import MpnetConfig

MPNET = MpnetConfig(**vars(tiny_encoder_config(num_layers=3)) | {"num_token_types": 0, "kind": "mpnet"})
LAYERS = r"interaction_layers must ascend within 0..1, got"


@pytest.mark.parametrize("tiny", [tiny_colbert, tiny_deformer, tiny_mix_encoder, tiny_poly_encoder, tiny_virt])
def test_limits_leave_room_for_a_text_and_do_not_exceed_the_positions(tiny: Callable[[], Any]) -> None:
    least = 3 if tiny is tiny_colbert else 2  # a marker more
    for name, limit in (("max_query_tokens", least - 1), ("max_query_tokens", 513), ("max_candidate_tokens", 513)):
        with pytest.raises(ValueError, match=f"{name} must be within {least}..512, got {limit}"):
            replace(tiny().config, **{name: limit})


@pytest.mark.parametrize(
    ("tiny", "fields", "message"),
    [
        (tiny_cross_encoder, {"encoder": tiny_decoder_config()}, "a causal encoder attends in no pattern"),
        (tiny_colbert, {"floor": True, "similarity": "l2"}, "floor needs similarity 'cosine', got 'l2'"),
        (tiny_deformer, {"split": 0}, "split must be within 1..2, got 0"),
        (tiny_deformer, {"split": 3}, "split must be within 1..2, got 3"),
        (tiny_deformer, {"encoder": replace(tiny_decoder_config(), num_layers=3)}, "which a causal encoder does not"),
        (tiny_deformer, {"encoder": MPNET}, "biases of distances take only ones that go on"),
        *((tiny_mix_encoder, {"interaction_layers": each}, LAYERS) for each in ((), (2,), (-1,), (1, 0), (0, 0))),
        (tiny_mix_encoder, {"encoder": tiny_t5_config()}, "as wide as the encoder's states, 32, got 64"),
        (tiny_mix_encoder, {"num_embeddings": 0}, "num_embeddings must be within"),
        (tiny_mix_encoder, {"num_embeddings": 20, "max_candidate_tokens": 20}, "num_embeddings must be within"),
        (tiny_poly_encoder, {"num_codes": 0}, "num_codes must be at least 1, got 0"),
    ],
)
def test_fields_out_of_range_are_refused(tiny: Callable[[], Any], fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(tiny().config, **fields)


@pytest.mark.parametrize(
    ("tiny", "own"),
    [
        (tiny_colbert, "projection.weight"),
        (tiny_deformer, "head.pooler.weight"),
        (tiny_poly_encoder, "query_codes"),
        (partial(tiny_poly_encoder, separate_towers=True), "query_codes"),
    ],
)
def test_towers_are_initialised_from_an_encoder(tiny: Callable[..., Any], own: str) -> None:
    """What is not of the encoder stays."""
    scorer, donor = tiny(), tiny(seed=1)
    before = scorer.state_dict()[own].clone()

    scorer.initialise(donor.encoder)

    for tower in [name for name in ("encoder.", "candidate_encoder.") if weights_of(scorer, name)]:
        ours, theirs = weights_of(scorer, tower), weights_of(donor, "encoder.")
        assert all(torch.equal(ours[name], tensor) for name, tensor in theirs.items())
    assert torch.equal(scorer.state_dict()[own], before)
