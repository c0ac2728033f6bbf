"""JinaBERT the slow way: its formulas on padded batches and full matrices, and folders under its authors' names, which
`transformers` does not know.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from support.bert_likes import byte_pair_tokenizer, word_piece_tokenizer
from support.models import write_json
from support.tokenizer import vocab_size
from torch import Tensor
from torch.nn.functional import gelu, layer_norm, linear, relu

HIDDEN, HEADS, INTERMEDIATE, LAYERS, POSITIONS = 48, 3, 64, 2, 256  # a number of heads that is no power of two
EPS = 1e-12
GATES = {"geglu": gelu, "reglu": relu}
Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Kind:
    """What decides the computation. for_code: whether it is the variant that norms queries and keys."""

    tokenizer: Any = word_piece_tokenizer
    for_code: bool = False
    feed_forward: str = "geglu"


KINDS = {
    "jina-reranker-v1-tiny-en": Kind(byte_pair_tokenizer),
    "jina-embeddings-v2-base-en": Kind(),
    "jina-embeddings-v2-base-code": Kind(byte_pair_tokenizer, for_code=True),
    "ReGLU": Kind(feed_forward="reglu"),
    "ReGLU for code": Kind(for_code=True, feed_forward="reglu"),
}


def settings(kind: Kind) -> dict[str, Any]:
    """Those of config.json, as in the published models but for their size."""
    repository = "jina-bert-v2-qk-post-norm" if kind.for_code else "jina-bert-implementation"
    return {
        "architectures": ["JinaBertForMaskedLM"],
        "auto_map": {"AutoConfig": f"jinaai/{repository}--configuration_bert.JinaBertConfig"},
        "emb_pooler": "mean",
        "feed_forward_type": kind.feed_forward,
        "hidden_act": "gelu",
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "layer_norm_eps": EPS,
        "max_position_embeddings": POSITIONS,
        "model_type": "bert",
        "num_attention_heads": HEADS,
        "num_hidden_layers": LAYERS,
        "position_embedding_type": "alibi",
        "type_vocab_size": 2,
    }


def random_weights(kind: Kind, seed: int = 0) -> Weights:
    """The encoder's tensors, a pooler's and a classifier's, without a prefix."""
    chance = torch.Generator().manual_seed(seed)
    weights: Weights = {}

    def dense(name: str, outputs: int, inputs: int, *, bias: bool = True) -> None:
        weights[f"{name}.weight"] = torch.randn(outputs, inputs, generator=chance) * 1.5 * inputs**-0.5
        if bias:
            weights[f"{name}.bias"] = torch.randn(outputs, generator=chance) * 0.1

    def norm(name: str) -> None:
        weights[f"{name}.weight"] = 1 + torch.randn(HIDDEN, generator=chance) * 0.1
        weights[f"{name}.bias"] = torch.randn(HIDDEN, generator=chance) * 0.1

    words = max(vocab_size(), kind.tokenizer().get_vocab_size())
    for name, count in (("word", words), ("token_type", 2)):
        weights[f"embeddings.{name}_embeddings.weight"] = torch.randn(count, HIDDEN, generator=chance)
    norm("embeddings.LayerNorm")
    for layer in (f"encoder.layer.{index}" for index in range(LAYERS)):
        for name in ("self.query", "self.key", "self.value", "output.dense"):
            dense(f"{layer}.attention.{name}", HIDDEN, HIDDEN)
        up, down = ("up_gated_layer", "down_layer") if kind.for_code else ("gated_layers", "wo")
        dense(f"{layer}.mlp.{up}", 2 * INTERMEDIATE, HIDDEN, bias=False)
        dense(f"{layer}.mlp.{down}", HIDDEN, INTERMEDIATE)
        for name in ("attention.self.layer_norm_q", "attention.self.layer_norm_k") if kind.for_code else ():
            norm(f"{layer}.{name}")
        norm(f"{layer}.attention.output.LayerNorm")
        for name in ("layer_norm_1", "layer_norm_2") if kind.for_code else ("mlp.layernorm",):
            norm(f"{layer}.{name}")
    dense("pooler.dense", HIDDEN, HIDDEN)
    dense("classifier", 1, HIDDEN)
    return weights


def slopes(heads: int) -> list[float]:
    """As Press et al. 2022 say it: a geometric sequence whose start is its ratio, and so that the last is 1 / 256."""
    if math.log2(heads).is_integer():
        start = 256 ** (-1 / heads)
        return [start ** (1 + index) for index in range(heads)]
    lower = 2 ** int(math.log2(heads))
    return slopes(lower) + slopes(2 * lower)[::2][: heads - lower]


def states(kind: Kind, weights: Weights, ids: Tensor, types: Tensor, seen: Tensor) -> Tensor:
    """(n, len, hidden_size) of the last layer. ids, types: (n, len).  seen: (n, len or 1, len) bool, which row attends
    to which.
    """

    def dense(x: Tensor, name: str) -> Tensor:
        return linear(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"))

    def norm(x: Tensor, name: str) -> Tensor:
        return layer_norm(x, (HIDDEN,), weights[f"{name}.weight"], weights[f"{name}.bias"], EPS)

    place = torch.arange(ids.shape[1])
    away = (place[:, None] - place[None, :]).abs()
    bias = torch.stack([-slope * away for slope in slopes(HEADS)])  # (heads, len, len)
    words = (
        weights["embeddings.word_embeddings.weight"][ids] + weights["embeddings.token_type_embeddings.weight"][types]
    )
    hidden = norm(words, "embeddings.LayerNorm")
    for layer in (f"encoder.layer.{index}" for index in range(LAYERS)):
        query, key, value = (dense(hidden, f"{layer}.attention.self.{name}") for name in ("query", "key", "value"))
        if kind.for_code:
            query = norm(query, f"{layer}.attention.self.layer_norm_q")
            key = norm(key, f"{layer}.attention.self.layer_norm_k")
        query, key, value = (each.unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in (query, key, value))
        scores = query @ key.transpose(2, 3) / math.sqrt(HIDDEN // HEADS) + bias
        shares = scores.masked_fill(~seen[:, None], -torch.inf).softmax(-1)
        update = dense((shares @ value).transpose(1, 2).flatten(2), f"{layer}.attention.output.dense")
        after = norm(hidden + update, f"{layer}.attention.output.LayerNorm")
        if kind.for_code:
            after = norm(hidden + after, f"{layer}.layer_norm_1")
            gated, gate = dense(after, f"{layer}.mlp.up_gated_layer").split(INTERMEDIATE, -1)
            inner = dense(gated * GATES[kind.feed_forward](gate), f"{layer}.mlp.down_layer")
            hidden = norm(after + inner, f"{layer}.layer_norm_2")
        else:
            gate, gated = dense(after, f"{layer}.mlp.gated_layers").split(INTERMEDIATE, -1)
            inner = dense(GATES[kind.feed_forward](gate) * gated, f"{layer}.mlp.wo")
            hidden = norm(after + inner, f"{layer}.mlp.layernorm")
    return hidden


def padded(texts: Sequence[Sequence[int]], padding: int) -> tuple[Tensor, Tensor]:
    """(n, len) the texts filled up to the longest, and (n, len) bool, what is not padding."""
    longest = max(map(len, texts))
    filled = torch.tensor([[*text, *[padding] * (longest - len(text))] for text in texts])
    return filled, torch.arange(longest) < torch.tensor([[len(text)] for text in texts])


def scores(kind: Kind, weights: Weights, pairs: list[list[int]], types: list[list[int]]) -> list[float]:
    """Those of sequences of query and candidate, padded together."""
    (ids, real), (of_types, _) = padded(pairs, 1), padded(types, 0)
    return of_first(weights, states(kind, weights, ids, of_types, real[:, None]))


def of_first(weights: Weights, rows: Tensor) -> list[float]:
    """The scores of the first rows. rows: (n, len, hidden_size)."""
    pooled = torch.tanh(linear(rows[:, 0], weights["pooler.dense.weight"], weights["pooler.dense.bias"]))
    return linear(pooled, weights["classifier.weight"], weights["classifier.bias"])[:, 0].tolist()  # type: ignore[no-any-return]


def save(folder: Path, kind: Kind, weights: Weights, *, prefix: str = "bert.") -> Path:
    """A folder of these tensors. prefix: before the names of all but the head's and a ColBERT's own."""
    folder.mkdir(parents=True, exist_ok=True)
    named = {name if name.startswith(("classifier", "linear")) else prefix + name: w for name, w in weights.items()}
    save_file(named, folder / "model.safetensors")
    write_json(folder / "config.json", settings(kind))
    kind.tokenizer().save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", {"model_max_length": 8192})
    return folder
