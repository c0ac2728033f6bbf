"""How a text becomes the token ids that a model reads."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from bandrank.models.ids import ID_BYTES, PackedIds, RaggedIds, pack_ids, unpack_ids
from bandrank.models.wording import PLAIN, Wording
from bandrank_kernels.arrays import offsets

TextOf = Callable[[Sequence[int]], str]  # decodes token ids


@dataclass(frozen=True)
class TokenTemplate:
    """Token ids of a text: prefix, the word pieces of the text in its wording, suffix.

    max_tokens: the most token ids of a text, prefix and suffix included; pieces that do not fit are cut from the end.
    sentence_token: a token id before each sentence (QDS-Transformer), or None.
    wording: the words around the text.  closing: the ids, by themselves, of the words that follow a candidate, with
    which a candidate that is cut ends too.
    """

    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    max_tokens: int
    sentence_token: int | None = None
    wording: Wording = PLAIN
    closing: tuple[int, ...] = ()

    def apply(self, pieces: Sequence[int], *, limit: int | None = None) -> tuple[list[int], int]:
        """Token ids of a text, and the number of its pieces that were cut to stay within `limit`, or max_tokens."""
        room = self.room(limit)
        cut = sum(piece != self.sentence_token for piece in pieces[room:])
        if len(pieces) > room:
            closing = self.closing[:room]
            pieces = [*pieces[: room - len(closing)], *closing]
        return [*self.prefix, *pieces, *self.suffix], cut

    def apply_all(self, pieces: Sequence[PackedIds], *, limit: int | None = None) -> tuple[RaggedIds, list[int]]:
        """`apply` for all texts at once."""
        if not pieces:
            return RaggedIds.of([]), []
        room = self.room(limit)
        lengths = np.fromiter(map(len, pieces), np.int64, len(pieces)) // ID_BYTES
        kept = np.minimum(lengths, room)
        cut: list[int] = (lengths - kept).tolist()
        if (kept < lengths).any():
            if self.sentence_token is not None:
                cut = [int((unpack_ids(each)[room:] != self.sentence_token).sum()) for each in pieces]
            closing = pack_ids(self.closing[:room])
            fit, begun = ID_BYTES * room, ID_BYTES * room - len(closing)
            pieces = [each if len(each) <= fit else each[:begun] + closing for each in pieces]
        prefix, suffix = pack_ids(self.prefix), pack_ids(self.suffix)
        values = unpack_ids(prefix + (suffix + prefix).join(pieces) + suffix)
        return RaggedIds(values, offsets(kept + self.num_added)), cut

    def room(self, limit: int | None = None) -> int:
        """The most pieces of a text within `limit`, or max_tokens."""
        limit = self.max_tokens if limit is None else min(limit, self.max_tokens)
        return max(0, limit - self.num_added)

    @property
    def num_added(self) -> int:
        """The number of token ids that are added to the pieces."""
        return len(self.prefix) + len(self.suffix)

    def show(self, name: str, text_of: TextOf) -> str:
        """The template in one line, with a name in place of the text."""
        before, after = self.wording.around("INSTRUCTION")
        parts = [text_of(self.prefix), before + name + after, text_of(self.suffix)]
        return " ".join(part.replace("\n", "\\n") for part in parts if part)
