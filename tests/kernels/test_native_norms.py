"""Norms of sums by the CPU kernels."""

import pytest
import torch
from support.bands import random_rows
from support.native import each_variant, needs_native
from support.norms import KINDS, Kind, call, exact, is_close, make_addends, make_norm

from bandrank_kernels.row_norms import Addend, native

pytestmark = needs_native


@pytest.mark.parametrize("kind", KINDS)
def test_they_are_the_formula(kind: Kind) -> None:
    """For any number of rows, with one thread or two."""
    for hidden_size in (16, 48, 384, 1040):
        for num_rows in (0, 1, 7, 300):
            addends, norm = (
                make_addends(kind, num_rows, hidden_size, torch.float32),
                make_norm(hidden_size, torch.float32),
            )

            assert is_close(call(addends, *norm, "native"), exact(addends, *norm)), (hidden_size, num_rows)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_alone_has_the_bits_it_has_in_company(kind: Kind) -> None:
    addends, norm = make_addends(kind, 200, 384, torch.float32), make_norm(384, torch.float32)
    together = call(addends, *norm, "native")
    for row in (0, 96, 199):
        part = slice(row, row + 1)
        one = [Addend(rows[part]) if numbers is None else Addend(rows, numbers[part]) for rows, numbers in addends]

        assert torch.equal(call(one, *norm, "native")[0], together[row])


@pytest.mark.usefixtures(each_variant.__name__)
@pytest.mark.parametrize(("size", "spread"), [(9, 0), (1e3, 1e-2), (0, 1e-20)])
def test_what_all_numbers_of_a_row_share_costs_no_digits(size: float, spread: float) -> None:
    """Rows of one number become the bias, though the mean that float32 gives for most of them is another number."""
    x = torch.linspace(0, size, 99)[:, None] + spread * random_rows(99, 384, dtype=torch.float32)
    addends, norm = [Addend(x), Addend(torch.zeros_like(x))], make_norm(384, torch.float32)

    assert is_close(call(addends, *norm, "native"), exact(addends, *norm))


def test_rows_may_be_apart() -> None:
    """Rows of a wider matrix, one row for all, and columns with gaps."""
    wide, norm = random_rows(9, 800, dtype=torch.float32), make_norm(384, torch.float32)
    for rows in (wide[:, 3:387], wide[:1, :384].expand(9, 384), wide[:, 3:771:2]):
        addends = [Addend(rows), Addend(wide[:, 400:784])]

        assert is_close(call(addends, *norm, "native"), exact(addends, *norm))


@pytest.mark.parametrize("number", [-1, 50, 2**40])
def test_a_number_outside_its_table_is_an_index_error(number: int) -> None:
    addends, norm = make_addends("embed", 300, 48, torch.float32), make_norm(48, torch.float32)
    numbers = addends[0].numbers
    assert numbers is not None
    numbers[299] = number

    with pytest.raises(IndexError, match="a number is outside its table of rows"):
        call(addends, *norm, "native")


@pytest.mark.parametrize(("dtype", "hidden_size"), [(torch.float32, 24), (torch.float64, 32)])
def test_what_they_cannot_take_is_plain_torch(dtype: torch.dtype, hidden_size: int) -> None:
    addends, norm = make_addends("add", 5, hidden_size, dtype), make_norm(hidden_size, dtype)

    assert native.why_unsupported(torch.device("cpu"), dtype, hidden_size) is not None
    assert torch.equal(call(addends, *norm, "native"), call(addends, *norm, "vectorized"))


def test_gradients_are_plain_torch() -> None:
    (x, residual), (weight, bias) = make_addends("add", 5, 32, torch.float32), make_norm(32, torch.float32)
    out = call([x, residual], weight.requires_grad_(), bias, "native")

    assert out.requires_grad
