"""The absorbed last layer's kernels, run on the CPU from the launches that a GPU would get."""

import pytest
import torch
from emulation.compiled import SCHEDULES, Schedule, needs_compiler
from emulation.launches import prepare
from emulation.mistakes import Mistake, assert_noticed, plant
from hypothesis import given
from hypothesis import strategies as st
from support.absorbed import Sizes, attend_cls, exact, is_right
from support.drawn_layouts import layouts
from support.forward_kernels import AMPERE, TURING
from support.layouts import packed_rows

from bandrank_kernels.cuda import Dtype
from bandrank_kernels.windowed_attention import AttentionPattern, PackedRows
from bandrank_kernels.windowed_attention.cuda.absorbed import ABSORBED, choose_absorbed, why_absorbed_unsupported
from bandrank_kernels.windowed_attention.cuda.tiles import plan_candidate_tiles, plan_tiles

pytestmark = needs_compiler

SPARSE = AttentionPattern(4, query_to_cls=False, query_to_candidate=False)
# Lengths around chunks of 8 and 16 keys, two chunks, and tiles of 512 rows; queries without rows, and candidates.
BORDERS = packed_rows(
    (11, 0, 63, 7, 1),
    ((0, 1, 15, 16, 17), (0, 31, 32, 33), (60, 61, 62, 63, 64, 65, 0), (), (255, 256, 257, 300, 511, 512, 513)),
    shared=True,
)
FEW = packed_rows((11, 0), ((0, 17, 1050), (33,)), shared=True)
LONG = packed_rows((11,), ((4086,),), shared=True)
CASES = [
    pytest.param(sizes, rows, id=f"{sizes}, {name}")
    for name, rows, all_sizes in (
        ("borders", BORDERS, [("float16", 5, 64), ("bfloat16", 16, 96)]),
        ("few", FEW, [("float16", 12, 384), ("bfloat16", 12, 768), ("float16", 2, 1000), ("float16", 1, 1024)]),
        ("long", LONG, [("float16", 2, 64), ("bfloat16", 1, 384)]),
        ("borders", BORDERS, [("float32", 5, 64), ("float16", 3, 72, TURING)]),
        ("few", FEW, [("float32", 12, 384), ("float32", 2, 768), ("bfloat16", 16, 1000, TURING)]),
        ("long", LONG, [("float32", 2, 64)]),
    )
    for sizes in (Sizes(*size) for size in all_sizes)  # type: ignore[arg-type]  # a Dtype, two numbers, a capability
]
KERNELS = {"mma": Sizes("float16", 12, 328), "simt": Sizes("float16", 3, 328, TURING)}


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    prepare(*(sizes.plan(rows).variant.kernel for sizes, rows in (case.values for case in CASES)))


@pytest.mark.parametrize(("sizes", "rows"), CASES)
def test_a_kernel_is_exact(sizes: Sizes, rows: PackedRows) -> None:
    """Outputs equal those in float64, nothing is written around them, and both schedules give the same bits."""
    query, x = sizes.inputs(rows)
    actual, again = (
        attend_cls(sizes.plan(rows), query, x, sizes.scale, schedule=schedule, seed=seed)
        for seed, schedule in enumerate(SCHEDULES)
    )

    assert is_right(actual, exact(query, x, sizes.scale, rows))
    assert torch.equal(again, actual)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_grid_of_fixed_size_serves_any_batch(kernel: str) -> None:
    """Grid and struct, but for addresses, are the same for each batch: unused entries of the table do nothing."""
    sizes = KERNELS[kernel]
    for rows in (FEW, packed_rows((3,), ((40, 0, 0),), shared=True), packed_rows((2,), ((),), shared=True)):
        query, x = sizes.inputs(rows)
        plan = sizes.plan(rows, capacity=9)
        actual = attend_cls(plan, query, x, sizes.scale)

        assert len(plan.tiles) == 9
        if rows.num_candidates:
            assert torch.equal(actual, attend_cls(sizes.plan(rows), query, x, sizes.scale))
            assert is_right(actual, exact(query, x, sizes.scale, rows))


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_candidate_alone_has_the_bits_it_has_in_company(kernel: str) -> None:
    """The order of the sums depends on the lengths of the candidate and its query alone."""
    sizes = KERNELS[kernel]
    query, x = sizes.inputs(FEW)
    together = attend_cls(sizes.plan(FEW), query, x, sizes.scale)
    for candidate in (1, 2):
        length = len(FEW.candidate_rows(candidate))
        members = x[[candidate, *FEW.query_rows(0), *FEW.candidate_rows(candidate)]]
        plan = sizes.plan(packed_rows((11,), ((length,),), shared=True))

        alone = attend_cls(plan, query[candidate : candidate + 1].clone(), members, sizes.scale)
        assert torch.equal(alone[0], together[candidate])


@pytest.mark.parametrize("sizes", [*KERNELS.values(), Sizes("float32", 3, 328)], ids=str)
def test_scores_may_be_large_and_grow(sizes: Sizes) -> None:
    """Scores rise from key to key up to thousands, so the sums must be rescaled whenever the largest score grows."""
    query, x = sizes.inputs(FEW)
    x = (x * torch.linspace(0.1, 4, FEW.num_rows)[:, None]).to(x.dtype)
    scale = 20 * sizes.scale

    assert is_right(attend_cls(sizes.plan(FEW), query, x, scale), exact(query, x, scale, FEW))


@given(st.data(), st.sampled_from([31, 256]))
def test_tiles_are_those_of_the_candidates(data: st.DataObject, tile_rows: int) -> None:
    rows = data.draw(layouts(SPARSE))
    tiles = plan_tiles(rows, tile_rows)

    assert plan_candidate_tiles(rows, tile_rows).tolist() == tiles[tiles[:, 0] >= 0].tolist()


@given(st.sampled_from(["float16", "bfloat16", "float32"]), st.integers(1, 128), st.sampled_from([TURING, AMPERE]))
def test_the_narrowest_kernel_is_chosen(dtype: Dtype, eighths: int, capability: tuple[int, int]) -> None:
    chosen = choose_absorbed(dtype, 8 * eighths, capability)
    others = [variant for variant in ABSORBED if (variant.file, variant.dtype) == (chosen.file, dtype)]

    assert (chosen.file == "absorbed_simt.cuh") is (dtype == "float32" or capability == TURING)
    assert chosen.max_hidden_size == min(
        other.max_hidden_size for other in others if other.max_hidden_size >= 8 * eighths
    )


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({}, None),
        ({"num_heads": 16, "hidden_size": 1024, "dtype": "float32"}, None),
        ({"num_heads": 17}, "num_heads must be within 1..16, got 17"),
        ({"hidden_size": 1032}, "hidden_size must be a multiple of 8 up to 1024, got 1032"),
        ({"hidden_size": 380}, "hidden_size must be a multiple of 8 up to 1024, got 380"),
        ({"dtype": "float64"}, "dtype must be one of float16, bfloat16, float32; got float64"),
    ],
)
def test_what_the_kernels_cannot_do_is_said(facts: dict[str, object], reason: str | None) -> None:
    asked = {"num_heads": 12, "hidden_size": 384, "dtype": "float16", **facts}

    assert why_absorbed_unsupported(**asked) == reason  # type: ignore[arg-type]  # as the cases have them


BOTH = (
    # Keys: each tile sees the query again, the last row is left out, [CLS] replaces the query, the first tile repeats.
    Mistake("globals", "1 + tile.query_rows"),
    Mistake("count", "$ - 1"),
    Mistake("key-row", "number < globals ? tile.candidate : $"),
    Mistake("key-row", "number < globals ? $ : $ - tile.begin"),
    # The merge: the last block but one makes it; it reads other tiles' results, or no maxima; the counter is not reset.
    Mistake("last-tile", "*before != tile.num_tiles - 2"),
    Mistake("first-tile", "blockIdx.x"),
    Mistake("merge-factor", "1.f"),
    Mistake("arrivals", "false"),
)
MISTAKES = {
    "mma": (
        *BOTH,
        # Keys, heads and columns that do not exist are used.
        Mistake("exists", "true"),
        Mistake("heads", "$ && head != params.num_heads"),
        Mistake("columns", "$ || 32 * i + 8 * t == columns"),
        # The lane or the warp does not wait for copies or parts of scores; memory is reused too early.
        Mistake("copied", "wait_for_copies<kStages>();"),
        Mistake("staged"),
        Mistake("parts"),
        Mistake("board", "parts + lane"),
        Mistake("ahead", "copy_chunk(turn);"),
        Mistake(
            "pieces",
            "copy_async(stages + turn % kStages * kStagePieces + piece_index<SLICES>(slot, piece ^ 1), from, real);",
        ),
        # The softmax.
        Mistake("factor", "1.f"),
        Mistake("sum", "sum[half]"),
        # The second group's result: it is written over chunks, read too early, or taken as it is.
        Mistake("groups-read"),
        Mistake("groups-written"),
        Mistake("groups-factor", "1.f"),
    ),
    "simt": (
        *BOTH,
        Mistake("exists", "warp_sum(s) * params.scale"),
        Mistake("columns", "$ || column(i) == params.hidden_size"),
        Mistake("chunk-read"),
        Mistake("staged"),
        Mistake("factor", "1.f"),
    ),
}


@pytest.mark.parametrize(
    ("kernel", "number"), [(name, number) for name, mistakes in MISTAKES.items() for number in range(len(mistakes))]
)
def test_a_mistake_is_noticed(kernel: str, number: int) -> None:
    sizes = KERNELS[kernel]
    query, x = sizes.inputs(FEW)
    plan = sizes.plan(FEW)
    planted = plant(plan.variant.kernel, MISTAKES[kernel])
    # Scores of similar size, and scores that rise so much that the sums must be rescaled.
    inputs = [x, (x * torch.linspace(0.1, 8, FEW.num_rows)[:, None]).to(x.dtype)]

    def survives(schedule: Schedule) -> bool:
        return all(
            is_right(
                attend_cls(plan, query, rows, sizes.scale, schedule=schedule, kernel=planted),
                exact(query, rows, sizes.scale, FEW),
            )
            for rows in inputs
        )

    assert_noticed(planted, number, survives)
