"""An accurate scorer that adds to what a fast one says, instead of finding out all of it again."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Fusion:
    """Saved in the config of an accurate scorer's checkpoint, which is of no use without the fast scorer.

    scorer: the fast scorer's name, as for `load_model`.  weight: of its scores, which are added to the accurate ones.
    """

    scorer: str
    weight: float = 1.0
