"""Every part against float64 on the same rounded inputs, outputs poisoned; the same bits twice, and from CUDA graphs.

The tests on a GPU look closer; this needs nothing but what a GPU machine has, and is the first to reach all kernels.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import cycle, product

import torch
from torch import Tensor

from bandrank_bench.gpu.lab import Lab
from bandrank_bench.gpu.parts import Part, attention, attention_of, bands, last_layer, norms
from bandrank_bench.gpu.shape import Shape, pack_rows
from bandrank_bench.gpu.stages import Case, Facts
from bandrank_kernels import Backend

# ||result - exact|| / ||exact||: one rounding of the output and one of the weights, 2 ** -12 and 2 ** -9 on average;
# tensor cores cut off where the CPU rounds. Gradients start from an output that was rounded.
BARS = {torch.float16: 4e-4, torch.bfloat16: 3e-3, torch.float32: 2e-6}
GRADIENT_BARS = {torch.float16: 1e-3, torch.bfloat16: 8e-3, torch.float32: 6e-6}
BAND_BARS = {torch.float16: 6e-4, torch.bfloat16: 4e-3, torch.float32: 2e-6, torch.float64: 1e-14}

WINDOWS = (4, 0, 1, 9, 16, 17, 64, None)
HEAD_DIMS = (32, 64)
# Several queries, some empty; the borders of windows and tiles; queries at the limits of the kernels for few of them;
# long candidates; passages; no candidate at all.
LAYOUTS = (
    pack_rows([11, 0, 35, 1], [[60, 0, 17, 121], [5, 33], [300], [64, 1, 62]]),
    pack_rows([10], [[0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 30, 31, 32, 33, 59, 60, 61, 62, 63, 64, 65]]),
    pack_rows([14, 15, 16, 31, 32, 63, 64, 70], [[33, 20]] * 8),
    pack_rows([5], [[300, 124, 125, 130, 400, 247, 248, 249]]),
    pack_rows([12, 9], [range(40, 120, 7), range(30, 160, 13)]),
    pack_rows([3, 0], [[], []]),
)
HEADS = (3, 1, 2, 12)
WAVES = [Shape(502, window, 32) for window in (4, 64)]  # many times what runs on a card at once


def cases(lab: Lab) -> Iterator[Case]:
    """About eighty: every dtype, head and window in one of the layouts, what fills a card, the absorbed last layer,
    band products, norms.
    """
    layouts, heads = cycle(LAYOUTS), cycle(HEADS)
    for dtype, window, head_dim in lab.few(list(product(BARS, WINDOWS, HEAD_DIMS))):
        yield _exact(lab, attention(lab, next(layouts), window, next(heads), head_dim), dtype, BARS, trained=True)
    for shape, dtype in lab.few([] if lab.dry else list(product(WAVES, (torch.float16, torch.float32)))):
        # Plain torch, for which no kernel is built in float64: a dense mask of as many rows fits nowhere.
        yield _exact(lab, attention_of(lab, shape), dtype, BARS, trained=True, truth="vectorized")
    for dtype, (num_heads, hidden_size) in lab.few(list(product(BARS, ((12, 384), (12, 768), (16, 1000))))):
        yield _exact(lab, last_layer(lab, next(layouts), num_heads, hidden_size), dtype, BARS)
    for dtype, sizes in lab.few(list(product(BAND_BARS, ((300, 32, 4), (130, 64, 64), (65, 40, 0), (1025, 96, 16))))):
        yield _exact(lab, bands(lab, *sizes), dtype, BAND_BARS)
    for dtype, hidden_size in lab.few(list(product(BARS, (384, 768, 1024)))):
        yield _exact(lab, norms(lab, 1000, hidden_size), dtype, BARS)


def _exact(
    lab: Lab,
    part: Part,
    dtype: torch.dtype,
    bars: dict[torch.dtype, float],
    *,
    trained: bool = False,
    truth: Backend = "reference",
) -> Case:
    return Case(f"{part.name} {dtype}", partial(exact, lab, part, dtype, bars[dtype], trained=trained, truth=truth))


def exact(lab: Lab, part: Part, dtype: torch.dtype, bar: float, *, trained: bool, truth: Backend) -> Facts:
    """Errors as shares of what is allowed. Raises AssertionError if one is above 1, or if a second run or a graph's
    replay differs.

    trained: the gradient of the first input is checked as well.  truth: the backend that computes in float64.
    """
    inputs = part.draw(0, dtype)
    with lab.poisoned():
        results, again = (_results(part, lab.backend, inputs, trained=trained) for _ in range(2))
    wide = [tensor.double() if tensor.is_floating_point() else tensor for tensor in inputs]
    right = _results(part, truth, wide, trained=trained)
    bars = [bar, GRADIENT_BARS[dtype]] if trained else [bar] * len(right)
    errors = [_error(*pair) / most for *pair, most in zip(results, right, bars, strict=True)]
    assert max(errors) <= 1, f"errors as shares of what is allowed: {errors}"
    _assert_same(results, again, "a second run")
    call = part.prepare(lab.backend, dtype)
    outputs, replay = lab.capture(lambda: call(*inputs))
    for old, new in zip(inputs, part.draw(1, dtype), strict=True):
        old.copy_(new)
    replay()
    _assert_same(outputs, call(*inputs), "a replay on new numbers in the same memory")
    return {"of_bar": errors}


def _results(part: Part, backend: Backend, inputs: Sequence[Tensor], *, trained: bool) -> list[Tensor]:
    call = part.prepare(backend, inputs[0].dtype)
    if not trained:
        return call(*inputs)
    qkv = inputs[0].detach().requires_grad_()
    (out,) = call(qkv)
    (gradient,) = torch.autograd.grad(out, qkv, inputs[0][:, 0].flip(0))  # towards any numbers of the same rounding
    return [out.detach(), gradient]


def _error(result: Tensor, right: Tensor) -> float:
    """Norm of the difference over the norm; infinite if a number is NaN."""
    error = (result.double() - right).norm() / right.norm().clamp(min=1e-300)
    return float(error.nan_to_num(torch.inf, torch.inf))


def _assert_same(results: Sequence[Tensor], expected: Sequence[Tensor], where: str) -> None:
    same = [torch.equal(one, other) for one, other in zip(results, expected, strict=True)]
    assert all(same), f"{where} gave other bits: {same}"


def _copy(into: Sequence[Tensor], numbers: Sequence[Tensor]) -> None:
    for old, new in zip(into, numbers, strict=True):
        old.copy_(new)
