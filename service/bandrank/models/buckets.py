"""Buckets group batches with identical kernel launches, so that one CUDA graph computes them all.

A bucket takes batches of up to some size, and does as much work for each as for the largest.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from torch import Tensor

Batch_contra = TypeVar("Batch_contra", contravariant=True)


@dataclass(frozen=True, eq=False)
class Fitted:
    """A batch laid out for its bucket.

    bucket: a key of all that the launches depend on, except the contents of inputs and their addresses.
    tables: the inputs in host memory, of the bucket's shapes. Some may be shorter, and what is in the rest of their
    room is undefined.  shapes: tensors of the bucket's shapes and dtypes, which need no memory.
    compute: enqueues the computation of the bucket's results, such as scores, from such inputs on the device, and never
    makes the host wait.  num_results: how many of the results, from the first, are the batch's.
    """

    bucket: Hashable
    tables: Sequence[Tensor]
    shapes: Sequence[Tensor]
    compute: Callable[[Sequence[Tensor]], Tensor]
    num_results: int


class Buckets(Protocol[Batch_contra]):
    """The buckets of a scorer."""

    @property
    def num_bytes(self) -> int:
        """The most bytes that the inputs of a bucket take."""

    def fit(self, batch: Batch_contra) -> Fitted | None:
        """Lays a batch out for its bucket; returns None if it fits no bucket, as when it is too large."""

    def usual(self, max_rows: int) -> Iterator[Fitted]:
        """Yields a batch for each bucket of usual requests, large ones first, so that the others reuse their memory.

        max_rows: the most rows that a batch will have.
        """


@dataclass(frozen=True)
class BucketsByType:
    """Implements `Buckets` for a scorer with batches of several types, each of which has buckets of its own; batches of
    other types have none.
    """

    of_type: Mapping[type, Buckets[Any]]

    @property
    def num_bytes(self) -> int:
        return max(buckets.num_bytes for buckets in self.of_type.values())

    def fit(self, batch: Any) -> Fitted | None:
        kind = type(batch)
        fitted = self.of_type[kind].fit(batch) if kind in self.of_type else None
        return None if fitted is None else _apart(fitted, kind)

    def usual(self, max_rows: int) -> Iterator[Fitted]:
        for kind, buckets in self.of_type.items():
            yield from (_apart(fitted, kind) for fitted in buckets.usual(max_rows))


def _apart(fitted: Fitted, kind: type) -> Fitted:
    """The same in a bucket that no batch of another type has."""
    return replace(fitted, bucket=(kind.__name__, fitted.bucket))
