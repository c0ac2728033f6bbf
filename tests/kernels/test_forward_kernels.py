"""The forward kernels, run on the CPU: exact to the rounding of their dtype, and the same bits each time."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from emulation.compiled import SCHEDULES, needs_compiler
from emulation.launches import prepare
from support.forward_kernels import (
    AMPERE,
    BARS,
    LSE_BAR,
    TURING,
    attend,
    exact,
    from_bits,
    lse_error,
    plan,
    random_qkv,
    relative_error,
)
from support.layouts import packed_rows

from bandrank_kernels.cuda import Dtype
from bandrank_kernels.windowed_attention import PackedRows
from bandrank_kernels.windowed_attention.cuda.forward import ForwardPlan

pytestmark = needs_compiler
NUM_HEADS = 2


@dataclass(frozen=True)
class Shape:
    """The shape of one launch. candidates: rows of the candidates of each query."""

    window: int | None
    queries: tuple[int, ...]
    candidates: tuple[tuple[int, ...], ...]
    num_heads: int = NUM_HEADS
    max_shared_bytes: int = 96 * 1024

    def __str__(self) -> str:
        groups = "; ".join(
            f"{query}: {' '.join(map(str, group))}" for query, group in zip(self.queries, self.candidates, strict=True)
        )
        return f"w {self.window}, {groups}, {self.num_heads} heads"

    @property
    def rows(self) -> PackedRows:
        return packed_rows(self.queries, self.candidates, shared=True)


SINGLE = [0, 1, 2, 14, 15, 16, 17, 29, 30, 31, 32, 33, 59, 60, 61, 62, 63, 64, 65, 89, 90, 91]
LONG = [119, 120, 121, 123, 124, 125, 126, 130, 179, 180, 181, 247, 248, 249, 300]
NARROW_WINDOWS = [0, 1, 3, 4, 5, 9, 16]
WIDE_WINDOWS = [17, 20, 64, 128, None]
MANY = ((11, 0, 3, 1), ((60, 0, 17, 121), (5, 33), (), (64, 1, 62)))


def narrow_shapes() -> Iterator[Shape]:
    """Shapes for the kernels of windows up to 16: tile and step borders, every number of key tiles, many queries."""
    for index, length in enumerate(SINGLE + LONG):
        for window in (NARROW_WINDOWS[(index + shift) % 7] for shift in (0, 3, 5)):
            yield Shape(window, (11,), ((length,),))
    for index, query in enumerate((0, 1, 7, 8, 14, 15, 16, 24, 31, 32, 40, 62, 63)):
        yield Shape(NARROW_WINDOWS[index % 7], (query,), ((33, 70),))
    for window in NARROW_WINDOWS:
        yield Shape(window, *MANY)
    for window in range(17):
        yield Shape(window, (16,), ((33, 70),), 1)
    for num_heads in (1, 3, 4, 5, 12):
        yield Shape(4, (5, 2), ((20, 61), (7,)), num_heads)
    yield Shape(16, (4,), ((0, 0, 0),))
    yield Shape(4, (3,), ((),))
    yield Shape(4, (11,), ((4086,),), 1)


def wide_shapes() -> Iterator[Shape]:
    """Shapes for the kernels of any window: slices of 31, one stage and several, queries of any length."""
    for index, length in enumerate(SINGLE + LONG):
        yield Shape(WIDE_WINDOWS[index % 5], (11,), ((length,),))
    for index, query in enumerate((0, 1, 15, 16, 17, 32, 63, 64, 150)):
        yield Shape(WIDE_WINDOWS[index % 5], (query,), ((33, 70),))
    for window in WIDE_WINDOWS:
        yield Shape(window, *MANY)
        # Stages of 64 keys, so that windows and queries are cut.
        yield Shape(window, (70, 3), ((150, 31), (1, 0)), 1, 16 * 1024)
    yield Shape(4, (64,), ((40, 0),))  # too long a query for the kernel of narrow windows
    yield Shape(200, (11,), ((400,),), 1)
    yield Shape(64, (11,), ((4086,),), 1)


SHAPES = {"narrow": list(narrow_shapes()), "wide": list(wide_shapes())}
# The fallback kernel takes windows of any width.
SHAPES["simt"] = [shape for shape in (SHAPES["narrow"] + SHAPES["wide"])[::4] if shape.rows.num_rows < 4000]
SHAPES["simt"].append(Shape(4, (11,), ((4086,),), 1))
# Each shape is run in one variant only: dtype and head width alternate from one shape to the next.
HALVES: list[tuple[Dtype, int]] = [("float16", 32), ("bfloat16", 64), ("bfloat16", 32), ("float16", 64)]
ALL_DTYPES: list[tuple[Dtype, int]] = [("float32", 32), ("float32", 64), ("float16", 64), ("bfloat16", 32)]
CASES = [
    pytest.param(
        kernel, shape, *dtypes[index % 4], id=f"{kernel} {dtypes[index % 4][0]} {dtypes[index % 4][1]}, {shape}"
    )
    for kernel, dtypes in (("narrow", HALVES), ("wide", HALVES), ("simt", ALL_DTYPES))
    for index, shape in enumerate(SHAPES[kernel])
]


def test_there_are_enough_cases() -> None:
    """A mistake in the lists above would make them shorter."""
    assert len(CASES) >= 200


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    """Compiles all kernels of the cases, a file at a time; one by one they would take four times as long."""
    prepare(*(plan_of(*case.values).variant.kernel for case in CASES))


def plan_of(kernel: str, shape: Shape, dtype: Dtype, head_dim: int) -> ForwardPlan:
    return plan(
        shape.rows,
        shape.window,
        dtype,
        num_heads=shape.num_heads,
        head_dim=head_dim,
        capability=TURING if kernel == "simt" else AMPERE,
        max_shared_bytes=shape.max_shared_bytes,
    )


@pytest.mark.parametrize(("kernel", "shape", "dtype", "head_dim"), CASES)
def test_a_forward_kernel_is_exact(kernel: str, shape: Shape, dtype: Dtype, head_dim: int) -> None:
    """Output and log-sum-exp equal those in float64, every row is written, and both schedules give the same bits."""
    qkv = random_qkv(shape.rows, dtype, shape.num_heads, head_dim)
    planned = plan_of(kernel, shape, dtype, head_dim)
    truth = exact(from_bits(qkv, dtype), shape.rows, shape.window)

    actual, again = (attend(planned, qkv, schedule=schedule, seed=seed) for seed, schedule in enumerate(SCHEDULES))

    assert planned.variant.file == f"{kernel}.cuh"
    assert relative_error(actual, truth) < BARS[dtype]
    assert lse_error(actual, truth) < LSE_BAR
    np.testing.assert_array_equal(again.out, actual.out)
    np.testing.assert_array_equal(again.lse, actual.lse)
