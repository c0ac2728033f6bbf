"""EmbeddingGemma against `transformers` and `sentence-transformers`, which writes its folder and reads it."""

from pathlib import Path
from typing import Any

import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer
from support.grouped import GLOBAL, LOCAL, SIZES, bounded_gemma_tokenizer, tiny_gemma3
from support.models import edit_json, randomise, write_json, write_modules
from support.refusals import assert_refused
from support.text_scores import assert_scores, scores_of_texts
from torch import nn

from bandrank.models.encoders.gemma3 import Gemma3Config
from bandrank.models.layers.positions import Rotary
from bandrank.models.loading import load_model
from bandrank.models.windowed import windowed

CLOSE = 1e-5  # of cosines
PROMPTS = {"query": "task: search result | query: ", "document": "title: none | text: ", "STS": "sentence: "}
IMAGE = "<image_soft_token>"
QUERY, TEXTS = "where do bees live?", ["In hives.", "", "bees and honey " * 70, "é 🐝 ñandú: x", "?"]


def save_gemma3(folder: Path, **more: Any) -> Path:
    """Saves a random bi-encoder as the library writes it, and returns the folder. more: further settings."""
    start, size, tokenizer = folder / "start", SIZES["hidden_size"], bounded_gemma_tokenizer()
    tiny_gemma3(vocab_size=tokenizer.get_vocab_size(), **more).save_pretrained(start)
    tokenizer.add_special_tokens([IMAGE])  # not embedded, as in google/embeddinggemma-300m
    tokenizer.save(str(start / "tokenizer.json"))
    write_json(start / "tokenizer_config.json", {"tokenizer_class": "TokenizersBackend", "pad_token": "<pad>"})
    plain: dict[str, Any] = {"bias": False, "activation_function": nn.Identity()}
    layers = [Dense(in_features=size, out_features=96, **plain), Dense(in_features=96, out_features=size, **plain)]
    for seed, layer in enumerate(layers):
        randomise(layer, seed=seed)
    modules = [Transformer(str(start), max_seq_length=2048), Pooling(size, pooling_mode="mean"), *layers, Normalize()]
    model = SentenceTransformer(modules=modules, device="cpu", similarity_fn_name="cosine", prompts=PROMPTS)
    model.save(str(folder / "saved"))
    return folder / "saved"


@pytest.mark.parametrize("scalar", [16, 40])
def test_scores_are_those_of_sentence_transformers(tmp_path: Path, scalar: int) -> None:
    """Scores agree for texts within and beyond the window, in company, alone, as served and from our own checkpoint,
    also if attention has another scale than that of the heads.
    """
    folder = save_gemma3(tmp_path, query_pre_attn_scalar=scalar)
    library = SentenceTransformer(str(folder), device="cpu")
    theirs = (library.encode_document(TEXTS, batch_size=1) @ library.encode_query(QUERY)).tolist()

    assert_scores(folder, QUERY, TEXTS, theirs, close=CLOSE)
    image, padding = scores_of_texts(load_model(str(folder)), QUERY, [IMAGE, "<pad>"])
    assert image == padding


def test_settings_as_they_were_published_and_as_they_are_saved_now(tmp_path: Path) -> None:
    """A key for each base and the spacing of layers say the same as `rope_parameters` and `layer_types`."""
    folder = save_gemma3(tmp_path, layer_types=[LOCAL, LOCAL, GLOBAL])
    new = load_model(str(folder)).scorer.config.encoder
    old = {"rope_theta": 1_000_000.0, "rope_local_base_freq": 10_000.0, "sliding_window_pattern": 3}
    edit_json(folder / "config.json", old, remove=("rope_parameters", "layer_types"))
    assert isinstance(new, Gemma3Config)
    assert (new.windows, new.max_positions, new.overflows_float16) == ((8, 8, None), 2048, True)
    assert (new.global_rotary, new.local_rotary) == (Rotary(1_000_000.0), Rotary(10_000.0))

    assert load_model(str(folder)).scorer.config.encoder == new


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"use_bidirectional_attention": None}, "a Gemma 3 whose tokens see none behind them"),
        (
            {"attention_bias": True, "attn_logit_softcapping": 50.0},
            "a Gemma 3 with {'attention_bias': True, 'attn_logit",
        ),
        ({"hidden_activation": "silu", "is_causal": False}, "'hidden_activation': 'silu', 'is_causal': False"),
        ({"sliding_window": None, "head_dim": None}, "no number for head_dim, sliding_window"),
        ({"rope_parameters": {GLOBAL: {"rope_type": "dynamic", "factor": 8.0}}}, "rotary positions of .*dynamic"),
        (
            {"rope_parameters": {GLOBAL: {"rope_type": "linear"}}},
            "config.json: Missing .* 'rope_type'='linear': {'factor'}",
        ),
    ],
)
def test_settings_that_are_not_supported(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    """Ignoring these settings would give wrong scores."""
    assert_refused(save_gemma3(tmp_path), message, settings)


def test_other_roles_are_refused(tmp_path: Path) -> None:
    """The encoder may start a windowed cross-encoder. A re-ranker, and a ColBERT without [MASK], are refused."""
    folder = save_gemma3(tmp_path)
    scorer = load_model(str(folder)).scorer

    assert windowed(scorer, 4).config.encoder == scorer.config.encoder
    write_modules(folder, {"": "models.Transformer", "2_Dense": "models.Dense"})
    edit_json(folder / "config_sentence_transformers.json", {"similarity_fn_name": "MaxSim", "prompts": {}})
    assert_refused(folder, r"the tokenizer has no \[MASK\]")
    (folder / "modules.json").unlink()
    assert_refused(folder, "a gemma3_text that re-ranks is not supported")
