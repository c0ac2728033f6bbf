"""Layouts, shapes and backends that windowed attention refuses, and its messages."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.layouts import BACKENDS, CPU, packed_rows

from bandrank_kernels import Backend, BackendUnavailable, choose_backend
from bandrank_kernels.windowed_attention import AttentionPattern, PackedRows, plan_attention, windowed_attention


def test_a_negative_window_is_refused() -> None:
    with pytest.raises(ValueError, match="window must be at least 0, or None for no limit; got -1"):
        AttentionPattern(window=-1)


@pytest.mark.parametrize(
    ("cu_queries", "cu_candidates", "candidate_query", "message"),
    [
        ([1, 2], [0, 3], [0], "cu_queries must ascend from 0"),
        ([], [0], [], "cu_queries must ascend from 0"),
        ([0, 2], [0, 3, 1], [0, 0], "cu_candidates must ascend from 0"),
        ([0, 2], [0, 3], [0, 0], "candidate_query must have 1 entries, got 2"),
        ([0, 2], [0, 3], [1], r"candidate_query must ascend within 0\.\.0"),
        ([0, 2], [0, 3], [-1], r"candidate_query must ascend within 0\.\.0"),
        ([0, 2, 4], [0, 3, 6], [1, 0], r"candidate_query must ascend within 0\.\.1"),
        ([0], [0, 3], [0], "candidate_query must ascend within"),
    ],
)
def test_rows_that_do_not_fit_together_are_refused(
    cu_queries: list[int], cu_candidates: list[int], candidate_query: list[int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        PackedRows(*(np.array(x, np.int64) for x in (cu_queries, cu_candidates, candidate_query)))


def test_rows_of_a_layout() -> None:
    """The rows are the [CLS] of each candidate, then the queries, then the candidates."""
    rows = packed_rows([2, 0, 1], [[3], [], [0, 2]], shared=True)

    assert (rows.num_queries, rows.num_candidates, rows.num_rows) == (3, 3, 11)
    assert [rows.query_rows(query) for query in range(3)] == [range(3, 5), range(5, 5), range(5, 6)]
    assert [rows.candidate_rows(candidate) for candidate in range(3)] == [range(6, 9), range(9, 9), range(9, 11)]


@pytest.mark.parametrize("shape", [(7, 3, 2), (6, 3, 2, 4), (7, 2, 2, 4), (7, 3, 2, 4, 1)])
def test_qkv_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    rows = packed_rows([2], [[4]], shared=True)
    with pytest.raises(ValueError, match=r"qkv must be \(7, 3, num_heads, head_dim\), got "):
        windowed_attention(torch.zeros(shape), rows, AttentionPattern())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("switch", ["query_to_cls", "query_to_candidate"])
def test_a_shared_query_cannot_depend_on_its_candidates(backend: Backend, switch: str) -> None:
    """The batch has one copy of a query, but the pattern gives the query another state for each candidate."""
    pattern = replace(AttentionPattern(4, query_to_cls=False, query_to_candidate=False), **{switch: True})
    rows = packed_rows([2], [[4, 4]], shared=True)
    with pytest.raises(ValueError, match="each candidate needs a copy of its query"):
        plan_attention(rows, pattern, device=CPU, dtype=torch.float32, head_dim=4, backend=backend)


def test_backends_by_name() -> None:
    """A requested backend runs or says why it cannot; no other one runs instead."""
    assert choose_backend("auto", CPU) == "vectorized"
    assert choose_backend("reference", CPU) == "reference"
    with pytest.raises(BackendUnavailable, match=r"backend 'cuda' .* cpu"):
        choose_backend("cuda", CPU)
    with pytest.raises(ValueError, match="one of auto, cuda, native, vectorized, reference; got 'triton'"):
        choose_backend("triton", CPU)  # type: ignore[arg-type]  # what a caller without a type checker can do
