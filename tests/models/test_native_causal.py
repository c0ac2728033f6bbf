"""Causal attention by the CPU kernels against torch's in float64, in every variant that this processor runs."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.native import each_variant, needs_native
from support.torch_threads import torch_threads
from torch import Tensor

from bandrank.models.layers.causal import Continuations, NativeCausalPlan, PaddedCausalPlan
from bandrank_kernels.arrays import offsets
from bandrank_kernels.native.library import native

pytestmark = [needs_native, pytest.mark.usefixtures(each_variant.__name__)]


def some(prefixes: list[int], continuations: list[tuple[int, int]]) -> tuple[Continuations, Tensor, Tensor, Tensor]:
    """Returns a layout, and queries, keys and values for it: always the same numbers, exact in bfloat16, with gaps
    between rows. prefixes: lengths. continuations: the prefix and the length of each.
    """
    owners, lengths = np.array(continuations, np.int64).reshape(-1, 2).T
    heads = 2 * torch.randn(sum(prefixes) + int(lengths.sum()), 11, 32, generator=torch.Generator().manual_seed(0))
    query, key, value, _ = heads.bfloat16().float().split_with_sizes([6, 2, 2, 1], 1)
    return Continuations(offsets(prefixes), offsets(lengths.tolist()), owners), query, key, value


def assert_right(layout: Continuations, query: Tensor, key: Tensor, value: Tensor) -> None:
    """Asserts that the kernels are right for all rows, and for the last row of each continuation alone."""
    last, plan = torch.from_numpy(layout.last_rows), NativeCausalPlan(layout)
    exact = PaddedCausalPlan.of(layout).attend_grouped(query.double(), key.double(), value.double())
    atol = 0.02 if native().has_bfloat16 else 5e-5  # 2^-9 of the largest value where weights are in bfloat16

    all_rows, last_rows = plan.attend_grouped(query, key, value), plan.attend_last(query[last], key, value)

    torch.testing.assert_close(all_rows.double(), exact, rtol=0, atol=atol)
    torch.testing.assert_close(last_rows.double(), exact[last], rtol=0, atol=atol)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, 40), min_size=1, max_size=3), st.data())
def test_rows_see_their_prefix_and_those_before_them(lengths: list[int], data: st.DataObject) -> None:
    """A prefix or its continuation may be empty, but not both, since there would be no last row."""
    owners = st.integers(0, len(lengths) - 1)
    drawn = data.draw(st.lists(st.tuples(owners, st.integers(0, 40)), max_size=5))
    assert_right(*some(lengths, [(owner, max(length, lengths[owner] == 0)) for owner, length in drawn]))


def test_texts_at_the_borders() -> None:
    """The lengths of prefixes and of their continuations lie around the sizes of registers and tasks."""
    around = [0, 1, 3, 4, 15, 16, 17, 127, 128, 129, 300]
    assert_right(*some(around, [(index, length) for index in (1, 8) for length in around]))


def test_threads_share_a_long_text_equally() -> None:
    """Its last rows see most keys, and threads take equally many tasks, one after the other."""
    with torch_threads(4):
        layout, *_ = some([4096], [])
        tasks = NativeCausalPlan(layout)._tasks
        assert_right(*some([300], [(0, 500), (0, 3)]))

    keys = [int((2 * part[:, 0] + part[:, 1]).sum()) for part in np.split(tasks, 4)]
    assert max(keys) < 1.05 * min(keys)


def test_nan_stays_with_its_continuation() -> None:
    """NaN in a continuation reaches no other continuation of its prefix; queries of the wrong shape are refused."""
    layout, *heads = some([5], [(0, 20), (0, 30), (0, 3)])
    plan, others = NativeCausalPlan(layout), [*range(25), *range(55, 58)]
    right = plan.attend_grouped(*heads)
    for each in heads:
        each[25:55] = torch.nan

    rows = plan.attend_grouped(*heads)

    assert torch.equal(rows[others], right[others])
    assert rows[25:55].isnan().all()
    with pytest.raises(ValueError, match=r"query must be \(3, any, any\)"):
        plan.attend_last(*heads)
    with pytest.raises(ValueError, match="2 heads of keys must be shared by as many of queries each, got 5"):
        plan.attend_grouped(heads[0][:, :5], *heads[1:])
