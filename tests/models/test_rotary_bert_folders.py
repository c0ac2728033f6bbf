"""NomicBERT and GTE as their authors' code saves them, with another prefix and other names of settings than
`transformers`, whose own folders other tests load and compare by their scores.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from support.bert_likes import assert_the_same, save
from support.models import HIDDEN_SIZE, INTERMEDIATE_SIZE, NUM_HEADS, change_weights, edit_json
from support.refusals import assert_refused
from transformers import GteConfig, NomicBertConfig

from bandrank.models import hf
from bandrank.models.hf.rotary import read_rotary
from bandrank.models.layers.positions import Rotary

GTE, NOMIC = "Alibaba-NLP/gte-multilingual-reranker-base", "NomicBERT"
GTE_SETTINGS = {  # as gte-multilingual-reranker-base has them
    "model_type": "new",
    "layer_norm_type": "layer_norm",
    "logn_attention_clip1": False,
    "logn_attention_scale": False,
    "pack_qkv": True,
    "position_embedding_type": "rope",
    "rope_scaling": {"factor": 8.0, "type": "ntk"},
    "rope_theta": 20000,
    "unpad_inputs": False,
    "use_memory_efficient_attention": False,
}
NOMIC_SETTINGS = {  # as nomic-embed-text-v1.5 has them
    "activation_function": "swiglu",
    "causal": False,
    "layer_norm_epsilon": 1e-12,
    "max_trained_positions": 2048,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "n_embd": HIDDEN_SIZE,
    "n_head": NUM_HEADS,
    "n_inner": INTERMEDIATE_SIZE,
    "n_layer": 2,
    "n_positions": 2048,
    "parallel_block": False,
    "prenorm": False,
    "qkv_proj_bias": False,
    "rotary_emb_base": 1000,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "rotary_scaling_factor": None,
    "use_rms_norm": False,
}
NAMES_OF_TRANSFORMERS = (
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "max_position_embeddings"),
    *("hidden_act", "layer_norm_eps", "head_dim", "rope_parameters"),
)


def gte_folder(folder: Path, **more: Any) -> Path:
    """Saves a GTE as its authors do. more: changes to its settings."""
    edit_json(save(folder, GTE) / "config.json", {}, remove=("rope_parameters",))
    edit_json(folder / "config.json", GTE_SETTINGS | more)
    change_weights(folder, lambda weights: {name.replace("gte.", "new."): each for name, each in weights.items()})
    return folder


def nomic_folder(folder: Path, **more: Any) -> Path:
    """Saves a NomicBERT as its authors do. more: changes to its settings."""
    edit_json(save(folder, NOMIC) / "config.json", {}, remove=NAMES_OF_TRANSFORMERS)
    edit_json(folder / "config.json", NOMIC_SETTINGS | more)
    change_weights(folder, lambda weights: {name.replace("nomic_bert.", "bert."): w for name, w in weights.items()})
    return folder


def test_a_gte_of_its_authors(tmp_path: Path) -> None:
    """NTK-aware scaling by 8 of base 20,000 is base 160,000 with linear interpolation."""
    assert_the_same(hf.load(gte_folder(tmp_path / "theirs")), hf.load(save(tmp_path / "library", GTE)))


def test_a_nomic_bert_of_its_authors(tmp_path: Path) -> None:
    """The authors' settings have the names of GPT-2's."""
    assert_the_same(hf.load(nomic_folder(tmp_path / "theirs")), hf.load(save(tmp_path / "library", NOMIC)))


@pytest.mark.parametrize(
    ("settings", "positions"),
    [
        ({"n_positions": 8192}, 8192),
        ({"n_positions": 8192, "max_position_embeddings": 2048}, 8192),
        ({"n_positions": 8192, "rotary_scaling_factor": 2}, 2048),
        ({"n_positions": 8192, "rotary_scaling_factor": 2, "max_trained_positions": 512}, 512),
    ],
)
def test_how_much_a_nomic_bert_reads(tmp_path: Path, settings: dict[str, Any], positions: int) -> None:
    """If the scaling depends on the length of a text, the model reads no more than it was trained with."""
    folder = nomic_folder(tmp_path, **settings)
    edit_json(folder / "tokenizer_config.json", {"model_max_length": 8192})
    config = hf.load(folder).config

    assert config.max_tokens == config.encoder.max_positions == positions


@pytest.mark.parametrize(
    ("settings", "rotary"),
    [
        ({"rope_theta": 160000, "rope_scaling": None}, Rotary(160_000.0)),
        ({"rope_theta": 160000}, Rotary(160_000.0)),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, Rotary(500_000.0)),
        ({"rope_parameters": {"rope_type": "linear", "rope_theta": 5e5, "factor": 4}}, Rotary(500_000.0, 4.0)),
        ({"rope_theta": 5e5, "rope_scaling": {"type": "ntk", "factor": 2.0}}, Rotary(1e6, 2.0 ** (1 / 32))),
        ({"rope_parameters": {"rope_type": "ntk", "rope_theta": 10, "factor": 2}}, Rotary(20.0, 2.0 ** (1 / 32))),
        (
            {"rope_theta": 10, "rope_scaling": {"type": "ntk", "factor": 2}, "rope_parameters": {"rope_theta": 7}},
            Rotary(20.0, 2.0 ** (1 / 32)),
        ),
    ],
)
def test_the_spellings_of_rotary_positions(settings: dict[str, Any], rotary: Rotary) -> None:
    """The spellings are those of authors' code, and of transformers before and since version 5, for heads of 64."""
    assert read_rotary(settings, 64) == rotary


def test_a_base_that_is_not_saved_is_the_default_of_the_library(tmp_path: Path) -> None:
    """The authors' code has the same default for NomicBERT, and another for GTE."""
    for folder, library in (
        (save(tmp_path / "gte", GTE), GteConfig),
        (nomic_folder(tmp_path / "nomic"), NomicBertConfig),
    ):
        edit_json(folder / "config.json", {}, remove=("rope_parameters", "rotary_emb_base"))
        assert hf.load(folder).config.encoder.rotary == Rotary(library.default_theta)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rope_scaling": {"type": "dynamic", "factor": 8.0}}, "rotary positions of .*'dynamic'.* are not supported"),
        ({"rope_scaling": {"type": "ntk", "factor": 8.0, "mixed_b": 0.5}}, "rotary positions of .*'mixed_b': 0.5"),
        ({"rope_scaling": {"type": "linear", "partial_rotary_factor": 0.5}}, "'partial_rotary_factor': 0.5"),
        (
            {"rope_scaling": {"type": "ntk", "factor": "8"}},
            "factor of rotary positions must be a number above 0, got '8'",
        ),
        (
            {"rope_scaling": None, "rope_theta": None},
            "rope_theta of rotary positions must be a number above 0, got None",
        ),
        (
            {"position_embedding_type": "absolute"},
            "a GTE with {'position_embedding_type': 'absolute'} is not supported",
        ),
        ({"layer_norm_type": "rms_norm"}, "a GTE with {'layer_norm_type': 'rms_norm'}"),
        ({"logn_attention_scale": True}, "a GTE with {'logn_attention_scale': True}"),
        ({"pack_qkv": False}, "a GTE with {'pack_qkv': False}"),
        ({"hidden_act": "relu"}, "a GTE with {'hidden_act': 'relu'}"),
        ({"hidden_size": None, "num_hidden_layers": None}, "no number for hidden_size, num_hidden_layers"),
        ({"num_hidden_layers": "12"}, "num_hidden_layers must be a whole number above 0, got '12'; take the file as"),
        ({"num_attention_heads": 0}, "num_attention_heads must be a whole number above 0, got 0"),
        ({"layer_norm_eps": None}, "layer_norm_eps must be a number above 0, got None"),
        ({"rope_parameters": {"rope_theta": -1}}, "rope_theta must be a number above 0, got -1"),
        ({"rope_scaling": [1]}, "a setting in its files is of a wrong kind"),
        ({"num_hidden_layers": 1}, "config.json names 1 layers, the weights have 2"),
        ({"num_hidden_layers": 3}, "the weights have no tensor 'encoder.layer.2.attention.qkv_proj.weight'"),
    ],
)
def test_a_gte_that_is_refused(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    assert_refused(gte_folder(tmp_path, **settings), message)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"activation_function": "gelu"}, "a NomicBERT with {'activation_function': 'gelu'} is not supported"),
        ({"prenorm": True, "use_rms_norm": True}, "a NomicBERT with {'prenorm': True, 'use_rms_norm': True}"),
        ({"qkv_proj_bias": True}, "'qkv_proj_bias': True"),
        ({"rotary_emb_fraction": 0.0}, "'rotary_emb_fraction': 0.0"),
        ({"rotary_emb_interleaved": True}, "'rotary_emb_interleaved': True"),
        ({"rotary_emb_scale_base": 512}, "'rotary_emb_scale_base': 512"),
        ({"causal": True}, "'causal': True"),
        ({"n_layer": None}, "config.json has no number for num_hidden_layers"),
    ],
)
def test_a_nomic_bert_that_is_refused(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    assert_refused(nomic_folder(tmp_path, **settings), message)


def test_biases_that_a_nomic_bert_has_none_of_are_refused(tmp_path: Path) -> None:
    folder = nomic_folder(tmp_path)
    biases = {f"bert.encoder.layers.{layer}.mlp.fc2.bias": torch.zeros(HIDDEN_SIZE) for layer in range(2)}
    change_weights(folder, lambda weights: weights | biases)
    assert_refused(folder, r"unexpected: \['encoder.layers.0.down.bias', ")
