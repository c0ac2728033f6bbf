"""Around the forward kernels: tiles, strides, grids of fixed size, refusals; and that planted mistakes are found."""

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.emulation import SCHEDULES, EmulationError, Schedule, needs_compiler, run_sanitized
from support.forward_kernels import (
    BARS,
    LSE_BAR,
    TURING,
    Attended,
    attend,
    emulation,
    exact,
    from_bits,
    lse_error,
    plan,
    random_qkv,
    relative_error,
)
from support.layouts import layouts, packed_rows

from bandrank_kernels.windowed_attention import AttentionPattern, PackedRows
from bandrank_kernels.windowed_attention.cuda import (
    SHIPPED,
    Dtype,
    ForwardLaunch,
    choose_variant,
    plan_forward,
    plan_tiles,
    why_unsupported,
)

SPARSE = AttentionPattern(4, query_to_cls=False, query_to_candidate=False)
ROWS = packed_rows([11, 3], [[260, 0, 17], [64]], shared=True)
# One launch of each kernel, in which candidates have several tiles and the wide kernel several stages.
LAUNCHES = {
    "narrow": plan(ROWS, 4, "float16"),
    "wide": plan(ROWS, 64, "float16", max_shared_bytes=16 * 1024),
    "simt": plan(ROWS, 4, "float16", capability=TURING),
}
KERNELS = list(LAUNCHES)


def run(launch: ForwardLaunch, **options: object) -> tuple[Attended, Attended]:
    """What the kernel gives, and what it should."""
    qkv = random_qkv(ROWS, "float16", 2, 32)
    found = attend(launch, qkv, **options)  # type: ignore[arg-type]  # attend's own
    return found, exact(from_bits(qkv, "float16"), ROWS, launch.window)


def is_right(found: Attended, truth: Attended) -> bool:
    """Within the bars of float16."""
    return relative_error(found, truth) < BARS["float16"] and lse_error(found, truth) < LSE_BAR


@given(st.data(), st.sampled_from([31, 60, 124]))
def test_tiles_cover_every_row_once(data: st.DataObject, tile_rows: int) -> None:
    """Each candidate's [CLS] has as many tiles as its rows need, at least one; every other row has one."""
    rows = data.draw(layouts(SPARSE))
    computed = np.zeros(rows.num_rows, np.int64)
    tiles_of = np.zeros(rows.num_candidates, np.int64)
    for number, tile in enumerate(plan_tiles(rows, tile_rows).tolist()):
        candidate, first_row, num_rows, begin, query_row, query_rows, index, num_tiles = tile
        assert 0 <= first_row < rows.num_rows
        computed[first_row + begin : first_row + min(begin + tile_rows, num_rows)] += 1
        if candidate < 0:
            assert (query_row, query_rows) == (first_row, num_rows)
            continue
        assert range(query_row, query_row + query_rows) == rows.query_rows(int(rows.candidate_query[candidate]))
        first = plan_tiles(rows, tile_rows)[number - index]
        assert (first[0], first[6]) == (candidate, 0)
        assert begin == index * tile_rows
        tiles_of[candidate] += 1
        assert num_tiles == max(1, -(-num_rows // tile_rows))

    assert (computed[rows.num_candidates :] == 1).all()
    assert (tiles_of == np.maximum(1, -(-np.diff(rows.cu_candidates) // tile_rows))).all()


def test_tiles_fill_a_grid_of_fixed_size() -> None:
    """The last of them are marked unused; too small a grid is refused."""
    tiles = plan_tiles(ROWS, 60)
    padded = plan_tiles(ROWS, 60, capacity=len(tiles) + 2)

    assert (padded[:-2] == tiles).all()
    assert (padded[-2:] == -2).all()
    with pytest.raises(ValueError, match=rf"{len(tiles)} tiles do not fit in a launch of 3"):
        plan_tiles(ROWS, 60, capacity=3)


@needs_compiler
@pytest.mark.parametrize("kernel", KERNELS)
def test_unused_tiles_do_nothing(kernel: str) -> None:
    """A grid larger than the batch gives the same bits."""
    launch = LAUNCHES[kernel]
    larger = replace(launch, tiles=plan_tiles(ROWS, launch.variant.tile_rows, capacity=len(launch.tiles) + 3))
    (found, truth), (again, _) = run(launch), run(larger)

    assert is_right(found, truth)
    np.testing.assert_array_equal(again.out, found.out)


@needs_compiler
@pytest.mark.parametrize("kernel", KERNELS)
def test_rows_may_lie_apart(kernel: str) -> None:
    """As a part of wider rows, qkv is read in place."""
    qkv = random_qkv(ROWS, "float16", 2, 32)
    wide = np.full((ROWS.num_rows, 4, 2, 32), np.nan, np.float16)
    wide[:, :3] = qkv

    np.testing.assert_array_equal(attend(LAUNCHES[kernel], wide[:, :3]).out, attend(LAUNCHES[kernel], qkv).out)


@needs_compiler
@pytest.mark.parametrize("kernel", KERNELS)
def test_other_candidates_touch_no_bit(kernel: str) -> None:
    """Rows of one candidate made NaN leave the others, and the query they share, as they are."""
    qkv = random_qkv(ROWS, "float16", 2, 32)
    before = attend(LAUNCHES[kernel], qkv).out
    broken = [0, *ROWS.candidate_rows(0)]
    qkv[broken] = np.nan
    after = attend(LAUNCHES[kernel], qkv).out
    others = np.setdiff1d(np.arange(ROWS.num_rows), broken)

    assert np.isnan(after[broken]).all()
    np.testing.assert_array_equal(after[others], before[others])


@needs_compiler
@pytest.mark.parametrize("kernel", KERNELS)
def test_large_scores_do_not_overflow(kernel: str) -> None:
    """Scores of thousands, whose exponentials no float holds."""
    qkv = random_qkv(ROWS, "float16", 2, 32) * np.float16(30)
    launch = LAUNCHES[kernel]
    found, truth = attend(launch, qkv), exact(from_bits(qkv, "float16"), ROWS, launch.window)

    assert relative_error(found, truth) < BARS["float16"]
    assert np.abs(found.lse / truth.lse - 1).max() < 1e-5


MISTAKES = [
    # The candidate's border is no longer masked: rows clamped to it are seen once more.
    ("narrow", "const bool exists = unsigned(band + i) < unsigned(band_rows);", "const bool exists = !is_query;"),
    ("narrow", "unsigned(i - g) > unsigned(2 * w)", "unsigned(i - g) > unsigned(2 * w + 1)"),
    (
        "narrow",
        "bottom_globals = !cls_lane ? globals : r0 == 0 && !is_query ? globals : 0;",
        "bottom_globals = globals;",
    ),
    ("narrow", "cls_factor = exp2_fast(cls_top - bottom);", "cls_factor = 1.f;"),
    ("wide", "(number >= limit || !visible[a].sees(number))", "!visible[a].sees(number)"),
    ("wide", "{r0 + g + 8 * a - w, 2 * w + 1}", "{r0 + g + 8 * a - w, 2 * w + 2}"),
    ("wide", "    __syncthreads();\n    if (!works) continue;", "    if (!works) continue;"),
    ("wide", "if (stage) __syncthreads();", ""),
    ("wide", "  __syncthreads();  // the last stage was read\n", ""),
    ("wide", "  __syncthreads();\n  if (warp) return;", "  if (warp) return;"),
    ("simt", "min_of(tile.num_rows - 1, place + w)", "place + w"),
    ("simt", "is_cls && tile.begin > 0 ? 0 : ", ""),
    # Rows that are not written.
    (
        "narrow",
        "if (place >= end || (half && cls_lane)) continue;",
        "if (place >= end - 1 || (half && cls_lane)) continue;",
    ),
    ("wide", "if (place >= end || (a == 3 && cls_lane)) continue;", "if (place >= end || a == 3) continue;"),
    ("simt", "if (works && (!is_cls || tile.num_tiles == 1)) {", "if (works && !is_cls) {"),
    # What the kernels share: the merge of [CLS], the layout of V.
    ("narrow", "if (before != tile.num_tiles - 1) return;", "if (before != tile.num_tiles - 2) return;"),
    ("wide", "if (lane == 0) *arrivals = 0;", ""),
    ("simt", "const float factor = exp2_fast(partial[0] - row.top);", "const float factor = 1.f;"),
    ("narrow", "j % 2 ? 0x7632u : 0x5410u", "0x5410u"),
]


@pytest.fixture(scope="module")
def compiled_mistakes() -> None:
    """All of them at once, on all processors."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for kernel, text, mistake in MISTAKES:
            variant = LAUNCHES[kernel].variant
            pool.submit(emulation, variant.source.replace(text, mistake), variant.name_expression)


@needs_compiler
@pytest.mark.usefixtures("compiled_mistakes")
@pytest.mark.parametrize(("kernel", "text", "mistake"), MISTAKES)
def test_a_mistake_is_found(kernel: str, text: str, mistake: str) -> None:
    """By one of the two schedules at least: wrong numbers, NaN, or a launch that goes wrong."""
    launch = LAUNCHES[kernel]
    source = launch.variant.source
    assert source.count(text) == 1

    def survives(schedule: Schedule) -> bool:
        try:
            return is_right(*run(launch, schedule=schedule, source=source.replace(text, mistake)))
        except EmulationError:
            return False

    assert not all(survives(schedule) for schedule in SCHEDULES)


SANITIZED = """
from concurrent.futures import ThreadPoolExecutor
from kernels.test_forward_launch import LAUNCHES, is_right, run
from support.emulation import Emulation
def compiled(launch):
    return Emulation(launch.variant.source, [launch.variant.name_expression], sanitize=True)
with ThreadPoolExecutor(2) as pool:
    emulations = list(pool.map(compiled, LAUNCHES.values()))
for launch, emulation in zip(LAUNCHES.values(), emulations):
    assert is_right(*run(launch, emulate=lambda source, kernel: emulation))
    print("in bounds", flush=True)
"""


@needs_compiler
def test_no_access_is_out_of_bounds() -> None:
    """Under the address sanitizer, on arrays of exactly the size they must have."""
    ended = run_sanitized(SANITIZED)

    assert (ended.stdout.splitlines(), ended.stderr) == (["in bounds"] * 3, "")


@pytest.mark.parametrize(
    ("pattern", "facts", "reason"),
    [
        (AttentionPattern(4), {}, "the kernels know the sparse cross-encoder's pattern alone"),
        (replace(SPARSE, cls_to_query=False), {}, "the kernels know the sparse cross-encoder's pattern alone"),
        (SPARSE, {"head_dim": 48}, r"head_dim must be one of \(32, 64\), got 48"),
        (SPARSE, {"dtype": "float64"}, "dtype must be one of float16, bfloat16, float32; got float64"),
        (SPARSE, {"capability": (7, 0)}, "the card must have compute capability 7.5 or higher, got 7.0"),
    ],
)
def test_what_the_kernels_cannot_do_is_refused(
    pattern: AttentionPattern, facts: dict[str, object], reason: str
) -> None:
    """With the reason, before anything is planned."""
    asked = {"head_dim": 32, "dtype": "float16", "capability": (9, 0), **facts}

    assert why_unsupported(SPARSE, head_dim=32, dtype="float16") is None
    with pytest.raises(ValueError, match=reason):
        plan_forward(ROWS, pattern, num_heads=2, **asked)  # type: ignore[arg-type]  # one of them is wrong


@given(st.data())
def test_only_shipped_variants_are_chosen(data: st.DataObject) -> None:
    """Those that were assembled and whose registers are known; without tensor cores where there are none."""
    dtype: Dtype = data.draw(st.sampled_from(["float16", "bfloat16", "float32"]))
    capability = data.draw(st.sampled_from([(7, 5), (8, 0), (8, 9), (9, 0), (12, 0)]))
    variant = choose_variant(
        dtype=dtype,
        head_dim=data.draw(st.sampled_from([32, 64])),
        capability=capability,
        window=data.draw(st.sampled_from([0, 4, 5, 16, 17, 300, None])),
        query_rows=data.draw(st.integers(0, 100)),
        candidate_rows=data.draw(st.integers(0, 500)),
    )

    assert variant in SHIPPED
    assert (variant.file == "simt.cuh") == (dtype == "float32" or capability < (8, 0))


def test_misaligned_rows_are_refused() -> None:
    """The kernels read 16 bytes at once."""
    addresses = {"out": 32, "lse": 0, "tiles": 0, "partials": 0, "arrivals": 0}
    for qkv, row_stride in ((8, 192), (16, 196)):
        with pytest.raises(ValueError, match="qkv and out must be aligned to 16 bytes and rows to 8 numbers"):
            LAUNCHES["narrow"].params(qkv=qkv, row_stride=row_stride, **addresses)


def test_shared_memory_stays_within_its_bound() -> None:
    """Long windows are staged; short ones take what they need."""
    long = packed_rows([11], [[4086]], shared=True)
    for window, most in ((64, 48 * 1024), (None, 96 * 1024), (None, 16 * 1024)):
        launch = plan(long, window, "float16", max_shared_bytes=most)
        assert 0 < launch.shared_bytes <= most
    empty = PackedRows(np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(0, np.int64))

    assert plan(empty, 64, "float16").grid == (0, 1, 1)
    assert plan(ROWS, 4, "float16").shared_bytes == 0
