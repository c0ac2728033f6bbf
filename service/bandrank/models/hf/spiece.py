"""Reads T5's SentencePiece models, without the library.

The file is a protocol buffer (src/sentencepiece_model.proto of google/sentencepiece). A message is a row of fields; the
key of each is its number times eight, plus the kind of its content.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SPECIAL = ["<pad>", "</s>", "<unk>"]
PIECE, TRAINER, NORMALIZER = 1, 2, 3  # fields of the whole
TEXT, SCORE = 1, 2  # of a piece
KIND, UNIGRAM = 3, 1  # of the trainer's settings
RULES = 2  # of the normalizer's


def read(path: Path) -> tuple[list[tuple[str, float]], bytes]:
    """The pieces with their log probabilities, and the rules by which texts are normalised.

    Raises ValueError for a file that is damaged, or not of unigrams that begin like T5's.
    """
    pieces, rules = [], b""
    try:
        for number, content in _fields(path.read_bytes()):
            if number == PIECE:
                piece = dict(_fields(content))
                pieces.append((piece[TEXT].decode(), struct.unpack("<f", piece.get(SCORE, bytes(4)))[0]))
            elif number == NORMALIZER:
                rules = dict(_fields(content)).get(RULES, b"")
            elif number == TRAINER and dict(_fields(content)).get(KIND, UNIGRAM) != UNIGRAM:
                raise ValueError("its pieces are no unigrams")
    except (IndexError, KeyError, TypeError, UnicodeDecodeError, struct.error) as error:
        raise ValueError("damaged") from error
    if [text for text, _ in pieces[:3]] != SPECIAL:
        raise ValueError(f"its first pieces are not {', '.join(SPECIAL)}")
    return pieces, rules


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Yields the number of each field and its content: a number, or bytes."""
    position = 0

    def number() -> int:  # in groups of seven bits, the lowest first; all but the last have the eighth bit
        nonlocal position
        value, shift = 0, 0
        while (byte := message[position]) > 127:
            value, shift, position = value | (byte & 127) << shift, shift + 7, position + 1
        position += 1
        return value | byte << shift

    while position < len(message):
        field, kind = divmod(number(), 8)
        if kind == 0:
            yield field, number()
            continue
        size = {1: 8, 5: 4}.get(kind) or number()
        if position + size > len(message):
            raise IndexError
        yield field, message[position : position + size]
        position += size
