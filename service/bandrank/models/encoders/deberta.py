"""DeBERTa-v2 and -v3 (He et al. 2021, arXiv 2006.03654 and 2111.09543), without the convolution of v2-xlarge."""

from dataclasses import dataclass
from typing import ClassVar

from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.encoders.stack import Stack
from bandrank.models.layers.block import PostNormBlock
from bandrank.models.layers.disentangled import DisentangledBlock, Distances, RelativePositions, Terms
from bandrank.models.layers.embeddings import Embeddings
from bandrank.models.layers.head import ScoreHead
from bandrank_kernels.pooled_scores import HeadActivation
from bandrank_kernels.windowed_attention import AttentionPattern, AttentionPlan, Capacity, PackedRows

ALL_TERMS = Terms()
V3_DISTANCES = Distances(farthest=512, buckets=256)


@dataclass(frozen=True)
class DebertaConfig(EncoderConfig):
    """BERT's settings and those of relative positions; the defaults are DeBERTa-v3's.

    terms: the terms of attention scores; None for BERT's attention.  distances: rows of the table of relative
    positions.
    norm_distances: whether a LayerNorm follows the table.  position_table: whether absolute positions are added.
    pooler_activation: the head's activation.
    """

    why_no_kernels: ClassVar[str | None] = "the kernels do not compute disentangled attention"
    why_no_cpu_kernels: ClassVar[str | None] = why_no_kernels
    overflows_float16: ClassVar[bool] = True

    num_token_types: int = 0
    layer_norm_eps: float = 1e-7
    kind: str = "deberta"
    terms: Terms | None = ALL_TERMS
    distances: Distances = V3_DISTANCES
    norm_distances: bool = True
    position_table: bool = False
    pooler_activation: HeadActivation = "gelu"

    @property
    def masks_keys(self) -> bool:
        return False  # whatever the terms, the library gives masked tokens no embedding


class DisentangledStack(Stack):
    """A stack whose blocks share a table of relative positions."""

    def __init__(self, config: DebertaConfig, terms: Terms) -> None:
        blocks = [DisentangledBlock(config, terms) for _ in range(config.num_layers)]
        super().__init__(config, Embeddings(config, position_table=config.position_table), blocks)
        self.relative = RelativePositions(config, config.distances, norm=config.norm_distances)

    def plan(self, rows: PackedRows, pattern: AttentionPattern, capacity: Capacity | None = None) -> AttentionPlan:
        del capacity  # it sizes kernel launches, and this attention has none
        return self.relative.plan(rows, pattern)


def deberta(config: DebertaConfig) -> Stack:
    """DeBERTa: post-norm blocks whose attention knows distances."""
    if config.terms is not None:
        return DisentangledStack(config, config.terms)
    blocks = [PostNormBlock(config) for _ in range(config.num_layers)]
    return Stack(config, Embeddings(config, position_table=config.position_table), blocks)


def deberta_head(config: DebertaConfig) -> ScoreHead:
    """DeBERTa's pooler of the [CLS] state, and a classifier."""
    return ScoreHead(config, config.pooler_activation)
