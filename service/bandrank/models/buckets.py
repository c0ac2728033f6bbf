"""Buckets: batches whose launches are the same, so that one CUDA graph computes all of them.

A bucket holds batches of up to some size, and computes as much for each as for the largest.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from torch import Tensor

Batch_contra = TypeVar("Batch_contra", contravariant=True)


@dataclass(frozen=True, eq=False)
class Fitted:
    """A batch laid out for its bucket.

    bucket: all that its launches depend on, except the contents of its inputs and addresses.
    tables: its inputs in host memory, of the bucket's shapes; the last may be shorter, and what was in the rest of
    its room is then read in its place.  shapes: tensors of the bucket's shapes and dtypes, which need no memory.
    compute: enqueues the computation of the bucket's scores from such inputs on the device, and never makes the host
    wait.  num_scores: how many of them, the first ones, are the batch's.
    """

    bucket: Hashable
    tables: Sequence[Tensor]
    shapes: Sequence[Tensor]
    compute: Callable[[Sequence[Tensor]], Tensor]
    num_scores: int


class Buckets(Protocol[Batch_contra]):
    """The buckets of a scorer."""

    @property
    def num_bytes(self) -> int:
        """The most that the inputs of a bucket take."""

    def fit(self, batch: Batch_contra) -> Fitted | None:
        """The batch in its bucket; None if there is none, as for a batch that is too large."""

    def usual(self, max_rows: int) -> Iterator[Fitted]:
        """A batch in each bucket of usual requests; large ones first, so that memory for them serves all.

        max_rows: the most rows of a batch that will come.
        """
