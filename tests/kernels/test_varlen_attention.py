"""Plans of whole sequences against the reference, with FlashAttention computed slowly."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.drawn_layouts import layouts
from support.layouts import CPU, EXACT, HEAD_DIM, NUM_HEADS, packed_rows, random_qkv
from support.varlen import attend, serve_flash
from torch.nn.functional import pad

from bandrank_kernels import Backend, BackendUnavailable
from bandrank_kernels.arrays import offsets
from bandrank_kernels.transfer import to_device
from bandrank_kernels.windowed_attention import (
    AttentionPattern,
    AttentionPlan,
    Capacity,
    JoinedPlan,
    PackedRows,
    TextsPlan,
    interface,
    plan_attention,
    plan_local_attention,
    varlen,
    why_no_kernels,
    windowed_attention,
)

FULL, APART, SPARSE = AttentionPattern(), AttentionPattern.apart(), AttentionPattern.sparse(4)


@given(st.data(), st.booleans())
def test_full_attention_equals_the_reference(data: st.DataObject, bucket: bool) -> None:
    """All rows and [CLS] alone, with and without a bucket's unused rows, which hold NaN, and unused candidates."""
    rows = data.draw(layouts(FULL))
    capacity = Capacity.of(rows) if bucket else None
    plan, room = JoinedPlan(rows, device=CPU, capacity=capacity, attend=attend), capacity or Capacity.exactly(rows)
    qkv = random_qkv(rows)
    expected = windowed_attention(qkv, rows, FULL, backend="reference")
    given = pad(qkv, (0, 0, 0, 0, 0, 0, 0, room.num_rows - rows.num_rows), value=math.nan)
    for planned in (plan, plan.bind(to_device(plan.host_tables, CPU))):
        whole, first = planned.attend(given), planned.attend_first(given, room.num_candidates)

        assert first.isfinite().all()
        torch.testing.assert_close(whole[: rows.num_rows], expected, rtol=0, atol=EXACT)
        torch.testing.assert_close(first[: rows.num_candidates], expected[: rows.num_candidates], rtol=0, atol=EXACT)
    numbers = torch.arange(room.num_rows)
    assert torch.equal(plan.restore(plan.arrange(numbers)), numbers)


@pytest.mark.parametrize("lengths", [[0, 1, 40, 4, 0, 300, 7], [3, 1], [0, 0], []])
@pytest.mark.parametrize("window", [0, 3, 39, 500, None])
def test_texts_equal_the_reference(window: int | None, lengths: list[int]) -> None:
    """Of no row, of one, and longer than the window; in the last layer also one row of each."""
    cu_seqlens = offsets(lengths)
    qkv = torch.randn(sum(lengths), 3, NUM_HEADS, HEAD_DIM, dtype=torch.float64)
    dense = plan_local_attention(
        cu_seqlens, 1000 if window is None else window, device=CPU, dtype=qkv.dtype, head_dim=4, backend="reference"
    )
    expected, plan = dense.attend(qkv), TextsPlan(cu_seqlens, device=CPU, window=window, attend=attend)

    torch.testing.assert_close(plan.attend(qkv), expected, rtol=0, atol=EXACT)
    if plan.attends_each and all(lengths):
        last = torch.from_numpy(cu_seqlens[1:] - 1)
        torch.testing.assert_close(plan.attend_each(qkv, last), expected[last], rtol=0, atol=EXACT)


@pytest.mark.parametrize("lengths", [[5, 0, 9], [1, 0, 1]])
def test_heads_share_keys(lengths: list[int]) -> None:
    query, key, value = torch.randn(sum(lengths), 8, HEAD_DIM, dtype=torch.float64).split((4, 2, 2), 1)
    plan = TextsPlan(offsets(lengths), device=CPU, attend=attend)
    copied = AttentionPlan.attend_grouped(plan, query, key, value)

    torch.testing.assert_close(plan.attend_grouped(query, key, value), copied, rtol=0, atol=EXACT)


def planned(rows: PackedRows, pattern: AttentionPattern, backend: Backend = "auto") -> type[AttentionPlan]:
    return type(plan_attention(rows, pattern, device=CPU, dtype=torch.float16, head_dim=48, backend=backend))


def why(pattern: AttentionPattern, dtype: torch.dtype = torch.float16, head_dim: int = 48) -> str:
    return str(why_no_kernels(pattern, device=CPU, dtype=dtype, head_dim=head_dim))


def test_where_flash_attention_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """It computes full attention and texts unless another backend was asked for; its limits are told."""
    full, texts = packed_rows([3], [[4]], shared=False), PackedRows.of_texts(offsets([3]))
    assert "the tensors are on cpu" in why(FULL)
    with pytest.raises(BackendUnavailable, match="the tensors are on cpu"):
        planned(full, FULL, "cuda")
    with monkeypatch.context() as patch:
        serve_flash(patch)
        assert {planned(full, FULL, backend) for backend in ("auto", "cuda")} == {JoinedPlan}
        assert {planned(texts, pattern) for pattern in (APART, SPARSE)} == {TextsPlan}
        others = planned(full, FULL, "vectorized"), planned(texts, APART, "vectorized"), planned(full, APART)
        assert not {JoinedPlan, TextsPlan} & {*others, planned(full, SPARSE)}
        assert [why(pattern) == "None" for pattern in (FULL, APART, SPARSE)] == [True, True, False]

    capability = [(9, 0)]
    for module in (varlen, interface):
        monkeypatch.setattr(module, "gpu_obstacle", lambda _: None)
    monkeypatch.setattr(varlen, "device_capability", lambda _: capability[0])
    monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: True)
    assert why(FULL) == why(FULL, torch.bfloat16, 256) == "None"
    assert "needs float16 or bfloat16, got torch.float32" in why(FULL, torch.float32)
    assert all(f"up to 256, got {size}" in why(FULL, head_dim=size) for size in (36, 264))
    capability[0] = (7, 5)
    assert "capability 8.0 or higher" in why(FULL)
