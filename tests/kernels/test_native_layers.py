"""Whole layers by the CPU kernels against their parts one by one, in every variant that this processor runs."""

import sys
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.bands import random_rows
from support.drawn_layouts import layouts, patterns
from support.layouts import packed_rows
from support.native import each_variant, needs_native
from support.torch_threads import torch_threads
from torch import Tensor

from bandrank_kernels.arrays import offsets
from bandrank_kernels.native.library import native
from bandrank_kernels.native.tensors import Norm, PackedLayer, PostNorm, Unit, linear
from bandrank_kernels.native.weights import PackedWeights
from bandrank_kernels.windowed_attention import AttentionPattern, AttentionPlan, PackedRows, plan_attention

pytestmark = [needs_native, pytest.mark.usefixtures(each_variant.__name__)]
SIZE, HEADS, INNER = 64, 4, 96
CHUNK = 128  # rows
LONG = [127, 128, 129, 256, 300, 1100]
BFLOAT16 = False  # whether layers are in bfloat16


some = partial(random_rows, dtype=torch.float32)


@pytest.fixture(params=["int8", "bfloat16"], autouse=True)
def in_each_dtype(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, each_variant: str) -> None:
    """Runs each test with layers of both kinds, where the variant has both."""
    if request.param == "bfloat16" and not native().has_bfloat16:
        pytest.skip(f"{each_variant} has no bfloat16")
    monkeypatch.setattr(sys.modules[__name__], "BFLOAT16", request.param == "bfloat16")


def some_layer() -> PackedLayer:
    """Returns a BERT layer, the same at each call, whose attention has logits of a few units."""

    def weights(outputs: int, inputs: int, seed: int) -> PackedWeights:
        if BFLOAT16:
            rounded = (1.5 * inputs**-0.5 * some(outputs, inputs, seed=seed)).bfloat16()
            return PackedWeights.pack_bfloat16(rounded, some(outputs, seed=seed + 1))
        rows = (50 * some(outputs, inputs, seed=seed)).round().clamp(-127, 127).to(torch.int8)
        return PackedWeights.pack(rows, torch.full((outputs,), 0.03 * inputs**-0.5), some(outputs, seed=seed + 1))

    norm = Norm(some(SIZE, seed=7).abs() + 0.5, some(SIZE, seed=8), 1e-12)
    rest = PostNorm(weights(SIZE, SIZE, 1), weights(INNER, SIZE, 3), weights(SIZE, INNER, 5), Unit.GELU, norm, norm)
    return PackedLayer(weights(3 * SIZE, SIZE, 9), rest, HEADS)


def plan_of(rows: PackedRows, pattern: AttentionPattern) -> AttentionPlan:
    return plan_attention(
        rows, pattern, device=torch.device("cpu"), dtype=torch.float32, head_dim=SIZE // HEADS, backend="native"
    )


def whole_layer(rows: PackedRows, pattern: AttentionPattern, hidden: Tensor, layer: PackedLayer) -> Tensor:
    """Returns the output of the layer in one call."""
    out = plan_of(rows, pattern).layer(hidden, layer)
    assert out is not None
    return out


def in_turn(rows: PackedRows, pattern: AttentionPattern, hidden: Tensor, layer: PackedLayer) -> Tensor:
    """Returns the output of the layer's parts, each run over all rows."""
    qkv = linear(hidden, layer.qkv).view(len(hidden), 3, HEADS, SIZE // HEADS)
    return layer.rest(plan_of(rows, pattern).attend(qkv).flatten(1), hidden)


def assert_whole_is_its_parts(rows: PackedRows, pattern: AttentionPattern) -> None:
    """Asserts that a whole layer has the bits of its parts. Only candidates longer than a chunk may differ by a step or
    two: in [CLS], which is summed from parts, and without a window in all rows.
    """
    hidden, layer = some(rows.num_rows, SIZE), some_layer()
    expected = in_turn(rows, pattern, hidden, layer)

    whole = whole_layer(rows, pattern, hidden, layer)
    first = plan_of(rows, pattern).layer_first(hidden, layer, rows.num_candidates)

    assert first is not None
    assert torch.equal(first, whole[: rows.num_candidates])
    long = np.flatnonzero(rows.candidate_lengths > CHUNK)
    near = [*long, *(row for each in long if pattern.window is None for row in rows.candidate_rows(each))]
    torch.testing.assert_close(whole[near], expected[near], rtol=0, atol=0.02)  # a step of int8 or two
    whole[near] = expected[near]
    assert torch.equal(whole, expected)


def assert_joint_is_its_parts(rows: PackedRows) -> None:
    """Asserts that a whole layer of full attention has the bits of its parts."""
    whole = rows, AttentionPattern(), some(rows.num_rows, SIZE), some_layer()

    assert torch.equal(whole_layer(*whole), in_turn(*whole))


def assert_layers_are_one_after_the_other(rows: PackedRows, pattern: AttentionPattern) -> None:
    """Asserts that layers in one call have the bits of single ones, whether the last gives all rows or [CLS] alone."""
    hidden, layer, plan = some(rows.num_rows, SIZE), some_layer(), plan_of(rows, pattern)
    first = plan.layer(hidden, layer)
    with torch_threads(1):
        found = [
            plan.layers(hidden, [layer] * count, num) for count, num in ((1, None), (3, None), (3, rows.num_candidates))
        ]
    with torch_threads(2):  # which share each layer instead
        assert plan.layers(hidden, [layer]) is None

    if first is None:
        assert found == [None] * 3
        return
    last = whole_layer(rows, pattern, whole_layer(rows, pattern, first, layer), layer)
    for own, expected in zip(found, (first, last, last[: rows.num_candidates]), strict=True):
        assert own is not None
        assert torch.equal(own, expected)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_layers_in_one_call_are_one_after_the_other(data: st.DataObject) -> None:
    pattern = data.draw(patterns())
    assert_layers_are_one_after_the_other(data.draw(layouts(pattern)), pattern)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_whole_layer_is_its_parts(data: st.DataObject) -> None:
    """Patterns that share queries and full attention are computed as whole layers, on any layout; others are not."""
    pattern = data.draw(patterns())
    rows = data.draw(layouts(pattern))
    if pattern.shares_queries:
        assert_whole_is_its_parts(rows, pattern)
    elif pattern.is_full:
        assert_joint_is_its_parts(rows)
    else:
        hidden = some(rows.num_rows, SIZE)
        assert plan_of(rows, pattern).layer(hidden, some_layer()) is None
        assert plan_of(rows, pattern).layer_first(hidden, some_layer(), rows.num_candidates) is None


@pytest.mark.parametrize("window", [0, 4, 200, None])
def test_long_candidates_are_taken_in_chunks(window: int | None) -> None:
    """Short candidates between the long ones share chunks. With wide windows, queries, keys and values of all rows are
    projected first; with narrow ones, chunk by chunk.
    """
    rows = packed_rows([7, 0, 3], [[5, 9, 300, 0, 4], LONG, [60, 60, 60, 1]], shared=True)
    assert_whole_is_its_parts(rows, AttentionPattern.sparse(window))
    assert_layers_are_one_after_the_other(rows, AttentionPattern.sparse(window))


def test_a_window_of_any_width_is_one_over_all_rows() -> None:
    rows, layer = packed_rows([7], [[5, 300, 40]], shared=True), some_layer()
    hidden = some(rows.num_rows, SIZE)
    plain, *wide = (
        whole_layer(rows, AttentionPattern.sparse(window), hidden, layer) for window in (300, 2**31, 2**32 + 1)
    )

    assert all(torch.equal(each, plain) for each in wide)


def test_full_attention_brings_the_rows_of_a_sequence_together() -> None:
    """Lengths lie around a chunk, and queries and candidates may be empty or have a single row."""
    lengths = [[5], [0], [126], [127], [128], [300], [60], [60], [1], [1], [2]]
    assert_joint_is_its_parts(packed_rows([7, 0, 1, 1, 0, 30, 3, 3, 0, 1, 0], lengths, shared=False))
    assert_joint_is_its_parts(packed_rows([], [], shared=False))


def test_a_sequence_too_long_to_be_brought_together_changes_no_other() -> None:
    """Threads share the parts of a layer with such a sequence; the other sequences have the same bits either way."""
    together, alone = packed_rows([3, 2], [[40], [600]], shared=False), packed_rows([3], [[40]], shared=False)
    hidden, layer, pattern = some(together.num_rows, SIZE), some_layer(), AttentionPattern()
    own = [0, *together.query_rows(0), *together.candidate_rows(0)]

    one = whole_layer(alone, pattern, hidden[own], layer)

    assert plan_of(together, pattern).layer(hidden, layer) is None
    assert torch.equal(one, in_turn(together, pattern, hidden, layer)[own])


def test_texts_are_sequences() -> None:
    """Encoders of single texts have batches of queries without candidates."""
    rows = PackedRows.of_texts(offsets([7, 0, 300, 60, 60, 60]))
    assert_whole_is_its_parts(rows, AttentionPattern.sparse(None))
    assert_layers_are_one_after_the_other(rows, AttentionPattern.sparse(None))


def test_a_long_candidate_has_the_same_bits_in_any_company() -> None:
    """Even its [CLS], which is summed from parts, has the same bits."""
    together, alone = packed_rows([6], [[40, 300, 500]], shared=True), packed_rows([6], [[300]], shared=True)
    hidden, layer, pattern = some(together.num_rows, SIZE), some_layer(), AttentionPattern.sparse(4)
    own = [1, *range(3, 9), *together.candidate_rows(1)]

    both, one = whole_layer(together, pattern, hidden, layer), whole_layer(alone, pattern, hidden[own], layer)

    assert torch.equal(one, both[own])


def test_nan_stays_with_its_candidate() -> None:
    """Candidates that share a chunk with it keep their bits."""
    rows, pattern, layer = packed_rows([3], [[40, 5, 20, 300]], shared=True), AttentionPattern.sparse(4), some_layer()
    hidden = some(rows.num_rows, SIZE)
    right = whole_layer(rows, pattern, hidden, layer)
    poisoned = [1, *rows.candidate_rows(1)]
    hidden[rows.candidate_rows(1).start] = torch.nan

    out = whole_layer(rows, pattern, hidden, layer)

    others = [row for row in range(rows.num_rows) if row not in poisoned]
    assert torch.equal(out[others], right[others])
    assert out[poisoned].isnan().all()
