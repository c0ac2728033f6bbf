"""The table of architectures: the name that a checkpoint's config.json carries, and the class it stands for."""

from bandrank.models.architectures.bi_encoder import BiEncoder
from bandrank.models.architectures.cross_encoder import CrossEncoder
from bandrank.models.scorer import Scorer

ARCHITECTURES: dict[str, type[Scorer]] = {scorer.architecture: scorer for scorer in (CrossEncoder, BiEncoder)}

__all__ = ["ARCHITECTURES", "BiEncoder", "CrossEncoder"]
