"""An accurate scorer that adds to what a fast one says, instead of finding out all of it again."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Fusion:
    """Saved in the config of an accurate scorer's checkpoint, which is of no use without the fast scorer.

    scorer: the fast scorer's name, as for `load_model`.  weight: of its scores.
    """

    scorer: str
    weight: float = 1.0

    def fuse(self, accurate: Sequence[float], fast: Sequence[float]) -> list[float]:
        """Accurate + weight * fast of each candidate. Raises ValueError if the lengths differ."""
        return [ours + self.weight * theirs for ours, theirs in zip(accurate, fast, strict=True)]
