"""Tiny random RoBERTas, XLM-RoBERTas with learnt and with rotary positions, ELECTRAs, MPNets, DistilBERTs, NomicBERTs,
GTEs and JinaBERTs: Hugging Face folders with the settings of published models.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from support.jina_bert import JinaBert
from support.models import HIDDEN_SIZE, INTERMEDIATE_SIZE, NUM_HEADS, random_scorer, write_json
from support.tokenizer import CLS_ID, SEP_ID, TOKENIZER_FILE, WORDS, vocab_size
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    AutoModelForSequenceClassification,
    BertConfig,
    DistilBertConfig,
    ElectraConfig,
    GteConfig,
    JinaEmbeddingsV3Config,
    MPNetConfig,
    NomicBertConfig,
    PreTrainedModel,
    RobertaConfig,
    XLMRobertaConfig,
)

from bandrank.models.scorer import Scorer

ROBERTA_TOKENS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")


def byte_pair_tokenizer() -> Tokenizer:
    """A byte-level BPE tokenizer like RoBERTa's, with some merges."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("m", "a"), ("ma", "n"), ("Ġ", "man")]
    entries = [*ROBERTA_TOKENS, *alphabet, *("".join(pair) for pair in merges)]
    tokenizer = Tokenizer(models.BPE({entry: index for index, entry in enumerate(entries)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    tokenizer.add_special_tokens(list(ROBERTA_TOKENS))
    return tokenizer


def unigram_tokenizer() -> Tokenizer:
    """A Unigram tokenizer like XLM-RoBERTa's, with the same treatment of unknown characters."""
    pieces = ["▁", *(f"▁{word}" for word in WORDS), *map(chr, range(33, 127))]
    entries = [(token, 0.0) for token in ROBERTA_TOKENS]
    entries += [(piece, -4.0 - index / 100) for index, piece in enumerate(dict.fromkeys(pieces))]
    tokenizer = Tokenizer(models.Unigram(entries, unk_id=ROBERTA_TOKENS.index("<unk>")))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    tokenizer.add_special_tokens(list(ROBERTA_TOKENS))
    return tokenizer


def word_piece_tokenizer() -> Tokenizer:
    """The tiny tokenizer of the other tests, which is like ELECTRA's."""
    return Tokenizer.from_file(str(TOKENIZER_FILE))


def mpnet_tokenizer() -> Tokenizer:
    """The tiny word-piece tokenizer with RoBERTa's special tokens, like MPNet's."""
    saved = TOKENIZER_FILE.read_text(encoding="utf-8")
    for ours, theirs in (("[CLS]", "<s>"), ("[SEP]", "</s>"), ("[PAD]", "<pad>"), ("[MASK]", "<mask>")):
        saved = saved.replace(ours, theirs)
    tokenizer = Tokenizer.from_str(saved)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B:1 </s>:1",
        special_tokens=[("<s>", CLS_ID), ("</s>", SEP_ID)],
    )
    return tokenizer


@dataclass(frozen=True)
class Known:
    """What determines the computation of a published model, apart from its size.

    settings: fields of config.json.  positions: the number of positions that tokens may have.
    """

    config: type[Any]
    tokenizer: Any
    settings: dict[str, Any]
    positions: int = 512


def rope(base: float, **more: Any) -> dict[str, Any]:
    """Settings of rotary positions as transformers writes them. more: fields for scaled positions."""
    return {"rope_type": "default", "rope_theta": base} | more


XLM = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
XLM_514, TYPED = XLM | {"max_position_embeddings": 514}, {"max_position_embeddings": 512, "type_vocab_size": 2}
WIDTHS = {"dim": HIDDEN_SIZE, "hidden_dim": INTERMEDIATE_SIZE, "n_heads": NUM_HEADS, "n_layers": 2}
# Rotary positions of published models, whose tables are longer than here, to save time.
MANY = {"max_position_embeddings": 2048}
KNOWN: dict[str, Known] = {
    # BAAI/bge-reranker-large has the same settings, with 24 layers of 1024 instead of 12 of 768.
    "BAAI/bge-reranker-base": Known(XLMRobertaConfig, unigram_tokenizer, XLM_514),
    "BAAI/bge-reranker-v2-m3": Known(
        XLMRobertaConfig, unigram_tokenizer, XLM | {"max_position_embeddings": 8194}, positions=8192
    ),
    "cross-encoder/stsb-roberta-base": Known(RobertaConfig, byte_pair_tokenizer, XLM_514),
    "cross-encoder/ms-marco-electra-base": Known(
        ElectraConfig, word_piece_tokenizer, TYPED | {"embedding_size": HIDDEN_SIZE}
    ),
    # The settings of google/electra-small-discriminator, from which re-rankers are trained.
    "ELECTRA with narrow embeddings": Known(
        ElectraConfig, word_piece_tokenizer, TYPED | {"embedding_size": HIDDEN_SIZE // 2}
    ),
    # The settings of klue/roberta-base and of re-rankers that are trained from it.
    "RoBERTa with BERT's tokens": Known(RobertaConfig, word_piece_tokenizer, XLM_514),
    # The settings of microsoft/Multilingual-MiniLM-L12-H384 and of intfloat/multilingual-e5-small.
    "BERT with XLM-RoBERTa's tokens": Known(BertConfig, unigram_tokenizer, TYPED),
    # The settings of sentence-transformers/all-mpnet-base-v2 (12 layers of 768, 12 heads), with a classifier added.
    "MPNet": Known(
        MPNetConfig,
        mpnet_tokenizer,
        {"max_position_embeddings": 514, "layer_norm_eps": 1e-5, "relative_attention_num_buckets": 32},
    ),
    # The settings of distilbert-base-uncased (6 layers of 768), from which re-rankers and bi-encoders are trained.
    "DistilBERT": Known(DistilBertConfig, word_piece_tokenizer, {"max_position_embeddings": 512} | WIDTHS),
    # The settings of nomic-ai/nomic-embed-text-v1.5 (12 layers of 768, 12 heads), with a classifier added.
    "NomicBERT": Known(
        NomicBertConfig, word_piece_tokenizer, MANY | {"type_vocab_size": 2, "rope_parameters": rope(1000.0)}, 2048
    ),
    # 24 layers of 1024, 16 heads; here with a classifier added.
    "jinaai/jina-embeddings-v3": Known(
        JinaEmbeddingsV3Config, unigram_tokenizer, XLM | MANY | {"rope_parameters": rope(20_000.0)}, 2048
    ),
    # 12 layers of 768, 12 heads.
    "Alibaba-NLP/gte-multilingual-reranker-base": Known(
        GteConfig,
        unigram_tokenizer,
        MANY
        | {"type_vocab_size": 1, "pad_token_id": 1}
        | {"rope_parameters": rope(160_000.0, rope_type="linear", factor=8.0 ** (2 * NUM_HEADS / HIDDEN_SIZE))},
        2048,
    ),
    # The settings of Alibaba-NLP/gte-base-en-v1.5, from which re-rankers are trained.
    "GTE without token types": Known(
        GteConfig,
        word_piece_tokenizer,
        MANY | {"type_vocab_size": 0, "pad_token_id": 0, "rope_parameters": rope(500_000.0)},
        2048,
    ),
}


def jina(feed_forward: str = "geglu", *, code: bool = False) -> dict[str, Any]:
    """Settings of a JinaBERT, with fewer positions than published models, to save time."""
    repository = "jina-bert-v2-qk-post-norm" if code else "jina-bert-implementation"
    return {
        "auto_map": {"AutoConfig": f"jinaai/{repository}--configuration_bert.JinaBertConfig"},
        "position_embedding_type": "alibi",
        "feed_forward_type": feed_forward,
        "max_position_embeddings": 512,
        "code": code,
    }


ALL: dict[str, Known] = KNOWN | {  # and models that `transformers` lacks
    "jinaai/jina-reranker-v1-tiny-en": Known(BertConfig, byte_pair_tokenizer, jina()),
    # Here with BERT's tokenizer and token types.
    "jinaai/jina-embeddings-v2-base-code": Known(BertConfig, word_piece_tokenizer, jina(code=True)),
    "JinaBERT with ReGLU": Known(BertConfig, word_piece_tokenizer, jina("reglu")),
}


def config_of(name: str, **more: Any) -> Any:
    """The config of a tiny model with a known one's settings. more: further fields."""
    known = ALL[name]
    shape = {
        "vocab_size": max(vocab_size(), known.tokenizer().get_vocab_size()),
        "hidden_size": HIDDEN_SIZE,
        "num_hidden_layers": 2,
        "num_attention_heads": NUM_HEADS,
        "intermediate_size": INTERMEDIATE_SIZE,
        "num_labels": 1,
    }
    return known.config(**shape | known.settings | more)


def tiny(name: str, *, seed: int = 0, **more: Any) -> PreTrainedModel:
    """A random cross-encoder with a known model's settings, in eval mode. more: further fields of its config."""
    config = config_of(name, **more)
    build: Any = JinaBert if "auto_map" in ALL[name].settings else AutoModelForSequenceClassification.from_config
    return random_scorer(build(config), seed)  # type: ignore[no-any-return]


def save(folder: Path, name: str, model: PreTrainedModel | None = None) -> Path:
    """Writes a re-ranker's folder with a known model's settings."""
    (model or tiny(name)).save_pretrained(folder)
    ALL[name].tokenizer().save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", {"model_max_length": ALL[name].positions})
    return folder


def save_fast_tokenizer(folder: Path, tokenizer: Tokenizer) -> None:
    """Writes a tokenizer, with the names of its special tokens, as transformers' class for any fast one reads it."""
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    names = ("<s>", "<pad>", "</s>") if tokenizer.token_to_id("<s>") is not None else ("[CLS]", "[PAD]", "[SEP]")
    special = dict(zip(("cls_token", "pad_token", "sep_token"), names, strict=True))
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **special})


def assert_the_same(scorer: Scorer, other: Scorer) -> None:
    """Asserts that two scorers have equal settings and weights."""
    assert scorer.config == other.config
    weights, others = scorer.state_dict(), other.state_dict()
    assert weights.keys() == others.keys()
    assert all(torch.equal(weights[name], others[name]) for name in weights)
