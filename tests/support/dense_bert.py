"""Scores of cross-encoders the slow way: by `transformers`' BERT, one sequence at a time, under a dense mask."""

from collections.abc import Sequence

import torch
from support.tokenizer import CLS_ID
from torch import Tensor
from transformers import BertForSequenceClassification, PreTrainedModel

from bandrank_kernels.windowed_attention import AttentionPattern


def full_score(model: PreTrainedModel, query: Sequence[int], candidate: Sequence[int]) -> float:
    """The score of [CLS] query candidate by the model's own forward pass; both texts end in [SEP]."""
    ids, types = _inputs(query, candidate)
    with torch.inference_mode():
        return float(model(input_ids=ids, token_type_ids=types).logits)


def dense_score(
    model: BertForSequenceClassification,
    query: Sequence[int],
    candidate: Sequence[int],
    pattern: AttentionPattern,
    *,
    sentence_token: int | None = None,
    token_types: bool = True,
) -> float:
    """The score under `pattern`, with a mask of all pairs of tokens.

    sentence_token: candidate tokens with this id belong to the query's group (QDS-Transformer), and distances in the
    candidate leave them out.  token_types: whether candidate tokens have type 1.
    """
    ids, types = _inputs(query, candidate)
    mask = torch.zeros(ids.shape[1], ids.shape[1]).masked_fill(
        ~allowed(query, candidate, pattern, sentence_token), torch.finfo(torch.float32).min
    )
    with torch.inference_mode():
        pooled = model.bert(
            input_ids=ids, token_type_ids=types * token_types, attention_mask=mask[None, None]
        ).pooler_output
        return float(model.classifier(pooled))


def allowed(
    query: Sequence[int], candidate: Sequence[int], pattern: AttentionPattern, sentence_token: int | None = None
) -> Tensor:
    """Whether token i of [CLS] query candidate may attend to token j, (length, length) bool."""
    names = ["cls", "query", "candidate"]
    group = torch.tensor([0, *[1] * len(query), *(1 if token == sentence_token else 2 for token in candidate)])
    members = torch.nn.functional.one_hot(group, 3)
    place = (members.cumsum(0) * members).sum(1)  # within its group
    near = (place[:, None] - place[None, :]).abs() <= (len(group) if pattern.window is None else pattern.window)
    switch = torch.tensor([[a == b or getattr(pattern, f"{a}_to_{b}") for b in names] for a in names])
    both_candidate = (group[:, None] == 2) & (group[None, :] == 2)
    return switch[group[:, None], group[None, :]] & (near | ~both_candidate)


def _inputs(query: Sequence[int], candidate: Sequence[int]) -> tuple[Tensor, Tensor]:
    ids = torch.tensor([[CLS_ID, *query, *candidate]])
    types = torch.tensor([[0] * (1 + len(query)) + [1] * len(candidate)])
    return ids, types
