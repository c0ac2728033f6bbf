"""The CPU kernels refuse tensors that they would misread, and report a lack of memory as an error."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.layouts import packed_rows
from support.native import needs_native
from torch import nn

from bandrank_kernels.arrays import offsets
from bandrank_kernels.native.shared_query import attend_shared
from bandrank_kernels.native.tensors import Dense, Norm, PackedLayer, PostNorm, PreNorm, Turn, Unit, linear, project
from bandrank_kernels.native.weights import PackedWeights, Split
from bandrank_kernels.windowed_attention import AttentionPattern, DistanceBiases, NativePlan, plan_local_attention

pytestmark = needs_native
X, ROWS = torch.zeros(9, 48), packed_rows([2], [[5]], shared=True)
QKV = torch.zeros(ROWS.num_rows, 3, 2, 32)
ZEROS = torch.zeros(9, 48, dtype=torch.int8)
NORM = Norm(torch.ones(48), None, 1e-5)
SPLIT = Split.of(torch.tensor([17, *[1] * 47]))
LOCAL = plan_local_attention(offsets([1, 3]), 2, device=X.device, dtype=X.dtype, head_dim=16, backend="native")


def layer(outputs: int, inputs: int) -> PackedWeights:
    """Returns a layer whose weights are zero."""
    return PackedWeights.pack(torch.zeros(outputs, inputs, dtype=torch.int8), torch.ones(outputs), None)


def block(*, inner: int = 96, size: int = 48) -> PostNorm:
    """Returns a BERT block whose weights are zero."""
    return PostNorm(layer(48, 48), layer(96, 48), layer(size, inner), Unit.GELU, NORM, NORM)


def turned(
    x: torch.Tensor = X, *, count: int = 9, half: int = 8, dtype: torch.dtype = torch.int64, **more: Any
) -> torch.Tensor:
    """Projects rows to three heads of 16 numbers, and turns two of them. more: other fields of their Turn."""
    tables = torch.ones(4, half), torch.zeros(4, half)
    given = {"head_dim": 16, "heads": 2, "positions": torch.zeros(count, dtype=dtype), "tables": tables}
    return project(x, layer(48, 48), None, Turn(**given | more))


def shared(
    rows: int = 6, keys: int = 4, own: int = 2, head_dim: int = 32, dtype: torch.dtype = torch.float32
) -> object:
    """Attends from the rows of three candidates to a shared query."""
    return attend_shared(
        torch.zeros(rows, 3, 2, head_dim), torch.zeros(2, keys, head_dim, dtype=dtype), torch.zeros(2, 4, head_dim), own
    )


def biased(positions: torch.Tensor, heads: int = 2) -> object:
    plan = NativePlan(ROWS, AttentionPattern.sparse(4))
    return plan.attend(QKV, DistanceBiases.of(torch.zeros(2 * len(QKV) + 1, heads), positions))


def whole(hidden: torch.Tensor) -> torch.Tensor:
    out = NativePlan(ROWS, AttentionPattern.sparse(4)).layer(hidden, PackedLayer(layer(144, 48), block(), 3))
    assert out is not None
    return out


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: linear(X.double(), layer(48, 48)),
            r"x must be \(any, 48\) torch.float32 in host memory, got \(9, 48\)",
        ),
        (lambda: linear(X[:, :32], layer(48, 48)), r"got \(9, 32\) torch.float32 on cpu"),
        (lambda: linear(X.to("meta"), layer(48, 48)), "on meta"),
        (lambda: PackedWeights.pack(X, torch.ones(9), None), r"rows must be \(any, any\) torch.int8"),
        (lambda: PackedWeights.pack(ZEROS, torch.ones(8), None), r"scales must be \(9\) torch.float32"),
        (lambda: PackedWeights.pack(ZEROS, torch.ones(9), torch.ones(16)), r"a bias must be \(9\) torch.float32"),
        (lambda: Split.of(torch.tensor([1, 4, 1])), "multiple of 16, got 3"),
        (lambda: layer(8, 20), "multiple of 16 inputs"),
        (lambda: layer(1, (1 << 16) + 16), "a layer can have 65536 bytes of inputs, got 65552"),
        (
            lambda: PackedWeights.pack(torch.zeros(1, 64).char(), torch.ones(1), None, SPLIT),
            r"shares of a split must be \(80\)",
        ),
        (lambda: Dense.of(nn.Linear(48, 3))(X.bfloat16()), r"x must be \(any, 48\) torch.float32"),
        (lambda: block(inner=80), "the layers of a block must fit together"),
        (lambda: block(size=64), "the layers of a block must fit together"),
        (lambda: block()(X, X.half()), r"hidden must be \(any, 48\)"),
        (lambda: block()(X[:4], X), r"attended must be \(9, 48\)"),
        (lambda: _block(torch.ones(32))(X, X), r"a norm's weight must be \(48\)"),
        (lambda: _block(torch.ones(96)[::2])(X, X), "a norm's weight must be without gaps, got a stride of 2"),
        (lambda: _block(X[0], X.T[0, :1].expand(48))(X, X), "a norm's bias must be without gaps, got a stride of 0"),
        (lambda: turned(count=3), r"positions must be \(9\) torch.int64"),
        (lambda: turned(dtype=torch.int32), "positions must be"),
        (lambda: turned(half=4), r"cosines must be \(any, 8\)"),
        (lambda: turned(X.double()), "x must be"),
        (lambda: turned(heads=4), "48 outputs must be heads of 16, of which 4 are turned"),
        (lambda: turned(norms=torch.ones(1, 16)), r"weights of heads' norms must be \(2, 16\)"),
        (lambda: turned(head_dim=24, half=12, norms=torch.ones(2, 24)), "need a multiple of 16 numbers, got 24"),
        (lambda: shared(rows=5), "expected rows by 2 and a query, got 5 rows and 4"),
        (lambda: shared(keys=3), r"values must be \(2, 3, 32\)"),
        (lambda: shared(own=0), r"rows must be \(any, 1, 2, 32\)"),
        (lambda: shared(dtype=torch.float64), "keys must be"),
        (lambda: shared(head_dim=528), "up to 512, got 528"),
        (lambda: NativePlan(ROWS, AttentionPattern()).attend(QKV.bfloat16()), r"qkv must be \(8, 3, any, any\)"),
        (lambda: NativePlan(ROWS, AttentionPattern()).attend_first(QKV[:5], 1), r"qkv must be \(8, 3, any, any\)"),
        (lambda: NativePlan(ROWS, AttentionPattern()).attend(QKV[..., :24]), "multiple of 16 up to 512, got 24"),
        (lambda: LOCAL.attend(QKV), r"qkv must be \(4, 3, any, any\)"),
        (lambda: biased(torch.arange(len(QKV)).int()), "positions must be"),
        (lambda: biased(torch.arange(3)), r"positions must be \(8\)"),
        (lambda: biased(torch.arange(len(QKV)), heads=1), r"biases must be \(2, any\)"),
        (lambda: whole(X), r"hidden must be \(8, 48\)"),
    ],
)
def test_other_tensors_are_refused(call: Callable[[], object], words: str) -> None:
    """The message says what was expected and what came; unchecked, the kernels would read whatever lies there."""
    with pytest.raises(ValueError, match=words):
        call()


def _block(weight: torch.Tensor, bias: torch.Tensor | None = None) -> PreNorm:
    return PreNorm(layer(48, 48), layer(96, 48), layer(48, 96), Unit.GELU, Norm(weight, bias, 1e-5))


def test_rows_of_any_layout_are_rows() -> None:
    x = torch.randn(48, 8)

    assert torch.equal(whole(x.T), whole(x.T.contiguous()))


OUT_OF_MEMORY = """
import resource
import numpy as np
import torch
from bandrank_kernels.windowed_attention.native import attend_tasks

torch.set_num_threads(1)
keys = 1 << 20
qkv, out = torch.zeros(keys, 3, 1, 16), torch.ones(8, 16)
few, many = (np.array([[0, 8, 0, count, 0, 0, 0, 0, 0, 0, -1, 0]]) for count in (8, keys))
attend_tasks(few, qkv.unbind(1), out)
limits = resource.getrlimit(resource.RLIMIT_AS)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 2**25, limits[1]))
try:
    attend_tasks(many, qkv.unbind(1), out)
except MemoryError as error:
    print(error)
resource.setrlimit(resource.RLIMIT_AS, limits)
print(attend_tasks(many, qkv.unbind(1), out).sum().item())
"""


def test_without_memory_there_is_an_error_and_not_the_end() -> None:
    """The service answers the error with smaller batches, so the thread must be able to compute again."""
    result = subprocess.run([sys.executable, "-c", OUT_OF_MEMORY], capture_output=True, text=True, check=False)

    assert result.stdout == "the CPU kernels were given no memory\n0.0\n", result.stderr
