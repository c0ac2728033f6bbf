"""The least time of a request: its floating-point operations at the speed of the machine's fastest matrix product.

A product of (m, k) and (k, n) takes 2mkn operations. Softmax, LayerNorm, GELU and tokenising count as free.
"""

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from bandrank_bench.systems import Pattern, Precision
from bandrank_bench.workloads import QUERY_TOKENS, Request

LAYERS, HIDDEN, FFN = 6, 384, 1536
LINEAR = 2 * (4 * HIDDEN**2 + 2 * HIDDEN * FFN)  # per token and layer
KEY_VALUE = 2 * 2 * HIDDEN**2  # of these, for the key and the value
PER_KEY = 4 * HIDDEN  # per token and key: score and weighted sum

ROWS = 2048  # outputs stay in the last-level cache
SHAPES = ((HIDDEN, 3 * HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, FFN), (FFN, HIDDEN), (2048, 2048))
REPEATS = 15


@dataclass(frozen=True)
class Flops:
    """Operations of a request: of linear layers, and of attention, which int8 systems compute in floats."""

    linear: float
    attention: float

    def seconds(self, precision: Precision, ceilings: Mapping[Precision, float]) -> float:
        """The floor at `precision`, given each precision's ceiling in operations per second."""
        float_ceiling = max(ceilings["fp32"], ceilings.get("bf16", 0.0))
        attention_ceiling = float_ceiling if precision == "int8" else ceilings[precision]
        return self.linear / ceilings[precision] + self.attention / attention_ceiling


def full_flops(request: Request) -> Flops:
    """The operations with full attention over every token of every pair: the yardstick for all systems."""
    return Flops(
        linear=LAYERS * LINEAR * request.total_tokens,
        attention=LAYERS * PER_KEY * sum(length**2 for length in request.pair_tokens),
    )


def needed_flops(request: Request, pattern: Pattern, window: int) -> Flops:
    """The least work for the same scores: in the last layer only [CLS] attends; a sparse query is encoded once."""
    pairs = request.pair_tokens
    query_rows = QUERY_TOKENS + 1  # with its [SEP]
    if pattern == "full":
        rows, keys = sum(pairs), sum(length**2 for length in pairs)
    else:
        document_rows = [length - 1 - query_rows for length in pairs]
        rows = query_rows + len(pairs) + sum(document_rows)
        banded = sum(length * (1 + query_rows) + _band(length, window) for length in document_rows)
        keys = query_rows**2 + sum(pairs) + banded  # the query once; each [CLS] sees its whole pair
    return Flops(
        linear=(LAYERS - 1) * LINEAR * rows + KEY_VALUE * rows + (LINEAR - KEY_VALUE) * len(pairs),
        attention=PER_KEY * ((LAYERS - 1) * keys + sum(pairs)),
    )


def _band(length: int, window: int) -> int:
    """The number of pairs of positions at most `window` apart."""
    reach = min(window, length - 1)
    return length + 2 * sum(length - distance for distance in range(1, reach + 1))


def measure_ceilings(precisions: Collection[Precision]) -> dict[Precision, float]:
    """Measures the operations per second of the fastest product in each precision, over repeats, shapes and kernels."""
    ceilings: dict[Precision, float] = {}
    for precision, operations, product in _products(precisions):
        product()
        for _ in range(REPEATS):
            started = time.perf_counter()
            product()
            speed = operations / (time.perf_counter() - started)
            ceilings[precision] = max(ceilings.get(precision, 0.0), speed)
    return ceilings


def _products(precisions: Collection[Precision]) -> Iterator[tuple[Precision, float, Callable[[], object]]]:
    for k, n in SHAPES:
        operations = 2.0 * ROWS * k * n
        for precision in precisions:
            if precision == "int8":
                yield precision, operations, _int8(k, n)
                continue
            dtype = torch.float32 if precision == "fp32" else torch.bfloat16
            x, weight = torch.randn(ROWS, k, dtype=dtype), torch.randn(n, k, dtype=dtype)
            yield precision, operations, _plain(x, weight)
            if precision != "bf16 emulated":  # oneDNN packs no weights for it
                yield precision, operations, _prepacked(x, weight)


def _plain(x: Tensor, weight: Tensor) -> Callable[[], Tensor]:
    return lambda: torch.nn.functional.linear(x, weight)


def _prepacked(x: Tensor, weight: Tensor) -> Callable[[], Tensor]:
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS)
    return lambda: torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")


def _int8(k: int, n: int) -> Callable[[], Tensor]:
    x = torch.randint(0, 255, (ROWS, k), dtype=torch.uint8)  # unsigned, as signed activations run in a reference loop
    weight = torch.ops.onednn.qlinear_prepack(torch.randint(-127, 127, (n, k), dtype=torch.int8), [ROWS, k])
    scales, zeros = torch.full((n,), 0.01), torch.zeros(n, dtype=torch.int32)
    return lambda: torch.ops.onednn.qlinear_pointwise(
        x, 0.02, 128, weight, scales, zeros, None, 1.0, 0, torch.float32, "none", [], ""
    )
