"""Models in Hugging Face's formats: found in a folder or on the hub, their names and settings translated to ours.

Supported: BERT cross-encoders with one label (cross-encoder/ms-marco-MiniLM-L-6-v2 and its family), sparse
cross-encoders (webis/sparse-cross-encoder-4-512 and -4096), and sentence-transformers bi-encoders on BERT
(all-MiniLM-L6-v2).
"""

import json
import re
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import AutoTokenizer, BertConfig

from bandrank.models.architectures.bi_encoder import BiEncoder, BiEncoderConfig
from bandrank.models.architectures.cross_encoder import CrossEncoder, CrossEncoderConfig
from bandrank.models.checkpoint import BadCheckpoint, assemble
from bandrank.models.layers.embeddings import interpolate_positions
from bandrank.models.layers.encoder import EncoderConfig
from bandrank.models.scorer import Scorer
from bandrank_kernels.windowed_attention import AttentionPattern

SUPPORTED = (
    "supported are BERT cross-encoders with one label (such as cross-encoder/ms-marco-MiniLM-L-6-v2), sparse "
    "cross-encoders (webis/sparse-cross-encoder-4-512, -4-4096), sentence-transformers bi-encoders on BERT (such as "
    "all-MiniLM-L6-v2), and bandrank's own checkpoints"
)
SETTINGS_FILES = ["*.json", "*.txt", "1_Pooling/config.json"]

Weights = dict[str, torch.Tensor]


def find_folder(model: str, revision: str | None = None) -> Path:
    """The local folder of `model`: a folder's path, or a hub id, downloaded into the hub's cache or found there.

    With HF_HUB_OFFLINE=1, or without a network, only the cache is looked at. Raises BadCheckpoint if there is no such
    model.
    """
    if (folder := Path(model)).is_dir():
        return folder
    if model.startswith((".", "/", "~")):
        raise BadCheckpoint(f"{model}: no such folder")
    try:
        folder = Path(snapshot_download(model, revision=revision, allow_patterns=[*SETTINGS_FILES, "*.safetensors"]))
        if not list(
            folder.glob("*.safetensors")
        ):  # older models have pickled weights alone; they are read without running code
            folder = Path(
                snapshot_download(model, revision=revision, allow_patterns=[*SETTINGS_FILES, "pytorch_model.bin"])
            )
    except LocalEntryNotFoundError as error:
        raise BadCheckpoint(
            f"{model}: not in the local cache, and the hub cannot be reached (HF_HUB_OFFLINE set, or no network); "
            "give a folder, or download it first"
        ) from error
    except (HfHubHTTPError, HFValidationError) as error:
        raise BadCheckpoint(f"{model}: neither a folder nor a model on the hub: {error}") from error
    return folder


def load_tokenizer(folder: Path) -> Tokenizer:
    """The folder's fast tokenizer, with any truncation and padding that were saved in it switched off."""
    path = folder / "tokenizer.json"
    if path.is_file():
        tokenizer = Tokenizer.from_file(str(path))
    elif (folder / "vocab.txt").is_file():  # a slow tokenizer's file, converted
        tokenizer = AutoTokenizer.from_pretrained(folder).backend_tokenizer
    else:
        raise BadCheckpoint(f"{folder}: no tokenizer.json and no vocab.txt")
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def load(folder: Path) -> Scorer:
    """The scorer in a Hugging Face model folder, on the CPU, in the dtype it was saved in. Raises BadCheckpoint."""
    settings = _read(folder / "config.json")
    if settings.get("model_type") != "bert" or settings.get("position_embedding_type", "absolute") != "absolute":
        raise BadCheckpoint(
            f"{folder}: model_type {settings.get('model_type')!r} with "
            f"{settings.get('position_embedding_type', 'absolute')} positions is not supported; {SUPPORTED}"
        )
    if settings.get("hidden_act", "gelu") != "gelu":
        raise BadCheckpoint(
            f"{folder}: activation {settings['hidden_act']!r} is not supported, only the exact gelu; {SUPPORTED}"
        )
    weights = _read_weights(folder)
    weights = {name.removeprefix("bert."): tensor for name, tensor in weights.items()}
    bert = BertConfig.from_dict(settings)
    tokenizer = load_tokenizer(folder)
    table = weights["embeddings.position_embeddings.weight"]
    if bert.max_position_embeddings > len(table):
        weights["embeddings.position_embeddings.weight"] = interpolate_positions(table, bert.max_position_embeddings)
    encoder = EncoderConfig(
        vocab_size=len(weights["embeddings.word_embeddings.weight"]),  # as stored: added tokens grow it
        hidden_size=bert.hidden_size,
        num_layers=bert.num_hidden_layers,
        num_heads=bert.num_attention_heads,
        intermediate_size=bert.intermediate_size,
        max_positions=bert.max_position_embeddings,
        num_token_types=bert.type_vocab_size,
        layer_norm_eps=bert.layer_norm_eps,
    )
    special = {"cls_id": _token_id(tokenizer, "[CLS]", folder), "sep_id": _token_id(tokenizer, "[SEP]", folder)}
    if (folder / "modules.json").is_file():
        return _bi_encoder(folder, encoder, special, weights)
    return _cross_encoder(folder, settings, encoder, special, weights)


def _cross_encoder(
    folder: Path, settings: dict[str, Any], encoder: EncoderConfig, special: dict[str, int], weights: Weights
) -> Scorer:
    if "classifier.weight" not in weights or len(weights["classifier.weight"]) != 1:
        outputs = len(weights["classifier.weight"]) if "classifier.weight" in weights else "no"
        raise BadCheckpoint(
            f"{folder}: a re-ranker has a classifier of one output, this model has {outputs}; {SUPPORTED}"
        )
    config = CrossEncoderConfig(
        encoder=encoder,
        cls_id=special["cls_id"],
        sep_id=special["sep_id"],
        pattern=_pattern(settings, folder),
        max_tokens=encoder.max_positions,
        max_query_tokens=min(256, encoder.max_positions // 2),
        token_types=settings.get("token_type_embedding", True),
    )
    head = ("pooler.dense", "classifier")
    translated = _encoder_weights(weights, encoder)
    for theirs, ours in zip(head, ("head.pooler", "head.classifier"), strict=True):
        for part in ("weight", "bias"):
            translated[f"{ours}.{part}"] = weights[f"{theirs}.{part}"].float()
    return assemble(CrossEncoder, config, translated, source=str(folder))


def _pattern(settings: dict[str, Any], folder: Path) -> AttentionPattern:
    """The attention pattern that a sparse cross-encoder's settings carry; full attention where they carry none.

    The weights of a sparse cross-encoder look like plain BERT: run with full attention they give other scores without
    an error.
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
        raise BadCheckpoint(
            f"{folder}: a sparse cross-encoder whose config.json names only {sorted(switches)} of its six attention "
            f"switches and window {settings.get('attention_window_size', 'missing')!r}; it must not be run as full "
            "attention"
        )
    return AttentionPattern(window=settings["attention_window_size"], **switches)


def _bi_encoder(folder: Path, encoder: EncoderConfig, special: dict[str, int], weights: Weights) -> Scorer:
    modules = [module["type"].rsplit(".", 1)[-1] for module in _read(folder / "modules.json")]
    if modules not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise BadCheckpoint(
            f"{folder}: modules {modules} are not supported, only Transformer, Pooling and Normalize; {SUPPORTED}"
        )
    pooling = _read(folder / "1_Pooling" / "config.json")
    modes = {name for name, on in pooling.items() if name.startswith("pooling_mode_") and on}
    known = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}
    if len(modes) != 1 or not modes <= known.keys():
        raise BadCheckpoint(f"{folder}: pooling {sorted(modes)} is not supported, only mean or cls")
    limits = _read(folder / "sentence_bert_config.json") if (folder / "sentence_bert_config.json").is_file() else {}
    config = BiEncoderConfig(
        encoder=encoder,
        cls_id=special["cls_id"],
        sep_id=special["sep_id"],
        pooling=known[modes.pop()],  # type: ignore[arg-type]  # one of the two literals
        similarity="cosine" if "Normalize" in modules else "dot",
        max_tokens=min(limits.get("max_seq_length") or encoder.max_positions, encoder.max_positions),
    )
    return assemble(BiEncoder, config, _encoder_weights(weights, encoder), source=str(folder))


def _encoder_weights(weights: Weights, config: EncoderConfig) -> Weights:
    """Our names for a BERT encoder's tensors; query, key and value become one matrix."""
    ours = {
        f"encoder.embeddings.{name}.weight": weights[f"embeddings.{theirs}_embeddings.weight"]
        for name, theirs in (("word", "word"), ("position", "position"), ("token_type", "token_type"))
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


def _read_weights(folder: Path) -> Weights:
    if (folder / "model.safetensors").is_file():
        weights = load_file(folder / "model.safetensors")
    elif (folder / "pytorch_model.bin").is_file():
        weights = torch.load(folder / "pytorch_model.bin", map_location="cpu", weights_only=True)
    else:
        raise BadCheckpoint(f"{folder}: no model.safetensors and no pytorch_model.bin")
    # Files of before 2020 call a LayerNorm's parameters gamma and beta.
    names = {".gamma": ".weight", ".beta": ".bias"}
    return {re.sub(r"\.(gamma|beta)$", lambda found: names[found[0]], name): tensor for name, tensor in weights.items()}


def _token_id(tokenizer: Tokenizer, token: str, folder: Path) -> int:
    token_id = tokenizer.token_to_id(token)
    if token_id is None:
        raise BadCheckpoint(f"{folder}: the tokenizer has no {token}; {SUPPORTED}")
    return token_id


def _read(path: Path) -> Any:
    if not path.is_file():
        raise BadCheckpoint(f"{path.parent}: no {path.name}")
    return json.loads(path.read_text(encoding="utf-8"))
