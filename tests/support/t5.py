"""Tiny T5s of `transformers` and their folders, with a tokenizer like T5's."""

from functools import cache
from pathlib import Path
from typing import Any

from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer
from support.decoders import drawn
from support.models import INTERMEDIATE_SIZE, random_scorer, randomise
from support.tokenizer import vocab_size
from torch import nn
from transformers import MT5Config, MT5EncoderModel, PreTrainedModel, T5Config, T5EncoderModel, T5Tokenizer

from bandrank.models.architectures import Seq2SeqReranker
from bandrank.models.architectures.decoder_reranker import Prompt
from bandrank.models.architectures.seq2seq_reranker import Seq2SeqRerankerConfig
from bandrank.models.encoders.t5 import T5Config as OurT5Config
from bandrank.models.layers.feed_forward import Activation

KINDS = {"t5": (T5EncoderModel, T5Config), "mt5": (MT5EncoderModel, MT5Config)}
SIZES = {  # published: heads of 64, which in the smallest and the largest models do not add up to d_model
    "d_model": 48,
    "d_kv": 16,
    "d_ff": 64,
    "num_layers": 3,
    "num_heads": 2,
    "vocab_size": 128,
    "decoder_start_token_id": 0,
}
GATED = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}  # T5 1.1
WORDS = """
    bees find their way home by the sun honey is sweet Query Document Relevant true false yes no Pergunta Documento
    Relevante Sim Não sim não
"""


@cache
def t5_tokenizer() -> T5Tokenizer:
    """Unigrams of words and letters: "▁" stands for the space before a word, and </s> follows a text."""
    pieces = [*(f"▁{word}" for word in WORDS.split()), "▁", *"abcdefghijklmnopqrstuvwxyzDQR:.,?ñ"]
    vocab = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *((piece, -1.0 - len(piece) / 9) for piece in pieces)]
    return T5Tokenizer(vocab=vocab, extra_ids=0, model_max_length=512)


def tiny_t5(kind: Any, config: type[T5Config | MT5Config], **more: Any) -> Any:
    """A random model in eval mode, whose attention is neither even nor on single tokens. more: fields of its config."""
    model: PreTrainedModel = drawn(kind(config(**SIZES | more)))
    for name, parameter in model.named_parameters():
        if name.endswith("Attention.q.weight"):
            parameter.detach().mul_(0.3)
    return model


def save_t5(folder: Path, model: PreTrainedModel) -> Path:
    """Writes the folder of a model and its tokenizer."""
    model.save_pretrained(folder)
    t5_tokenizer().save_pretrained(folder)
    return folder


def save_t5_bi_encoder(folder: Path, model_type: str = "t5", *, max_seq_length: int = 512, **more: Any) -> Path:
    """The folder of a random bi-encoder as published ones are, written by the library. more: fields of its config."""
    start, size = save_t5(folder / "start", tiny_t5(*KINDS[model_type], **more)), SIZES["d_model"]
    dense = Dense(in_features=size, out_features=40, bias=False, activation_function=nn.Identity())
    randomise(dense, seed=0)
    modules = [Transformer(str(start), max_seq_length=max_seq_length), Pooling(size, pooling_mode="mean"), dense]
    model = SentenceTransformer(modules=[*modules, Normalize()], device="cpu")
    model.save(str(folder / "saved"))
    return folder / "saved"


def tiny_t5_config(*, activation: Activation = "relu", answer_layers: int = 0) -> OurT5Config:
    """Our config of a tiny encoder for the tiny word pieces, whose heads together are wider than its states."""
    return OurT5Config(
        vocab_size=vocab_size(),
        hidden_size=32,
        num_layers=2,
        num_heads=2,
        head_size=32,
        intermediate_size=INTERMEDIATE_SIZE,
        max_positions=512,
        activation=activation,
        num_answer_layers=answer_layers,
    )


def tiny_t5_reranker(**more: Any) -> Seq2SeqReranker:
    """A random re-ranker with a made-up prompt, in eval mode, not yet prepared. more: fields of its config."""
    prompt, limits = Prompt(head=(10, 11), between=(12,), tail=(13, 14)), {"max_tokens": 64, "max_query_tokens": 26}
    config = Seq2SeqRerankerConfig(tiny_t5_config(answer_layers=2), prompt, **limits | more)
    return random_scorer(Seq2SeqReranker(config), 0)
