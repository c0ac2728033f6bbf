"""Norms of sums on a GPU, by the kernel that the CPU emulates, as cupy compiles and launches it, and a model on it."""

import random

import pytest
import torch
from support.models import random_ids, score_batch, tiny_cross_encoder
from support.norms import HALF_ULP, KINDS, Kind, call, exact, is_close, make_addends, make_norm
from support.on_gpu import GPU, assert_replays, assert_runs_on_the_current_stream, needs_gpu, poisoned
from torch import Tensor

from bandrank.models.layers.patterns import sparse
from bandrank_kernels.row_norms import Addend

pytestmark = needs_gpu


def inputs(kind: Kind, num_rows: int, hidden_size: int, dtype: torch.dtype) -> tuple[list[Addend], Tensor, Tensor]:
    addends, (weight, bias) = make_addends(kind, num_rows, hidden_size, dtype), make_norm(hidden_size, dtype)
    there = [Addend(rows.to(GPU), None if numbers is None else numbers.to(GPU)) for rows, numbers in addends]
    return there, weight.to(GPU), bias.to(GPU)


@pytest.mark.parametrize("dtype", HALF_ULP)
@pytest.mark.parametrize("kind", KINDS)
def test_the_kernel_equals_the_reference(kind: Kind, dtype: torch.dtype) -> None:
    for hidden_size in (8, 32, 264, 384, 768, 1024):
        for num_rows in (0, 1, 7, 33, 300, 20_000):
            given = inputs(kind, num_rows, hidden_size, dtype)
            with poisoned():
                actual = call(*given, "cuda")

            assert is_close(actual, exact(*given))
            assert torch.equal(actual, call(*given, "cuda"))


def test_a_row_of_one_number_becomes_the_bias() -> None:
    x = torch.linspace(0, 9, 99, device=GPU)[:, None].expand(99, 384).contiguous()
    weight, bias = (part.to(GPU) for part in make_norm(384, torch.float32))
    actual = call([Addend(x), Addend(torch.zeros_like(x))], weight, bias, "cuda")

    assert torch.equal(actual, bias.expand_as(actual))


def test_a_number_outside_its_table_makes_its_row_nan() -> None:
    """No other row is NaN, and the GPU keeps working."""
    addends, weight, bias = inputs("embed", 9, 384, torch.float16)
    numbers = addends[0].numbers
    assert numbers is not None
    numbers[3] = 2**40
    actual = call(addends, weight, bias, "cuda")

    assert actual.isnan().any(1).tolist() == [row == 3 for row in range(9)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_graph_replays_what_was_launched(kind: Kind) -> None:
    given = inputs(kind, 130, 384, torch.float16)
    assert_replays(lambda: [call(*given, "cuda")], given[0][0].rows)


def test_the_kernel_runs_on_the_current_stream_and_waits_for_nothing() -> None:
    (x, residual), weight, bias = inputs("add", 130, 384, torch.float16)
    assert_runs_on_the_current_stream(lambda late: [call([Addend(late), residual], weight, bias, "cuda")], x.rows)


def test_a_model_scores_as_on_a_cpu() -> None:
    """The model runs the kernels without gradients, and plain torch with them."""
    rng = random.Random(0)
    batch = score_batch([random_ids(rng, 5)], [[random_ids(rng, length) for length in (1, 9, 30)]])
    expected = tiny_cross_encoder(pattern=sparse(2))(batch).detach()
    scorer = tiny_cross_encoder(pattern=sparse(2)).to(GPU)
    with torch.inference_mode():
        fused = scorer(batch)

    torch.testing.assert_close(fused.cpu(), expected, rtol=0, atol=1e-4)
    torch.testing.assert_close(scorer(batch).detach().cpu(), expected, rtol=0, atol=1e-4)
