"""Causal attention by the CPU kernels against torch's in float64, in every variant that this processor runs."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.native import each_variant, needs_native
from torch import Tensor

from bandrank.models.layers.causal import CausalPlan, Continuations
from bandrank.models.layers.native_causal import NativeCausalPlan
from bandrank_kernels.arrays import offsets
from bandrank_kernels.native.library import native

pytestmark = [needs_native, pytest.mark.usefixtures(each_variant.__name__)]
HEADS, KV_HEADS, HEAD_DIM = 6, 2, 32
AROUND = [0, 1, 3, 4, 15, 16, 17, 127, 128, 129, 300]  # a register, and a task


def layout_of(prefixes: Sequence[int], continuations: Sequence[tuple[int, int]]) -> Continuations:
    """From the lengths of prefixes, and the index of a prefix and the length of each continuation."""
    owners = np.array([owner for owner, _ in continuations], np.int64)
    return Continuations(offsets(prefixes), offsets([length for _, length in continuations]), owners)


def heads_of(layout: Continuations) -> tuple[Tensor, Tensor, Tensor]:
    """Always the same queries, keys and values, with gaps between rows; by tiles they are of bfloat16 numbers."""
    rows = int(layout.cu_prefixes[-1] + layout.cu_continuations[-1])
    heads = 2 * torch.randn(rows, HEADS + 2 * KV_HEADS + 1, HEAD_DIM, generator=torch.Generator().manual_seed(0))
    heads = heads.bfloat16().float() if native().tiled else heads
    query, key, value, _ = heads.split_with_sizes([HEADS, KV_HEADS, KV_HEADS, 1], 1)
    return query, key, value


def close(actual: Tensor, expected: Tensor, value: Tensor) -> bool:
    """To float32's rounding; in bfloat16 each weight is rounded to 2^-9 of itself beside that."""
    atol = 5e-5 + (2**-9 * value.abs().max().item() if native().tiled and value.numel() else 0.0)
    return torch.allclose(actual.double(), expected, rtol=0, atol=atol)


def assert_right(layout: Continuations) -> None:
    """All rows, and the last of each continuation alone."""
    query, key, value = heads_of(layout)
    last = torch.from_numpy(layout.last_rows)
    exact = CausalPlan.of(layout).attend_grouped(*(each.double() for each in (query, key, value)))

    plan = NativeCausalPlan(layout)

    assert close(plan.attend_grouped(query, key, value), exact, value)
    assert close(plan.attend_last(query[last], key, value), exact[last], value)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, 40), min_size=1, max_size=3), st.data())
def test_rows_see_their_prefix_and_those_before_them(lengths: list[int], data: st.DataObject) -> None:
    """Whatever is empty, but for a continuation of nothing, which has no last row."""
    owners = st.integers(0, len(lengths) - 1)
    drawn = data.draw(st.lists(st.tuples(owners, st.integers(0, 40)), max_size=5))
    assert_right(layout_of(lengths, [(owner, max(length, lengths[owner] == 0)) for owner, length in drawn]))


def test_texts_at_the_borders() -> None:
    """Of registers and tasks, as prefixes and behind one."""
    assert_right(layout_of(AROUND, [(index, length) for index in (1, 8) for length in AROUND]))


def test_a_text_has_the_same_bits_in_any_company() -> None:
    """Alone and between others, all of its rows and the last one."""
    together, alone = layout_of([5, 40], [(1, 20), (1, 150), (0, 3)]), layout_of([40], [(0, 150)])
    query, key, value = heads_of(together)
    own = [*range(5, 45), *range(65, 215)]
    last = torch.from_numpy(together.last_rows)

    both, one = NativeCausalPlan(together), NativeCausalPlan(alone)

    rows = both.attend_grouped(query, key, value)
    assert torch.equal(one.attend_grouped(query[own], key[own], value[own]), rows[own])
    lasts = both.attend_last(query[last], key, value)
    assert torch.equal(one.attend_last(query[last[1:2]], key[own], value[own]), lasts[1:2])


def test_nan_stays_with_its_continuation() -> None:
    """Between others of the same prefix."""
    layout = layout_of([5], [(0, 20), (0, 30), (0, 3)])
    heads = heads_of(layout)
    last, plan = torch.from_numpy(layout.last_rows), NativeCausalPlan(layout)
    right = plan.attend_grouped(*heads), plan.attend_last(heads[0][last], *heads[1:])
    for each in heads:
        each[25:55] = torch.nan

    rows, lasts = plan.attend_grouped(*heads), plan.attend_last(heads[0][last], *heads[1:])

    others = [*range(25), *range(55, 58)]
    assert torch.equal(rows[others], right[0][others])
    assert rows[25:55].isnan().all()
    assert torch.equal(lasts[[0, 2]], right[1][[0, 2]])
    assert lasts[1].isnan().all()


def test_other_rows_are_refused() -> None:
    """Those of another batch: the kernels would read beyond them."""
    plan = NativeCausalPlan(layout_of([4], [(0, 3), (0, 2)]))
    query, key = torch.zeros(9, HEADS, HEAD_DIM), torch.zeros(9, KV_HEADS, HEAD_DIM)

    with pytest.raises(ValueError, match=r"query must be \(9, any, any\)"):
        plan.attend_grouped(query[:8], key, key)
    with pytest.raises(ValueError, match=r"query must be \(2, any, any\)"):
        plan.attend_last(query, key, key)
    with pytest.raises(ValueError, match=r"key must be \(9, any, any\)"):
        plan.attend_last(query[:2], key[:8], key[:8])
