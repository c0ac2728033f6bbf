"""Token ids in host memory, as int32 arrays all the way from the tokenizer to the batch."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self, overload

import numpy as np
import numpy.typing as npt

from bandrank_kernels.arrays import Ints, Offsets, lengths_of, offsets

Ids = npt.NDArray[np.int32]  # (n,) the token ids of one text
PackedIds = bytes  # the bytes of such an array: the smallest form for a cache, and the fastest to join
ID_BYTES = 4
NO_IDS: Ids = np.empty(0, np.int32)


def pack_ids(ids: Sequence[int]) -> PackedIds:
    """Packs the token ids of a text. Raises OverflowError for an id that int32 cannot hold."""
    return array("i", ids).tobytes()


def unpack_ids(packed: PackedIds) -> Ids:
    """Unpacks the token ids of a text into a read-only array."""
    return np.frombuffer(packed, np.int32)


@dataclass(frozen=True, eq=False)
class RaggedIds(Sequence[Ids]):
    """The token ids of n texts, end to end; slicing copies nothing.

    values: (total,), where text i is values[cu_seqlens[i] : cu_seqlens[i + 1]].  cu_seqlens: (n + 1,).
    """

    values: Ids
    cu_seqlens: Offsets

    @classmethod
    def of(cls, texts: Sequence[Sequence[int] | Ids]) -> Self:
        """Joins the token ids of single texts."""
        values = np.concatenate([NO_IDS, *(np.asarray(text, np.int32) for text in texts)])
        return cls(values, offsets([len(text) for text in texts]))

    @classmethod
    def joined(cls, parts: Sequence["RaggedIds"]) -> "RaggedIds":
        """Joins the texts of all parts."""
        if len(parts) == 1:
            return parts[0]
        values = np.concatenate([NO_IDS, *(part.values for part in parts)])
        return cls(values, offsets(np.concatenate([np.zeros(0, np.int64), *(part.lengths for part in parts)])))

    @overload
    def __getitem__(self, index: int) -> Ids: ...
    @overload
    def __getitem__(self, index: slice) -> Self: ...
    def __getitem__(self, index: int | slice) -> Ids | Self:
        """One text's ids, or the consecutive texts of a slice without a step."""
        if isinstance(index, slice):
            begin, end, step = index.indices(len(self))
            assert step == 1, "texts are cut in runs. This is a bug."
            bounds = self.cu_seqlens[begin : max(begin, end) + 1]
            return type(self)(self.values[bounds[0] : bounds[-1]], bounds - bounds[0])
        if not -len(self) <= index < len(self):
            raise IndexError(f"text {index} of {len(self)}")
        begin, end = self.cu_seqlens[index % len(self)], self.cu_seqlens[index % len(self) + 1]
        return self.values[begin:end]

    def __len__(self) -> int:
        return len(self.cu_seqlens) - 1

    @property
    def lengths(self) -> Ints:
        """(n,) the number of each text's token ids."""
        return lengths_of(self.cu_seqlens)

    def tolist(self) -> list[list[int]]:
        """The ids of each text as Python integers."""
        return [ids.tolist() for ids in self]
