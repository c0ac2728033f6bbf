"""Layouts and patterns for tests of attention, drawn by hypothesis.

layouts.py does without hypothesis, which a machine with a GPU may lack.
"""

from hypothesis import strategies as st
from support.layouts import packed_rows

from bandrank_kernels.windowed_attention import AttentionPattern, PackedRows

WINDOWS = (0, 1, 3, 4, 16, 64, None)


@st.composite
def patterns(draw: st.DrawFn) -> AttentionPattern:
    """Any window of `WINDOWS` with any of the 64 settings of the switches."""
    return AttentionPattern(draw(st.sampled_from(WINDOWS)), *(draw(st.booleans()) for _ in range(6)))


@st.composite
def layouts(draw: st.DrawFn, pattern: AttentionPattern) -> PackedRows:
    """Up to four queries with up to four candidates; lengths around the window's borders come up often."""
    window = pattern.window or 0
    border = [length for length in (0, 1, window, window + 1, 2 * window, 2 * window + 1, 63) if length <= 130]
    length = st.one_of(st.sampled_from(border), st.integers(0, 40))
    queries = draw(st.lists(st.integers(0, 12), max_size=4))
    candidates = [draw(st.lists(length, max_size=4)) for _ in queries]
    return packed_rows(queries, candidates, shared=pattern.shares_queries)
