"""Layouts describe the same attention as the dense mask."""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.drawn_layouts import layouts, patterns
from support.layouts import CPU, packed_rows
from torch import Tensor

from bandrank_kernels.windowed_attention import AttentionPattern, Layout, PackedRows, lay_out
from bandrank_kernels.windowed_attention.reference import dense_mask


def mask_of(parts: Sequence[Layout], num_rows: int) -> tuple[Tensor, list[int]]:
    """Returns (num_rows, num_rows) counts of how often a row sees another, and the rows that are queries, ascending."""
    seen = torch.zeros(num_rows, num_rows, dtype=torch.int64)
    queries: list[int] = []
    for part in parts:
        count, height, width = *part.query_index.shape, part.key_index.shape[1]
        bias = torch.zeros(count, 1, 1, width) if part.bias is None else part.bias
        visible = (bias == 0).expand(count, 1, height, width).reshape(count * height, width)
        keys = part.key_index[:, None].expand(-1, height, -1).reshape(count * height, width)
        assert torch.equal(part.query_index.flatten()[part.out_indices], part.out_rows)
        for row, index in zip(part.out_rows.tolist(), part.out_indices.tolist(), strict=True):
            seen[row] += torch.bincount(keys[index][visible[index]], minlength=num_rows)
        queries += part.out_rows.tolist()
    return seen, sorted(queries)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_layouts_are_the_dense_mask(data: st.DataObject) -> None:
    """Each row is a query once, and sees each of its keys once; [CLS] rows have layouts of their own as well."""
    pattern = data.draw(patterns())
    rows = data.draw(layouts(pattern))
    mask = dense_mask(rows, pattern).long()
    found = lay_out(rows, pattern, device=CPU)

    seen, queries = mask_of(found.rows, rows.num_rows)
    assert queries == list(range(rows.num_rows))
    assert torch.equal(seen, mask)
    seen, queries = mask_of(found.cls, rows.num_rows)
    assert queries == list(range(rows.num_candidates))
    assert torch.equal(seen[: rows.num_candidates], mask[: rows.num_candidates])


def test_candidates_that_share_a_query_that_depends_on_them() -> None:
    """Such candidates have no layout, since each needs a copy of the query."""
    rows: PackedRows = packed_rows([3], [[2, 2]], shared=True)
    with pytest.raises(ValueError, match="each candidate needs a copy of its query"):
        lay_out(rows, AttentionPattern(), device=CPU)
