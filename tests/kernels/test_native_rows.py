"""The CPU kernels' packed layers against the same sums in float64, in every variant that this processor runs."""

import itertools
import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from support.bands import random_rows
from support.native import each_variant, needs_native
from torch import Tensor
from torch.nn import functional

from bandrank_kernels.native.library import native
from bandrank_kernels.native.tensors import Dense, Norm, PostNorm, PreNorm, Turn, Unit, linear, project
from bandrank_kernels.native.weights import PackedWeights, Split

pytestmark = [needs_native, pytest.mark.usefixtures(each_variant.__name__)]
ROWS = [1, 5, 6, 7, 95, 96, 97, 200]  # around a tile and a block
SIZES = [(16, 1), (16, 64), (48, 65), (384, 100), (1536, 384)]  # inputs, outputs
ROUNDING = 2e-5
WIDE = [-1e30, -200, -100, -20, -5, -1, -1e-3, 0, 1e-3, 1, 5, 20, 100, 200, 3, -3]


some = partial(random_rows, dtype=torch.float32)


def int8_layer(inputs: int, outputs: int, *, seed: int = 1, split: Split | None = None) -> tuple[PackedWeights, Tensor]:
    """Returns a packed layer, and its weights in float64 with the bias as the last column."""
    rows = torch.randint(-127, 128, (outputs, inputs), dtype=torch.int8, generator=torch.Generator().manual_seed(seed))
    scales, bias = some(outputs, seed=seed).abs() / 500, some(outputs, seed=seed + 1)
    wide = torch.cat([rows.double() * scales.double()[:, None], bias.double()[:, None]], 1)
    return PackedWeights.pack(rows, scales, bias, split), wide


def bfloat16_layer(inputs: int, outputs: int, *, seed: int = 1) -> tuple[PackedWeights, Tensor]:
    """Returns a layer in bfloat16, and its weights in float64 with the bias as the last column."""
    if not native().has_bfloat16:
        pytest.skip("this variant has no bfloat16")
    rows, bias = some(outputs, inputs, seed=seed).bfloat16(), some(outputs, seed=seed + 1)
    return PackedWeights.pack_bfloat16(rows, bias), torch.cat([rows.double(), bias.double()[:, None]], 1)


Kind = Callable[[int, int], tuple[PackedWeights, Tensor]]
KINDS: list[Kind] = [int8_layer, bfloat16_layer]


def quantised(x: Tensor) -> Tensor:
    """Returns the rows as the kernels see them, in float64: rounded to 255 equal steps, one of which is zero."""
    low, high = x.amin(1, keepdim=True).clamp(max=0), x.amax(1, keepdim=True).clamp(min=0)
    step = torch.where(high > low, (high - low) / 255, 1.0)
    zero = (-low / step + 0.5).floor()
    return ((x / step + zero + 0.5).floor().clamp(0, 255) - zero).double() * step.double()


def product(x: Tensor, wide: Tensor) -> Tensor:
    """Returns what a layer should give, in float64. wide: as from `int8_layer`."""
    return quantised(x) @ wide[:, :-1].T + wide[:, -1]


def assert_close_but_for_ties(actual: Tensor, expected: Tensor, x: Tensor, wide: Tensor) -> None:
    """Asserts equality to rounding, or to a step of one input, which rounding may quantise either way."""
    span = x.amax(1).clamp(min=0) - x.amin(1).clamp(max=0)
    one_step = span[:, None].double() / 255 * wide[:, :-1].abs().amax(1)
    wrong = (actual - expected).abs() > ROUNDING * (1 + expected.abs()) + 2 * one_step
    assert not wrong.any()
    assert ((actual - expected).abs() <= ROUNDING * (1 + expected.abs())).double().mean() > 0.9


@pytest.mark.parametrize(("inputs", "outputs"), SIZES)
@pytest.mark.parametrize("rows", ROWS)
def test_a_layer_is_the_product_of_quantised_rows(rows: int, inputs: int, outputs: int) -> None:
    weights, wide = int8_layer(inputs, outputs)
    x = some(rows, inputs) * 3

    assert_close_but_for_ties(linear(x, weights).double(), product(x, wide), x, wide)


def test_a_layer_in_bfloat16_is_the_product_of_rounded_rows() -> None:
    """Sums are in float32, which instructions may round in any order."""
    for rows, (inputs, outputs) in itertools.product(ROWS, [*SIZES, (16, 64), (32, 64), (80, 17)]):
        weights, wide = bfloat16_layer(inputs, outputs)
        linear(torch.full((200, inputs), torch.nan), weights)  # which would be seen if memory of other rows were read
        x = some(rows, inputs) * 3
        terms = torch.cat([x.bfloat16().double(), torch.ones(rows, 1, dtype=torch.float64)], 1)

        error = (linear(x, weights).double() - terms @ wide.T).abs()

        assert (error <= 1e-6 * terms.abs() @ wide.abs().T).all(), (rows, inputs, outputs)


def test_quantisation_rounds_by_half_a_step_at_most() -> None:
    """The error is that of rounding each input independently, by half a step at most."""
    weights, wide = int8_layer(384, 384)
    x = some(50, 384)

    error = linear(x, weights).double() - (x.double() @ wide[:, :-1].T + wide[:, -1])

    step = (x.amax(1) - x.amin(1)).double() / 255
    expected = step[:, None] * wide[:, :-1].square().sum(1).sqrt() / math.sqrt(12)  # of independent rounding
    assert 0.8 < (error / expected).square().mean().sqrt() < 1.2


@pytest.mark.parametrize(
    "row", [torch.zeros(48), torch.full((48,), 2.5), torch.full((48,), -1e-30), torch.arange(48.0), -torch.arange(48.0)]
)
def test_odd_rows_are_right(row: Tensor) -> None:
    """The row has only zeros, one number throughout, tiny numbers, or numbers of one sign."""
    weights, wide = int8_layer(48, 65)
    x = torch.stack([row, some(48)])

    assert_close_but_for_ties(linear(x, weights).double(), product(x, wide), x, wide)


@pytest.mark.parametrize("size", [1e-36, 1e-38, 1e-40, 1e-44])
def test_numbers_too_small_to_be_divided_give_none_that_are_larger(size: float) -> None:
    """A step between such numbers has no finite reciprocal."""
    rows = torch.randint(-127, 128, (65, 96), dtype=torch.int8, generator=torch.Generator().manual_seed(1))
    x = torch.zeros(3, 96)
    x[0, 7], x[1, 90], x[2, 7], x[2, 90] = size, -size, size, -size

    out = linear(x, PackedWeights.pack(rows, torch.ones(65), None)).double().abs()

    assert (out <= 3 * size * rows.double().abs().sum(1)).all()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_finite_stays_in_its_row(kind: Kind, bad: float) -> None:
    """None of the row stays finite, even if its other numbers are small, and other rows keep their bits."""
    weights, _ = kind(48, 65)
    x = some(13, 48)
    right = linear(x, weights)
    x[4, 7] = bad

    spoilt = linear(x, weights)

    assert not spoilt[4].isfinite().any()
    assert weights.bfloat16 or spoilt[4].isnan().all()
    assert torch.equal(spoilt[[*range(4), *range(5, 13)]], right[[*range(4), *range(5, 13)]])


@pytest.mark.parametrize("gelu", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_row_is_the_same_bits_in_any_company(kind: Kind, gelu: bool) -> None:
    weights, _ = kind(384, 100)
    x = some(97, 384)
    together = linear(x, weights, gelu=gelu)

    for row in (0, 5, 41, 96):
        assert torch.equal(linear(x[row : row + 1], weights, gelu=gelu)[0], together[row])
    assert torch.equal(linear(torch.cat([x, x], 1)[:, :384], weights, gelu=gelu), together)


def test_gelu_is_the_erf_form() -> None:
    """Of biases, which are exact: those of a grid, of zero, and far from it."""
    x = torch.cat([torch.linspace(-10, 10, 20_001), torch.tensor([-1e30, 1e30])])
    weights = PackedWeights.pack(torch.zeros(len(x), 16, dtype=torch.int8), torch.ones(len(x)), x)

    out = linear(torch.zeros(1, 16), weights, gelu=True)[0]

    torch.testing.assert_close(out, functional.gelu(x), rtol=3e-5, atol=3e-5)
    assert (out[x == 0] == 0).all()


def test_a_large_input_leaves_the_others_their_precision() -> None:
    """Large inputs are split into several bytes each, so that all are rounded as finely as if none were large."""
    num_bytes = torch.ones(48, dtype=torch.int64)
    num_bytes[[3, 40]] = torch.tensor([13, 5])
    weights, wide = int8_layer(48, 65, split=Split.of(num_bytes))
    plain, _ = int8_layer(48, 65)
    x = some(200, 48).clamp(-2, 2)
    x[:, 3], x[:, 40] = 26 * torch.rand(200), -10 * torch.rand(200)
    exact = x.double() @ wide[:, :-1].T + wide[:, -1]

    error, coarse = ((linear(x, each).double() - exact).square().mean().sqrt() for each in (weights, plain))

    step = 4 / 255
    expected = step * wide[:, :-1].square().sum(1).mean().sqrt() / math.sqrt(12)
    assert 0.8 < error / expected < 1.2
    assert coarse > 4 * error


def test_the_bytes_of_a_split_input_add_up_to_it() -> None:
    """At multiples of a step nothing is rounded, so the sum of the bytes must be exact."""
    num_bytes = torch.ones(16, dtype=torch.int64)
    num_bytes[0] = 17
    rows, scales = torch.ones(1, 16, dtype=torch.int8), torch.ones(1)
    weights = PackedWeights.pack(rows, scales, None, Split.of(num_bytes))
    x = torch.zeros(2000, 16)
    x[:, 0], x[:, 1], x[:, 2] = torch.arange(2000) - 1000.0, 127.5, -127.5  # steps of one

    assert torch.equal(linear(x, weights)[:, 0], x[:, 0])


def acted(x: Tensor, unit: Unit) -> Tensor:
    """Returns what a feed-forward sublayer computes between its two products."""
    if unit is Unit.GELU:
        return functional.gelu(x)
    gate, gated = x.chunk(2, 1)
    if unit is Unit.SWIGLU:
        return functional.silu(gate) * gated
    return functional.gelu(gate, approximate="tanh" if unit is Unit.GEGLU_TANH else "none") * gated


def normed(x: Tensor, norm: Norm | None) -> Tensor:
    if norm is None:
        return x
    if not norm.centred:
        return functional.rms_norm(x, norm.weight.shape, norm.weight, norm.eps)
    return functional.layer_norm(x, norm.weight.shape, norm.weight, norm.bias, norm.eps)


def assert_in_turn(block: PostNorm | PreNorm, expected: Tensor, attended: Tensor, hidden: Tensor) -> None:
    """Asserts that a block equals its parts, but for ties of quantisation, and that a row alone has the same bits."""
    actual = block(attended, hidden)
    wrong = (actual - expected).abs() / expected.std()
    assert wrong.mean() < 0.003
    assert wrong.max() < 0.05
    assert torch.equal(block(attended[-1:], hidden[-1:])[0], actual[-1])


@pytest.mark.parametrize("unit", Unit)
@pytest.mark.parametrize("rows", ROWS)
def test_a_block_behind_attention_is_its_layers_in_turn(rows: int, unit: Unit) -> None:
    """A block equals its layers and norms one by one, to the rounding of a norm: with norms before, behind, or both."""
    size, inner = 48, 192
    raised = inner if unit is Unit.GELU else 2 * inner
    out, up, down = int8_layer(size, size)[0], int8_layer(size, raised, seed=3)[0], int8_layer(inner, size, seed=5)[0]
    first, second = (Norm(some(size, seed=7 + i).abs(), some(size, seed=9 + i), 1e-12) for i in range(2))
    unbiased = Norm(first.weight, None, 1e-5)
    attended, hidden = some(rows, size, seed=11), some(rows, size, seed=12)
    summed = linear(attended, out) + hidden

    state = normed(summed, first)
    expected = normed(linear(acted(linear(state, up), unit), down) + state, second)
    assert_in_turn(PostNorm(out, up, down, unit, first, second), expected, attended, hidden)
    for final in (None, second):
        expected = normed(linear(acted(linear(normed(summed, unbiased), up), unit), down) + summed, final)
        assert_in_turn(PreNorm(out, up, down, unit, unbiased, final), expected, attended, hidden)

    wide, given = int8_layer(80, size)[0], some(rows, 80, seed=13)
    before, *others = (Norm(some(size, seed=7 + i), None, 1e-6, centred=False) for i in range(4))
    for final, update, behind in (others, (None, None, None)):
        state = normed(linear(given, wide), update) + hidden
        added = normed(linear(acted(linear(normed(state, before), up), unit), down), behind)
        block = PreNorm(wide, up, down, unit, before, final, update, behind)
        assert_in_turn(block, normed(added + state, final), given, hidden)


@pytest.mark.parametrize("unit", [Unit.GEGLU, Unit.SWIGLU, Unit.GEGLU_TANH])
@pytest.mark.parametrize(("given", "atol"), [(WIDE, 201 / 255), ([2.25] * 16, 1e-4)])
def test_a_gate_over_the_whole_range(unit: Unit, given: list[float], atol: float) -> None:
    """The gates come from the bias and multiply ones, so the block returns their activations, to half a step of 255."""
    gates = torch.tensor(given)
    size = len(gates)
    nothing = torch.zeros(2 * size, size, dtype=torch.int8)
    up = PackedWeights.pack(nothing, torch.ones(2 * size), torch.cat([gates, torch.ones(size)]))
    zero = PackedWeights.pack(nothing[:size], torch.ones(size), None)
    one = PackedWeights.pack(torch.eye(size, dtype=torch.int8), torch.ones(size), None)
    norm = Norm(torch.ones(size), None, 1e-5)

    (values,) = PreNorm(zero, up, one, unit, norm)(torch.zeros(1, size), torch.zeros(1, size))

    (expected,) = acted(torch.cat([gates, torch.ones(size)])[None], unit)
    torch.testing.assert_close(values, expected, rtol=0, atol=atol)


@pytest.mark.parametrize("centred", [None, False, True])
@pytest.mark.parametrize(("head_dim", "of_heads"), [(2, False), (24, False), (64, False), (16, True), (128, True)])
def test_queries_and_keys_are_turned(head_dim: int, of_heads: bool, centred: bool | None) -> None:
    """Numbers i and i + head_dim / 2 of each head are turned as a pair, at positions in any order; values are not
    turned. Rows and heads may be normed before.
    """
    turned, inputs = 5, 48
    weights, _ = int8_layer(inputs, (turned + 1) * head_dim)
    norm = None if centred is None else Norm(some(inputs, seed=3), None, 1e-5, centred)
    of_each = some(turned, head_dim, seed=5) if of_heads else None
    angles = torch.rand(900, head_dim // 2) * 100
    tables = angles.cos(), angles.sin()
    positions = torch.randint(0, 900, (97,), generator=torch.Generator().manual_seed(0))
    x = some(97, inputs)

    def projected(rows: slice) -> Tensor:
        return project(x[rows], weights, norm, Turn(head_dim, turned, positions[rows], tables, of_each, 1e-6))

    together, alone = projected(slice(None)), projected(slice(40, 41))

    qkv = linear(normed(x, norm), weights).view(97, turned + 1, head_dim)
    heads = qkv[:, :turned]
    if of_each is not None:
        heads = functional.rms_norm(heads, (head_dim,), eps=1e-6) * of_each
    left, right = heads.chunk(2, 2)
    cos, sin = (table[positions][:, None] for table in tables)
    expected = torch.cat([torch.cat([left * cos - right * sin, right * cos + left * sin], 2), qkv[:, turned:]], 1)
    wrong = (together - expected).abs() / expected.std()
    assert wrong.mean() < 1e-4
    assert wrong.max() < 0.05  # a number on the border of two steps
    assert torch.equal(alone[0], together[40])


@pytest.mark.parametrize(("inputs", "outputs"), [(384, 384), (384, 1), (7, 100)])
def test_a_dense_layer_is_torchs_and_keeps_its_bits(inputs: int, outputs: int) -> None:
    torch.manual_seed(0)
    layer = torch.nn.Linear(inputs, outputs).requires_grad_(requires_grad=False)
    dense, x = Dense.of(layer), some(33, inputs)

    torch.testing.assert_close(dense(x), layer(x), rtol=1e-4, atol=1e-5)
    assert torch.equal(dense(x[8:9])[0], dense(x)[8])
