"""The definition of windowed attention: the reference against the pattern's definition, and cases worked by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.drawn_layouts import layouts, patterns
from support.layouts import BACKENDS, EXACT, packed_rows, random_qkv

from bandrank_kernels import Backend
from bandrank_kernels.windowed_attention import AttentionPattern, PackedRows, windowed_attention


def may_attend(rows: PackedRows, pattern: AttentionPattern, source: int, target: int) -> bool:
    """Returns whether the pattern's definition lets one row attend to another."""

    def group_of(row: int) -> tuple[str, int, int]:
        """Returns the group of a row, its candidate or query, and its position there."""
        if row < rows.num_candidates:
            return "cls", row, 0
        if row < rows.first_candidate_row:
            cu, group, row = rows.cu_queries, "query", row - rows.first_query_row
        else:
            cu, group, row = rows.cu_candidates, "candidate", row - rows.first_candidate_row
        owner = int(np.searchsorted(cu, row, side="right")) - 1
        return group, owner, row - int(cu[owner])

    (group, owner, index), (other_group, other_owner, other_index) = group_of(source), group_of(target)
    if group == other_group:
        near = group != "candidate" or pattern.window is None or abs(index - other_index) <= pattern.window
        return owner == other_owner and near
    if group == "query":
        related = rows.candidate_query[other_owner] == owner
    elif other_group == "query":
        related = rows.candidate_query[owner] == other_owner
    else:
        related = owner == other_owner
    return bool(related) and bool(getattr(pattern, f"{group}_to_{other_group}"))


@settings(max_examples=60)
@given(st.data())
def test_reference_attends_where_the_pattern_says(data: st.DataObject) -> None:
    pattern = replace(data.draw(patterns()), window=data.draw(st.sampled_from([0, 1, 3, None])))
    rows = data.draw(layouts(pattern).filter(lambda rows: rows.num_rows <= 60))
    # With equal scores and one-hot values, the output of a row is its visibility divided by their number.
    qkv = torch.zeros(rows.num_rows, 3, 1, max(rows.num_rows, 1), dtype=torch.float64)
    qkv[:, 2, 0] = torch.eye(rows.num_rows, max(rows.num_rows, 1), dtype=torch.float64)

    visible = windowed_attention(qkv, rows, pattern, backend="reference")[:, 0, : rows.num_rows] > 0

    expected = [[may_attend(rows, pattern, i, j) for j in range(rows.num_rows)] for i in range(rows.num_rows)]
    assert visible.tolist() == expected


@pytest.mark.parametrize("backend", BACKENDS)
def test_slots_beyond_the_border_take_no_part_in_the_softmax(backend: Backend) -> None:
    """A candidate of two rows under window 4: four keys share the softmax, not the nine slots and two more."""
    rows = packed_rows([1], [[2]], shared=True)
    pattern = AttentionPattern(window=4, query_to_cls=False, query_to_candidate=False)
    # One head of width 1, so the scale is 1; the query vectors are 1, the keys the logarithms of these weights.
    weights, values = [1.0, 2.0, 3.0, 4.0], [1000.0, 100.0, 10.0, 1.0]  # [CLS], query, two candidate rows
    triples = [[[[1.0]], [[math.log(weight)]], [[value]]] for weight, value in zip(weights, values, strict=True)]
    qkv = torch.tensor(triples, dtype=torch.float64)

    attended = windowed_attention(qkv, rows, pattern, backend=backend).flatten().tolist()

    # All rows but the query's: (1 * 1000 + 2 * 100 + 3 * 10 + 4 * 1) / (1 + 2 + 3 + 4). Had the seven slots beyond
    # the border logits and values of zero, the denominator of the candidate rows would be 17.
    assert attended == pytest.approx([123.4, 100.0, 123.4, 123.4], abs=EXACT)


@pytest.mark.parametrize("window", [0, 4, 64, None])
@pytest.mark.parametrize("shared", [True, False])
def test_other_candidates_touch_no_bit(window: int | None, shared: bool) -> None:
    pattern = AttentionPattern(window, query_to_cls=not shared, query_to_candidate=not shared)
    rows = packed_rows([3, 5], [[30, 33, 31], [32, 7]], shared=shared)
    chosen = 1
    query = int(rows.candidate_query[chosen])
    members = [chosen, *rows.query_rows(query), *rows.candidate_rows(chosen)]
    others = np.setdiff1d(np.arange(rows.num_rows), members)
    qkv = random_qkv(rows, dtype=torch.float32)
    changed = qkv.clone()
    changed[torch.from_numpy(others)] *= -1e6

    before, after = (windowed_attention(x, rows, pattern) for x in (qkv, changed))

    assert torch.equal(after[members], before[members])
