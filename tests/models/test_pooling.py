"""Pooling of a sequence's rows into one vector."""

import pytest
import torch
from torch import Tensor

from bandrank.models.layers.pooling import Pooling, pool
from bandrank.models.ragged import Ragged
from bandrank_kernels.arrays import offsets

BY_HAND = {
    "mean": lambda rows: rows.mean(0),
    "cls": lambda rows: rows[0],
    "last": lambda rows: rows[-1],
    "max": lambda rows: rows.max(0).values,
    "mean_sqrt_len": lambda rows: rows.sum(0) / len(rows) ** 0.5,
    "weighted_mean": lambda rows: sum(index * row for index, row in enumerate(rows, 1)) / sum(range(len(rows) + 1)),
}


@pytest.mark.parametrize("how", BY_HAND)
@pytest.mark.parametrize("lengths", [[], [0], [3, 0, 1, 0], [0, 7, 2]])
def test_each_sequence_has_its_vector(how: Pooling, lengths: list[int]) -> None:
    """The vectors are float32 whatever the rows are, and an empty sequence gives zeros."""
    rows = torch.randn(sum(lengths), 4, generator=torch.Generator().manual_seed(0)).half() - 2
    empty = torch.zeros(4)

    vectors = pool(Ragged(rows, offsets(lengths)), how)

    expected: list[Tensor] = [BY_HAND[how](own.float()) if len(own) else empty for own in rows.split(lengths)]
    assert (vectors.dtype, vectors.shape) == (torch.float32, (len(lengths), 4))
    for ours, theirs in zip(vectors, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("how", BY_HAND)
def test_nan_stays_nan(how: Pooling) -> None:
    """NaN must reach the score, not be hidden by pooling."""
    rows = torch.full((2, 4), torch.nan)

    assert pool(Ragged(rows, offsets([2])), how).isnan().all()
