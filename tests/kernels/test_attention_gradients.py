"""Attention in pieces has the gradients of the reference on every layout, and leaves no row unwritten."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.drawn_layouts import layouts, patterns
from support.layouts import BACKENDS, CPU, EXACT, HEAD_DIM, NUM_HEADS, packed_rows, random_qkv
from torch import Tensor

from bandrank_kernels import Backend
from bandrank_kernels.windowed_attention import AttentionPattern, PackedRows, plan_attention
from bandrank_kernels.windowed_attention.pieces import attend_pieces, split
from bandrank_kernels.windowed_attention.vectorized import VectorizedPlan

NAMED = {
    "sparse": AttentionPattern(4, cls_to_query=True, query_to_cls=False, query_to_candidate=False),
    "sparse, unwindowed": AttentionPattern(None, query_to_cls=False, query_to_candidate=False),
    "full": AttentionPattern(),
    "longformer": AttentionPattern(4),
}
LAYOUTS = {
    "several queries": ([3, 7, 1], [[0, 20, 9], [1, 63], [40]]),
    "empty candidates": ([4, 2], [[0, 0], [0]]),
    "empty queries": ([0, 5], [[12, 3], [33]]),
    "a query without candidates": ([3, 6, 2], [[8], [], [70]]),
    "like lengths": ([5, 5], [[31, 32, 33], [32, 32]]),
}


def both(
    rows: PackedRows, pattern: AttentionPattern, backend: Backend, dtype: torch.dtype = torch.float64
) -> list[Tensor]:
    """Returns the results and gradients of `attend` and `attend_cls`."""
    generator = torch.Generator().manual_seed(0)
    plan = plan_attention(rows, pattern, device=CPU, dtype=dtype, head_dim=HEAD_DIM, backend=backend)
    towards, query, hidden = (
        torch.randn(*shape, dtype=torch.float64, generator=generator).to(dtype)
        for shape in ((rows.num_rows, NUM_HEADS, HEAD_DIM), (rows.num_candidates, NUM_HEADS, 6), (rows.num_rows, 6))
    )
    leaves = [leaf.requires_grad_() for leaf in (random_qkv(rows).to(dtype), query, hidden)]
    attended, cls = plan.attend(leaves[0]), plan.attend_cls(leaves[1], leaves[2], 0.4)
    ((attended * towards).sum() + (cls * query.detach().flip(1)).sum()).backward()  # type: ignore[no-untyped-call]  # torch leaves it bare
    return [attended.detach(), cls.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]


def assert_alike(rows: PackedRows, pattern: AttentionPattern) -> None:
    actual = [both(rows, pattern, backend) for backend in BACKENDS]
    assert len(actual[0]) == len(actual[1]) == 5
    for reference, vectorized in zip(*actual, strict=True):
        torch.testing.assert_close(vectorized, reference, rtol=0, atol=EXACT)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", NAMED)
def test_gradients_equal_the_reference_for_named_patterns(name: str, layout: str) -> None:
    """A query is shared where the pattern allows it, and also copied for each candidate."""
    pattern = NAMED[name]
    for shared in {pattern.shares_queries, False}:
        assert_alike(packed_rows(*LAYOUTS[layout], shared=shared), pattern)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.05)])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", NAMED)
def test_gradients_in_less_precision(name: str, layout: str, dtype: torch.dtype, tolerance: float) -> None:
    """Gradients by torch's attention, in float32, and in closed form, in bfloat16, are near those in float64."""
    rows = packed_rows(*LAYOUTS[layout], shared=NAMED[name].shares_queries)
    for expected, actual in zip(
        both(rows, NAMED[name], "reference"), both(rows, NAMED[name], "vectorized", dtype), strict=True
    ):
        assert actual.dtype == dtype
        torch.testing.assert_close(actual.double(), expected, rtol=0, atol=tolerance * float(expected.abs().max()))


@pytest.mark.parametrize("name", NAMED)
def test_gradients_of_more_scores_than_fit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's attention, which never holds all scores, computes such gradients."""
    monkeypatch.setattr("bandrank_kernels.windowed_attention.pieces.MAX_SCORES", 0)
    assert_alike(packed_rows(*LAYOUTS["several queries"], shared=NAMED[name].shares_queries), NAMED[name])


@settings(max_examples=40)
@given(st.data())
def test_gradients_equal_the_reference_for_any_pattern(data: st.DataObject) -> None:
    pattern = data.draw(patterns())
    rows = data.draw(layouts(pattern).filter(lambda rows: rows.num_rows > 0))
    assert_alike(rows, pattern)


@settings(max_examples=80)
@given(st.data())
def test_every_row_is_written_once(data: st.DataObject) -> None:
    """Exactly one piece writes a row: the result starts as uninitialised memory."""
    pattern = data.draw(patterns())
    rows = data.draw(layouts(pattern))
    plan = VectorizedPlan(rows, pattern, device=CPU, dtype=torch.float64)
    written = np.zeros(rows.num_rows, np.int64)
    for piece in plan.pieces:
        indices = piece.read(torch.arange(rows.num_rows, dtype=torch.float64)[:, None, None])
        written[indices.flatten().long().numpy()] += 1
    qkv = random_qkv(rows)
    poisoned = torch.full((rows.num_rows, NUM_HEADS, HEAD_DIM), torch.nan, dtype=torch.float64)

    assert (written == 1).all()
    assert attend_pieces(plan.pieces, poisoned, *split(qkv)).isfinite().all()


def test_one_source_alone_may_want_a_gradient() -> None:
    """Here the query requires a gradient, and the rows are constant and get none."""
    rows = packed_rows([2], [[5, 3]], shared=True)
    plan = plan_attention(
        rows, NAMED["sparse"], device=CPU, dtype=torch.float64, head_dim=HEAD_DIM, backend="vectorized"
    )
    query = torch.ones(2, 1, 4, dtype=torch.float64, requires_grad=True)
    hidden = torch.arange(rows.num_rows * 4, dtype=torch.float64).view(-1, 4).cos()
    plan.attend_cls(query, hidden, 0.5).square().sum().backward()  # type: ignore[no-untyped-call]  # torch leaves it bare

    assert query.grad is not None
    assert query.grad.abs().max() > 0
    assert hidden.grad is None
