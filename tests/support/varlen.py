"""Attention of sequences end to end as torch's FlashAttention gives it, computed slowly, so that plans run anywhere."""

import math
from functools import partial

import pytest
import torch
from torch import Tensor

from bandrank_kernels.windowed_attention import JoinedPlan, TextsPlan, interface, local


@torch.library.custom_op("bandrank_tests::attend", mutates_args=())  # one step of a recorded graph
def _attend(  # noqa: PLR0917  # as torch's operator
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_queries: Tensor,
    cu_keys: Tensor,
    longest: list[int],
    window: int | None,
) -> Tensor:
    assert all(cu.dtype == torch.int32 for cu in (cu_queries, cu_keys))
    out = query.new_full(query.shape, math.nan)
    shared = query.shape[1] // key.shape[1]
    of_queries, of_keys = cu_queries.tolist(), cu_keys.tolist()
    for first, end, begin, stop in zip(of_queries[:-1], of_queries[1:], of_keys[:-1], of_keys[1:], strict=True):
        assert 0 <= end - first <= longest[0] or longest[0] == 0
        assert 0 <= stop - begin <= longest[1]
        keys, values = (each[begin:stop].repeat_interleave(shared, 1) for each in (key, value))
        scores = torch.einsum("ihd,jhd->hij", query[first:end], keys) * query.shape[-1] ** -0.5
        if window is not None:  # the last query row is beside the last key
            places = torch.arange(stop - begin)
            apart = places[stop - begin - (end - first) :, None] - places
            scores = scores.masked_fill(apart.abs() > window, -math.inf)
        out[first:end] = torch.einsum("hij,jhd->ihd", scores.softmax(-1), values)
    return out


def attend(  # noqa: PLR0917  # as torch's operator
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_queries: Tensor,
    cu_keys: Tensor,
    longest: tuple[int, int],
    window: int | None,
) -> Tensor:
    """Implements `Attend` in any dtype, with NaN in rows beyond the last sequence."""
    return _attend(query, key, value, cu_queries, cu_keys, list(longest), window)  # type: ignore[no-any-return]  # torch's


def serve_flash(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes "auto" choose FlashAttention as on a GPU, and computes it slowly."""
    for module in (interface, local):
        monkeypatch.setattr(module, "why_no_varlen", lambda **_: None)
        monkeypatch.setattr(module, "TextsPlan", partial(TextsPlan, attend=attend))
    monkeypatch.setattr(interface, "JoinedPlan", partial(JoinedPlan, attend=attend))
    monkeypatch.setattr("bandrank.models.backends.why_distrusted", lambda *_, **__: None)  # there is no card to try
