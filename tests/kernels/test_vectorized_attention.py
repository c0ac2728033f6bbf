"""The vectorized backend against the reference: results, gradients, rounding, memory."""

import itertools
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.drawn_layouts import WINDOWS, layouts, patterns
from support.layouts import BACKENDS, CPU, EXACT, HEAD_DIM, NUM_HEADS, packed_rows, random_qkv

from bandrank_kernels.arrays import offsets
from bandrank_kernels.windowed_attention import (
    AttentionPattern,
    PackedRows,
    plan_attention,
    plan_local_attention,
    windowed_attention,
)
from bandrank_kernels.windowed_attention.local import LocalPlan

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def assert_backends_agree(rows: PackedRows, pattern: AttentionPattern, device: str = "cpu") -> None:
    """Asserts that `attend` and `attend_cls` of the vectorized plan equal the reference's in float64."""
    qkv = random_qkv(rows).to(device)
    wide = torch.randn(rows.num_rows, 12, dtype=qkv.dtype, generator=torch.Generator().manual_seed(1)).to(device)
    query = 2 * wide[: rows.num_candidates, None].expand(-1, 3, -1) * torch.tensor([[[1.0], [-1.0], [0.1]]]).to(wide)
    reference, vectorized = (
        plan_attention(rows, pattern, device=qkv.device, dtype=qkv.dtype, head_dim=HEAD_DIM, backend=backend)
        for backend in BACKENDS
    )

    torch.testing.assert_close(vectorized.attend(qkv), reference.attend(qkv), rtol=0, atol=EXACT)
    torch.testing.assert_close(
        vectorized.attend_cls(query, wide, 0.3), reference.attend_cls(query, wide, 0.3), rtol=0, atol=EXACT
    )


@settings(max_examples=150)
@given(st.data())
def test_vectorized_equals_reference(data: st.DataObject) -> None:
    pattern = data.draw(patterns())
    assert_backends_agree(data.draw(layouts(pattern)), pattern)


@pytest.mark.parametrize("window", WINDOWS)
def test_vectorized_equals_reference_for_all_switches(window: int | None) -> None:
    for switches in itertools.product([False, True], repeat=6):
        pattern = AttentionPattern(window, *switches)
        assert_backends_agree(packed_rows([3, 0], [[0, 5, 1], [12]], shared=pattern.shares_queries), pattern)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("window", WINDOWS)
def test_vectorized_equals_reference_at_the_borders(window: int | None, shared: bool, device: str) -> None:
    w = window or 0
    pattern = AttentionPattern(window, query_to_cls=not shared, query_to_candidate=not shared)
    lengths = [[0, 1, 2 * w, 2 * w + 1, 63], [], [600, 31, 32, 33]]
    assert_backends_agree(packed_rows([7, 4, 0], lengths, shared=shared), pattern, device)


@pytest.mark.parametrize(
    ("query_lengths", "candidate_lengths"),
    [
        ([], []),  # nothing at all
        ([5, 0, 3], [[], [], []]),  # queries alone
        ([0], [[0]]),  # one [CLS]
        ([0], [[40]]),  # no query
        ([4], [[0, 0, 0]]),  # no candidate row
        ([1], [[1] * 70]),  # more candidates than rows of a block
        ([2, 0, 9, 1] * 10, [[3], [0, 1], [], [2, 2]] * 10),  # a block over many queries
        ([300], [[40, 2]]),  # a query longer than its candidates
    ],
)
@pytest.mark.parametrize("window", [0, 4, 64, 2**31, None])
def test_vectorized_equals_reference_on_odd_layouts(
    query_lengths: list[int], candidate_lengths: list[list[int]], window: int | None
) -> None:
    for shared in (True, False):
        pattern = AttentionPattern(window, query_to_cls=not shared, query_to_candidate=not shared)
        assert_backends_agree(packed_rows(query_lengths, candidate_lengths, shared=shared), pattern)


def test_vectorized_equals_reference_over_many_chunks() -> None:
    """The batch has more blocks and groups than fit in one chunk."""
    pattern = AttentionPattern(window=4, query_to_cls=False, query_to_candidate=False)
    rng = np.random.default_rng(0)
    lengths = [rng.integers(0, 60, 20).tolist() for _ in range(4)]
    assert_backends_agree(packed_rows([30, 1, 12, 200], lengths, shared=True), pattern)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("window", [0, 4, None])
def test_vectorized_is_as_exact_as_the_reference_in_its_dtype(
    window: int | None, dtype: torch.dtype, device: str
) -> None:
    pattern = AttentionPattern(window, query_to_cls=False, query_to_candidate=False)
    rows = packed_rows([9, 3], [[63, 0, 150], [40]], shared=True)
    qkv = random_qkv(rows).to(device, dtype)
    exact = windowed_attention(qkv.double(), rows, pattern, backend="reference")

    errors = {
        backend: float((windowed_attention(qkv, rows, pattern, backend=backend).double() - exact).abs().max())
        for backend in BACKENDS
    }

    assert errors["vectorized"] <= 2 * errors["reference"]


@pytest.mark.parametrize("window", [4, None])
def test_strided_rows_are_legal(window: int | None) -> None:
    pattern = AttentionPattern(window, query_to_cls=False, query_to_candidate=False)
    rows = packed_rows([3, 2], [[5, 70], [1]], shared=True)
    qkv = random_qkv(rows)
    apart = torch.cat([qkv, qkv], 1)[:, :3]

    assert torch.equal(windowed_attention(apart, rows, pattern), windowed_attention(qkv, rows, pattern))


@pytest.mark.parametrize("window", [0, 4, None])
def test_attend_cls_is_attend_with_rows_as_keys_and_values(window: int | None) -> None:
    pattern = AttentionPattern(window, query_to_cls=False, query_to_candidate=False)
    rows = packed_rows([3, 0], [[5, 0, 40], [7]], shared=True)
    generator = torch.Generator().manual_seed(0)
    hidden, query = torch.randn(2, rows.num_rows, 6, dtype=torch.float64, generator=generator)
    for backend in BACKENDS:
        plan = plan_attention(rows, pattern, device=CPU, dtype=torch.float64, head_dim=HEAD_DIM, backend=backend)
        whole = plan.attend(torch.stack([query, hidden, hidden], 1)[:, :, None])

        absorbed = plan.attend_cls(query[: rows.num_candidates, None], hidden, 6**-0.5)

        torch.testing.assert_close(absorbed, whole[: rows.num_candidates], rtol=0, atol=EXACT)


GROWTH = """
import numpy, torch
from pathlib import Path
from bandrank_kernels.windowed_attention import AttentionPattern, PackedRows, windowed_attention

def peak():
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["VmHWM"].split()[0]) * 1024

def attend(num_rows):
    rows = PackedRows(numpy.array([0, 11]), numpy.array([0, num_rows]), numpy.array([0]))
    qkv = torch.randn(rows.num_rows, 3, 12, 32)
    before = peak()
    with torch.inference_mode():
        windowed_attention(qkv, rows, AttentionPattern(4, query_to_cls=False, query_to_candidate=False))
    return (peak() - before) / qkv.nbytes

attend(256)  # what torch itself takes at the first call
print(attend(16384))
"""


@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="peak memory is read from Linux's /proc")
def test_memory_is_linear_in_rows() -> None:
    """A candidate of 16,384 rows under window 4 takes, beyond its qkv, less than twice its size.

    Its output takes a third. A boolean mask of all pairs of rows would take 3.5 times its size, their float32 scores
    in 12 heads 170 times. Measured in a separate process, for the peak of a process never falls.
    """
    measured = subprocess.run([sys.executable, "-c", GROWTH], check=True, capture_output=True, text=True)

    assert 0 < float(measured.stdout) < 2


@pytest.mark.parametrize("lengths", [[0, 1, 40, 4, 5, 0, 300, 7], [3, 1, 0], [90, 50], []])
@pytest.mark.parametrize("window", [0, 3, 39, 500])
def test_local_attention_equals_the_reference(window: int, lengths: list[int]) -> None:
    """Whether texts are shorter than the window, longer, or a mixture."""
    cu_seqlens = offsets(lengths)
    qkv = torch.randn(int(cu_seqlens[-1]), 3, NUM_HEADS, HEAD_DIM, dtype=torch.float64)
    reference, vectorized = (
        plan_local_attention(cu_seqlens, window, device=CPU, dtype=qkv.dtype, head_dim=HEAD_DIM, backend=backend)
        for backend in BACKENDS
    )

    torch.testing.assert_close(vectorized.attend(qkv), reference.attend(qkv), rtol=0, atol=EXACT)


def test_short_texts_are_not_padded_to_a_wide_window() -> None:
    """Every block of a band has keys for the window on both sides of it, which texts of 75 rows do not have."""
    plan = LocalPlan(offsets([75] * 20 + [600] + [75] * 20), 512, device=CPU, dtype=torch.float32)

    keys = sum(piece.key_index.numel() for piece in plan.pieces)

    assert keys <= 40 * 75 + 2 * (512 + 2 * 512)
