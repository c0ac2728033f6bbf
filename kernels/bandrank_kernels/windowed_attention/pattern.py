"""Who attends to whom in a cross-encoder (Schlatt et al. 2024, section 3; Longformer, Beltagy et al. 2020)."""

from dataclasses import dataclass, fields
from typing import Self


@dataclass(frozen=True, slots=True)
class AttentionPattern:
    """Which rows a row attends to, by the group it is in: [CLS], query, candidate.

    Every group attends to itself: [CLS] to itself, a query row to all rows of its query, a candidate row to the rows of
    its candidate that are at most `window` positions away (0: itself alone; None: all). The six switches say which
    other groups it sees; the default is full attention. Raises ValueError for a negative window.
    """

    window: int | None = None
    cls_to_query: bool = True
    cls_to_candidate: bool = True
    query_to_cls: bool = True
    query_to_candidate: bool = True
    candidate_to_cls: bool = True
    candidate_to_query: bool = True

    def __post_init__(self) -> None:
        if self.window is not None and self.window < 0:
            raise ValueError(f"window must be at least 0, or None for no limit; got {self.window}")

    @classmethod
    def sparse(cls, window: int | None) -> Self:
        """The sparse cross-encoder's pattern, the only fused one: candidate rows see a window, [CLS] and the query;
        query rows see neither [CLS] nor candidates.
        """
        return cls(window, query_to_cls=False, query_to_candidate=False)

    @classmethod
    def apart(cls) -> Self:
        """Every text by itself: [CLS], query and candidate see nothing but their own rows."""
        return cls(None, *[False] * 6)

    @property
    def shares_queries(self) -> bool:
        """Whether query rows depend on the query alone, so that one copy serves all its candidates."""
        return not (self.query_to_cls or self.query_to_candidate)

    @property
    def summary(self) -> str:
        """The pattern in a few words."""
        if self.is_full:
            return "full attention"
        off = [each.name.replace("_", " ") for each in fields(self) if getattr(self, each.name) is False]
        window = "no window" if self.window is None else f"window {self.window}"
        return f"{window}, without {', '.join(off)}" if off else window

    @property
    def is_apart(self) -> bool:
        """Whether it is `apart`."""
        return self == _APART

    @property
    def is_full(self) -> bool:
        """Whether every row of a sequence attends to every other, as in BERT."""
        return self == _FULL


_FULL, _APART = AttentionPattern(), AttentionPattern.apart()
