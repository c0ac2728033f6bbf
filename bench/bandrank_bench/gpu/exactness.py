"""Stage 2: every operation against float64 on the same rounded inputs, outputs poisoned, the same bits twice."""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, product

import torch
from torch import Tensor

from bandrank_bench.gpu.lab import Lab
from bandrank_bench.gpu.layer_parts import EPS
from bandrank_bench.gpu.shape import Shape, pack_rows
from bandrank_bench.gpu.stage import Case, Facts
from bandrank_kernels import Backend
from bandrank_kernels.band_products import band_ptv, band_pv, band_qk
from bandrank_kernels.row_norms import Addend, add_norm, embed_rows
from bandrank_kernels.windowed_attention import PackedRows, plan_attention
from bandrank_kernels.windowed_attention.ops import attend, sparse_pattern
from bandrank_kernels.windowed_attention.reference import dense_mask

# ||found - exact|| / ||exact||: one rounding of the output and one of the weights, 2 ** -12 and 2 ** -9 on average;
# tensor cores cut off where the CPU rounds. Gradients start from an output that was rounded.
BARS = {torch.float16: 4e-4, torch.bfloat16: 3e-3, torch.float32: 2e-6}
GRADIENT_BARS = {torch.float16: 1e-3, torch.bfloat16: 8e-3, torch.float32: 6e-6}
BAND_BARS = {torch.float16: 6e-4, torch.bfloat16: 4e-3, torch.float32: 2e-6, torch.float64: 1e-14}
LSE_BAR = 1e-5

WINDOWS = (4, 0, 1, 9, 16, 17, 64, None)
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
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

Widen = Callable[[Tensor], Tensor]


def cases(lab: Lab) -> Iterator[Case]:
    """About eighty: every dtype, head and window in one of the layouts, what fills a card, the absorbed last layer,
    band products, norms.
    """
    layouts, heads = cycle(LAYOUTS), cycle(HEADS)
    for dtype, window, head_dim in lab.few(list(product(DTYPES, WINDOWS, HEAD_DIMS))):
        rows, num_heads = next(layouts), next(heads)
        name = f"attention {rows.num_rows} rows w={window} {num_heads}x{head_dim} {dtype}"
        yield Case(name, _attention(lab, rows, window, num_heads, head_dim, dtype, dense_truth))
    for shape in lab.few([] if lab.dry else WAVES):
        for dtype in (torch.float16, torch.float32):
            yield Case(
                f"attention {shape} {dtype}",
                _attention(lab, shape.rows(), shape.window, shape.num_heads, shape.head_dim, dtype, blockwise_truth),
            )
    for dtype, (num_heads, hidden_size) in lab.few(list(product(DTYPES, ((12, 384), (12, 768), (16, 1000))))):
        rows = next(layouts)
        name = f"last layer {rows.num_rows} rows {num_heads} heads of {hidden_size} {dtype}"
        yield Case(name, _last_layer(lab, rows, num_heads, hidden_size, dtype))
    bands = product(BAND_BARS, ((32, 4, 300), (64, 64, 130), (40, 0, 65), (96, 16, 1025)))
    for dtype, (dim, window, length) in lab.few(list(bands)):
        yield Case(f"band products {length} rows of {dim} w={window} {dtype}", _bands(lab, dim, window, length, dtype))
    for dtype, hidden_size in lab.few(list(product(DTYPES, (384, 768, 1024)))):
        yield Case(f"norms of rows of {hidden_size} {dtype}", _norms(lab, hidden_size, dtype))


def _attention(  # noqa: PLR0917  # all of them are what the case is named for
    lab: Lab,
    rows: PackedRows,
    window: int | None,
    num_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    truth_of: Callable[[Tensor, Tensor, PackedRows, int | None], list[Tensor]],
) -> Callable[[], Facts]:
    def run() -> Facts:
        pattern = sparse_pattern(window)
        # `attend` chooses for itself; to ask by name raises unless its choice is this one.
        plan_attention(rows, pattern, device=lab.device, dtype=dtype, head_dim=head_dim, backend=lab.backend)
        qkv = lab.randn(rows.num_rows, 3, num_heads, head_dim, dtype=dtype).requires_grad_()
        towards = lab.randn(rows.num_rows, num_heads, head_dim, dtype=dtype, seed=1)
        found, again = (_attended(lab, qkv, towards, rows, window) for _ in range(2))
        truth = truth_of(qkv.detach().double(), towards.double(), rows, window)
        errors = {
            "out": _error(found[0], truth[0]) / BARS[dtype],
            "lse": float((found[1] - truth[1]).abs().nan_to_num(torch.inf).amax()) / LSE_BAR,
            "gradient": _error(found[2], truth[2]) / GRADIENT_BARS[dtype],
        }
        return _verdict(errors, found, again)

    return run


def _attended(lab: Lab, qkv: Tensor, towards: Tensor, rows: PackedRows, window: int | None) -> list[Tensor]:
    """Result, log-sum-exps, gradient."""
    with lab.poisoned():
        out, lse = attend(qkv, rows, window)
        (gradient,) = torch.autograd.grad(out, qkv, towards)
    return [out.detach(), lse, gradient]


def dense_truth(qkv: Tensor, towards: Tensor, rows: PackedRows, window: int | None) -> list[Tensor]:
    """By a dense mask over all rows; memory quadratic in rows."""
    qkv.requires_grad_()
    query, key, value = qkv.unbind(1)
    scores = torch.einsum("ihd,jhd->ihj", query, key) * query.shape[-1] ** -0.5
    hidden = ~dense_mask(rows, sparse_pattern(window)).to(qkv.device)
    scores = scores.masked_fill(hidden[:, None], -torch.inf)
    out = torch.einsum("ihj,jhd->ihd", scores.softmax(-1), value)
    (gradient,) = torch.autograd.grad(out, qkv, towards)
    return [out.detach(), scores.detach().logsumexp(-1) / math.log(2), gradient]


def blockwise_truth(qkv: Tensor, towards: Tensor, rows: PackedRows, window: int | None) -> list[Tensor]:
    """By the plain torch backend in float64, which no kernel is built for; memory linear in rows."""
    qkv.requires_grad_()
    out, lse = attend(qkv, rows, window)
    (gradient,) = torch.autograd.grad(out, qkv, towards)
    return [out.detach(), lse, gradient]


def _last_layer(
    lab: Lab, rows: PackedRows, num_heads: int, hidden_size: int, dtype: torch.dtype
) -> Callable[[], Facts]:
    def run() -> Facts:
        query = lab.randn(rows.num_candidates, num_heads, hidden_size, dtype=dtype)
        hidden = lab.randn(rows.num_rows, hidden_size, dtype=dtype, seed=1)

        def attended(backend: Backend, wide: Widen) -> dict[str, Tensor]:
            own = wide(query).dtype
            plan = plan_attention(rows, sparse_pattern(4), device=lab.device, dtype=own, head_dim=32, backend=backend)
            return {"out": plan.attend_cls(wide(query), wide(hidden), 2 / math.sqrt(hidden_size))}

        return _against_reference(lab, attended, BARS[dtype])

    return run


def _bands(lab: Lab, dim: int, window: int, length: int, dtype: torch.dtype) -> Callable[[], Facts]:
    def run() -> Facts:
        query, key = (lab.randn(3, 2, length, dim, dtype=dtype, seed=seed) for seed in (0, 1))
        band = lab.randn(3, 2, length, 2 * window + 1, dtype=dtype, seed=2)
        other = torch.arange(length, device=lab.device)[:, None] + torch.arange(-window, window + 1, device=lab.device)
        band.masked_fill_((other < 0) | (other >= length), torch.nan)  # where nobody may look

        def products(backend: Backend, wide: Widen) -> dict[str, Tensor]:
            return {
                "band_qk": band_qk(wide(query), wide(key), window, backend=backend),
                "band_pv": band_pv(wide(band), wide(key), backend=backend),
                "band_ptv": band_ptv(wide(band), wide(key), backend=backend),
            }

        return _against_reference(lab, products, BAND_BARS[dtype])

    return run


def _norms(lab: Lab, hidden_size: int, dtype: torch.dtype) -> Callable[[], Facts]:
    def run() -> Facts:
        x, residual, table = (lab.randn(1000, hidden_size, dtype=dtype, seed=seed) for seed in range(3))
        weight, bias = (lab.randn(hidden_size, dtype=dtype, seed=seed) for seed in (3, 4))
        numbers = torch.randint(1000, (1000,), device=lab.device)

        def both(backend: Backend, wide: Widen) -> dict[str, Tensor]:
            word, token_type, position = (Addend(wide(rows), numbers) for rows in (x, residual, table))
            return {
                "add_norm": add_norm(wide(x), wide(residual), wide(weight), wide(bias), eps=EPS, backend=backend),
                "embed_rows": embed_rows(
                    word, token_type, position, wide(weight), wide(bias), eps=EPS, backend=backend
                ),
            }

        return _against_reference(lab, both, BARS[dtype])

    return run


def _against_reference(lab: Lab, call: Callable[[Backend, Widen], dict[str, Tensor]], bar: float) -> Facts:
    """call: its results by their names, by a backend, of inputs that go through a function first."""
    with lab.poisoned():
        found, again = (call(lab.backend, lambda tensor: tensor) for _ in range(2))
    exact = call("reference", Tensor.double)
    errors = {name: _error(tensor, exact[name]) / bar for name, tensor in found.items()}
    return _verdict(errors, list(found.values()), list(again.values()))


def _error(found: Tensor, exact: Tensor) -> float:
    """Of the whole, by its norm; infinite if a number is NaN."""
    error = (found.double() - exact).norm() / exact.norm().clamp(min=1e-300)
    return float(error.nan_to_num(torch.inf, torch.inf))


def _verdict(errors: dict[str, float], found: Sequence[Tensor], again: Sequence[Tensor]) -> Facts:
    """The errors as parts of what is allowed. Raises AssertionError if one is above 1, or if bits changed."""
    assert max(errors.values()) <= 1, f"errors as parts of what is allowed: {errors}"
    same = [torch.equal(one, other) for one, other in zip(found, again, strict=True)]
    assert all(same), f"the second run gave other bits: {same}"
    return {"of_bar": errors}
