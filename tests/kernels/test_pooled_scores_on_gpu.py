"""Scores of pooled rows on a GPU, by the kernel that the CPU emulates, as cupy compiles and launches it."""

import pytest
import torch
from support.bands import random_rows
from support.on_gpu import GPU, assert_replays, assert_runs_on_the_current_stream, needs_gpu, poisoned
from support.pooled import HALVES, Head, exact, is_close, make_head

from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.layers.execution import Execution
from bandrank.models.layers.head import ScoreHead
from bandrank_kernels.pooled_scores import ACTIVATIONS, HeadActivation, pooled_scores

pytestmark = needs_gpu


def head_there(inputs: int, outputs: int, dtype: torch.dtype) -> Head:
    return Head(*(each.to(GPU) for each in make_head(inputs, outputs, dtype)))


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", HALVES)
def test_the_kernel_equals_the_formula(dtype: torch.dtype, activation: HeadActivation) -> None:
    for inputs, outputs in ((32, 32), (384, 384), (160, 352)):
        head = head_there(inputs, outputs, dtype)
        for num_rows in (0, 1, 17, 100, 5_000):
            rows = random_rows(num_rows, inputs, dtype=dtype).to(GPU)
            with poisoned():
                actual = pooled_scores(rows, *head, activation=activation, backend="cuda")

            assert is_close(actual, exact(rows, head, activation))
            assert torch.equal(actual, pooled_scores(rows, *head, activation=activation, backend="cuda"))


def test_a_graph_replays_what_was_launched_and_the_kernel_runs_on_the_current_stream() -> None:
    rows, head = random_rows(100, 384, dtype=torch.float16).to(GPU), head_there(384, 384, torch.float16)
    assert_replays(lambda: [pooled_scores(rows, *head, backend="cuda")], rows)
    assert_runs_on_the_current_stream(lambda late: [pooled_scores(late, *head, backend="cuda")], rows)


def test_the_head_of_a_model_runs_the_kernel() -> None:
    """In inference it is near the head in float32, which it equals where there are gradients."""
    head = ScoreHead(EncoderConfig(100, 64, 1, 2, 64, 64)).to(GPU)
    rows = random_rows(40, 64, dtype=torch.float16).to(GPU)
    plain = head(rows)
    head.prepare_for(Execution(dtype=torch.float16))

    assert head._fused
    torch.testing.assert_close(head(rows), plain, rtol=0, atol=1e-3)
    with torch.inference_mode():
        torch.testing.assert_close(head(rows), plain, rtol=0, atol=1e-3)
