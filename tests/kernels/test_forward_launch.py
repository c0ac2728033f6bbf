"""Tiles, strides, grids of fixed size and refusals of the forward kernels, and mistakes planted in these."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from emulation.compiled import Schedule, needs_compiler
from emulation.mistakes import Mistake, assert_noticed, plant
from hypothesis import given
from hypothesis import strategies as st
from support.drawn_layouts import layouts
from support.forward_kernels import (
    BARS,
    LSE_BAR,
    TURING,
    Attended,
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
from bandrank_kernels.windowed_attention import AttentionPattern, PackedRows
from bandrank_kernels.windowed_attention.cuda.forward import ForwardPlan, is_readable, plan_forward, why_unsupported
from bandrank_kernels.windowed_attention.cuda.tiles import plan_tiles
from bandrank_kernels.windowed_attention.cuda.variants import SHIPPED, Narrow, choose_variant

SPARSE = AttentionPattern(4, query_to_cls=False, query_to_candidate=False)
ROWS = packed_rows([11, 3], [[260, 0, 17], [64]], shared=True)
# One plan of each kernel, in which candidates have several tiles and the wide kernel several stages.
PLANS = {
    "narrow": plan(ROWS, 4, "float16"),
    "wide": plan(ROWS, 64, "float16", max_shared_bytes=16 * 1024),
    "simt": plan(ROWS, 4, "float16", capability=TURING),
}
KERNELS = list(PLANS)


def run(planned: ForwardPlan, **options: object) -> tuple[Attended, Attended]:
    """Returns the kernel's result, and the exact one."""
    qkv = random_qkv(ROWS, "float16", 2, 32)
    actual = attend(planned, qkv, **options)  # type: ignore[arg-type]  # attend's own
    return actual, exact(from_bits(qkv, "float16"), ROWS, planned.window)


def is_right(actual: Attended, truth: Attended) -> bool:
    return relative_error(actual, truth) < BARS["float16"] and lse_error(actual, truth) < LSE_BAR


def survives_large_scores(planned: ForwardPlan, **options: object) -> bool:
    """Whether it is right where scores reach thousands, whose exponentials overflow a float, or all are below -1000."""
    large = random_qkv(ROWS, "float16", 2, 32) * np.float16(30)
    below = np.abs(large) * np.float16([1, -1, 1])[:, None, None]
    for qkv in (large, below):
        actual = attend(planned, qkv, **options)  # type: ignore[arg-type]  # attend's own
        truth = exact(from_bits(qkv, "float16"), ROWS, planned.window)
        if not (relative_error(actual, truth) < BARS["float16"] and np.abs(actual.lse / truth.lse - 1).max() < 1e-5):
            return False
    return True


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
    tiles = plan_tiles(ROWS, 60)
    padded = plan_tiles(ROWS, 60, capacity=len(tiles) + 2)

    assert (padded[:-2] == tiles).all()
    assert (padded[-2:] == -2).all()
    with pytest.raises(ValueError, match=rf"{len(tiles)} tiles do not fit in a launch of 3"):
        plan_tiles(ROWS, 60, capacity=3)


@needs_compiler
@pytest.mark.parametrize("kernel", KERNELS)
def test_unused_tiles_do_nothing(kernel: str) -> None:
    planned = PLANS[kernel]
    larger = replace(planned, tiles=plan_tiles(ROWS, planned.variant.tile_rows, capacity=len(planned.tiles) + 3))
    (actual, truth), (again, _) = run(planned), run(larger)

    assert is_right(actual, truth)
    np.testing.assert_array_equal(again.out, actual.out)


@needs_compiler
@pytest.mark.parametrize("kernel", KERNELS)
def test_other_candidates_touch_no_bit(kernel: str) -> None:
    qkv = random_qkv(ROWS, "float16", 2, 32)
    before = attend(PLANS[kernel], qkv).out
    broken = [0, *ROWS.candidate_rows(0)]
    qkv[broken] = np.nan
    after = attend(PLANS[kernel], qkv).out
    others = np.setdiff1d(np.arange(ROWS.num_rows), broken)

    assert np.isnan(after[broken]).all()
    np.testing.assert_array_equal(after[others], before[others])


MISTAKES = {
    "narrow": (
        # The candidate's border is no longer masked: rows clamped to it are seen once more.
        Mistake("border", "!is_query"),
        Mistake("window", "$ && i - g != 2 * w + 1"),
        Mistake("cls-globals", "globals"),
        Mistake("cls-factor", "1.f"),
        # Rows are read before they have been copied.
        Mistake("keys-copied"),
        Mistake("keys-staged"),
        Mistake("values-copied"),
        Mistake("values-staged"),
        # A row is not written.
        Mistake("written", "$ || position == end - 1"),
        # What the kernels share: the merge of [CLS], the layout of V.
        Mistake("last-tile", "before != tile.num_tiles - 2"),
        Mistake("interleave", "__byte_perm(even.pair[j / 2], odd.pair[j / 2], 0x5410u)"),
    ),
    "wide": (
        # What does not exist or is out of sight is seen.
        Mistake("limit", "true"),
        Mistake("edge", "true"),
        Mistake("band", "$ + 1"),
        Mistake("masked", "false"),
        Mistake("last-global", "0xffffu"),
        Mistake("hides-cls", "state.top[a]"),
        Mistake("cls-globals", "!is_query"),
        # References follow maxima downwards, or not at all.
        Mistake("first-key", "high"),
        Mistake("raises", "false"),
        Mistake("low", "false"),
        Mistake("copied"),
        Mistake("staged"),
        Mistake("stage-free", "false"),
        Mistake("copies", "!later"),
        Mistake("cls-goes-on", "false"),
        Mistake("stages-read"),
        Mistake("cls-rows"),
        Mistake("written", "$ && a < 3"),
        Mistake("arrivals", "false"),
    ),
    "simt": (
        Mistake("last-key", "is_cls ? $ : position + w"),
        Mistake("globals", "tile.query_rows + !is_query"),
        Mistake("one-tile", "$ && !is_cls"),
        Mistake("merge-factor", "1.f"),
    ),
}


@needs_compiler
@pytest.mark.parametrize(
    ("kernel", "number"), [(kernel, number) for kernel in KERNELS for number in range(len(MISTAKES[kernel]))]
)
def test_a_mistake_is_noticed(kernel: str, number: int) -> None:
    planned = PLANS[kernel]
    planted = plant(planned.variant.kernel, MISTAKES[kernel])

    def survives(schedule: Schedule) -> bool:
        options = {"schedule": schedule, "kernel": planted}
        return is_right(*run(planned, **options)) and survives_large_scores(planned, **options)

    assert_noticed(planted, number, survives)


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
    asked = {"head_dim": 32, "dtype": "float16", "capability": (9, 0), **facts}

    assert why_unsupported(SPARSE, head_dim=32, dtype="float16") is None
    with pytest.raises(ValueError, match=reason):
        plan_forward(ROWS, pattern, num_heads=2, **asked)  # type: ignore[arg-type]  # one of them is wrong


@given(st.data())
def test_only_shipped_variants_are_chosen(data: st.DataObject) -> None:
    """Every choice is a kernel whose registers are on record; float32 and cards before sm_80 get simt.cuh."""
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


def test_rows_that_are_not_read_in_place() -> None:
    """The kernels need rows of 16-byte pieces, heads that follow one another, and rows less than 2 GiB apart."""
    wide = torch.zeros(5, 3, 2, 40, dtype=torch.float16)
    far = torch.empty(0, dtype=torch.float16, device="meta")

    assert is_readable(wide)
    assert is_readable(wide[::2])
    assert is_readable(torch.zeros(1000).as_strided((5, 3, 1, 32), (96, 32, 7, 1)))
    assert not is_readable(wide[:, :, :1])
    assert not is_readable(wide[..., :32])
    assert not is_readable(wide.flatten()[1:-239].view(4, 3, 2, 40))
    assert not is_readable(wide.transpose(1, 2))
    assert is_readable(far.as_strided((2, 3, 1, 32), (2**30 - 8, 32, 32, 1)))
    assert not is_readable(far.as_strided((2, 3, 1, 32), (2**30, 32, 32, 1)))


def test_blocks_of_narrow_windows_fit_side_by_side() -> None:
    """As many blocks as registers allow share the 228 KiB of an sm_90 multiprocessor, and CUDA takes 1 KiB for each."""
    for variant in SHIPPED:
        if isinstance(variant, Narrow):
            assert variant.min_blocks * (variant.shared_bytes + 1024) <= 228 * 1024, variant


def test_shared_memory_stays_within_its_bound() -> None:
    """Long candidates are staged to stay within the bound; an empty batch has no blocks; simt.cuh shares nothing."""
    long = packed_rows([11], [[4086]], shared=True)
    for window, most in ((64, 48 * 1024), (None, 96 * 1024), (None, 16 * 1024)):
        planned = plan(long, window, "float16", max_shared_bytes=most)
        assert 0 < planned.shared_bytes <= most
    empty = PackedRows(np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(0, np.int64))

    assert plan(empty, 64, "float16").blocks == 0
    assert plan(ROWS, 4, "float16", capability=TURING).shared_bytes == 0
