"""Representations as bytes: the payload that is scored, and the sealed value that Redis keeps.

payload   counts (2 x uint32: token ids of the candidate, word pieces cut from it), then `rows` rows:
          float32, float16   size numbers
          int8               a float32 scale, then size codes; a number is its code times the scale
sealed    version (uint8), dtype (uint8), size, rows, CRC-32 of the key, of these and of the payload (uint32 each),
          payload

All of it little-endian.
"""

import struct
import zlib
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bandrank.dtypes import PayloadDtype
from bandrank.models.ragged import Ragged
from bandrank_kernels.arrays import Offsets, offsets

VERSION = 2  # in version 1 the checksum left the key out
DTYPE_CODES: dict[PayloadDtype, int] = {"float32": 1, "float16": 2, "int8": 3}
COUNTS = struct.Struct("<II")
HEAD = struct.Struct("<BBII")
CHECKSUM = struct.Struct("<I")
SCALE_BYTES = 4
NO_COUNTS = COUNTS.pack(0, 0)
MAX_CODE = 127
EXPONENT = 0x7C00  # of a float16; all of its bits are set in an infinity and in what is no number


class RepresentationCodec:
    """Converts representations, with `size` numbers a row, to bytes and back. Raises ValueError if size is below 1."""

    def __init__(self, size: int, dtype: PayloadDtype) -> None:
        if size < 1:
            raise ValueError(f"a representation's rows must have at least 1 number, got {size}")
        self._size = size
        self._dtype: PayloadDtype = dtype
        self._row_bytes = {"float32": 4 * size, "float16": 2 * size, "int8": SCALE_BYTES + size}[dtype]

    def payloads(self, values: Tensor, cu_seqlens: Offsets) -> list[bytes]:
        """The payloads of n representations, with counts of 0.

        values: (total, size) on any device.  cu_seqlens: (n + 1,).
        Raises ValueError for another size, and if a number is not finite or too large for the dtype: a stored
        representation must score as the computed one does.
        """
        if values.ndim != 2 or values.shape[1] != self._size:
            raise ValueError(f"representations must be (total, {self._size}), got {tuple(values.shape)}")
        flat = self._encode(values.detach()).tobytes()
        return [NO_COUNTS + flat[start:end] for start, end in pairwise((cu_seqlens * self._row_bytes).tolist())]

    def with_counts(self, payloads: Sequence[bytes], num_tokens: Sequence[int], cut: Sequence[int]) -> list[bytes]:
        """The same payloads with the number of each candidate's token ids and of the word pieces cut from it."""
        return [
            COUNTS.pack(tokens, lost) + payload[COUNTS.size :]
            for payload, tokens, lost in zip(payloads, num_tokens, cut, strict=True)
        ]

    def counts(self, payloads: Sequence[bytes]) -> list[tuple[int, int]]:
        """The number of token ids and of word pieces cut, for each payload."""
        return [(tokens, lost) for tokens, lost in map(COUNTS.unpack_from, payloads)]

    def lengths(self, payloads: Sequence[bytes]) -> list[int]:
        """The number of rows of each payload."""
        return [(len(payload) - COUNTS.size) // self._row_bytes for payload in payloads]

    def decode(self, payloads: Sequence[bytes]) -> Ragged:
        """The representations of payloads, (total, size) float32 on the host."""
        cu_seqlens = offsets(self.lengths(payloads))
        if cu_seqlens[-1] == 0:
            return Ragged(torch.empty(0, self._size), cu_seqlens)
        return Ragged(self._decode(self._without_counts(payloads)), cu_seqlens)

    def seal(self, payload: bytes, key: bytes) -> bytes:
        """The value that Redis keeps for a payload under a key."""
        head = HEAD.pack(VERSION, DTYPE_CODES[self._dtype], self._size, *self.lengths([payload]))
        return head + CHECKSUM.pack(zlib.crc32(payload, zlib.crc32(head, zlib.crc32(key)))) + payload

    def open(self, value: bytes, key: bytes) -> bytes | None:
        """The payload of a value that was found under a key; None for one that is damaged, cut short, sealed for
        another key, of another version or form, or not finite.
        """
        payload = value[HEAD.size + CHECKSUM.size :]
        if len(payload) < COUNTS.size or (len(payload) - COUNTS.size) % self._row_bytes:
            return None
        return payload if value == self.seal(payload, key) and self._is_finite(payload) else None

    def _is_finite(self, payload: bytes) -> bool:
        """Whether the payload can be scored; a right checksum says only that it is what somebody sealed."""
        rows = np.frombuffer(payload, np.uint8, offset=COUNTS.size)
        if self._dtype == "float16":  # numpy has no fast test of its own for them
            return bool(((rows.view("<u2") & EXPONENT) != EXPONENT).all())
        if self._dtype == "float32":
            return bool(np.isfinite(rows.view("<f4")).all())
        scales = rows.reshape(-1, self._row_bytes)[:, :SCALE_BYTES].copy().view("<f4")
        return bool((np.abs(scales) <= np.finfo(np.float32).max / np.float32(MAX_CODE)).all())

    def _encode(self, values: Tensor) -> npt.NDArray[np.generic]:
        """The rows as payloads hold them: (total, size), or (total, row bytes) for int8."""
        if self._dtype != "int8":
            stored = values.to(torch.float32 if self._dtype == "float32" else torch.float16)
            _check_finite(stored)
            return stored.cpu().numpy()
        exact = values.float()
        # The scale of a row of zeros, or nearly so, is still a normal number: nothing is divided by 0.
        scales = (exact.abs().amax(-1, keepdim=True) / MAX_CODE).clamp_min(torch.finfo(torch.float32).tiny)
        _check_finite(scales)
        codes = (exact / scales).round().to(torch.int8)
        return np.concatenate([scales.cpu().numpy().view(np.int8), codes.cpu().numpy()], axis=1)

    def _without_counts(self, payloads: Sequence[bytes]) -> npt.NDArray[np.uint8]:
        """The payloads' rows as a writable array (any, a multiple of row bytes), one or several to a line."""
        if len(set(map(len, payloads))) == 1:  # the usual case: nothing is copied twice
            return np.frombuffer(bytearray().join(payloads), np.uint8).reshape(len(payloads), -1)[:, COUNTS.size :]
        flat = bytearray().join([payload[COUNTS.size :] for payload in payloads])
        return np.frombuffer(flat, np.uint8).reshape(-1, self._row_bytes)

    def _decode(self, rows: npt.NDArray[np.uint8]) -> Tensor:
        """The numbers of the rows, (total, size) float32."""
        if self._dtype == "int8":
            rows = rows.reshape(-1, self._row_bytes)
            scales = rows[:, :SCALE_BYTES].copy().view("<f4")
            return torch.from_numpy(rows[:, SCALE_BYTES:].view(np.int8)).float() * torch.from_numpy(scales)
        numbers = rows.view("<f4" if self._dtype == "float32" else "<f2")
        return torch.from_numpy(numbers).float().reshape(-1, self._size).contiguous()


def _check_finite(values: Tensor) -> None:
    if not bool(torch.isfinite(values).all()):
        raise ValueError("a representation has numbers that are not finite, or too large for the cache's dtype")
