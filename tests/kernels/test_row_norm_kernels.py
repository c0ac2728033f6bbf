"""The CUDA kernel of sums and their norms, run on the CPU from the launches that a GPU would get."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from emulation.compiled import SCHEDULES, Schedule, needs_compiler
from emulation.launches import emulate, prepare
from emulation.mistakes import Mistake, assert_noticed, plant
from support.bands import random_rows
from support.guarded import guarded
from support.norms import EPS, HALF_ULP, KINDS, Kind, exact, is_close, make_addends, make_norm
from torch import Tensor

from bandrank_kernels.launch import Kernel
from bandrank_kernels.row_norms import Addend, cuda

pytestmark = needs_compiler

DTYPES = list(HALF_ULP)
HIDDEN_SIZES = [8, 32, 64, 256, 264, 384, 504, 768, 1000, 1024]


def run(
    addends: Sequence[Addend],
    weight: Tensor,
    bias: Tensor,
    eps: float = EPS,
    *,
    schedule: Schedule = "depth first",
    seed: int = 0,
    kernel: Kernel | None = None,
) -> Tensor:
    """Returns the kernel's output, which starts as NaN. Raises EmulationError if the kernel writes anywhere else.
    kernel: used in place of the launch's.
    """
    with guarded(addends[0].total, len(weight), dtype=weight.dtype) as out:
        launch = cuda.plan(addends, weight, bias, eps, out)
        emulate(replace(launch, kernel=kernel or launch.kernel), schedule, seed)
    return out


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    prepare(*cuda.instances())


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_the_kernel_equals_the_reference(kind: Kind, dtype: torch.dtype, schedule: Schedule) -> None:
    """The kernel writes the whole output and nothing else, for any number of rows and of parts of a row."""
    shapes = [(num_rows, hidden_size) for hidden_size in HIDDEN_SIZES for num_rows in (1, 4, 7, 33)]
    for num_rows, hidden_size in (*shapes, (300, 384)):
        addends, norm = make_addends(kind, num_rows, hidden_size, dtype), make_norm(hidden_size, dtype)

        assert is_close(run(addends, *norm, schedule=schedule, seed=num_rows), exact(addends, *norm)), num_rows


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_alone_has_the_bits_it_has_in_company(dtype: torch.dtype) -> None:
    """The bits are the same under every schedule: the order of the sums depends on hidden_size alone."""
    addends, norm = make_addends("add", 33, 384, dtype), make_norm(384, dtype)
    together = [run(addends, *norm, schedule=schedule, seed=seed) for schedule in SCHEDULES for seed in range(3)]

    assert all(torch.equal(together[0], other) for other in together[1:])
    for row in (0, 5, 32):
        alone = run([Addend(rows[row : row + 1]) for rows, _ in addends], *norm)
        assert torch.equal(alone[0], together[0][row])


@pytest.mark.parametrize(("size", "spread"), [(9, 0), (1e3, 1e-2), (0, 1e-20)])
def test_what_all_numbers_of_a_row_share_costs_no_digits(size: float, spread: float) -> None:
    """Rows of one number become the bias, though the mean that float32 gives for most of them is another number."""
    x = torch.linspace(0, size, 99)[:, None] + spread * random_rows(99, 384, dtype=torch.float32)
    addends, norm = [Addend(x), Addend(torch.zeros_like(x))], make_norm(384, torch.float32)

    assert is_close(run(addends, *norm), exact(addends, *norm))


def test_a_sum_may_be_larger_than_float16() -> None:
    """The sum is kept in float32 until it is normed."""
    rows = random_rows(4, 64, dtype=torch.float16) + 60000
    addends, norm = [Addend(rows), Addend(rows)], make_norm(64, torch.float16)

    assert run(addends, *norm).isfinite().all()


def test_a_number_outside_its_table_makes_its_row_nan() -> None:
    """No other row is NaN, and nothing outside the table is read."""
    addends, norm = make_addends("embed", 9, 384, torch.float16), make_norm(384, torch.float16)
    expected = exact(addends, *norm)
    for which, row, number in ((0, 2, 50), (1, 3, -1), (2, 7, 2**40)):
        numbers = addends[which].numbers
        assert numbers is not None
        numbers[row] = number
        expected[row] = torch.nan

    assert is_close(run(addends, *norm), expected)


def test_rows_are_read_in_place_or_copied() -> None:
    """Rows apart, and one row for all, are read in place; rows that do not start at 16-byte addresses are copied."""
    wide, residual = random_rows(9, 1000, dtype=torch.float16), random_rows(1, 384, dtype=torch.float16, seed=1)
    norm = make_norm(384, torch.float16)
    for first, in_place in ((8, True), (3, False)):
        addends = [Addend(wide[:, first : first + 384]), Addend(residual.expand(9, 384))]
        held = cuda.plan(addends, *norm, EPS, torch.empty(9, 384, dtype=torch.float16)).holds

        assert (addends[0].rows.data_ptr() in [tensor.data_ptr() for tensor in held]) is in_place
        assert is_close(run(addends, *norm), exact(addends, *norm))


def test_no_rows_are_no_launch() -> None:
    """CUDA refuses a grid without blocks."""
    assert cuda.norm_of_sum(
        make_addends("embed", 0, 384, torch.float16), *make_norm(384, torch.float16), EPS
    ).shape == (0, 384)


@pytest.mark.parametrize(
    ("dtype", "hidden_size", "reason"),
    [
        (torch.float64, 384, "rows must be float16, bfloat16 or float32, got torch.float64"),
        (torch.float16, 380, "hidden_size must be a multiple of 8 up to 1024, got 380"),
        (torch.float16, 1032, "hidden_size must be a multiple of 8 up to 1024, got 1032"),
        (torch.float16, 0, "hidden_size must be a multiple of 8 up to 1024, got 0"),
        (torch.bfloat16, 1024, None),
    ],
)
def test_what_the_kernel_cannot_do_is_said(dtype: torch.dtype, hidden_size: int, reason: str | None) -> None:
    assert cuda.why_unsupported(dtype, hidden_size) == reason


MISTAKES = (
    # Columns beyond a row are read, written, and counted by the variance and the mean.
    Mistake("columns", "$ || first + part * kPartColumns == p.hidden_size"),
    Mistake("squares", "fmaf(s[part][i], s[part][i], squares)"),
    Mistake("mean", "sum / (kParts * kPartColumns)"),
    # Rows: the last one is not written; another row of a table is taken; the gap between rows is forgotten.
    Mistake("rows", "$ || row == p.num_rows - 1"),
    Mistake("number", "row"),
    Mistake("stride", "static_cast<const T*>(addend.rows) + number * p.hidden_size + first"),
    Mistake("known", "$ || number == addend.num_rows"),
    # Lanes miss the sums of half of the others.
    Mistake("lanes", "$ && step > 1"),
    # The formula.
    Mistake("scale", "1.f / sqrtf(warp_sum(squares) / p.hidden_size)"),
    Mistake("affine", "T(fmaf(s[part][i] * scale, 1.f, float(result.numbers[i])))"),
    Mistake("addends", "$ && a < kAddends - 1"),
)


@pytest.mark.parametrize("number", range(len(MISTAKES)))
def test_a_mistake_is_noticed(number: int) -> None:
    # Words are the first rows of a table of wider rows, and one of the ids is just outside.
    words = random_rows(51, 400, dtype=torch.float16)[:50, :328]
    ids, *others = make_addends("embed", 33, 328, torch.float16)
    addends, norm, eps = [ids._replace(rows=words), *others], make_norm(328, torch.float16), 0.1
    assert ids.numbers is not None
    expected = exact(addends, *norm, eps)
    ids.numbers[7] = 50
    expected[7] = torch.nan
    planted = plant(cuda.kernel(torch.float16, *cuda.parts(328), 3), MISTAKES)

    def survives(schedule: Schedule) -> bool:
        return is_close(run(addends, *norm, eps, kernel=planted, schedule=schedule), expected)

    assert_noticed(planted, number, survives, schedules=["depth first"])
