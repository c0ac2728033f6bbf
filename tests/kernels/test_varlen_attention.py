"""Plans for torch's FlashAttention: sequences end to end against the reference, with the one call computed slowly."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.drawn_layouts import layouts
from support.layouts import CPU, EXACT, HEAD_DIM, NUM_HEADS, packed_rows, random_qkv
from support.varlen import attend, serve_flash
from torch import Tensor
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
# Several queries, one of them without candidates; empty queries and candidates; single tokens; a long text.
ROWS = packed_rows([3, 0, 7, 1], [[0, 5, 1], [12, 0], [], [300]], shared=False)
LENGTHS = [[0, 1, 40, 4, 0, 300, 7], [3, 1], [0, 0], []]


def spoilt(qkv: Tensor, num_rows: int) -> Tensor:
    """Returns the rows with unused ones behind them, which hold NaN."""
    return pad(qkv, (0, 0, 0, 0, 0, 0, 0, num_rows - len(qkv)), value=math.nan)


def texts_qkv(lengths: Sequence[int]) -> Tensor:
    return torch.randn(sum(lengths), 3, NUM_HEADS, HEAD_DIM, dtype=torch.float64)


def assert_full(rows: PackedRows, capacity: Capacity | None) -> None:
    """Asserts that all rows, and the [CLS] rows alone, get what the reference gives them."""
    plan = JoinedPlan(rows, device=CPU, capacity=capacity, attend=attend)
    qkv = random_qkv(rows)
    expected = windowed_attention(qkv, rows, FULL, backend="reference")
    given = spoilt(qkv, capacity.num_rows if capacity else rows.num_rows)

    torch.testing.assert_close(plan.attend(given)[: rows.num_rows], expected, rtol=0, atol=EXACT)
    first = plan.attend_first(given, capacity.num_candidates if capacity else rows.num_candidates)
    assert first.isfinite().all()
    torch.testing.assert_close(first[: rows.num_candidates], expected[: rows.num_candidates], rtol=0, atol=EXACT)


@given(st.data(), st.booleans())
def test_full_attention_equals_the_reference(data: st.DataObject, bucket: bool) -> None:
    """With and without unused rows and candidates."""
    rows = data.draw(layouts(FULL))
    assert_full(rows, Capacity.of(rows) if bucket else None)


@pytest.mark.parametrize("bucket", [True, False])
def test_full_attention_equals_the_reference_on_odd_layouts(bucket: bool) -> None:
    for rows in (ROWS, packed_rows([0], [[0]], shared=False), packed_rows([1], [[0] * 70], shared=False)):
        assert_full(rows, Capacity.of(rows) if bucket else None)


def test_arranged_rows_are_restored() -> None:
    """The rows of each text are side by side, and unused rows stay where they are."""
    plan = JoinedPlan(ROWS, device=CPU, capacity=Capacity.of(ROWS), attend=attend)
    numbers = torch.arange(Capacity.of(ROWS).num_rows)
    arranged = plan.arrange(numbers)

    assert torch.equal(plan.restore(arranged), numbers)
    assert torch.equal(arranged[plan.cls[: ROWS.num_candidates]], torch.arange(ROWS.num_candidates))
    assert arranged[:4].tolist() == [0, *ROWS.query_rows(0)]
    assert torch.equal(arranged[ROWS.num_rows :], numbers[ROWS.num_rows :])


def test_batches_of_a_bucket_have_launches_of_one_size() -> None:
    """Tables have the bucket's shapes and, on the device, give the same plan; longer texts have another signature."""
    batches = [packed_rows([5], [[9] * 13], shared=False), packed_rows([3, 4], [[75, 0], [40] * 2], shared=False)]
    capacity = Capacity.of(packed_rows([9], [[9] * 16], shared=False))
    plans = [JoinedPlan(rows, device=CPU, capacity=capacity, attend=attend) for rows in batches]
    qkv = spoilt(random_qkv(batches[0]), capacity.num_rows)
    bound = plans[0].bind(to_device(plans[0].host_tables, CPU))

    assert plans[0].signature == plans[1].signature == bound.signature
    assert [table.shape for table in plans[0].host_tables] == [table.shape for table in plans[1].host_tables]
    assert torch.equal(bound.attend_first(qkv, 16), plans[0].attend_first(qkv, 16))
    longer = packed_rows([5], [[252]], shared=False)
    assert JoinedPlan(longer, device=CPU, capacity=Capacity.of(longer)).signature != plans[0].signature


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("window", [0, 3, 39, 500, None])
def test_texts_equal_the_reference(window: int | None, lengths: list[int]) -> None:
    """Of empty texts, single tokens and long ones, with unused rows behind them; the last layer for one row of each."""
    cu_seqlens, qkv = offsets(lengths), texts_qkv(lengths)
    expected = plan_local_attention(
        cu_seqlens, 1000 if window is None else window, device=CPU, dtype=qkv.dtype, head_dim=4, backend="reference"
    ).attend(qkv)
    plan = TextsPlan(cu_seqlens, device=CPU, window=window, num_texts=9, longest=max(lengths, default=0), attend=attend)

    torch.testing.assert_close(plan.attend(spoilt(qkv, len(qkv) + 3))[: len(qkv)], expected, rtol=0, atol=EXACT)
    assert plan.attends_each is (window is None)
    if window is None and all(lengths):
        last = torch.from_numpy(cu_seqlens[1:] - 1)
        alone = TextsPlan(cu_seqlens, device=CPU, attend=attend).attend_each(qkv, last)
        torch.testing.assert_close(alone, expected[last], rtol=0, atol=EXACT)


@pytest.mark.parametrize("lengths", [[5, 0, 9], [1, 0, 1]])
def test_heads_that_share_keys_are_not_copied(lengths: list[int]) -> None:
    """Not even for texts of one row and none, for which torch's operator would have another path."""
    qkv = torch.randn(sum(lengths), 8, HEAD_DIM, dtype=torch.float64)
    query, key, value = qkv.split((4, 2, 2), 1)
    seen: list[object] = []

    def watched(*arguments: object) -> Tensor:
        seen.append(arguments[5])
        return attend(*arguments)  # type: ignore[arg-type]

    plan = TextsPlan(offsets(lengths), device=CPU, attend=watched)
    shared = plan.attend_grouped(query, key, value)

    torch.testing.assert_close(shared, AttentionPlan.attend_grouped(plan, query, key, value), rtol=0, atol=EXACT)
    assert seen == [(max(2, *lengths), max(lengths))] * 2


def planned(rows: PackedRows, pattern: AttentionPattern, backend: Backend = "auto") -> AttentionPlan:
    return plan_attention(rows, pattern, device=CPU, dtype=torch.float16, head_dim=48, backend=backend)


def test_where_flash_attention_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """It computes full attention and texts, unless another backend was asked for; no other pattern."""
    serve_flash(monkeypatch)
    texts = PackedRows(offsets([3, 0, 9]), offsets([]), np.zeros(0, np.int64))
    shared = packed_rows([3], [[4, 5]], shared=True)

    for backend in ("auto", "cuda"):
        assert isinstance(planned(ROWS, FULL, backend), JoinedPlan)
        assert all(isinstance(planned(texts, pattern, backend), TextsPlan) for pattern in (APART, SPARSE))
    assert not isinstance(planned(ROWS, FULL, "vectorized"), JoinedPlan)
    assert not isinstance(planned(texts, APART, "vectorized"), TextsPlan)
    assert not any(isinstance(planned(shared, pattern), JoinedPlan | TextsPlan) for pattern in (APART, SPARSE))
    assert [_why(pattern) is None for pattern in (FULL, APART, SPARSE)] == [True, True, False]


def _why(pattern: AttentionPattern, dtype: torch.dtype = torch.float16, head_dim: int = 48) -> str | None:
    return why_no_kernels(pattern, device=CPU, dtype=dtype, head_dim=head_dim)


def test_what_flash_attention_cannot_do_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Full attention then runs in plain torch, and "cuda" raises the reason."""
    assert "the tensors are on cpu" in (why_no_kernels(FULL, device=CPU, dtype=torch.float16, head_dim=32) or "")
    with pytest.raises(BackendUnavailable, match="the tensors are on cpu"):
        planned(ROWS, FULL, "cuda")
    capability = [(9, 0)]
    for module in (varlen, interface):
        monkeypatch.setattr(module, "gpu_obstacle", lambda _: None)
    monkeypatch.setattr(varlen, "device_capability", lambda _: capability[0])
    monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: capability[0] > (6, 0))

    assert [_why(FULL), _why(FULL, torch.bfloat16, 256)] == [None, None]
    assert "float16 or bfloat16, got float32" in (_why(FULL, torch.float32) or "")
    assert "a multiple of 8 numbers up to 256, got 36" in (_why(FULL, head_dim=36) or "")
    assert "a multiple of 8 numbers up to 256, got 264" in (_why(FULL, head_dim=264) or "")
    capability[0] = (7, 5)
    assert "capability 8.0 or higher, got 7.5" in (_why(FULL) or "")
    capability[0] = (6, 0)
    assert "built without FlashAttention" in (_why(FULL) or "")
