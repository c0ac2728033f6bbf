"""The CPU kernels' attention against the reference in float64, in every variant that this processor runs."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.drawn_layouts import WINDOWS, layouts, patterns
from support.layouts import packed_rows
from support.native import each_variant, needs_native
from torch import Tensor

from bandrank_kernels import BackendUnavailable
from bandrank_kernels.arrays import offsets
from bandrank_kernels.native.library import native
from bandrank_kernels.windowed_attention import (
    AttentionPattern,
    DistanceBiases,
    NativePlan,
    PackedRows,
    plan_attention,
    plan_local_attention,
    windowed_attention,
)
from bandrank_kernels.windowed_attention.reference import dense_mask

pytestmark = [needs_native, pytest.mark.usefixtures(each_variant.__name__)]
CPU = torch.device("cpu")


def some_qkv(num_rows: int, heads: int = 2, head_dim: int = 32, scale: float = 2.0) -> Tensor:
    """Returns random qkv, always the same, with logits of a few units; numbers of bfloat16 if the variant uses it."""
    qkv = scale * torch.randn(num_rows, 3, heads, head_dim, generator=torch.Generator().manual_seed(0))
    return qkv.bfloat16().float() if native().has_bfloat16 else qkv


def assert_right(actual: Tensor, expected: Tensor, value: Tensor, atol: float = 5e-5) -> None:
    """Asserts equality to `atol`, the rounding of float32; where a variant uses bfloat16, each weight is also rounded
    by up to 2^-9 of itself. value: the values that the weights average.
    """
    if native().has_bfloat16 and value.numel():
        atol += 2**-9 * value.abs().max().item()
    torch.testing.assert_close(actual.double(), expected, rtol=0, atol=atol)


def assert_native_is_right(rows: PackedRows, pattern: AttentionPattern, heads: int = 2, head_dim: int = 32) -> None:
    """Asserts that `attend` equals the reference, and that `attend_first` has the bits of its first rows."""
    qkv = some_qkv(rows.num_rows, heads, head_dim)
    plan = plan_attention(rows, pattern, device=CPU, dtype=torch.float32, head_dim=head_dim, backend="native")
    expected = windowed_attention(qkv.double(), rows, pattern, backend="reference")

    assert_right(plan.attend(qkv), expected, qkv[:, 2])
    first = plan.attend_first(qkv, rows.num_candidates)
    assert torch.equal(first, plan.attend(qkv)[: rows.num_candidates])


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_native_equals_reference(data: st.DataObject) -> None:
    pattern = data.draw(patterns())
    assert_native_is_right(data.draw(layouts(pattern)), pattern)


@pytest.mark.parametrize("window", WINDOWS)
def test_native_equals_reference_for_all_switches(window: int | None) -> None:
    for switches in itertools.product([False, True], repeat=6):
        pattern = AttentionPattern(window, *switches)
        assert_native_is_right(packed_rows([3, 0], [[0, 5, 1], [12]], shared=pattern.shares_queries), pattern)


@pytest.mark.parametrize("head_dim", [16, 48, 64, 256, 512])
@pytest.mark.parametrize("window", [0, 4, 64, None])
def test_native_equals_reference_at_the_borders(window: int | None, head_dim: int) -> None:
    """Candidates are about as long as a register or a task, or longer than both."""
    rows = packed_rows([7, 4, 0], [[0, 1, 3, 4, 15, 16, 17], [], [127, 128, 129, 300]], shared=True)
    assert_native_is_right(rows, AttentionPattern.sparse(window), heads=1, head_dim=head_dim)


@pytest.mark.parametrize("scale", [64, 2**20])
def test_large_logits_are_no_overflow(scale: float) -> None:
    """The softmax subtracts the largest logit before it rounds anything of that size."""
    rows = packed_rows([3], [[20, 2]], shared=True)
    qkv = some_qkv(rows.num_rows, scale=scale)
    qkv[:, 2] /= scale

    attended = windowed_attention(qkv, rows, AttentionPattern.sparse(4), backend="native")

    expected = windowed_attention(qkv.double(), rows, AttentionPattern.sparse(4), backend="reference")
    assert_right(attended, expected, qkv[:, 2], atol=1e-2)


def test_weights_too_small_for_a_normal_number_are_zero() -> None:
    """Products with denormal weights take ten times as long, and biases that fall with distance make many of those."""
    rows = packed_rows([20], [[]], shared=True)
    qkv = torch.zeros(rows.num_rows, 3, 1, 16)
    qkv[:, 0, 0, 0], qkv[1:, 1, 0, 0] = 4.0, -95.0  # the logit of the first row is 0, all others' are -95
    qkv[0, 2], qkv[1:, 2] = 1.0, 1e38

    attended = windowed_attention(qkv, rows, AttentionPattern.sparse(None), backend="native")

    atol = 1e-4 if native().has_bfloat16 else 1e-6  # the error of 2^x there
    torch.testing.assert_close(attended, torch.ones_like(attended), rtol=0, atol=atol)


@pytest.mark.parametrize("window", [0, 4, 64, None])
def test_numbers_that_bfloat16_does_not_have_are_rounded(window: int | None) -> None:
    """Some variants round each number by up to 2^-9 of itself: outputs change by less than a hundredth on average."""
    rows = packed_rows([7], [[16, 129, 300]], shared=True)
    pattern = AttentionPattern.sparse(window)
    qkv = 2 * torch.randn(rows.num_rows, 3, 2, 64, generator=torch.Generator().manual_seed(2))

    attended = windowed_attention(qkv, rows, pattern, backend="native").double()

    expected = windowed_attention(qkv.double(), rows, pattern, backend="reference")
    apart = (attended - expected).abs().mean().item() / expected.abs().mean().item()
    assert apart < (0.01 if native().has_bfloat16 else 1e-5)
    assert not native().has_bfloat16 or apart > 1e-4  # else bfloat16 was not used


@pytest.mark.parametrize("window", [0, 4, None])
def test_nan_stays_with_its_candidate(window: int | None) -> None:
    """The NaN lies between other candidates' rows, which keep their bits, and every row that sees it becomes NaN."""
    rows = packed_rows([3], [[40, 5, 20]], shared=True)
    pattern = AttentionPattern.sparse(window)
    qkv = some_qkv(rows.num_rows)
    right = windowed_attention(qkv, rows, pattern, backend="native")
    poisoned = [1, *rows.candidate_rows(1)]
    qkv[poisoned] = torch.nan

    attended = windowed_attention(qkv, rows, pattern, backend="native")

    others = [row for row in range(rows.num_rows) if row not in poisoned]
    assert torch.equal(attended[others], right[others])
    assert attended[poisoned].isnan().all()


def test_a_candidate_has_the_same_bits_in_any_company() -> None:
    together, alone = packed_rows([6], [[40, 77, 300]], shared=True), packed_rows([6], [[77]], shared=True)
    qkv = some_qkv(together.num_rows)
    own = [1, *range(3, 9), *together.candidate_rows(1)]

    for window in (0, 4, 64, None):
        pattern = AttentionPattern.sparse(window)
        both = windowed_attention(qkv, together, pattern, backend="native")
        assert torch.equal(windowed_attention(qkv[own], alone, pattern, backend="native"), both[own])


@pytest.mark.parametrize("window", [0, 3, 500])
def test_local_attention_equals_the_reference(window: int) -> None:
    cu_seqlens = offsets([0, 1, 40, 0, 300])
    qkv = some_qkv(int(cu_seqlens[-1]))
    ours, reference = (
        plan_local_attention(cu_seqlens, window, device=CPU, dtype=torch.float32, head_dim=32, backend=backend)
        for backend in ("native", "reference")
    )

    assert_right(ours.attend(qkv), reference.attend(qkv.double()), qkv[:, 2])
    with pytest.raises(NotImplementedError, match="keys and values at once"):
        ours.attend_cls(qkv[:, 0], qkv[:, 0, 0], 1.0)


def test_absorbed_attention_is_that_of_plain_torch() -> None:
    """The native plan has no kernel for `attend_cls`, and leaves it to plain torch."""
    rows = packed_rows([3], [[40, 5]], shared=True)
    wide, query = torch.randn(rows.num_rows, 24), torch.randn(2, 3, 24)
    ours, plain = (
        plan_attention(rows, AttentionPattern.sparse(4), device=CPU, dtype=torch.float32, head_dim=32, backend=backend)
        for backend in ("native", "vectorized")
    )

    torch.testing.assert_close(ours.attend_cls(query, wide, 0.3), plain.attend_cls(query, wide, 0.3))


@pytest.mark.parametrize(
    ("dtype", "head_dim", "reason"),
    [(torch.bfloat16, 32, "float32"), (torch.float32, 24, "multiple of 16"), (torch.float32, 528, "up to 512")],
)
def test_what_it_cannot_compute_is_refused(dtype: torch.dtype, head_dim: int, reason: str) -> None:
    rows = PackedRows(offsets([1]), offsets([1]), np.zeros(1, np.int64))
    with pytest.raises(BackendUnavailable, match=reason):
        plan_attention(rows, AttentionPattern.sparse(4), device=CPU, dtype=dtype, head_dim=head_dim, backend="native")


def positions_of(rows: PackedRows) -> Tensor:
    """Returns (num_rows,) positions within the sequence of a [CLS], its query and a candidate."""
    positions = torch.zeros(rows.num_rows, dtype=torch.int64)
    for query in range(rows.num_queries):
        own = rows.query_rows(query)
        positions[own.start : own.stop] = 1 + torch.arange(len(own))
    for candidate in range(rows.num_candidates):
        own, query_rows = rows.candidate_rows(candidate), rows.query_rows(int(rows.candidate_query[candidate]))
        positions[own.start : own.stop] = 1 + len(query_rows) + torch.arange(len(own))
    return positions


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_biases_of_distances_are_added_to_the_logits(data: st.DataObject) -> None:
    """Each head has its own bias for each distance, and positions are far from 0, for any pattern on any layout."""
    pattern = data.draw(patterns())
    rows = data.draw(layouts(pattern))
    positions = positions_of(rows)
    reach = int(positions.max().item()) if rows.num_rows else 0
    biases = 3 * torch.randn(2 * reach + 1, 2, generator=torch.Generator().manual_seed(1))
    qkv = some_qkv(rows.num_rows)
    plan, added = NativePlan(rows, pattern), DistanceBiases.of(biases, positions + 1000)
    apart = positions[:, None] - positions
    query, key, value = qkv.double().unbind(1)
    logits = torch.einsum("ihd,jhd->hij", query, key) / 32**0.5
    logits += biases.double()[apart.clamp(-reach, reach) + reach].permute(2, 0, 1)
    weights = logits.masked_fill(~dense_mask(rows, pattern), -torch.inf).softmax(-1)

    attended = plan.attend(qkv, added)

    torch.testing.assert_close(attended.double(), torch.einsum("hij,jhd->ihd", weights, value), rtol=0, atol=5e-5)
    first = plan.attend_first(qkv, rows.num_candidates, added)
    assert torch.equal(first, attended[: rows.num_candidates])
