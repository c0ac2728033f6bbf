"""Hashes of several things: parts that stay distinct, and weights by name."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

import torch
from torch import Tensor

Part = bytes | memoryview


class Hasher(Protocol):
    """The part of hashlib's hash objects that is used here."""

    def update(self, content: Part, /) -> None:
        """Adds content behind what was added before."""


def add_parts(hasher: Hasher, parts: Iterable[Part]) -> None:
    """Adds parts to a hash, each behind its length; otherwise ("ab", "c") would hash like ("a", "bc")."""
    for part in parts:
        hasher.update(len(part).to_bytes(8, "little"))
        hasher.update(part)


def parts_of_weights(weights: Mapping[str, Tensor]) -> Iterator[Part]:
    """Yields two parts for each tensor, in the order of names: its name, dtype and shape; and its content, which is
    copied only from another device.
    """
    for name, tensor in sorted(weights.items()):
        yield f"{name} {tensor.dtype} {list(tensor.shape)}".encode()
        yield tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
