"""Groups hold every item once, stay within their budget unless they are a single item, and could not be larger."""

from itertools import chain, pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bandrank_kernels.grouping import like_lengths, padded_runs, runs_within

LENGTHS = st.lists(st.integers(0, 60), max_size=30)
BUDGETS = st.integers(1, 200)


@given(st.lists(st.integers(0, 240).map(lambda quarters: quarters / 4), max_size=30), BUDGETS, st.integers(1, 31))
def test_runs_within_a_budget(costs: list[float], budget: int, max_items: int) -> None:
    """Runs are consecutive, and end only where one more item would exceed the budget or the number of items."""
    runs = list(runs_within(costs, budget, max_items=max_items))

    assert list(chain.from_iterable(range(run.start, run.stop) for run in runs)) == list(range(len(costs)))
    assert all(len(costs[run]) == 1 or (sum(costs[run]) <= budget and len(costs[run]) <= max_items) for run in runs)
    assert all(sum(costs[run.start : run.stop + 1]) > budget or run.stop - run.start == max_items for run in runs[:-1])


@given(LENGTHS, BUDGETS)
def test_padded_runs(lengths: list[int], max_rows: int) -> None:
    """Each sequence of a run costs as many rows as the longest one."""

    def padded(part: list[int]) -> int:
        return max(part) * len(part)

    runs = list(padded_runs(lengths, max_rows))

    assert list(chain.from_iterable(range(run.start, run.stop) for run in runs)) == list(range(len(lengths)))
    assert all(run.stop - run.start == 1 or padded(lengths[run]) <= max_rows for run in runs)
    assert all(padded(lengths[run.start : run.stop + 1]) > max_rows for run in runs[:-1])


@given(LENGTHS, BUDGETS)
def test_groups_of_like_lengths(lengths: list[int], max_rows: int) -> None:
    """Groups go from short to long, equal lengths in order; lengths of a group differ by 15% or 8 rows at most."""
    groups = [[(lengths[index], index) for index in group] for group in like_lengths(np.array(lengths, int), max_rows)]

    assert list(chain.from_iterable(groups)) == sorted(zip(lengths, range(len(lengths)), strict=True))
    for group in groups:
        assert len(group) == 1 or group[-1][0] * len(group) <= max_rows
        assert group[-1][0] <= max(1.15 * group[0][0], group[0][0] + 8)
    for group, others in pairwise(groups):
        (shortest, _), (longer, _) = group[0], others[0]
        assert longer > max(1.15 * shortest, shortest + 8) or longer * (len(group) + 1) > max_rows
