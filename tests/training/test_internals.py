"""Losses on the inner layers of a teacher, against sums over pairs on dense tensors."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.models import random_ids, score_batch, tiny_bi_encoder, tiny_cross_encoder
from support.precomputing import tiny_deformer, tiny_virt
from torch import Tensor

from bandrank.models.architectures import CrossEncoder
from bandrank.models.batch import ScoreBatch
from bandrank.models.scorer import Scorer
from bandrank_training.errors import BadRecipe
from bandrank_training.internals import deformer_states, virt_maps


def a_batch(scorer: Scorer) -> ScoreBatch:
    """Returns two queries with three candidates in all."""
    rng = random.Random(3)

    def text(template: Any, pieces: int) -> list[int]:
        return template.apply(random_ids(rng, pieces))[0]  # type: ignore[no-any-return]

    of_candidates = scorer.candidate_template
    return score_batch(
        [text(scorer.query_template, n) for n in (4, 2)],
        [[text(of_candidates, n) for n in (6, 1)], [text(of_candidates, 9)]],
    )


def dense_states(scorer: Any, ids: list[int], types: list[int], layers: int) -> list[Tensor]:
    """Returns what enters each of the first `layers` layers and leaves the last, for a sequence and full attention."""
    encoder, ids_ = scorer.encoder, torch.tensor(ids)
    hidden = encoder.embeddings(ids_, torch.arange(len(ids)), torch.tensor(types))
    states = [hidden]
    for layer in list(encoder.layers)[:layers]:
        states.append(dense_layer(layer, states[-1]))
    return states


def dense_layer(layer: Any, hidden: Tensor) -> Tensor:
    """Returns the output of a layer for one sequence with full attention."""
    query, key, value = layer.qkv(hidden).view(len(hidden), 3, layer.num_heads, -1).permute(1, 2, 0, 3)
    weights = (query @ key.transpose(1, 2) / layer.head_dim**0.5).softmax(-1)
    attended = (weights @ value).transpose(0, 1).flatten(1)
    after = layer.attention_norm(layer.attention_out(attended) + hidden)
    return layer.out_norm(layer.down(layer.up(after, "gelu")) + after)  # type: ignore[no-any-return]


def crossing(of: Tensor, to: Tensor, heads: int) -> Tensor:
    """softmax(Q K^T) head by head. of, to: projections (rows, 3 * hidden)."""
    width = of.shape[1] // 3
    maps = []
    for head in range(heads):
        part = slice(head * width // heads, (head + 1) * width // heads)
        query, key = of[:, :width][:, part], to[:, width : 2 * width][:, part]
        maps.append((query @ key.T / (width // heads) ** 0.5).softmax(-1))
    return torch.stack(maps)


def test_virt_maps() -> None:
    """The loss compares the maps of attention between query and candidate in each layer, head and pair."""
    student, teacher = tiny_virt(num_layers=3), tiny_cross_encoder(num_layers=3)
    batch = a_batch(student)
    heads = student.config.encoder.num_heads
    projections = [*(layer.qkv for layer in student.encoder.layers), student.interaction]
    expected = []
    for pair, query in enumerate(batch.candidate_query.tolist()):
        x, y = batch.queries[query].tolist(), batch.candidates[pair].tolist()
        of_x, of_y = (dense_states(student, text, [0] * len(text), 2) for text in (x, y))
        both = [teacher.config.cls_id, *x[1:], *y[1:]]
        joint = dense_states(teacher, both, [0] * len(x) + [1] * (len(y) - 1), 2)
        for layer, project in enumerate(projections):
            ours_x, ours_y = project(of_x[layer])[1:], project(of_y[layer])[1:]
            whole = teacher.encoder.layers[layer].qkv(joint[layer])
            their_x, their_y = whole[1 : len(x)], whole[len(x) :]
            wrong = (crossing(ours_x, ours_y, heads) - crossing(their_x, their_y, heads)).square().mean()
            wrong += (crossing(ours_y, ours_x, heads) - crossing(their_y, their_x, heads)).square().mean()
            expected.append(wrong)

    found = virt_maps(student, teacher, batch)

    torch.testing.assert_close(found, torch.stack(expected).sum() / 9, rtol=1e-4, atol=1e-7)


def test_deformer_states() -> None:
    """The loss compares the hidden states above the split, and the pooled [CLS]."""
    student, teacher = tiny_deformer(num_layers=4, split=1), tiny_cross_encoder(num_layers=4)
    batch = a_batch(student)
    states: list[list[Tensor]] = [[] for _ in range(4)]
    theirs: list[list[Tensor]] = [[] for _ in range(4)]
    for pair, query in enumerate(batch.candidate_query.tolist()):
        x, y = batch.queries[query].tolist(), batch.candidates[pair].tolist()
        lower = [dense_states(student, text, [kind] * len(text), 1)[-1] for text, kind in ((x, 0), (y, 1))]
        hidden = torch.cat(lower)
        joint = dense_states(teacher, [*x, *y], [0] * len(x) + [1] * len(y), 4)
        for place, layer in enumerate(list(student.encoder.layers)[1:]):
            hidden = dense_layer(layer, hidden)
            states[place].append(hidden)
            theirs[place].append(joint[place + 2])
        states[3].append(student.head.pooler(hidden[:1]))
        theirs[3].append(teacher.head.pooler(joint[-1][:1]))
    expected = [(torch.cat(a) - torch.cat(b)).square().mean() for a, b in zip(states, theirs, strict=True)]

    found = deformer_states(student, teacher, batch)

    torch.testing.assert_close(found, torch.stack(expected).mean(), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("loss", [virt_maps, deformer_states])
def test_gradients_reach_the_student_alone(loss: Callable[[Scorer, CrossEncoder, ScoreBatch], Tensor]) -> None:
    """The teacher gets no gradient, and the loss leaves no hook behind in either model."""
    student = tiny_virt(num_layers=3) if loss is virt_maps else tiny_deformer(num_layers=3, split=1)
    teacher = tiny_cross_encoder(num_layers=3)
    student.requires_grad_(requires_grad=True)
    teacher.requires_grad_(requires_grad=True)

    loss(student, teacher, a_batch(student)).backward()

    assert all(weight.grad is None for weight in teacher.parameters())
    assert student.encoder.layers[0].qkv.weight.grad.abs().sum() > 0
    assert not any(module._forward_hooks for scorer in (student, teacher) for module in scorer.modules())


@pytest.mark.parametrize("loss", [virt_maps, deformer_states])
def test_another_student_is_refused(loss: Callable[[Scorer, CrossEncoder, ScoreBatch], Tensor]) -> None:
    student = tiny_bi_encoder()

    with pytest.raises(BadRecipe, match=r"not a bi_encoder|trains a deformer"):
        loss(student, tiny_cross_encoder(), a_batch(student))
