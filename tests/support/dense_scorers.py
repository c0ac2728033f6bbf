"""Parts of the slow, obvious scorers of the golden tests: `transformers`' BERT for whole layers, and a loop over heads
for attention that BERT lacks. Of the code under test the dense functions use the weights alone.
"""

import math
import random
from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
import torch
from support.models import as_served, random_ids, score_batch
from support.tokenizer import CLS_ID, PAD_ID
from torch import Tensor, nn
from torch.nn.functional import gelu, layer_norm
from transformers import BertConfig, BertModel

from bandrank.models.scorer import Scorer

Weights = dict[str, Tensor]

OUT_OF_LAYER = {
    "attention_out": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "up": "intermediate.dense",
    "down": "output.dense",
    "out_norm": "output.LayerNorm",
}


def pair_scores(
    score: Callable[[list[int], list[int]], float], queries: list[list[int]], candidates: list[list[list[int]]]
) -> list[float]:
    """`score` of each query with each of its candidates, in the order of a batch."""
    with torch.inference_mode():
        return [score(query, ids) for query, group in zip(queries, candidates, strict=True) for ids in group]


def batch_scores(
    scorer: Scorer, queries: list[list[int]], candidates: list[list[list[int]]], *, prepared: bool
) -> list[float]:
    """The scores of one batch by the scorer under test, prepared as for serving on a CPU, or as it was trained."""
    with torch.inference_mode():
        return (as_served(scorer) if prepared else scorer)(score_batch(queries, candidates)).tolist()  # type: ignore[no-any-return]


def assert_scores_are(
    score: Callable[[list[int], list[int]], float],
    scorer: Scorer,
    query_pieces: list[int],
    candidate_pieces: list[list[int]],
    *,
    prepared: bool,
    close: float,
) -> None:
    """Asserts that one batch has the scores of its pairs, which differ; texts have these numbers of random pieces."""
    rng, prefix = random.Random(0), scorer.candidate_template.prefix
    queries = [[CLS_ID, *random_ids(rng, num_pieces)] for num_pieces in query_pieces]
    candidates = [[[*prefix, *random_ids(rng, num_pieces)] for num_pieces in group] for group in candidate_pieces]
    expected = pair_scores(score, queries, candidates)

    assert batch_scores(scorer, queries, candidates, prepared=prepared) == pytest.approx(expected, abs=close)
    assert max(expected) - min(expected) > 100 * close


def weights_of(module: nn.Module, prefix: str = "") -> Weights:
    """The weights whose names start with `prefix`, by the rest of their names."""
    state = module.state_dict()
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}


def bert_of(encoder: Weights, *, num_heads: int) -> BertModel:
    """A BERT of `transformers` with these weights of an encoder, in eval mode."""
    num_layers = 1 + max(int(name.split(".")[1]) for name in encoder if name.startswith("layers."))
    vocab_size, hidden_size = encoder["embeddings.word.weight"].shape
    config = BertConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        num_hidden_layers=num_layers,
        num_attention_heads=num_heads,
        intermediate_size=len(encoder["layers.0.up.weight"]),
        max_position_embeddings=len(encoder["embeddings.position.weight"]),
        pad_token_id=PAD_ID,
    )
    theirs = {
        f"embeddings.{name}_embeddings.weight": encoder[f"embeddings.{name}.weight"]
        for name in ("word", "position", "token_type")
    }
    for part in ("weight", "bias"):
        theirs[f"embeddings.LayerNorm.{part}"] = encoder[f"embeddings.norm.{part}"]
        for layer in range(num_layers):
            qkv = encoder[f"layers.{layer}.qkv.{part}"].chunk(3)
            for name, tensor in zip(("query", "key", "value"), qkv, strict=True):
                theirs[f"encoder.layer.{layer}.attention.self.{name}.{part}"] = tensor
            for ours, their_name in OUT_OF_LAYER.items():
                theirs[f"encoder.layer.{layer}.{their_name}.{part}"] = encoder[f"layers.{layer}.{ours}.{part}"]
    bert = BertModel(config, add_pooling_layer=False)
    bert.load_state_dict(theirs)
    return bert.eval()  # type: ignore[no-any-return, no-untyped-call]  # transformers leaves it bare


def states_of(bert: BertModel, ids: Sequence[int], *, token_type: int = 0) -> list[Tensor]:
    """The inputs of each layer, then the output of the last, (len, hidden_size) each."""
    out = bert(
        input_ids=torch.tensor([ids]),
        token_type_ids=torch.full((1, len(ids)), token_type),
        output_hidden_states=True,
    )
    return [states[0] for states in out.hidden_states]


def linear(x: Tensor, weights: Weights, name: str) -> Tensor:
    """X W^T + b."""
    return x @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", torch.zeros(()))


def norm(x: Tensor, weights: Weights, name: str) -> Tensor:
    """BERT's LayerNorm."""
    return layer_norm(x, x.shape[-1:], weights[f"{name}.weight"], weights[f"{name}.bias"], eps=1e-12)


def feed_forward(x: Tensor, weights: Weights) -> Tensor:
    """LN(W2 GELU(W1 x) + x)."""
    return norm(linear(gelu(linear(x, weights, "up")), weights, "down") + x, weights, "out_norm")


def attention(query: Tensor, keys: Tensor, values: Tensor, num_heads: int) -> Tensor:
    """Multi-head attention of one row, head by head. query: (hidden_size,).  keys, values: (len, hidden_size)."""
    size = len(query) // num_heads
    heads = [slice(begin, end) for begin, end in pairwise(range(0, len(query) + 1, size))]
    return torch.cat([
        torch.softmax(keys[:, own] @ query[own] / math.sqrt(size), 0) @ values[:, own] for own in heads
    ])  # fmt: skip


def similarity_of(ours: Tensor, theirs: Tensor, kind: str) -> float:
    """The similarity of two vectors; "scaled_dot" is the dot product over the square root of their size."""
    dot = float(ours @ theirs)
    return dot / {"cosine": float(ours.norm() * theirs.norm()), "dot": 1.0, "scaled_dot": math.sqrt(len(ours))}[kind]
