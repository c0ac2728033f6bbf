"""Norms of sums through their public functions: every backend computes the formula."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from emulation.compiled import needs_compiler
from support.norms import EPS, HALF_ULP, KINDS, Kind, call, exact, is_close, make_addends, make_norm, run_kernels_here
from torch import Tensor
from torch.nn.functional import layer_norm

from bandrank_kernels import Backend, BackendUnavailable
from bandrank_kernels.row_norms import Addend, add_norm, embed_rows

BACKENDS: list[Backend] = ["reference", "vectorized"]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", KINDS)
def test_backends_are_the_formula(kind: Kind, backend: Backend) -> None:
    """Results equal torch's LayerNorm in float64, also without any rows."""
    for num_rows in (0, 1, 33):
        addends, norm = make_addends(kind, num_rows, 24, torch.float64), make_norm(24, torch.float64)
        summed = sum(rows if numbers is None else rows[numbers] for rows, numbers in addends)
        assert isinstance(summed, Tensor)

        torch.testing.assert_close(
            call(addends, *norm, backend), layer_norm(summed, (24,), *norm, EPS), rtol=0, atol=1e-12
        )


def test_words_may_be_vectors() -> None:
    """Vectors may stand in for the table of words and its ids."""
    word, *others = make_addends("embed", 9, 24, torch.float64)
    norm = make_norm(24, torch.float64)

    assert torch.equal(call([Addend(word.rows[word.numbers]), *others], *norm), call([word, *others], *norm))


@needs_compiler
@pytest.mark.parametrize("dtype", HALF_ULP)
@pytest.mark.parametrize("kind", KINDS)
def test_auto_is_the_kernel_where_it_can_run(kind: Kind, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """For rows that the kernel cannot take, "auto" runs plain torch and "cuda" raises with the reason."""
    launches = run_kernels_here(monkeypatch)
    addends, norm = make_addends(kind, 9, 32, dtype), make_norm(32, dtype)

    assert is_close(call(addends, *norm), exact(addends, *norm))
    assert torch.equal(call(addends, *norm), call(addends, *norm, "cuda"))
    assert len(launches) == 3
    odd, odd_norm = make_addends(kind, 9, 33, dtype), make_norm(33, dtype)
    assert torch.equal(call(odd, *odd_norm), call(odd, *odd_norm, "vectorized"))
    with pytest.raises(BackendUnavailable, match="hidden_size must be a multiple of 8 up to 1024, got 33"):
        call(odd, *odd_norm, "cuda")
    assert len(launches) == 3


ROWS = torch.zeros(3, 8)
ONE = torch.ones(8)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": ROWS[0]}, r"rows must be \(n, hidden_size\) of a floating-point dtype, got \(8,\) torch.float32 on cpu"),
        ({"x": ROWS.long()}, r"of a floating-point dtype, got \(3, 8\) torch.int64"),
        ({"residual": ROWS[:, :4]}, r"rows must have one hidden_size, got \(3, 8\) and \(3, 4\)"),
        ({"residual": ROWS[:2]}, "addends must have one number of rows, got 3 and 2"),
        ({"weight": ONE[:4]}, r"weight and bias must be \(8,\), got \(4,\)"),
        ({"residual": ROWS.half()}, r"all must be torch.float32 on cpu, got \(3, 8\) torch.float16 on cpu"),
        ({"bias": ONE.to("meta")}, r"all must be torch.float32 on cpu, got \(8,\) torch.float32 on meta"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        add_norm(**{"x": ROWS, "residual": ROWS, "weight": ONE, "bias": ONE, **changes}, eps=EPS)


def test_numbers_are_int64_and_inside_their_table() -> None:
    """On a CPU, numbers outside the table raise; the CUDA kernel makes their rows NaN."""
    table = Addend(ROWS, torch.tensor([0, 2]))
    embed = partial(embed_rows, table, table, weight=ONE, bias=ONE, eps=EPS)

    with pytest.raises(ValueError, match=r"numbers of rows must be \(total,\) int64 on cpu, got \(2,\) torch.int32"):
        embed(Addend(ROWS, torch.tensor([0, 2], dtype=torch.int32)))
    with pytest.raises(IndexError):
        embed(Addend(ROWS, torch.tensor([0, 3])))


def leaves(kind: Kind) -> tuple[list[Any], Callable[..., Tensor]]:
    """Returns the arguments of an operation that require gradients, and the operation as a function of them."""
    addends, norm = make_addends(kind, 5, 4, torch.float64), make_norm(4, torch.float64)
    floats = [tensor.requires_grad_() for tensor in (*(rows for rows, _ in addends), *norm)]

    def of_floats(*tensors: Tensor) -> Tensor:
        numbered = [Addend(rows, numbers) for rows, (_, numbers) in zip(tensors, addends, strict=False)]
        return call(numbered, *tensors[-2:])

    return floats, of_floats


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_difference_quotients(kind: Kind) -> None:
    floats, of_floats = leaves(kind)

    assert torch.autograd.gradcheck(of_floats, floats)


@needs_compiler
@pytest.mark.parametrize("kind", KINDS)
def test_the_kernel_is_not_taken_for_a_gradient(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a gradient is due, "auto" runs plain torch, and "cuda" raises; without one, the kernel runs."""
    launches = run_kernels_here(monkeypatch)
    addends, norm = make_addends(kind, 5, 32, torch.float32), make_norm(32, torch.float32)
    norm[0].requires_grad_()

    assert call(addends, *norm).requires_grad
    with pytest.raises(BackendUnavailable, match="the kernel has no gradient"):
        call(addends, *norm, "cuda")
    assert not launches
    with torch.no_grad():
        call(addends, *norm)
    assert len(launches) == 1
