"""Sums of rows for tests of their norms: two rows as in a residual, three as in BERT's embeddings."""

from typing import Literal

import pytest
import torch
from emulation.launches import prepare, run_here
from support.bands import random_rows
from torch import Tensor

from bandrank_kernels import Backend, dispatch
from bandrank_kernels.launch import Launch
from bandrank_kernels.row_norms import Addend, add_norm, cuda, embed_rows, interface
from bandrank_kernels.row_norms.reference import norm_of_sum

Kind = Literal["add", "embed"]
KINDS: list[Kind] = ["add", "embed"]
TABLE_ROWS = (50, 2, 40)  # words, token types, positions
EPS = 1e-12

# The error of a number has two parts: its own rounding, by half a unit in the last place, and that of sums of up to
# 1024 terms in float32, where the rows that are normalised have a spread of 1.
HALF_ULP = {torch.float16: 2**-11, torch.bfloat16: 2**-8, torch.float32: 2**-24}
SUMS = 4e-6


def make_addends(kind: Kind, num_rows: int, hidden_size: int, dtype: torch.dtype) -> list[Addend]:
    """Random rows to add, or random tables with a random row number of each."""
    if kind == "add":
        return [Addend(random_rows(num_rows, hidden_size, dtype=dtype, seed=seed)) for seed in (0, 1)]
    generator = torch.Generator().manual_seed(num_rows)
    return [
        Addend(
            random_rows(length, hidden_size, dtype=dtype, seed=length),
            torch.randint(length, (num_rows,), generator=generator),
        )
        for length in TABLE_ROWS
    ]


def make_norm(hidden_size: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    weight, bias = (random_rows(hidden_size, dtype=dtype, seed=seed) for seed in (2, 3))
    return weight, bias


def call(addends: list[Addend], weight: Tensor, bias: Tensor, backend: Backend = "auto") -> Tensor:
    """The public function for two addends, or for three."""
    if len(addends) == 2:
        return add_norm(addends[0].rows, addends[1].rows, weight, bias, eps=EPS, backend=backend)
    word, token_type, position = addends
    return embed_rows(word, token_type, position, weight, bias, eps=EPS, backend=backend)


def exact(addends: list[Addend], weight: Tensor, bias: Tensor, eps: float = EPS) -> Tensor:
    """The right result, in float64 on the same rounded inputs."""
    wide = [Addend(rows.double(), numbers) for rows, numbers in addends]
    return norm_of_sum(wide, weight.double(), bias.double(), eps)


def is_close(actual: Tensor, expected: Tensor) -> bool:
    """Whether every number is close to the expected one, and NaN exactly where NaN is expected."""
    bound = HALF_ULP[actual.dtype] * expected.abs() + SUMS
    near = (actual.double() - expected).abs() <= bound
    return bool((near | (actual.isnan() & expected.isnan())).all())


def run_kernels_here(monkeypatch: pytest.MonkeyPatch) -> list[Launch]:
    """Lets "auto" choose the kernel, as if there were a GPU; launches run in the emulation and are listed."""
    launches: list[Launch] = []
    prepare(*cuda.instances())  # compiles all instances together, which takes little longer than one

    def launch(request: Launch, device: torch.device) -> None:
        launches.append(request)
        run_here(request, device)

    monkeypatch.setattr(dispatch, "cuda_obstacle", lambda _: None)
    monkeypatch.setattr(interface, "_backend", interface._backend.__wrapped__)  # uncached
    monkeypatch.setattr(cuda, "launch", launch)
    return launches
