"""T5's bi-encoders against `sentence-transformers`, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
from sentence_transformers import SentenceTransformer
from support.models import as_served, change_weights
from support.refusals import assert_refused
from support.t5 import GATED, save_t5_bi_encoder
from support.text_scores import assert_scores, scores_of_texts

from bandrank.models.encoders.t5 import T5Config
from bandrank.models.loading import load_model
from bandrank.models.windowed import windowed

CLOSE = 1e-5  # of cosines
QUERY, TEXTS = "where do bees live?", ["in hives.", "", "bees and honey " * 60, "ñandú: x", "?", "the sun " * 400]
OLD = {"d_kv": 24}  # heads that add up to d_model, as in the base and large sizes


@pytest.mark.parametrize(("model_type", "more"), [("t5", {}), ("t5", OLD), ("t5", GATED), ("mt5", {"num_heads": 5})])
@torch.inference_mode()
def test_scores_are_those_of_sentence_transformers(model_type: str, more: dict[str, Any], tmp_path: Path) -> None:
    """Of texts near and beyond the farthest distance, in company, alone, from a checkpoint of ours, and as served."""
    folder = save_t5_bi_encoder(tmp_path, model_type, **more)
    library = SentenceTransformer(str(folder), device="cpu")
    theirs = (library.encode(TEXTS) @ library.encode(QUERY)).tolist()

    assert_scores(folder, QUERY, TEXTS, theirs, close=CLOSE)


@pytest.mark.parametrize("more", [OLD, GATED])
@torch.inference_mode()
def test_bfloat16_and_float16(more: dict[str, Any], tmp_path: Path) -> None:
    """In bfloat16 a score is near, and published files are in float16."""
    folder = save_t5_bi_encoder(tmp_path, **more)
    exact = scores_of_texts(load_model(str(folder)), QUERY, TEXTS)
    change_weights(folder, lambda weights: {name: tensor.half() for name, tensor in weights.items()})
    model = load_model(str(folder))
    assert model.scorer.overflows_float16

    as_served(model.scorer, torch.bfloat16)

    assert scores_of_texts(model, QUERY, TEXTS) == pytest.approx(exact, abs=0.05)


def test_the_library_decides_how_much_is_read(tmp_path: Path) -> None:
    """Positions are relative, so that texts may be longer than n_positions."""
    folder = save_t5_bi_encoder(tmp_path, max_seq_length=1024)
    model = load_model(str(folder))
    encoder = model.scorer.config.encoder

    assert (model.scorer.config.max_tokens, encoder.max_positions, encoder.head_dim) == (1024, 8192, 16)
    assert isinstance(encoder, T5Config)
    assert encoder.products_per_layer == 48 * (4 * 32 + 2 * 64)
    with pytest.raises(ValueError, match="its texts do not stand between two tokens such as"):
        windowed(model.scorer, 4)


@pytest.mark.parametrize("kept", ["shared.weight", "encoder.embed_tokens.weight"])
def test_embeddings_under_either_name(kept: str, tmp_path: Path) -> None:
    """Files hold one of the names, or both with one table."""
    folder = save_t5_bi_encoder(tmp_path)
    expected = scores_of_texts(load_model(str(folder)), QUERY, TEXTS)
    change_weights(folder, lambda weights: weights | {kept: weights.pop("shared.weight"), "decoder.x": torch.ones(1)})

    assert scores_of_texts(load_model(str(folder)), QUERY, TEXTS) == expected


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"relative_attention_num_buckets": 64}, "a T5 with {'relative_attention_num_buckets': 64} is not"),
        ({"relative_attention_max_distance": 256}, "a T5 with {'relative_attention_max_distance': 256} is not"),
        ({"is_decoder": True}, "a T5 with {'is_decoder': True} is not"),
        (
            {"feed_forward_proj": "gated-silu", "dense_act_fn": "silu", "is_gated_act": True},
            "a T5 with gated-silu .silu. is not",
        ),
        ({"dense_act_fn": "gelu"}, "a T5 with relu .gelu. is not"),
        ({"num_layers": 2}, "config.json names 2 layers, the weights have 3"),
        ({"feed_forward_proj": "gated-x-y"}, "is not a valid activation function"),
        ({"model_type": "umt5"}, "model_type 'umt5' is not supported"),
    ],
)
def test_settings_that_are_not_supported(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    """They are refused, as they would give wrong scores."""
    assert_refused(save_t5_bi_encoder(tmp_path), message, settings)
