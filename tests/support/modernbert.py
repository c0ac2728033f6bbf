"""Tiny ModernBERTs of `transformers`, and the folders that they are saved in."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from support.models import HIDDEN_SIZE, edit_json, random_scorer, randomise, save_tokenizer, write_json
from support.tokenizer import CLS_ID, PAD_ID, SEP_ID, vocab_size
from torch import nn
from transformers import ModernBertConfig, ModernBertForSequenceClassification, ModernBertModel

from bandrank.models.architectures import SequenceCrossEncoder
from bandrank.models.architectures.sequence_cross_encoder import SequenceCrossEncoderConfig
from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.encoders.modernbert import ModernBertConfig as OurConfig

# Fields of the config.json of published models beyond their sizes.
MODERN_COLBERT = {  # lightonai/GTE-ModernColBERT-v1
    "global_rope_theta": 160000.0,
    "local_rope_theta": 10000.0,
    "global_attn_every_n_layers": 3,
    "max_position_embeddings": 8192,
}
# Alibaba-NLP/gte-reranker-modernbert-base
GTE_RERANKER: dict[str, Any] = MODERN_COLBERT | {"classifier_pooling": "mean"}
# ibm-granite/granite-embedding-reranker-english-r2
GRANITE_RERANKER: dict[str, Any] = MODERN_COLBERT | {"classifier_pooling": "cls", "global_rope_theta": 80000.0}
# cross-encoder/ettin-reranker-17m-v1
ETTIN = MODERN_COLBERT | {"local_rope_theta": 160000.0, "max_position_embeddings": 7999}


def tiny_config(published: Mapping[str, Any] = GTE_RERANKER, **more: Any) -> ModernBertConfig:
    """The config of a ModernBERT of five layers: 0 and 3 are global, and in the others a token sees 8 on each side."""
    sizes = {
        "vocab_size": vocab_size(),
        "hidden_size": HIDDEN_SIZE,
        "num_hidden_layers": 5,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "local_attention": 16,
        "cls_token_id": CLS_ID,
        "sep_token_id": SEP_ID,
        "bos_token_id": CLS_ID,
        "eos_token_id": SEP_ID,
        "pad_token_id": PAD_ID,
        "num_labels": 1,
    }
    return ModernBertConfig(**sizes | dict(published) | more)


def tiny_modernbert(published: Mapping[str, Any] = GTE_RERANKER, **more: Any) -> ModernBertForSequenceClassification:
    """A random re-ranker of `transformers` in eval mode. more: fields of ModernBertConfig."""
    return random_scorer(ModernBertForSequenceClassification(tiny_config(published, **more)), 0)


def tiny_modernbert_encoder(published: Mapping[str, Any] = ETTIN, **more: Any) -> ModernBertModel:
    """A random encoder of `transformers` in eval mode. more: fields of ModernBertConfig."""
    return random_scorer(ModernBertModel(tiny_config(published, **more)), 0)


def tiny_encoder_config(*, positions: int = 512) -> EncoderConfig:
    """Our config of a ModernBERT of four layers, of which the first and the last are global."""
    return OurConfig(vocab_size(), HIDDEN_SIZE, 4, 4, 48, positions, windows=(None, 8, 8))


def tiny_sequence_cross_encoder(*, max_tokens: int = 512, **more: Any) -> SequenceCrossEncoder:
    """A random cross-encoder in eval mode, not yet prepared. more: fields of SequenceCrossEncoderConfig."""
    defaults = {"encoder": tiny_encoder_config(), "max_query_tokens": max_tokens * 2 // 5}
    config = SequenceCrossEncoderConfig(
        cls_id=CLS_ID, sep_id=SEP_ID, between=(SEP_ID,), max_tokens=max_tokens, **defaults | more
    )
    return random_scorer(SequenceCrossEncoder(config), 0)


def save_model(folder: Path, model: nn.Module, **settings: Any) -> Path:
    """Writes a folder as `transformers` does. settings: fields of config.json, such as older versions write."""
    model.save_pretrained(folder)  # type: ignore[operator]  # of a transformers model
    save_tokenizer(folder)
    edit_json(folder / "config.json", settings)
    return folder


def save_chain(folder: Path, model: nn.Module, modules: list[tuple[str, dict[str, Any]]]) -> Path:
    """Writes a folder of a model and the sentence-transformers modules that follow it.

    modules: the class and the settings of each; their weights are random.
    """
    save_model(folder, model)
    package = "sentence_transformers"
    places = {
        "Transformer": f"{package}.base.modules.transformer",
        "Pooling": f"{package}.sentence_transformer.modules.pooling",
        "Dense": f"{package}.base.modules.dense",
        "LayerNorm": f"{package}.sentence_transformer.modules.layer_norm",
        "Normalize": f"{package}.sentence_transformer.modules.normalize",
    }
    entries = []
    for index, (name, settings) in enumerate([("Transformer", {}), *modules]):
        path = f"{index}_{name}" if index else ""
        entries.append({"idx": index, "name": str(index), "path": path, "type": f"{places[name]}.{name}"})
        if index:
            (folder / path).mkdir()
            write_json(folder / path / "config.json", settings)
            if weights := _weights(name, settings, seed=index):
                save_file(weights, folder / path / "model.safetensors")
    write_json(folder / "modules.json", entries)
    special = {f"{name}_token": f"[{name.upper()}]" for name in ("cls", "sep", "mask", "pad", "unk")}
    inputs = {"model_input_names": ["input_ids", "attention_mask"], "model_max_length": 7999}
    tokenizer = {"tokenizer_class": "PreTrainedTokenizerFast"} | special | inputs
    write_json(folder / "tokenizer_config.json", tokenizer)
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 7999, "do_lower_case": False})
    return folder


def _weights(name: str, settings: Mapping[str, Any], *, seed: int) -> dict[str, torch.Tensor]:
    if name == "Dense":
        sizes = settings["in_features"], settings["out_features"]
        layers = {"linear": nn.Linear(*sizes, bias=settings["bias"])}
        if settings.get("use_residual") and len({*sizes}) == 2:
            layers["residual"] = nn.Linear(*sizes, bias=False)
        layer: nn.Module = nn.ModuleDict(layers)
    elif name == "LayerNorm":
        layer = nn.ModuleDict({"norm": nn.LayerNorm(settings["dimension"])})
    else:
        return {}
    randomise(layer, seed=seed)
    return layer.state_dict()


def save_ettin(folder: Path) -> Path:
    """A folder laid out as cross-encoder/ettin-reranker-17m-v1."""
    dense = {"in_features": HIDDEN_SIZE, "out_features": HIDDEN_SIZE, "bias": False}
    score = {"in_features": HIDDEN_SIZE, "out_features": 1, "bias": True}
    modules: list[tuple[str, dict[str, Any]]] = [
        ("Pooling", {"embedding_dimension": HIDDEN_SIZE, "pooling_mode": "cls", "include_prompt": True}),
        ("Dense", dense | {"activation_function": "torch.nn.modules.activation.GELU"}),
        ("LayerNorm", {"dimension": HIDDEN_SIZE}),
        (
            "Dense",
            score | {"activation_function": "torch.nn.modules.linear.Identity", "module_output_name": "scores"},
        ),
    ]
    save_chain(folder, tiny_modernbert_encoder(), modules)
    settings = {"model_type": "CrossEncoder", "activation_fn": "torch.nn.modules.linear.Identity"}
    write_json(folder / "config_sentence_transformers.json", settings)
    return folder


def save_pylate(
    folder: Path, model: nn.Module | None = None, *, layers: Sequence[Mapping[str, Any]] = ({},), **settings: Any
) -> Path:
    """A folder laid out as lightonai/GTE-ModernColBERT-v1; its markers are [unused0] and [unused1].

    layers: the settings of the dense layers, by default one product to 16 numbers.  settings: fields of
    config_sentence_transformers.json.
    """
    default = {"out_features": 16, "bias": False, "activation_function": "torch.nn.modules.linear.Identity"}
    modules, size = [], HIDDEN_SIZE
    for layer in layers:
        modules.append(
            ("Dense", {"module_input_name": "token_embeddings", "in_features": size} | default | dict(layer))
        )
        size = modules[-1][1]["out_features"]
    save_chain(folder, model or tiny_modernbert_encoder(MODERN_COLBERT), modules)
    defaults = {
        "model_type": "ColBERT",
        "prompts": {},
        "default_prompt_name": None,
        "similarity_fn_name": "MaxSim",
        "query_prefix": "[unused0]",
        "document_prefix": "[unused1]",
        "query_length": 11,
        "document_length": 300,
        "attend_to_expansion_tokens": False,
        "skiplist_words": [",", "."],
    }
    write_json(folder / "config_sentence_transformers.json", defaults | settings)
    return folder
