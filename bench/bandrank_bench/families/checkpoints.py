"""Checkpoints in the formats and sizes of published re-rankers, with random weights that are always the same.

Only the word embeddings are smaller, as the tokenizer has just a few thousand pieces. A table's size costs memory, but
no time in scoring.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor
from transformers import (
    ModernBertConfig,
    ModernBertForSequenceClassification,
    PretrainedConfig,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
    XLMRobertaConfig,
    XLMRobertaForSequenceClassification,
)

from bandrank_bench.families import tokenizers
from bandrank_bench.families.prompt import chat_template

SEED = 20261123


@dataclass(frozen=True)
class Published:
    """The format and the size of a published model.

    settings: its shape in config.json.  special: its special tokens by role, as in tokenizer_config.json.
    most_tokens: of a pair.  rounds: clean samples of each workload, few enough for a run of under half an hour.
    head_std: of the last weights; it spreads scores over about 1, so that wrong ones are far from right ones.
    """

    name: str
    id: str
    config: Callable[..., PretrainedConfig]
    model: type[PreTrainedModel]
    tokenizer: Callable[[], Tokenizer]
    settings: dict[str, Any]
    special: dict[str, str]
    most_tokens: int
    rounds: Mapping[str, int]
    head_std: float

    @property
    def prompted(self) -> bool:
        """Whether pairs are put into a prompt that the model answers."""
        return self.model is Qwen3ForCausalLM

    @property
    def size(self) -> str:
        """The number of layers and their width, in words."""
        layers, hidden, heads = (
            self.settings[key] for key in ("num_hidden_layers", "hidden_size", "num_attention_heads")
        )
        return f"{layers} layers of {hidden}, {heads} heads, feed-forward {self.settings['intermediate_size']}"


FAMILIES = {
    family.name: family
    for family in (
        Published(
            "XLM-R-base",
            "BAAI/bge-reranker-base",
            XLMRobertaConfig,
            XLMRobertaForSequenceClassification,
            tokenizers.unigram,
            {
                "num_hidden_layers": 12,
                "hidden_size": 768,
                "num_attention_heads": 12,
                "intermediate_size": 3072,
                "max_position_embeddings": 514,
                "type_vocab_size": 1,
                "layer_norm_eps": 1e-5,
            },
            {
                "bos": "<s>",
                "cls": "<s>",
                "eos": "</s>",
                "sep": "</s>",
                "pad": "<pad>",
                "unk": "<unk>",
                "mask": "<mask>",
            },
            512,
            {"W1": 3, "W2": 2},
            1.0,
        ),
        Published(
            "ModernBERT-base",
            "Alibaba-NLP/gte-reranker-modernbert-base",
            ModernBertConfig,
            ModernBertForSequenceClassification,
            tokenizers.byte_pairs,
            {
                "num_hidden_layers": 22,
                "hidden_size": 768,
                "num_attention_heads": 12,
                "intermediate_size": 1152,
                "max_position_embeddings": 8192,
                "local_attention": 128,
                "global_attn_every_n_layers": 3,
                "global_rope_theta": 160_000.0,
                "local_rope_theta": 10_000.0,
                "classifier_pooling": "mean",
            },
            {
                "bos": "[CLS]",
                "cls": "[CLS]",
                "eos": "[SEP]",
                "sep": "[SEP]",
                "pad": "[PAD]",
                "unk": "[UNK]",
                "mask": "[MASK]",
            },
            8192,
            {"W1": 3, "W2": 2},
            0.1,
        ),
        Published(
            "Qwen3-0.6B",
            "Qwen/Qwen3-Reranker-0.6B",
            Qwen3Config,
            Qwen3ForCausalLM,
            tokenizers.chat_byte_pairs,
            {
                "num_hidden_layers": 28,
                "hidden_size": 1024,
                "num_attention_heads": 16,
                "num_key_value_heads": 8,
                "head_dim": 128,
                "intermediate_size": 3072,
                "max_position_embeddings": 40_960,
                "rope_theta": 1_000_000,
                "tie_word_embeddings": True,
            },
            {"eos": "<|im_end|>", "pad": "<|endoftext|>"},
            8192,
            {"W1": 2, "W2": 1},
            0.1,
        ),
    )
}


def write_checkpoint(published: Published, folder: Path) -> Path:
    """Writes the model and its tokenizer, identical on every call, and returns their folder."""
    tokenizer = published.tokenizer()
    tokens = {f"{role}_token": token for role, token in published.special.items()}
    ids = {
        f"{name}_id": tokenizer.token_to_id(token)
        for name, token in tokens.items()
        if name[:3] in {"bos", "cls", "eos", "sep", "pad"}
    }
    if published.prompted:
        head: dict[str, Any] = {}
        tokens["chat_template"] = chat_template()
    else:
        head = {"num_labels": 1}
    torch.manual_seed(SEED)
    model = published.model(
        published.config(vocab_size=tokenizer.get_vocab_size(), **published.settings, **ids, **head)
    )
    for weight in _scoring_weights(model, tokenizer):
        weight.detach().normal_(std=published.head_std)
    model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": published.most_tokens, **tokens}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    return folder


def _scoring_weights(model: PreTrainedModel, tokenizer: Tokenizer) -> list[Tensor]:
    """The last weights before a score; for a prompted model, the rows of the two answers."""
    if isinstance(model, Qwen3ForCausalLM):
        return [model.lm_head.weight.detach()[tokenizer.token_to_id(answer)] for answer in ("yes", "no")]
    classifier: Any = model.classifier
    return [getattr(classifier, "out_proj", classifier).weight]
