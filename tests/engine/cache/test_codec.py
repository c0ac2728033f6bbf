"""Representations as bytes: what was stored comes back unchanged, and what was damaged does not come back."""

import random
import struct
import zlib
from typing import Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bandrank.dtypes import PayloadDtype
from bandrank.engine.cache.codec import RepresentationCodec
from bandrank.models.ragged import Ragged
from bandrank.models.words import Words
from bandrank_kernels.arrays import offsets

DTYPES: list[PayloadDtype] = ["float32", "float16", "int8"]
LENGTHS = st.lists(st.integers(0, 4), max_size=6)  # numbers of rows, some of them 0
SIZES = st.integers(1, 5)
KEY = b"under which it is kept"


@st.composite
def representations(draw: st.DrawFn, width: Literal[16, 32] = 32, most: float = 2.0**100) -> tuple[Tensor, list[int]]:
    """Draws the rows of some representations, and how many rows each has."""
    lengths, size = draw(LENGTHS), draw(SIZES)
    number = st.floats(-most, most, width=width, allow_nan=False)
    rows = draw(st.lists(st.lists(number, min_size=size, max_size=size), min_size=sum(lengths), max_size=sum(lengths)))
    return torch.tensor(rows, dtype=torch.float32).reshape(-1, size), lengths


def encoded(values: Tensor, lengths: list[int], dtype: PayloadDtype) -> tuple[RepresentationCodec, list[bytes]]:
    codec = RepresentationCodec(values.shape[1], dtype)
    return codec, codec.payloads(Ragged(values, offsets(lengths)))


@given(representations())
def test_float32_comes_back_unchanged(drawn: tuple[Tensor, list[int]]) -> None:
    values, lengths = drawn
    codec, payloads = encoded(values, lengths, "float32")
    decoded = codec.decode(payloads)

    assert torch.equal(decoded.values, values)
    assert decoded.values.dtype == torch.float32
    assert decoded.lengths.tolist() == lengths == codec.lengths(payloads)


@given(representations(width=16, most=65504.0), st.integers(1, 9), st.sampled_from(DTYPES))
def test_words_come_back_unchanged(drawn: tuple[Tensor, list[int]], size: int, dtype: PayloadDtype) -> None:
    """The rows are as they would be without words, and even a text without rows has its words."""
    values, lengths = drawn
    chance = np.random.default_rng(size)
    shape = len(lengths), size
    words = Words(chance.integers(0, 2**16, shape, np.uint16), chance.integers(0, 2**8, shape, np.uint8))
    codec = RepresentationCodec(values.shape[1], dtype, words=size)
    payloads = codec.payloads(Ragged(values, offsets(lengths), words))
    decoded = codec.decode(payloads)

    assert decoded.words is not None
    assert np.array_equal(decoded.words.pieces, words.pieces)
    assert np.array_equal(decoded.words.weights, words.weights)
    plain, without = encoded(values, lengths, dtype)
    assert torch.equal(decoded.values, plain.decode(without).values)
    assert codec.lengths(payloads) == lengths
    sealed = [codec.seal(payload, KEY) for payload in payloads]
    assert [codec.open(value, KEY) for value in sealed] == payloads
    assert not any(codec.open(value[:-1], KEY) for value in sealed)


@given(representations(width=16, most=65504.0), st.randoms(use_true_random=False), st.sampled_from(DTYPES))
def test_ids_of_terms_come_back_unchanged(
    drawn: tuple[Tensor, list[int]], chance: random.Random, dtype: PayloadDtype
) -> None:
    """In any dtype of the numbers behind them, which are as they would be without ids."""
    values, lengths = drawn
    terms = 250_002
    ids = torch.tensor([[chance.randrange(terms)] for _ in values]).reshape(-1, 1).float()
    codec = RepresentationCodec(1 + values.shape[1], dtype, terms=terms)
    payloads = codec.payloads(Ragged(torch.cat([ids, values], 1), offsets(lengths)))
    decoded = codec.decode(payloads)

    assert torch.equal(decoded.values[:, :1], ids)
    plain, without = encoded(values, lengths, dtype)
    assert torch.equal(decoded.values[:, 1:], plain.decode(without).values)
    assert codec.lengths(payloads) == lengths
    sealed = [codec.seal(payload, KEY) for payload in payloads]
    assert [codec.open(value, KEY) for value in sealed] == payloads


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_id_of_no_term_is_not_opened(dtype: PayloadDtype) -> None:
    """It would be looked up beyond the end of a table."""
    rows = Ragged(torch.tensor([[6.0, 0.5], [7.0, 0.5]]), offsets([2]))
    few, many = (RepresentationCodec(2, dtype, terms=terms) for terms in (7, 8))
    (payload,) = many.payloads(rows)

    assert many.open(many.seal(payload, KEY), KEY) == payload
    assert few.open(few.seal(payload, KEY), KEY) is None


def test_words_of_another_size_are_refused() -> None:
    """Missing and unexpected words are refused, too."""
    rows, words = torch.ones(1, 2), Words(np.ones((1, 3), np.uint16), np.ones((1, 3), np.uint8))
    for size, given_words in ((3, None), (4, words), (0, words)):
        with pytest.raises(ValueError, match="words of another size"):
            RepresentationCodec(2, "float32", words=size).payloads(Ragged(rows, offsets([1]), given_words))


@given(representations(width=16, most=65504.0))
def test_float16_rounds_once(drawn: tuple[Tensor, list[int]]) -> None:
    """Values are rounded to the nearest float16, and a second round trip changes nothing."""
    values, lengths = drawn
    codec, payloads = encoded(values, lengths, "float16")
    decoded = codec.decode(payloads)

    assert torch.equal(decoded.values, values)
    assert codec.payloads(decoded) == payloads
    third = values / 3
    assert torch.equal(codec.decode(codec.payloads(Ragged(third, offsets(lengths)))).values, third.half().float())


@given(representations())
def test_int8_is_off_by_half_a_step_at_most(drawn: tuple[Tensor, list[int]]) -> None:
    """A step is the row's largest magnitude over 127; rounding in float32 adds at most 2**-22 of that magnitude."""
    values, lengths = drawn
    codec, payloads = encoded(values, lengths, "int8")
    decoded = codec.decode(payloads).values

    steps = (values.abs().amax(-1, keepdim=True) / 127).clamp_min(torch.finfo(torch.float32).tiny)
    assert ((decoded - values).abs() <= steps * (0.5 + 127 * 2**-22)).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("computed", [torch.float32, torch.float16, torch.bfloat16])
def test_any_dtype_of_the_scorer_is_taken(dtype: PayloadDtype, computed: torch.dtype) -> None:
    """The payloads are those of the same numbers in float32."""
    values = torch.randn(7, 3, generator=torch.Generator().manual_seed(0)).to(computed)
    _, payloads = encoded(values, [2, 5], dtype)

    assert payloads == encoded(values.float(), [2, 5], dtype)[1]


@pytest.mark.parametrize("dtype", DTYPES)
@given(drawn=representations(width=16, most=100.0), seed=st.integers(0, 99))
def test_payloads_are_decoded_in_any_company(dtype: PayloadDtype, drawn: tuple[Tensor, list[int]], seed: int) -> None:
    codec, payloads = encoded(*drawn, dtype)
    shuffled = random.Random(seed).choices(range(len(payloads)), k=8) if payloads else []
    decoded = codec.decode([payloads[position] for position in shuffled])

    assert len(decoded) == len(shuffled)
    for position, index in enumerate(shuffled):
        assert torch.equal(decoded[position], codec.decode([payloads[index]])[0])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_not_a_number_is_refused(dtype: PayloadDtype, bad: float) -> None:
    with pytest.raises(ValueError, match="not finite"):
        encoded(torch.tensor([[1.0, 2.0], [bad, 0.0]]), [1, 1], dtype)


def test_what_float16_cannot_hold_is_refused() -> None:
    """A number too large for float16 would be stored as infinity."""
    with pytest.raises(ValueError, match="too large"):
        encoded(torch.tensor([[65520.0]]), [1], "float16")


def test_rows_of_another_size_are_refused() -> None:
    """A codec for rows of size 0 is refused, too."""
    with pytest.raises(ValueError, match=r"\(total, 3\), got \(2, 4\)"):
        RepresentationCodec(3, "float16").payloads(Ragged(torch.ones(2, 4), offsets([2])))
    with pytest.raises(ValueError, match="at least 1"):
        RepresentationCodec(0, "float16")


def test_payloads_carry_counts() -> None:
    values = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
    codec, payloads = encoded(values, [1, 0, 2], "float32")
    counted = codec.with_counts(payloads, [7, 2**32 - 1, 0], [0, 5, 1])

    assert codec.counts(payloads) == [(0, 0)] * 3
    assert codec.counts(counted) == [(7, 0), (2**32 - 1, 5), (0, 1)]
    assert codec.lengths(counted) == [1, 0, 2]
    assert torch.equal(codec.decode(counted).values, values)
    opened = [codec.open(codec.seal(payload, KEY), KEY) or b"" for payload in counted]
    assert codec.counts(opened) == codec.counts(counted)


def test_the_format_does_not_change_unnoticed() -> None:
    """Written out by hand: 1.0 and -2.0 are 0x3C00 and 0xC000 in float16; 127 steps of 2**-6 are 1.984375."""
    codec, (payload,) = encoded(torch.tensor([[1.0, -2.0]]), [1], "float16")
    rows = bytes.fromhex("003c00c0")
    head = bytes([2, 2]) + struct.pack("<II", 2, 1)
    sealed = head + struct.pack("<I", zlib.crc32(KEY + head + bytes(8) + rows)) + bytes(8) + rows

    assert payload == bytes(8) + rows
    assert codec.seal(payload, KEY) == sealed
    assert encoded(torch.tensor([[1.984375, -0.015625]]), [1], "int8")[1] == [
        bytes(8) + struct.pack("<fbb", 2**-6, 127, -1)
    ]
    assert encoded(torch.tensor([[1.0]]), [1], "float32")[1] == [bytes(8) + bytes.fromhex("0000803f")]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [0, 1, 3])
def test_any_damage_is_noticed(dtype: PayloadDtype, rows: int) -> None:
    """The damage is any changed byte, bytes cut from either end, or bytes added."""
    codec, (payload,) = encoded(torch.randn(rows, 5, generator=torch.Generator().manual_seed(2)), [rows], dtype)
    sealed = codec.seal(payload, KEY)

    for position, byte in enumerate(sealed):
        for other in {byte ^ (1 << bit) for bit in range(8)} | {0, 255, byte ^ 255} - {byte}:
            assert codec.open(sealed[:position] + bytes([other]) + sealed[position + 1 :], KEY) is None or other == byte
    for length in range(len(sealed)):
        assert codec.open(sealed[:length], KEY) is None
        assert codec.open(sealed[length + 1 :], KEY) is None
    assert codec.open(sealed + sealed, KEY) is None
    assert codec.open(sealed + b"\0", KEY) is None


def test_a_value_under_another_key_is_refused() -> None:
    """A value sealed under another key is of another text or another model."""
    codec, (payload,) = encoded(torch.ones(2, 3), [2], "float16")

    assert codec.open(codec.seal(payload, KEY), KEY + b"2") is None


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize(("dtype", "form"), [("float32", "<f"), ("float16", "<e"), ("int8", "<f")])
def test_what_is_sealed_but_not_finite_is_refused(dtype: PayloadDtype, form: str, bad: float) -> None:
    """The checksum is right, but no score would be."""
    codec, (payload,) = encoded(torch.ones(2, 3), [2], dtype)
    for row in range(2):
        start = 8 + row * (len(payload) - 8) // 2
        assert codec.open(codec.seal(payload, KEY), KEY) == payload
        damaged = payload[:start] + struct.pack(form, bad) + payload[start + struct.calcsize(form) :]
        assert codec.open(codec.seal(damaged, KEY), KEY) is None


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_largest_numbers_are_not_refused(dtype: PayloadDtype) -> None:
    largest = torch.finfo(torch.float16 if dtype == "float16" else torch.float32).max
    codec, (payload,) = encoded(torch.tensor([[largest, -largest]]), [1], dtype)

    assert codec.open(codec.seal(payload, KEY), KEY) == payload


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_another_codec_sealed_is_refused(dtype: PayloadDtype) -> None:
    """Another dtype, size or version is refused even if the number of bytes is the same."""
    values = torch.randn(4, 4, generator=torch.Generator().manual_seed(3))
    codec, (payload,) = encoded(values, [4], dtype)
    strangers = [encoded(values, [4], other) for other in DTYPES if other != dtype]
    strangers += [encoded(values.reshape(-1, size), [16 // size], dtype) for size in (1, 2, 8, 16)]
    sealed = codec.seal(payload, KEY)
    head = bytes([sealed[0] + 1]) + sealed[1:10]
    newer = head + struct.pack("<I", zlib.crc32(head + payload)) + payload

    for stranger, (other,) in strangers:
        assert codec.open(stranger.seal(other, KEY), KEY) is None
    assert codec.open(newer, KEY) is None


def test_no_payloads_and_empty_payloads_decode() -> None:
    """Without payloads, or with payloads that have no rows, vectors keep their size."""
    for dtype in DTYPES:
        codec = RepresentationCodec(3, dtype)

        assert codec.decode([]).values.shape == (0, 3)
        empty = codec.payloads(Ragged(torch.empty(0, 3), np.array([0, 0, 0])))
        assert codec.decode(empty).values.shape == (0, 3)
        assert len(codec.decode(empty)) == 2
