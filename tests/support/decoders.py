"""Tiny random decoders in the shapes of published models, tokenizers like Qwen's and Gemma's, and their folders."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from support.models import random_scorer, write_json, write_modules
from support.tokenizer import vocab_size
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from torch import Tensor
from transformers import GemmaConfig, PretrainedConfig, PreTrainedModel, Qwen2Config, Qwen3Config

from bandrank.models.architectures import BiEncoder, CandidateFirstReranker, DecoderReranker
from bandrank.models.architectures.bi_encoder import BiEncoderConfig
from bandrank.models.architectures.candidate_first_reranker import CandidateFirstRerankerConfig
from bandrank.models.architectures.decoder_reranker import DecoderRerankerConfig, Prompt
from bandrank.models.encoders.decoder_config import DecoderConfig
from bandrank.models.wording import Wording

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
# How Qwen's tokenizers split a text before they look for pieces.
PARTS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# The texts of messages in a chat template, and the modules of its folder
CONTENT = {
    role: f'{{{{ messages | selectattr("role", "eq", "{role}") | map(attribute="content") | first }}}}'
    for role in ("system", "query", "document")
}
KINDS = ("base.modules.transformer.Transformer", "cross_encoder.modules.logit_score.LogitScore")
SCALE = 16  # published widths are divided by this
QWEN3 = {
    "model_type": "qwen3",
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "rope_theta": 1_000_000,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
}
QWEN2 = {
    "model_type": "qwen2",
    "num_key_value_heads": 2,
    "max_position_embeddings": 32768,
    "rope_theta": 1_000_000,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
}
# The shapes that the config.json of published models gives, by id.
PUBLISHED: dict[str, dict[str, Any]] = {
    "Qwen/Qwen3-Reranker-0.6B": QWEN3 | {"hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 3072},
    "Qwen/Qwen3-Reranker-4B": QWEN3 | {"hidden_size": 2560, "num_attention_heads": 32, "intermediate_size": 9728},
    "Qwen/Qwen3-Reranker-8B": QWEN3
    | {"hidden_size": 4096, "num_attention_heads": 32, "intermediate_size": 12288, "tie_word_embeddings": False},
    "zeroentropy/zerank-1-small": QWEN3
    | {
        "auto_map": {"AutoConfig": "modeling_zeranker.ZEConfig"},
        "hidden_size": 2048,
        "num_attention_heads": 16,
        "intermediate_size": 6144,
    },
    "mixedbread-ai/mxbai-rerank-base-v2": QWEN2
    | {"hidden_size": 896, "num_attention_heads": 14, "intermediate_size": 4864},
    "mixedbread-ai/mxbai-rerank-large-v2": QWEN2
    | {"hidden_size": 1536, "num_attention_heads": 12, "intermediate_size": 8960},
    "BAAI/bge-reranker-v2-gemma": {
        "model_type": "gemma",
        "hidden_act": "gelu",
        "hidden_size": 2048,
        "num_attention_heads": 8,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "intermediate_size": 16384,
        "max_position_embeddings": 8192,
        "rope_theta": 10_000.0,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
    },
}
WORDS = """
    Judge whether the document meets the requirements based on query and instruct provided: note that answer can only be
    "yes" or "no". yes no 0 1 document: query: <Document>: <Query>: relevance judgment carefully. ":: ?" <: >: .\n\n ?\n
    bees find their way home by the sun and by landmarks they remember; honey is made from nectar. How do they?
"""


@cache
def qwen_tokenizer(*, end: bool = False) -> Tokenizer:
    """A byte-level BPE tokenizer with some hundred merges.

    end: whether <|endoftext|> follows a text, as in Qwen3-Embedding.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PARTS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=SPECIAL,
        show_progress=False,
    )
    tokenizer.train_from_iterator([WORDS, *WORDS.split(), "yes", "no", "yes", "no", "Yes", "Yes"], trainer)
    tokenizer.add_tokens(["<think>", "</think>"])
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    if end:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="$A <|endoftext|>", special_tokens=[("<|endoftext|>", 0)]
        )
    return tokenizer


@cache
def gemma_tokenizer() -> Tokenizer:
    """A BPE tokenizer like Gemma's: "▁" stands for a space, none is put before a text, and no rule splits the text."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))  # noqa: S106  # no secret
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    special = ["<pad>", "<eos>", "<bos>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator([*WORDS.split(), "A:▁", "B:▁", "▁bees", "\n", "Yes", "Yes"], trainer)
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 2)])
    return tokenizer


def tiny_config(published: Mapping[str, Any], *, num_layers: int = 2, **more: Any) -> PretrainedConfig:
    """A config with the numbers of heads of a published one, but `SCALE` times narrower. more: further fields."""
    narrow = {
        name: published[name] // SCALE for name in ("hidden_size", "intermediate_size", "head_dim") if name in published
    }
    kind = {"gemma": GemmaConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config}[published["model_type"]]
    settings = dict(published) | narrow | {"num_hidden_layers": num_layers, "vocab_size": 520} | more
    return kind(**settings)


def tiny_decoder(kind: Any, published: Mapping[str, Any], *, seed: int = 0, **more: Any) -> Any:
    """A random model of the given class of `transformers`, in eval mode. more: arguments of `tiny_config`."""
    return drawn(kind(tiny_config(published, **more)), seed=seed)


def drawn(model: PreTrainedModel, *, seed: int = 0) -> Any:
    """Draws the weights of the model at random, and returns it in eval mode."""
    random_scorer(model, seed)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():  # RMSNorms are drawn around 1
        if name.endswith("norm.weight"):
            parameter.detach().normal_(1.0, 0.1, generator=generator)
    return model


def save_decoder(folder: Path, model: Any, *, end: bool = False, **more: Any) -> Path:
    """Writes the folder of a model and its tokenizer. more: arguments of `save_pretrained`."""
    model.save_pretrained(folder, **more)
    gemma = model.config.model_type == "gemma"
    (gemma_tokenizer() if gemma else qwen_tokenizer(end=end)).save(str(folder / "tokenizer.json"))
    kind = "GemmaTokenizer" if gemma else "Qwen2Tokenizer"
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": kind, "model_max_length": 131_072})
    return folder


def modalities(form: str) -> dict[str, Any]:
    """How sentence-transformers puts texts into messages, whose contents are "flat" texts or "structured"."""
    method = {"method": "forward", "method_output_name": "logits"}
    return {"modality_config": {"text": method, "message": method | {"format": form}}}


def read_as_messages(folder: Path, *tokens: int | None, **processing: Any) -> None:
    """Makes a folder, still without a chat template, one that sentence-transformers loads as a `CrossEncoder`.

    tokens: those whose logits make the score.  processing: variables of the template.
    """
    write_modules(folder, dict(zip(("", "1_LogitScore"), KINDS, strict=True)))
    (folder / "1_LogitScore").mkdir()
    relevant, other, *_ = *tokens, None
    write_json(folder / "1_LogitScore" / "config.json", {"true_token_id": relevant, "false_token_id": other})
    settings = {"transformer_task": "text-generation", "module_output_name": "causal_logits"}
    settings |= {"processing_kwargs": {"chat_template": processing}}
    write_json(folder / "sentence_bert_config.json", settings | modalities("flat"))
    write_json(folder / "config_sentence_transformers.json", {"model_type": "CrossEncoder"})


def last_logits(model: Any, ids: Sequence[int]) -> Tensor:
    """The output at the last token of a text, (vocab_size,) or (num_labels,)."""
    with torch.inference_mode():
        logits: Tensor = model(torch.tensor([[*ids]])).logits
    return logits[0, -1] if logits.dim() == 3 else logits[0]


# Our side, with the tiny word pieces that all architectures share


def tiny_decoder_config() -> DecoderConfig:
    """A config of two layers, with four query heads over two key heads."""
    return DecoderConfig(
        vocab_size=vocab_size(),
        hidden_size=32,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_size=16,
        intermediate_size=64,
        max_positions=512,
        head_norms=True,
    )


def tiny_decoder_reranker(**more: Any) -> DecoderReranker:
    """A random re-ranker with a made-up prompt, in eval mode, not yet prepared. more: fields of its config."""
    prompt = Prompt(
        head=(10, 11),
        between=(12,),
        tail=(13, 14, 15),
        query=Wording("who is {text} of", "is {instruction} what {text} of"),
        candidate=Wording(" {text}"),
    )
    limits = {"max_tokens": 128, "max_query_tokens": 80}
    config = DecoderRerankerConfig(encoder=tiny_decoder_config(), prompt=prompt, **limits | more)
    return random_scorer(DecoderReranker(config), 0)


def tiny_candidate_first_reranker() -> CandidateFirstReranker:
    """The same with the candidate before the query, and a word behind each."""
    config = tiny_decoder_reranker().config
    query = Wording("who is {text} of", "is {text} what {instruction} of")
    prompt = replace(config.prompt, query=query, candidate=Wording(" {text} a"), closing=(16,))
    ours = CandidateFirstRerankerConfig(**vars(config) | {"prompt": prompt})
    return random_scorer(CandidateFirstReranker(ours), 0)


def tiny_decoder_bi_encoder() -> BiEncoder:
    """A random bi-encoder that pools the last token, in eval mode, not yet prepared."""
    config = BiEncoderConfig(
        encoder=tiny_decoder_config(),
        cls_id=None,
        sep_id=16,
        pooling="last",
        max_tokens=512,
        query_wording=Wording("who is {text}"),
    )
    return random_scorer(BiEncoder(config), 0)
