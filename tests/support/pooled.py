"""Pooled rows and heads for tests of their scores."""

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from support.bands import random_rows
from torch import Tensor

from bandrank.models.layers import head
from bandrank_kernels import dispatch
from bandrank_kernels.launch import Launch
from bandrank_kernels.pooled_scores import ACTIVATIONS, HeadActivation, cuda

HALVES = (torch.float16, torch.bfloat16)
SUMS = 2e-5  # of up to 384 terms in float32, for scores of about 1


class Head(NamedTuple):
    """The tensors behind the rows, in the order of `pooled_scores`."""

    weight: Tensor
    bias: Tensor
    vector: Tensor
    constant: Tensor


def make_head(inputs: int, outputs: int, dtype: torch.dtype) -> Head:
    weight = (random_rows(outputs, inputs, seed=1) * inputs**-0.5).to(dtype)
    bias, vector = (random_rows(outputs, dtype=torch.float32, seed=seed) for seed in (2, 3))
    return Head(weight, bias, vector * outputs**-0.5, torch.tensor([0.25]))


def exact(rows: Tensor, head: Head, activation: HeadActivation) -> Tensor:
    """The right scores, in float64 on the same rounded inputs."""
    weight, bias, vector, constant = (each.double() for each in head)
    return ACTIVATIONS[activation](rows.double() @ weight.T + bias) @ vector + constant


def is_close(actual: Tensor, expected: Tensor) -> bool:
    """Whether every score is close to the expected one, and NaN exactly where NaN is expected."""
    near = (actual.double() - expected).abs() <= SUMS
    return bool((near | (actual.isnan() & expected.isnan())).all())


def run_heads_here(monkeypatch: pytest.MonkeyPatch, launch: Callable[[Launch, torch.device], None]) -> None:
    """Lets heads in half precision run the kernel, as if there were a GPU. launch: runs it."""
    for module in (dispatch, head):
        monkeypatch.setattr(module, "cuda_obstacle", lambda _: None)
    monkeypatch.setattr(head, "on_gpu", lambda _: True)
    monkeypatch.setattr(head, "infers_on_gpu", lambda _: True)
    monkeypatch.setattr(cuda, "launch", launch)
