"""Models in Hugging Face's formats, their names and settings translated to ours.

Supported: BERT cross-encoders with one label (cross-encoder/ms-marco-MiniLM-L-6-v2 and its family), sparse
cross-encoders (webis/sparse-cross-encoder-4-512 and -4096), sentence-transformers bi-encoders on BERT
(all-MiniLM-L6-v2), and ColBERT on BERT (colbert-ir/colbertv2.0).
"""

import re
import string
from pathlib import Path
from typing import Any

import torch
from transformers import BertConfig

from bandrank.models.architectures.bi_encoder import BiEncoder, BiEncoderConfig
from bandrank.models.architectures.colbert import ColBERT, ColBERTConfig
from bandrank.models.architectures.cross_encoder import CrossEncoder, CrossEncoderConfig
from bandrank.models.checkpoint import BadCheckpoint, assemble
from bandrank.models.hf_files import Weights, load_tokenizer, read_json, read_optional_json, read_weights
from bandrank.models.layers.embeddings import interpolate_positions
from bandrank.models.layers.encoder import EncoderConfig
from bandrank.models.scorer import Scorer
from bandrank_kernels.windowed_attention import AttentionPattern

SUPPORTED = (
    "supported are BERT cross-encoders with one label (such as cross-encoder/ms-marco-MiniLM-L-6-v2), sparse "
    "cross-encoders (webis/sparse-cross-encoder-4-512, -4-4096), sentence-transformers bi-encoders on BERT (such as "
    "all-MiniLM-L6-v2), ColBERT on BERT (such as colbert-ir/colbertv2.0), and bandrank's own checkpoints"
)


def load(folder: Path) -> Scorer:
    """The scorer in a Hugging Face model folder, on the CPU, in the dtype it was saved in. Raises BadCheckpoint."""
    settings = read_optional_json(folder / "config.json")
    positions = settings.get("position_embedding_type", "absolute")
    if settings.get("model_type") != "bert" or positions != "absolute":
        kind = settings.get("model_type")
        raise BadCheckpoint(f"{folder}: model_type {kind!r} with {positions} positions is not supported; {SUPPORTED}")
    if (activation := settings.get("hidden_act", "gelu")) != "gelu":
        raise BadCheckpoint(f"{folder}: activation {activation!r} is not supported, only the exact gelu; {SUPPORTED}")
    modules_file = folder / "modules.json"
    modules = (
        [module["type"].rsplit(".", 1)[-1] for module in read_json(modules_file)] if modules_file.is_file() else []
    )
    try:
        weights = {name.removeprefix("bert."): tensor for name, tensor in read_weights(folder).items()}
        encoder = _encoder_config(BertConfig.from_dict(settings), weights)
        if "Pooling" in modules:
            return _bi_encoder(folder, modules, encoder, weights)
        if "HF_ColBERT" in (settings.get("architectures") or []):
            return _colbert(folder, encoder, weights)
        return _cross_encoder(folder, settings, encoder, weights)
    except KeyError as error:
        raise BadCheckpoint(f"{folder}: the weights have no tensor {error}") from error
    except ValueError as error:
        raise error if isinstance(error, BadCheckpoint) else BadCheckpoint(f"{folder}: {error}") from error


def _encoder_config(bert: BertConfig, weights: Weights) -> EncoderConfig:
    """The encoder's shape; a position table shorter than the settings say is stretched in place (section 4.1 there)."""
    table = weights["embeddings.position_embeddings.weight"]
    if bert.max_position_embeddings > len(table):
        weights["embeddings.position_embeddings.weight"] = interpolate_positions(table, bert.max_position_embeddings)
    deepest = max(
        (int(found[1]) for name in weights if (found := re.match(r"encoder\.layer\.(\d+)\.", name))), default=-1
    )
    if deepest >= bert.num_hidden_layers:
        raise ValueError(f"config.json names {bert.num_hidden_layers} layers, the weights have {deepest + 1}")
    return EncoderConfig(
        vocab_size=len(weights["embeddings.word_embeddings.weight"]),  # as stored: added tokens grow it
        hidden_size=bert.hidden_size,
        num_layers=bert.num_hidden_layers,
        num_heads=bert.num_attention_heads,
        intermediate_size=bert.intermediate_size,
        max_positions=bert.max_position_embeddings,
        num_token_types=bert.type_vocab_size,
        layer_norm_eps=bert.layer_norm_eps,
    )


def _cross_encoder(folder: Path, settings: dict[str, Any], encoder: EncoderConfig, weights: Weights) -> Scorer:
    outputs = len(weights["classifier.weight"]) if "classifier.weight" in weights else "no"
    if outputs != 1:
        raise BadCheckpoint(
            f"{folder}: a re-ranker has a classifier of one output, this model has {outputs}; {SUPPORTED}"
        )
    cls_id, sep_id = _ids(folder, "[CLS]", "[SEP]")
    config = CrossEncoderConfig(
        encoder=encoder,
        cls_id=cls_id,
        sep_id=sep_id,
        pattern=_pattern(settings),
        max_tokens=encoder.max_positions,
        max_query_tokens=min(256, encoder.max_positions // 2),
        token_types=settings.get("token_type_embedding", True),
    )
    translated = _encoder_weights(weights, encoder)
    for part in ("weight", "bias"):
        translated[f"head.pooler.{part}"] = weights[f"pooler.dense.{part}"].float()
        translated[f"head.classifier.{part}"] = weights[f"classifier.{part}"].float()
    return assemble(CrossEncoder, config, translated, source=str(folder))


def _pattern(settings: dict[str, Any]) -> AttentionPattern:
    """The attention pattern that a sparse cross-encoder's settings carry; full attention where they carry none.

    The weights of a sparse cross-encoder look like plain BERT: run with full attention they give other scores without
    an error. Raises ValueError if the settings carry half a pattern.
    """
    names = {"cls": "cls", "query": "query", "doc": "candidate"}
    switches = {
        f"{source}_to_{target}": settings[f"{theirs}_{others}_attention"]
        for theirs, source in names.items()
        for others, target in names.items()
        if f"{theirs}_{others}_attention" in settings
    }
    claims_sparse = "attention_window_size" in settings or "Listformer" in "".join(settings.get("architectures") or [])
    if not claims_sparse and not switches:
        return AttentionPattern()
    if "attention_window_size" not in settings or len(switches) != 6:
        raise ValueError(
            f"a sparse cross-encoder whose config.json names only {sorted(switches)} of its six attention switches and "
            f"window {settings.get('attention_window_size', 'missing')!r}; it must not be run as full attention"
        )
    return AttentionPattern(window=settings["attention_window_size"], **switches)


def _bi_encoder(folder: Path, modules: list[str], encoder: EncoderConfig, weights: Weights) -> Scorer:
    if modules not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise BadCheckpoint(
            f"{folder}: modules {modules} are not supported, only Transformer, Pooling and Normalize; {SUPPORTED}"
        )
    pooling = read_json(folder / "1_Pooling" / "config.json")
    # One switch a mode, or, since sentence-transformers 6, one name.
    modes = {name for name, on in pooling.items() if name.startswith("pooling_mode_") and on is True}
    modes |= {pooling["pooling_mode"]} if "pooling_mode" in pooling else set()
    known = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls", "mean": "mean", "cls": "cls"}
    if len(modes) != 1 or not modes <= known.keys():
        raise BadCheckpoint(f"{folder}: pooling {sorted(map(str, modes))} is not supported, only mean or cls")
    similarity = read_optional_json(folder / "config_sentence_transformers.json").get("similarity_fn_name")
    limit = (
        read_optional_json(folder / "sentence_bert_config.json").get("max_seq_length")
        or read_optional_json(folder / "tokenizer_config.json").get("model_max_length")
        or encoder.max_positions
    )
    cls_id, sep_id = _ids(folder, "[CLS]", "[SEP]")
    config = BiEncoderConfig(
        encoder=encoder,
        cls_id=cls_id,
        sep_id=sep_id,
        pooling=known[modes.pop()],  # type: ignore[arg-type]  # one of the two literals
        similarity="cosine" if "Normalize" in modules or similarity == "cosine" else "dot",
        max_tokens=min(int(limit), encoder.max_positions),
    )
    return assemble(BiEncoder, config, _encoder_weights(weights, encoder), source=str(folder))


def _colbert(folder: Path, encoder: EncoderConfig, weights: Weights) -> Scorer:
    """As Stanford's library saves it, its settings in artifact.metadata; the defaults are that library's."""
    metadata = read_optional_json(folder / "artifact.metadata")
    metadata = metadata.get("config", metadata)
    interaction, similarity = metadata.get("interaction", "colbert"), metadata.get("similarity", "cosine")
    if interaction != "colbert" or similarity not in ("cosine", "l2"):
        raise BadCheckpoint(f"{folder}: interaction {interaction!r} by {similarity!r} is not supported; {SUPPORTED}")
    markers = metadata.get("query_token_id", "[unused0]"), metadata.get("doc_token_id", "[unused1]")
    cls_id, sep_id, mask_id, query_marker, candidate_marker = _ids(folder, "[CLS]", "[SEP]", "[MASK]", *markers)
    skipped: set[int] = set()
    if metadata.get("mask_punctuation", True):
        encodings = load_tokenizer(folder).encode_batch(list(string.punctuation), add_special_tokens=False)
        skipped = {encoding.ids[0] for encoding in encodings}
    config = ColBERTConfig(
        encoder=encoder,
        cls_id=cls_id,
        sep_id=sep_id,
        mask_id=mask_id,
        query_marker=query_marker,
        candidate_marker=candidate_marker,
        skipped_ids=tuple(sorted(skipped)),
        dim=len(weights["linear.weight"]),
        similarity=similarity,
        attend_to_masks=metadata.get("attend_to_mask_tokens", False),
        max_query_tokens=min(metadata.get("query_maxlen", 32), encoder.max_positions),
        max_candidate_tokens=min(metadata.get("doc_maxlen", 220), encoder.max_positions),
    )
    translated = _encoder_weights(weights, encoder) | {"projection.weight": weights["linear.weight"]}
    return assemble(ColBERT, config, translated, source=str(folder))


def _encoder_weights(weights: Weights, config: EncoderConfig) -> Weights:
    """Our names for a BERT encoder's tensors; query, key and value become one matrix. Raises KeyError."""
    ours = {
        f"encoder.embeddings.{name}.weight": weights[f"embeddings.{name}_embeddings.weight"]
        for name in ("word", "position", "token_type")
    }
    names = {
        "attention_out": "attention.output.dense",
        "attention_norm": "attention.output.LayerNorm",
        "up": "intermediate.dense",
        "down": "output.dense",
        "out_norm": "output.LayerNorm",
    }
    for part in ("weight", "bias"):
        ours[f"encoder.embeddings.norm.{part}"] = weights[f"embeddings.LayerNorm.{part}"]
        for layer in range(config.num_layers):
            theirs = f"encoder.layer.{layer}"
            qkv = [weights[f"{theirs}.attention.self.{name}.{part}"] for name in ("query", "key", "value")]
            ours[f"encoder.layers.{layer}.qkv.{part}"] = torch.cat(qkv)
            for name, their_name in names.items():
                ours[f"encoder.layers.{layer}.{name}.{part}"] = weights[f"{theirs}.{their_name}.{part}"]
    return ours


def _ids(folder: Path, *tokens: str) -> list[int]:
    """The ids of tokens that must be there."""
    tokenizer = load_tokenizer(folder)
    ids = []
    for token in tokens:
        found = tokenizer.token_to_id(token)
        if found is None:
            raise BadCheckpoint(f"{folder}: the tokenizer has no {token}; {SUPPORTED}")
        ids.append(found)
    return ids
