"""Attention to a shared query on a CPU against its equations in float64, in every variant that this processor runs."""

import pytest
import torch
from support.native import each_variant, needs_native
from support.torch_threads import torch_threads
from torch import Tensor

from bandrank_kernels.native.shared_query import attend_shared

pytestmark = [needs_native, pytest.mark.usefixtures(each_variant.__name__)]


def some(*shape: int, scale: float = 2.0) -> Tensor:
    """Returns numbers that depend on the shape alone, with logits of a few units."""
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def reference(rows: Tensor, keys: Tensor, values: Tensor, own: int) -> Tensor:
    """Returns the attention, computed candidate by candidate in float64."""
    attended = []
    for candidate in rows.double().split(max(1, own)):
        query = candidate[:, 0].transpose(0, 1)  # (num_heads, max(1, own), head_dim)
        seen, read = keys.double(), values.double()  # (num_heads, query_len, head_dim)
        if own:
            seen, read = (torch.cat([each, candidate[:, i].transpose(0, 1)], 1) for i, each in ((1, seen), (2, read)))
        weights = (query @ seen.transpose(1, 2) * query.shape[-1] ** -0.5).softmax(-1)
        attended.append((weights @ read).transpose(0, 1).flatten(1))
    return torch.cat(attended)


@pytest.mark.parametrize("head_dim", [16, 32, 48, 64, 512])
def test_it_is_the_attention_of_the_paper(head_dim: int) -> None:
    """Sizes are around a register and the candidates that run side by side; with own = 0, rows see the query alone."""
    for query_len, candidates in [(1, 1), (5, 7), (8, 16), (9, 17), (300, 33), (11, 70)]:
        keys, values = some(2, query_len, head_dim), some(2, query_len + 1, head_dim)[:, 1:]
        for own in (0, 1, 2, 3, 17):
            rows = some(candidates * max(1, own), 3 if own else 1, 2, head_dim)

            attended = attend_shared(rows, keys, values, own)

            torch.testing.assert_close(attended.double(), reference(rows, keys, values, own), rtol=0, atol=5e-5)


def test_no_candidates_are_no_error() -> None:
    """A query's candidates may all be in another part of the batch."""
    assert attend_shared(some(0, 3, 2, 32), some(2, 4, 32), some(2, 4, 32), own=2).shape == (0, 64)


def test_large_logits_are_no_overflow() -> None:
    """The softmax subtracts the largest logit first."""
    keys, values, rows = some(2, 6, 32, scale=60), some(2, 6, 32), some(20, 3, 2, 32, scale=60)

    attended = attend_shared(rows, keys, values, own=1)

    torch.testing.assert_close(attended.double(), reference(rows, keys, values, own=1), rtol=0, atol=1e-2)


@pytest.mark.parametrize("own", [1, 3])
def test_candidates_have_the_same_bits_in_any_company(own: int) -> None:
    """A candidate has the same bits alone, in another order, with more threads, and beside a candidate that is NaN."""
    keys, values, rows = some(4, 13, 32), some(4, 13, 32), some(150 * own, 3, 4, 32)
    together = attend_shared(rows, keys, values, own)

    for candidate in (0, 15, 16, 149):
        part = slice(candidate * own, (candidate + 1) * own)
        assert torch.equal(attend_shared(rows[part], keys, values, own), together[part])
    turned = attend_shared(rows.view(150, own, 3, 4, 32).flip(0).flatten(0, 1), keys, values, own)
    assert torch.equal(turned.view(150, own, -1).flip(0).flatten(0, 1), together)

    with torch_threads(3):
        assert torch.equal(attend_shared(rows, keys, values, own), together)

    rows[7 * own] = torch.nan
    poisoned = attend_shared(rows, keys, values, own)
    assert torch.equal(poisoned[: 7 * own], together[: 7 * own])
    assert torch.equal(poisoned[8 * own :], together[8 * own :])
    assert poisoned[7 * own : 8 * own].isnan().all()
