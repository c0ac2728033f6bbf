"""BERT's encoder with a bias for the distance of two rows in its attention."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.encoders.stack import Stack
from bandrank.models.layers.block import Block
from bandrank.models.layers.distance_bias import DistanceBias
from bandrank.models.layers.embeddings import Embeddings
from bandrank_kernels.windowed_attention import AttentionPattern, AttentionPlan, Capacity, PackedRows


@dataclass(frozen=True)
class DistanceBiasConfig(EncoderConfig):
    """BERT's settings, for families with such a bias."""

    biases_distances: ClassVar[bool] = True
    why_no_kernels: ClassVar[str | None] = "the CUDA kernels add no bias of distances"


class DistanceBiasStack(Stack):
    """A stack whose blocks share the biases."""

    def __init__(
        self, config: EncoderConfig, embeddings: Embeddings, blocks: Sequence[Block], relative: DistanceBias
    ) -> None:
        super().__init__(config, embeddings, blocks)
        self.relative = relative

    def plan(self, rows: PackedRows, pattern: AttentionPattern, capacity: Capacity | None = None) -> AttentionPlan:
        del capacity  # it sizes kernel launches, and this attention has none
        return self.relative.plan(rows, pattern, self.device, native=self.execution.backend == "native")

    def plan_masked(self, seen: Tensor) -> AttentionPlan:
        return self.relative.plan_masked(seen, self.dtype)
