"""Representations as bytes: the payload that is scored, and the sealed value that Redis keeps.

payload   counts (2 x uint32: token ids of the candidate, word pieces cut from it), its words for a scorer that keeps
          them (uint16 for each piece, then uint8 for each weight), then `rows` rows:
          float32, float16   size numbers
          int8               a float32 scale, then size codes; a number is its code times the scale
          If the first of the size numbers is the id of a term, it is an uint32 before the others.
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
from bandrank.models.words import Words
from bandrank_kernels.arrays import offsets

VERSION = 2  # in version 1 the checksum left the key out
DTYPE_CODES: dict[PayloadDtype, int] = {"float32": 1, "float16": 2, "int8": 3}
COUNTS = struct.Struct("<II")
HEAD = struct.Struct("<BBII")
CHECKSUM = struct.Struct("<I")
SCALE_BYTES = ID_BYTES = 4
NO_COUNTS = COUNTS.pack(0, 0)
MAX_CODE = 127
EXPONENT = 0x7C00  # of a float16; its bits are all set in infinities and NaN


class RepresentationCodec:
    """Converts representations, with `size` numbers a row, to bytes and back.

    words: the number of word pieces kept for each candidate.  terms: the number of terms, if the first number of a row
    is the id of one of them; 0 if it is not.
    Raises ValueError if size, without an id, is below 1.
    """

    def __init__(self, size: int, dtype: PayloadDtype, *, words: int = 0, terms: int = 0) -> None:
        numbers = size - 1 if terms else size
        if numbers < 1:
            raise ValueError(f"a representation's rows must have at least 1 number, got {numbers}")
        self._size = size
        self._dtype: PayloadDtype = dtype
        self._terms = terms
        self._words_bytes = Words.num_bytes(words)
        self._rows_begin = COUNTS.size + self._words_bytes
        self._number_bytes = {"float32": 4 * numbers, "float16": 2 * numbers, "int8": SCALE_BYTES + numbers}[dtype]
        self._row_bytes = self._number_bytes + (ID_BYTES if terms else 0)

    def payloads(self, representations: Ragged) -> list[bytes]:
        """The payloads of representations, (total, size) on any device, with counts of 0.

        Raises ValueError if their size, or the size of their words, is not the codec's, and if a number is not finite
        or too large for the dtype: a stored representation must score as the computed one does.
        """
        values, cu_seqlens = representations.values, representations.cu_seqlens
        if values.ndim != 2 or values.shape[1] != self._size:
            raise ValueError(f"representations must be (total, {self._size}), got {tuple(values.shape)}")
        heads = [NO_COUNTS + words for words in self._encode_words(representations)]
        flat = self._encode(values.detach()).tobytes()
        bounds = pairwise((cu_seqlens * self._row_bytes).tolist())
        return [head + flat[start:end] for head, (start, end) in zip(heads, bounds, strict=True)]

    def with_counts(self, payloads: Sequence[bytes], num_tokens: Sequence[int], cut: Sequence[int]) -> list[bytes]:
        """Fills in each candidate's number of token ids and of the word pieces cut from it."""
        return [
            COUNTS.pack(tokens, lost) + payload[COUNTS.size :]
            for payload, tokens, lost in zip(payloads, num_tokens, cut, strict=True)
        ]

    def counts(self, payloads: Sequence[bytes]) -> list[tuple[int, int]]:
        """The number of token ids and of word pieces cut, for each payload."""
        return [(tokens, lost) for tokens, lost in map(COUNTS.unpack_from, payloads)]

    def lengths(self, payloads: Sequence[bytes]) -> list[int]:
        """The number of rows of each payload."""
        return [(len(payload) - self._rows_begin) // self._row_bytes for payload in payloads]

    def decode(self, payloads: Sequence[bytes]) -> Ragged:
        """The representations of payloads, (total, size) float32 on the host."""
        cu_seqlens = offsets(self.lengths(payloads))
        heads, rows = self._split(payloads)
        words = Words.from_bytes(heads[:, COUNTS.size :]) if self._words_bytes else None
        values = self._decode(rows) if cu_seqlens[-1] else torch.empty(0, self._size)
        return Ragged(values, cu_seqlens, words)

    def seal(self, payload: bytes, key: bytes) -> bytes:
        """The value that Redis keeps for a payload under a key."""
        head = HEAD.pack(VERSION, DTYPE_CODES[self._dtype], self._size, *self.lengths([payload]))
        return head + CHECKSUM.pack(zlib.crc32(payload, zlib.crc32(head, zlib.crc32(key)))) + payload

    def open(self, value: bytes, key: bytes) -> bytes | None:
        """The payload of a value that was found under a key.

        None for a value that is damaged, cut short, sealed for another key, of another version or form, not finite, or
        with an id of no term.
        """
        payload = value[HEAD.size + CHECKSUM.size :]
        if len(payload) < self._rows_begin or (len(payload) - self._rows_begin) % self._row_bytes:
            return None
        return payload if value == self.seal(payload, key) and self._is_sound(payload) else None

    def _is_sound(self, payload: bytes) -> bool:
        """Whether all numbers are finite, and all ids those of terms; a valid checksum only says that the payload is
        what was sealed.
        """
        rows = np.frombuffer(payload, np.uint8, offset=self._rows_begin)
        if self._terms:
            ids, rows = self._apart(rows)
            if (ids >= self._terms).any():
                return False
        if self._dtype == "float16":  # numpy has no fast test for float16
            return bool(((rows.view("<u2") & EXPONENT) != EXPONENT).all())
        if self._dtype == "float32":
            return bool(np.isfinite(rows.view("<f4")).all())
        scales = rows.reshape(-1, self._number_bytes)[:, :SCALE_BYTES].copy().view("<f4")
        return bool((np.abs(scales) <= np.finfo(np.float32).max / np.float32(MAX_CODE)).all())

    def _encode(self, values: Tensor) -> npt.NDArray[np.generic]:
        """The rows as payloads hold them, ids included."""
        if not self._terms:
            return self._encode_numbers(values)
        ids = values[:, :1].to(torch.int32).cpu().numpy()
        numbers = self._encode_numbers(values[:, 1:].contiguous())
        return np.concatenate([ids.view(np.uint8), numbers.view(np.uint8)], axis=1)

    def _apart(self, rows: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint8]]:
        """(total, 1) the ids of rows, and (total, number bytes) what is behind them."""
        table = rows.reshape(-1, self._row_bytes)
        return table[:, :ID_BYTES].copy().view("<u4"), table[:, ID_BYTES:].copy()

    def _encode_numbers(self, values: Tensor) -> npt.NDArray[np.generic]:
        """The numbers of the rows as payloads hold them: (total, any), or (total, bytes) for int8."""
        if self._dtype != "int8":
            stored = values.to(torch.float32 if self._dtype == "float32" else torch.float16)
            _check_finite(stored)
            return stored.cpu().numpy()
        exact = values.float()
        # Even a row of zeros gets a normal number as its scale, so that nothing is divided by 0.
        scales = (exact.abs().amax(-1, keepdim=True) / MAX_CODE).clamp_min(torch.finfo(torch.float32).tiny)
        _check_finite(scales)
        codes = (exact / scales).round().to(torch.int8)
        return np.concatenate([scales.cpu().numpy().view(np.int8), codes.cpu().numpy()], axis=1)

    def _encode_words(self, representations: Ragged) -> list[bytes]:
        words = representations.words
        if (0 if words is None else Words.num_bytes(words.pieces.shape[1])) != self._words_bytes:
            raise ValueError("representations have words of another size than the codec's")
        return [b""] * len(representations) if words is None else [*map(bytes, words.to_bytes())]

    def _split(self, payloads: Sequence[bytes]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
        """The heads of the payloads (counts and words), (n, bytes), and their rows.

        The rows are a writable array, (any, a multiple of row bytes): each line of it has one row or several.
        """
        begin = self._rows_begin
        if len(set(map(len, payloads))) == 1:  # the usual case: aligned rows are not copied twice
            whole = np.frombuffer(bytearray().join(payloads), np.uint8).reshape(len(payloads), -1)
            return whole[:, :begin], whole[:, begin:] if begin % SCALE_BYTES == 0 else whole[:, begin:].copy()
        heads = np.frombuffer(b"".join([payload[:begin] for payload in payloads]), np.uint8).reshape(-1, begin)
        flat = bytearray().join([payload[begin:] for payload in payloads])
        return heads, np.frombuffer(flat, np.uint8).reshape(-1, self._row_bytes)

    def _decode(self, rows: npt.NDArray[np.uint8]) -> Tensor:
        """The rows, (total, size) float32."""
        if not self._terms:
            return self._decode_numbers(rows)
        ids, numbers = self._apart(rows)
        return torch.cat([torch.from_numpy(ids.astype(np.float32)), self._decode_numbers(numbers)], 1)

    def _decode_numbers(self, rows: npt.NDArray[np.uint8]) -> Tensor:
        """The numbers of the rows, (total, size without an id) float32."""
        if self._dtype == "int8":
            rows = rows.reshape(-1, self._number_bytes)
            scales = rows[:, :SCALE_BYTES].copy().view("<f4")
            return torch.from_numpy(rows[:, SCALE_BYTES:].view(np.int8)).float() * torch.from_numpy(scales)
        numbers = rows.view("<f4" if self._dtype == "float32" else "<f2")
        return torch.from_numpy(numbers).float().reshape(-1, self._size - bool(self._terms)).contiguous()


def _check_finite(values: Tensor) -> None:
    if not bool(torch.isfinite(values).all()):
        raise ValueError("a representation has numbers that are not finite, or too large for the cache's dtype")
