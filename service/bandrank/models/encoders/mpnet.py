"""MPNet (Song et al. 2020, arXiv 2004.09297): BERT with a bias for distances, and without token types."""

from dataclasses import dataclass
from typing import ClassVar

from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.encoders.stack import Stack
from bandrank.models.layers.embeddings import Embeddings
from bandrank.models.layers.relative_bias import RelativeBias, RelativeBiasBlock
from bandrank_kernels.windowed_attention import AttentionPattern, AttentionPlan, Capacity, PackedRows


@dataclass(frozen=True)
class MpnetConfig(EncoderConfig):
    """BERT's settings, without token types."""

    why_no_kernels: ClassVar[str | None] = "the CUDA kernels add no bias of distances"

    num_token_types: int = 0
    kind: str = "mpnet"


class MpnetStack(Stack):
    """A stack whose blocks share a table of biases."""

    def __init__(self, config: MpnetConfig) -> None:
        super().__init__(config, Embeddings(config), [RelativeBiasBlock(config) for _ in range(config.num_layers)])
        self.relative = RelativeBias(config.num_heads)

    def plan(self, rows: PackedRows, pattern: AttentionPattern, capacity: Capacity | None = None) -> AttentionPlan:
        del capacity  # of launches of kernels, which this attention has none of
        return self.relative.plan(rows, pattern, native=self.execution.backend == "native")
