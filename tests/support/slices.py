"""Counts the texts that tokenizers read at a time."""

from collections.abc import Sequence

import pytest

from bandrank.models.ids import PackedIds
from bandrank.models.texts import TextEncoder


def counted_slices(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list to which each slice that is tokenised during the test adds its number of texts."""
    sizes: list[int] = []
    pieces = TextEncoder.pieces

    def counted(encoder: TextEncoder, texts: Sequence[str]) -> list[PackedIds]:
        sizes.append(len(texts))
        return pieces(encoder, texts)

    monkeypatch.setattr(TextEncoder, "pieces", counted)
    return sizes
