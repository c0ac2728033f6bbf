"""Windowed attention: every backend against the reference, the reference against the pattern's own words."""

import itertools
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.layouts import WINDOWS, layouts, packed_rows, patterns
from torch import Tensor

from bandrank_kernels import Backend, BackendUnavailable, choose_backend
from bandrank_kernels.windowed_attention import AttentionPattern, PackedRows, plan_attention, windowed_attention

CPU = torch.device("cpu")
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
BACKENDS: list[Backend] = ["reference", "vectorized"]
NUM_HEADS, HEAD_DIM = 2, 4
# Two orders of summation of at most 1,000 terms in float64; values and outputs are of the order of 1.
EXACT = 1e-10


def random_qkv(rows: PackedRows, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Queries, keys and values whose softmax is uneven."""
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.randn(rows.num_rows, 3, NUM_HEADS, HEAD_DIM, dtype=dtype, generator=generator)


def assert_backends_agree(rows: PackedRows, pattern: AttentionPattern, device: str = "cpu") -> None:
    """`attend` and `attend_cls` of the vectorized plan equal the reference's in float64."""
    qkv = random_qkv(rows).to(device)
    wide = torch.randn(rows.num_rows, 12, dtype=qkv.dtype, generator=torch.Generator().manual_seed(1)).to(device)
    query = 2 * wide[: rows.num_candidates, None].expand(-1, 3, -1) * torch.tensor([[[1.0], [-1.0], [0.1]]]).to(wide)
    reference, vectorized = (
        plan_attention(rows, pattern, device=qkv.device, dtype=qkv.dtype, backend=backend) for backend in BACKENDS
    )

    torch.testing.assert_close(vectorized.attend(qkv), reference.attend(qkv), rtol=0, atol=EXACT)
    torch.testing.assert_close(
        vectorized.attend_cls(query, wide, 0.3), reference.attend_cls(query, wide, 0.3), rtol=0, atol=EXACT
    )


# The reference and the pattern's words


def may_attend(rows: PackedRows, pattern: AttentionPattern, source: int, target: int) -> bool:
    """The pattern's definition for one pair of rows."""

    def place(row: int) -> tuple[str, int, int]:
        """Its group, its candidate or query, and its place there."""
        if row < rows.num_candidates:
            return "cls", row, 0
        if row < rows.first_candidate_row:
            cu, group, row = rows.cu_queries, "query", row - rows.first_query_row
        else:
            cu, group, row = rows.cu_candidates, "candidate", row - rows.first_candidate_row
        owner = int(np.searchsorted(cu, row, side="right")) - 1
        return group, owner, row - int(cu[owner])

    (group, owner, index), (other_group, other_owner, other_index) = place(source), place(target)
    if group == other_group:
        near = group != "candidate" or pattern.window is None or abs(index - other_index) <= pattern.window
        return owner == other_owner and near
    if group == "query":
        related = rows.candidate_query[other_owner] == owner
    elif other_group == "query":
        related = rows.candidate_query[owner] == other_owner
    else:
        related = owner == other_owner
    return bool(related) and bool(getattr(pattern, f"{group}_to_{other_group}"))


@settings(max_examples=60)
@given(st.data())
def test_reference_attends_where_the_pattern_says(data: st.DataObject) -> None:
    """A row attends to another if and only if the pattern's definition allows the pair."""
    pattern = replace(data.draw(patterns()), window=data.draw(st.sampled_from([0, 1, 3, None])))
    rows = data.draw(layouts(pattern).filter(lambda rows: rows.num_rows <= 60))
    # With equal scores and one-hot values, the output of a row is its visibility divided by their number.
    qkv = torch.zeros(rows.num_rows, 3, 1, max(rows.num_rows, 1), dtype=torch.float64)
    qkv[:, 2, 0] = torch.eye(rows.num_rows, max(rows.num_rows, 1), dtype=torch.float64)

    visible = windowed_attention(qkv, rows, pattern, backend="reference")[:, 0, : rows.num_rows] > 0

    expected = [[may_attend(rows, pattern, i, j) for j in range(rows.num_rows)] for i in range(rows.num_rows)]
    assert visible.tolist() == expected


@pytest.mark.parametrize("backend", BACKENDS)
def test_slots_beyond_the_border_take_no_part_in_the_softmax(backend: Backend) -> None:
    """A candidate of two rows under window 4: four keys share the softmax, not the nine slots and two more."""
    rows = packed_rows([1], [[2]], shared=True)
    pattern = AttentionPattern(window=4, query_to_cls=False, query_to_candidate=False)
    # One head of width 1, so the scale is 1; the query vectors are 1, the keys the logarithms of these weights.
    weights, values = [1.0, 2.0, 3.0, 4.0], [1000.0, 100.0, 10.0, 1.0]  # [CLS], query, two candidate rows
    triples = [[[[1.0]], [[math.log(weight)]], [[value]]] for weight, value in zip(weights, values, strict=True)]
    qkv = torch.tensor(triples, dtype=torch.float64)

    attended = windowed_attention(qkv, rows, pattern, backend=backend).flatten().tolist()

    # All rows but the query's: (1 * 1000 + 2 * 100 + 3 * 10 + 4 * 1) / (1 + 2 + 3 + 4). Had the seven slots beyond
    # the border logits and values of zero, the denominator of the candidate rows would be 17.
    assert attended == pytest.approx([123.4, 100.0, 123.4, 123.4], abs=EXACT)


@pytest.mark.parametrize("backend", BACKENDS)
def test_window_0_is_the_row_itself(backend: Backend) -> None:
    """With window 0 a candidate row sees itself, [CLS] and the query, and no other row of its candidate."""
    rows = packed_rows([1], [[3]], shared=True)
    pattern = AttentionPattern(window=0, query_to_cls=False, query_to_candidate=False)
    qkv = torch.zeros(5, 3, 1, 1, dtype=torch.float64)  # equal scores
    qkv[:, 2, 0, 0] = torch.tensor([30.0, 60.0, 3.0, 6.0, 9.0])

    attended = windowed_attention(qkv, rows, pattern, backend=backend).flatten().tolist()

    assert attended[2:] == pytest.approx([(30 + 60 + own) / 3 for own in (3, 6, 9)], abs=EXACT)


# The vectorized backend and the reference


@settings(max_examples=150)
@given(st.data())
def test_vectorized_equals_reference(data: st.DataObject) -> None:
    """Any pattern on any layout, empty ones included."""
    pattern = data.draw(patterns())
    assert_backends_agree(data.draw(layouts(pattern)), pattern)


@pytest.mark.parametrize("window", WINDOWS)
def test_vectorized_equals_reference_for_all_switches(window: int | None) -> None:
    """All 64 settings of the switches, two queries, one of them empty, candidates of several lengths."""
    for switches in itertools.product([False, True], repeat=6):
        pattern = AttentionPattern(window, *switches)
        assert_backends_agree(packed_rows([3, 0], [[0, 5, 1], [12]], shared=pattern.shares_queries), pattern)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("window", WINDOWS)
def test_vectorized_equals_reference_at_the_borders(window: int | None, shared: bool, device: str) -> None:
    """Candidates of 0, 1, 2w, 2w + 1, 63 and 600 rows, in one batch of three queries."""
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
@pytest.mark.parametrize("window", [0, 4, 64, None])
def test_vectorized_equals_reference_on_odd_layouts(
    query_lengths: list[int], candidate_lengths: list[list[int]], window: int | None
) -> None:
    """Layouts at the edge of what is legal."""
    for shared in (True, False):
        pattern = AttentionPattern(window, query_to_cls=not shared, query_to_candidate=not shared)
        assert_backends_agree(packed_rows(query_lengths, candidate_lengths, shared=shared), pattern)


def test_vectorized_equals_reference_over_many_chunks() -> None:
    """Blocks and groups that do not fit in one chunk."""
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
    """Against float64, the vectorized backend errs no more than twice as much as the reference in the same dtype."""
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
    """Rows that lie apart in memory give the result of rows end to end."""
    pattern = AttentionPattern(window, query_to_cls=False, query_to_candidate=False)
    rows = packed_rows([3, 2], [[5, 70], [1]], shared=True)
    qkv = random_qkv(rows)
    apart = torch.cat([qkv, qkv], 1)[:, :3]

    assert torch.equal(windowed_attention(apart, rows, pattern), windowed_attention(qkv, rows, pattern))


@pytest.mark.parametrize("window", [0, 4, None])
def test_attend_cls_is_attend_with_rows_as_keys_and_values(window: int | None) -> None:
    """The absorbed attention of [CLS] is the ordinary one of a head whose keys and values are the rows."""
    pattern = AttentionPattern(window, query_to_cls=False, query_to_candidate=False)
    rows = packed_rows([3, 0], [[5, 0, 40], [7]], shared=True)
    generator = torch.Generator().manual_seed(0)
    hidden, query = torch.randn(2, rows.num_rows, 6, dtype=torch.float64, generator=generator)
    for backend in BACKENDS:
        plan = plan_attention(rows, pattern, device=CPU, dtype=torch.float64, backend=backend)
        whole = plan.attend(torch.stack([query, hidden, hidden], 1)[:, :, None])

        absorbed = plan.attend_cls(query[: rows.num_candidates, None], hidden, 6**-0.5)

        torch.testing.assert_close(absorbed, whole[: rows.num_candidates], rtol=0, atol=EXACT)


# Who can touch whom


@pytest.mark.parametrize("window", [0, 4, 64, None])
@pytest.mark.parametrize("shared", [True, False])
def test_other_candidates_touch_no_bit(window: int | None, shared: bool) -> None:
    """Changing the rows of all other candidates, and of another query, changes no bit of a candidate's rows."""
    pattern = AttentionPattern(window, query_to_cls=not shared, query_to_candidate=not shared)
    rows = packed_rows([3, 5], [[30, 33, 31], [32, 7]], shared=shared)
    chosen = 1
    query = int(rows.candidate_query[chosen])
    own = [chosen, *rows.query_rows(query), *rows.candidate_rows(chosen)]
    others = np.setdiff1d(np.arange(rows.num_rows), own)
    qkv = random_qkv(rows, dtype=torch.float32)
    changed = qkv.clone()
    changed[torch.from_numpy(others)] *= -1e6

    before, after = (windowed_attention(x, rows, pattern) for x in (qkv, changed))

    assert torch.equal(after[own], before[own])


@pytest.mark.parametrize("window", [0, 4, 64, None])
def test_company_does_not_matter(window: int | None) -> None:
    """A candidate's rows alone come out as they do among others."""
    pattern = AttentionPattern(window, query_to_cls=False, query_to_candidate=False)
    together = packed_rows([3, 5], [[30, 33, 0], [32, 7]], shared=True)
    qkv = random_qkv(together)
    whole = windowed_attention(qkv, together, pattern)
    for candidate, length in enumerate(np.diff(together.cu_candidates)):
        query = together.query_rows(int(together.candidate_query[candidate]))
        own = [candidate, *query, *together.candidate_rows(candidate)]

        alone = windowed_attention(qkv[own], packed_rows([len(query)], [[int(length)]], shared=True), pattern)

        torch.testing.assert_close(alone, whole[own], rtol=0, atol=EXACT)


@pytest.mark.parametrize("window", [0, 4, None])
@pytest.mark.parametrize("shared", [True, False])
def test_gradients_equal_the_reference(window: int | None, shared: bool) -> None:
    """The vectorized backward pass, of `attend` and `attend_cls`, gives the gradients of the reference's."""
    pattern = AttentionPattern(window, query_to_cls=not shared, query_to_candidate=not shared)
    rows = packed_rows([3, 0, 6], [[0, 20, 9], [1], [40]], shared=shared)
    generator = torch.Generator().manual_seed(0)
    towards = torch.randn(rows.num_rows, NUM_HEADS, HEAD_DIM, dtype=torch.float64, generator=generator)
    query, hidden = torch.randn(2, rows.num_rows, 6, dtype=torch.float64, generator=generator)

    gradients = []
    for backend in BACKENDS:
        plan = plan_attention(rows, pattern, device=CPU, dtype=torch.float64, backend=backend)
        leaves = [leaf.clone().requires_grad_() for leaf in (random_qkv(rows), query, hidden)]
        cls = plan.attend_cls(leaves[1][: rows.num_candidates, None], leaves[2], 0.4)
        ((plan.attend(leaves[0]) * towards).sum() + cls.square().sum()).backward()  # type: ignore[no-untyped-call]  # torch leaves it bare
        gradients.append([leaf.grad for leaf in leaves])

    for reference, vectorized in zip(*gradients, strict=True):
        torch.testing.assert_close(vectorized, reference, rtol=0, atol=EXACT)


# Memory

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
    in 12 heads 170 times. Measured in a process of its own, as a process's peak never falls.
    """
    measured = subprocess.run([sys.executable, "-c", GROWTH], check=True, capture_output=True, text=True)

    assert 0 < float(measured.stdout) < 2


# What cannot be


def test_a_negative_window_is_refused() -> None:
    """A window below 0 means nothing."""
    with pytest.raises(ValueError, match="window must be at least 0, or None for no limit; got -1"):
        AttentionPattern(window=-1)


@pytest.mark.parametrize(
    ("cu_queries", "cu_candidates", "candidate_query", "message"),
    [
        ([1, 2], [0, 3], [0], "cu_queries must ascend from 0"),
        ([], [0], [], "cu_queries must ascend from 0"),
        ([0, 2], [0, 3, 1], [0, 0], "cu_candidates must ascend from 0"),
        ([0, 2], [0, 3], [0, 0], "candidate_query must have 1 entries, got 2"),
        ([0, 2], [0, 3], [1], r"candidate_query must ascend within 0\.\.0"),
        ([0, 2], [0, 3], [-1], r"candidate_query must ascend within 0\.\.0"),
        ([0, 2, 4], [0, 3, 6], [1, 0], r"candidate_query must ascend within 0\.\.1"),
        ([0], [0, 3], [0], "candidate_query must ascend within"),
    ],
)
def test_rows_that_do_not_fit_together_are_refused(
    cu_queries: list[int], cu_candidates: list[int], candidate_query: list[int], message: str
) -> None:
    """Offsets that fall, and candidates of queries that do not exist or out of order."""
    with pytest.raises(ValueError, match=message):
        PackedRows(*(np.array(x, np.int64) for x in (cu_queries, cu_candidates, candidate_query)))


def test_rows_of_a_layout() -> None:
    """[CLS] of each candidate, then the queries, then the candidates."""
    rows = packed_rows([2, 0, 1], [[3], [], [0, 2]], shared=True)

    assert (rows.num_queries, rows.num_candidates, rows.num_rows) == (3, 3, 11)
    assert [rows.query_rows(query) for query in range(3)] == [range(3, 5), range(5, 5), range(5, 6)]
    assert [rows.candidate_rows(candidate) for candidate in range(3)] == [range(6, 9), range(9, 9), range(9, 11)]


@pytest.mark.parametrize("shape", [(7, 3, 2), (6, 3, 2, 4), (7, 2, 2, 4), (7, 3, 2, 4, 1)])
def test_qkv_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    """The message says which shape was expected and which came."""
    rows = packed_rows([2], [[4]], shared=True)
    with pytest.raises(ValueError, match=r"qkv must be \(7, 3, num_heads, head_dim\), got "):
        windowed_attention(torch.zeros(shape), rows, AttentionPattern())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("switch", ["query_to_cls", "query_to_candidate"])
def test_a_shared_query_cannot_depend_on_its_candidates(backend: Backend, switch: str) -> None:
    """One copy of a query for two candidates, under a pattern that gives it another state for each."""
    pattern = replace(AttentionPattern(4, query_to_cls=False, query_to_candidate=False), **{switch: True})
    rows = packed_rows([2], [[4, 4]], shared=True)
    with pytest.raises(ValueError, match="each candidate needs a copy of its query"):
        plan_attention(rows, pattern, device=CPU, dtype=torch.float32, backend=backend)


def test_backends_by_name() -> None:
    """A backend that is asked for runs or says why it cannot; no other one takes its place."""
    assert choose_backend("auto", CPU) == "vectorized"
    assert choose_backend("reference", CPU) == "reference"
    with pytest.raises(BackendUnavailable, match=r"backend 'cuda' .* cpu"):
        choose_backend("cuda", CPU)
    with pytest.raises(ValueError, match="backend must be one of auto, cuda, vectorized, reference; got 'triton'"):
        choose_backend("triton", CPU)  # type: ignore[arg-type]  # what a caller without a type checker can do


def test_cuda_is_unavailable_at_the_front_door() -> None:
    """Asking for the CUDA kernels raises before anything is computed."""
    rows = packed_rows([2], [[4]], shared=True)
    with pytest.raises(BackendUnavailable):
        windowed_attention(random_qkv(rows), rows, AttentionPattern(), backend="cuda")
