"""Losses that compare a scorer's hidden states with those of a full-attention cross-encoder on the same pairs.

Both run unchanged; forward hooks record the outputs of their layers.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from bandrank.models.architectures import VIRT, CrossEncoder, Deformer
from bandrank.models.batch import ScoreBatch
from bandrank.models.layers.block import Block
from bandrank.models.ragged import Ragged
from bandrank.models.scorer import Scorer
from bandrank_kernels.arrays import offsets
from bandrank_training.errors import BadRecipe


def virt_maps(student: Scorer, teacher: CrossEncoder, batch: ScoreBatch) -> Tensor:
    """VIRT's attention-map distillation (Li et al. 2021, arXiv 2112.04195), in the form of the MixEncoder paper's
    baseline. In every layer and head, it compares the cross-attention maps that query and candidate would have,
    softmax(Q_x K_y^T) and softmax(Q_y K_x^T), with the teacher's, whose rows are normalised over the other text alone.
    The loss is the mean over pairs and layers of both maps' mean squared differences.

    batch: token ids of a VIRT. Its [CLS] tokens are left out, as the teacher's candidates have none.
    Raises BadRecipe for a student that is not a VIRT.
    """
    if not isinstance(student, VIRT):
        raise BadRecipe(f"virt_maps trains a virt, not a {student.architecture}")
    with recording([layer.qkv for layer in _layers(student)]) as seen:
        candidates = student.encode_candidates(batch.candidates)
        student.score(ScoreBatch(batch.queries, candidates, batch.cu_candidates))
    of_candidates, of_queries = [each[0] for each in seen], [each[1] for each in seen]
    of_candidates.append(student.interaction(candidates.values))
    of_queries.append(student.interaction(_query_states(student, batch.queries)))
    with torch.no_grad(), recording([layer.qkv for layer in _layers(teacher)]) as expected:
        teacher.score_packed(_without_cls(batch, candidates=True), partial(teacher.launch, cls_only=False))
    theirs = [each[0] for each in expected]
    heads = student.config.encoder.num_heads
    losses = []
    rows = _Rows(batch, candidate_cls=1)
    for layer, whole in enumerate(theirs):
        for pair, query in enumerate(batch.candidate_query.tolist()):
            ours_x = of_queries[layer][_behind_cls(batch.queries, query)]
            ours_y = of_candidates[layer][_behind_cls(batch.candidates, pair)]
            their_x, their_y = whole[rows.query(pair)], whole[rows.candidate(pair)]
            for of, to, their_of, their_to in ((ours_x, ours_y, their_x, their_y), (ours_y, ours_x, their_y, their_x)):
                losses.append((_map(of, to, heads) - _map(their_of, their_to, heads)).square().mean())
    return torch.stack(losses).sum() / (len(theirs) * len(batch.candidates))


def deformer_states(student: Scorer, teacher: CrossEncoder, batch: ScoreBatch) -> Tensor:
    """Deformer's distillation of upper layers (Cao et al. 2020, section 3.2): the mean of the mean squared differences
    between the student's and the teacher's outputs of each layer above the split, and pooled [CLS].

    batch: token ids of a Deformer whose candidates have no [CLS] of their own, so that its rows match the teacher's.
    Raises BadRecipe for any other student. The divergence of the scores is the loss "distil".
    """
    if not isinstance(student, Deformer) or student.config.candidate_cls:
        raise BadRecipe("deformer_states trains a deformer without candidate_cls")
    split = student.config.split
    with recording([*_layers(student)[split:], student.head.get_submodule("pooler")]) as seen:
        candidates = student.encode_candidates(batch.candidates)
        student.score_together(ScoreBatch(batch.queries, candidates, batch.cu_candidates), cls_only=False)
    with torch.no_grad(), recording([*_layers(teacher)[split:], teacher.head.get_submodule("pooler")]) as expected:
        teacher.score_packed(_without_cls(batch, candidates=False), partial(teacher.launch, cls_only=False))
    pairs = zip(seen, expected, strict=True)
    return torch.stack([(ours[-1] - theirs[-1]).square().mean() for ours, theirs in pairs]).mean()


@contextmanager
def recording(modules: Sequence[nn.Module]) -> Iterator[list[list[Tensor]]]:
    """Records the output of every call of each module inside the context."""
    seen: list[list[Tensor]] = [[] for _ in modules]
    hooks = [
        module.register_forward_hook(lambda _module, _inputs, output, calls=calls: calls.append(output))
        for module, calls in zip(modules, seen, strict=True)
    ]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


class _Rows:
    """Locates each pair's rows in a full-attention cross-encoder: all [CLS], then a query per pair, then candidates."""

    def __init__(self, batch: ScoreBatch, *, candidate_cls: int) -> None:
        queries = batch.queries.lengths[batch.candidate_query] - 1
        self._queries = len(batch.candidates) + offsets(queries)
        self._candidates = self._queries[-1] + offsets(batch.candidates.lengths - candidate_cls)

    def query(self, pair: int) -> slice:
        return slice(*self._queries[pair : pair + 2].tolist())

    def candidate(self, pair: int) -> slice:
        return slice(*self._candidates[pair : pair + 2].tolist())


def _map(of: Tensor, to: Tensor, num_heads: int) -> Tensor:
    """The attention of `of` to `to`, (num_heads, rows, other rows). of, to: (rows, 3 * hidden_size) projections."""
    query = of.view(len(of), 3, num_heads, -1)[:, 0].transpose(0, 1)
    key = to.view(len(to), 3, num_heads, -1)[:, 1].transpose(0, 1)
    scores: Tensor = query @ key.transpose(1, 2) * query.shape[-1] ** -0.5
    return scores.softmax(-1)


def _query_states(student: VIRT, queries: Ragged) -> Tensor:
    """The inputs of the last layer, (total, hidden_size). VIRT encodes queries and candidates alike."""
    states: Tensor = student.encode_candidates(queries).values
    return states


def _behind_cls(texts: Ragged, index: int) -> slice:
    return slice(int(texts.cu_seqlens[index]) + 1, int(texts.cu_seqlens[index + 1]))


def _without_cls(batch: ScoreBatch, *, candidates: bool) -> ScoreBatch:
    """The batch as a cross-encoder reads it, which puts its own [CLS] before each pair."""

    def tails(texts: Ragged) -> Ragged:
        return Ragged.from_tensors([texts.values[_behind_cls(texts, index)] for index in range(len(texts))])

    others = tails(batch.candidates) if candidates else batch.candidates
    return ScoreBatch(tails(batch.queries), others, batch.cu_candidates)


def _layers(scorer: Scorer) -> list[Block]:
    encoder = scorer.encoder
    return [encoder.layer(index) for index in range(encoder.config.num_layers)]
