"""Codes that attend to texts: against a result by hand, and many texts together against each text apart."""

import pytest
import torch
from torch import Tensor

from bandrank.models.layers.code_attention import attend_codes_apart, attend_codes_together
from bandrank.models.ragged import Ragged
from bandrank_kernels.arrays import offsets

SIZE = 8


def texts(*lengths: int) -> Ragged:
    """Returns random states of texts of these lengths."""
    generator = torch.Generator().manual_seed(0)
    return Ragged(3 * torch.randn(sum(lengths), SIZE, generator=generator), offsets(lengths))


def codes_of(count: int) -> Tensor:
    return torch.randn(count, SIZE, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("lengths", [(5,), (1, 40, 0, 7, 2), (0,), (0, 0, 3), ()])
@pytest.mark.parametrize("num_codes", [1, 3])
def test_queries_together_are_queries_apart(lengths: tuple[int, ...], num_codes: int) -> None:
    """Both ways give the same averages and gradients; a text without states gives zeros."""
    states, codes = texts(*lengths), codes_of(num_codes)
    results = []
    for attend in (attend_codes_apart, attend_codes_together):
        leaves = codes.clone().requires_grad_(), states.values.clone().requires_grad_()
        seen = attend(leaves[0], Ragged(leaves[1], states.cu_seqlens))
        assert seen.shape == (len(lengths), num_codes, 8)
        weights = torch.arange(seen.numel()).reshape(seen.shape).sin()
        if sum(lengths):
            results.append([seen.detach(), *torch.autograd.grad((weights * seen).sum(), leaves)])
        else:
            results.append([seen.detach()])

    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-4)


def test_products_in_the_hundreds_do_not_overflow() -> None:
    """The products of unscaled states are as large as these."""
    states = Ragged(texts(9, 4).values * 300, offsets([9, 4]))
    seen = attend_codes_together(codes_of(2), states)

    torch.testing.assert_close(seen, attend_codes_apart(codes_of(2), states))
    assert seen.isfinite().all()
