"""Fusion: the weighted sum of the scores of a fast and an accurate scorer."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Fusion:
    """How an accurate scorer that was trained for fusion is to be combined; saved in its checkpoint's config.json.

    scorer: the fast scorer's name, as for `load_model`.  weight: of its scores.
    """

    scorer: str
    weight: float = 1.0

    def fuse(self, accurate: Sequence[float], fast: Sequence[float]) -> list[float]:
        """Accurate + weight * fast of each candidate. Raises ValueError if the lengths differ."""
        return [ours + self.weight * theirs for ours, theirs in zip(accurate, fast, strict=True)]
