"""Attention of sequences end to end as torch's FlashAttention gives it, computed slowly, so that plans run anywhere."""

import math
from collections.abc import Sequence
from functools import partial

import pytest
import torch
from torch import Tensor

from bandrank_kernels.windowed_attention import JoinedPlan, TextsPlan, interface, local


@torch.library.custom_op("bandrank_tests::attend", mutates_args=())  # one step of a recorded graph
def _attend(qkv: Sequence[Tensor], cu_seqlens: Sequence[Tensor], longest: Sequence[int], window: int | None) -> Tensor:
    assert all(cu.dtype == torch.int32 for cu in cu_seqlens)
    query, *others = qkv
    out = torch.full(query.shape, math.nan, dtype=query.dtype)
    runs = [zip(cu[:-1].tolist(), cu[1:].tolist(), strict=True) for cu in cu_seqlens]
    for (first, end), (begin, stop) in zip(*runs, strict=True):
        assert 0 <= end - first <= longest[0]
        assert 0 <= stop - begin <= longest[1]
        key, value = (each[begin:stop].repeat_interleave(query.shape[1] // each.shape[1], 1) for each in others)
        scores = torch.einsum("ihd,jhd->hij", query[first:end], key) * query.shape[-1] ** -0.5
        if window is not None:
            places = torch.arange(stop - begin)
            scores = scores.masked_fill((places[:, None] - places).abs() > window, -math.inf)
        out[first:end] = torch.einsum("hij,jhd->ihd", scores.softmax(-1), value)
    return out


def attend(qkv: Sequence[Tensor], cu_seqlens: Sequence[Tensor], longest: Sequence[int], window: int | None) -> Tensor:
    """Stands in for `flash` in any dtype, with NaN in rows beyond the last sequence."""
    return _attend([*qkv], [*cu_seqlens], [*longest], window)  # type: ignore[no-any-return]  # torch's


def serve_flash(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes "auto" choose FlashAttention as on a GPU, and computes it slowly."""
    for module in (interface, local):
        monkeypatch.setattr(module, "why_no_varlen", lambda **_: None)
        monkeypatch.setattr(module, "TextsPlan", partial(TextsPlan, attend=attend))
    monkeypatch.setattr(interface, "JoinedPlan", partial(JoinedPlan, attend=attend))
    monkeypatch.setattr("bandrank.models.backends.why_distrusted", lambda *_, **__: None)  # there is no card to try
