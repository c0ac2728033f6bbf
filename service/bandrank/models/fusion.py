"""Fusion: the weighted sum of the scores of a fast and an accurate scorer."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Fusion:
    """How an accurate scorer that was trained for fusion is to be combined; saved in its checkpoint's config.json.

    scorer: the name of the fast scorer, as for `load_model`.  weight: the weight of its scores.
    """

    scorer: str
    weight: float = 1.0

    def fuse(self, accurate: Sequence[float], fast: Sequence[float]) -> list[float]:
        """Accurate + weight * fast for each candidate. Raises ValueError if the lengths differ."""
        return [first + self.weight * second for first, second in zip(accurate, fast, strict=True)]
