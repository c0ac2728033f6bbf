"""Fusion: the weighted sum of the scores of a fast and an accurate scorer."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Fusion:
    """How to combine an accurate scorer that was trained for fusion; saved in its checkpoint's config.json.

    scorer: the fast scorer's name, as for `load_model`.  weight: the factor of its scores, which are added to the
    accurate ones.
    """

    scorer: str
    weight: float = 1.0
