"""Tiny random DeBERTas: Hugging Face folders with the settings of published models, and a Unigram tokenizer."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from support.models import HIDDEN_SIZE, INTERMEDIATE_SIZE, NUM_HEADS, random_scorer, tiny_cross_encoder, write_json
from support.tokenizer import SPECIAL, WORDS, vocab_size
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import DebertaV2Config, DebertaV2ForSequenceClassification

from bandrank.models.architectures import CrossEncoder
from bandrank.models.encoders.deberta import DebertaConfig

# The fields of config.json that decide what is computed, other than sizes, of mixedbread-ai/mxbai-rerank-xsmall-v1
# (12 layers of 384, 6 heads), -base-v1 (12 of 768, 12 heads) and -large-v1 (24 of 1024, 16 heads): DeBERTa-v3's.
MXBAI: dict[str, Any] = {
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-7,
    "max_position_embeddings": 512,
    "max_relative_positions": -1,
    "norm_rel_ebd": "layer_norm",
    "pad_token_id": 0,
    "pooler_dropout": 0,
    "pooler_hidden_act": "gelu",
    "pos_att_type": ["p2c", "c2p"],
    "position_biased_input": False,
    "position_buckets": 256,
    "relative_attention": True,
    "share_att_key": True,
    "type_vocab_size": 0,
}


def tiny_hf_deberta(*, seed: int = 0, num_layers: int = 2, **more: Any) -> DebertaV2ForSequenceClassification:
    """A random cross-encoder of the `transformers` library, in eval mode. more: fields of its config beside MXBAI."""
    config = DebertaV2Config(
        vocab_size=vocab_size(),
        hidden_size=HIDDEN_SIZE,
        pooler_hidden_size=HIDDEN_SIZE,
        num_hidden_layers=num_layers,
        num_attention_heads=NUM_HEADS,
        intermediate_size=INTERMEDIATE_SIZE,
        **MXBAI | {"num_labels": 1} | more,
    )
    return random_scorer(DebertaV2ForSequenceClassification(config), seed)


def tiny_deberta_config(**more: Any) -> DebertaConfig:
    """Our config with the shape of `tiny_hf_deberta`. more: further fields."""
    return DebertaConfig(vocab_size(), HIDDEN_SIZE, 2, NUM_HEADS, INTERMEDIATE_SIZE, 512, **more)


def tiny_deberta(**more: Any) -> CrossEncoder:
    """A random cross-encoder of ours, whose attention is plain torch on every device. more: fields of its config."""
    config = tiny_cross_encoder(**more).config
    return random_scorer(CrossEncoder(replace(config, encoder=tiny_deberta_config())), 0)


def unigram_tokenizer() -> Tokenizer:
    """A cased Unigram tokenizer like DeBERTa-v3's, with as many entries as the tiny word-piece tokenizer has."""
    letters = [chr(code) for code in range(33, 127)]
    words = [f"▁{word}" for word in WORDS]
    entries = [(token, 0.0) for token in SPECIAL] + [("▁", -3.0)]
    entries += [(piece, -4.0 - index / 100) for index, piece in enumerate([*words, *letters])]
    entries = entries[: vocab_size()] + [(f"▁unused{index}", -99.0) for index in range(vocab_size() - len(entries))]
    tokenizer = Tokenizer(models.Unigram(entries, unk_id=SPECIAL.index("[UNK]")))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Strip(), normalizers.NFC()])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    cls, sep = (SPECIAL.index(token) for token in ("[CLS]", "[SEP]"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", cls), ("[SEP]", sep)],
    )
    tokenizer.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    return tokenizer


def save_deberta(folder: Path, model: DebertaV2ForSequenceClassification | None = None, **more: Any) -> Path:
    """Writes a re-ranker's folder. more: arguments of `tiny_hf_deberta`, if no model is given."""
    (model or tiny_hf_deberta(**more)).save_pretrained(folder)
    unigram_tokenizer().save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "DebertaV2Tokenizer", "model_max_length": 512}
    write_json(folder / "tokenizer_config.json", settings)
    return folder
