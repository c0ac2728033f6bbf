"""JinaBERT (Günther et al. 2023, arXiv 2310.19923, section 4): BERT with ALiBi in place of learnt positions, and gated
units.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.encoders.distance_bias import DistanceBiasConfig, DistanceBiasStack
from bandrank.models.layers.alibi import Alibi
from bandrank.models.layers.block import BlockOptions
from bandrank.models.layers.distance_bias import DistanceBiasBlock
from bandrank.models.layers.embeddings import Embeddings
from bandrank.models.layers.norm import LayerNorm

JinaActivation = Literal["geglu", "reglu"]


@dataclass(frozen=True)
class JinaBertConfig(DistanceBiasConfig):
    """BERT's settings. activation: the gated units' activation.  norms_queries: whether queries and keys are normed,
    and the attention's output once more.
    """

    gated: ClassVar[bool] = True

    kind: str = "jina_bert"
    activation: JinaActivation = "geglu"
    norms_queries: bool = False


class NormedQueriesBlock(DistanceBiasBlock):
    """The block of the variant for code.

    query_norm, key_norm: norm whole rows, before they are split into heads.  residual_norm: norms the sum of the
    block's input and the result of attention_norm, which already contains that input.
    """

    def __init__(self, config: EncoderConfig, options: BlockOptions) -> None:
        super().__init__(config, options)
        size, eps = config.hidden_size, config.layer_norm_eps
        self.query_norm, self.key_norm, self.residual_norm = (LayerNorm(size, eps=eps) for _ in range(3))

    def project(self, hidden: Tensor, positions: Tensor) -> Tensor:
        qkv = super().project(hidden, positions)
        query, key, value = qkv.flatten(2).unbind(1)  # (total, hidden_size) each
        return torch.stack([self.query_norm(query), self.key_norm(key), value], 1).view_as(qkv)

    def add(self, update: Tensor, hidden: Tensor) -> Tensor:
        return self.residual_norm.of_sum(self.attention_norm.of_sum(update, hidden), hidden)

    def _packed(self) -> None:
        """None: the CPU kernels have only one norm between the attention and the feed-forward sublayer."""


def jina_bert(config: JinaBertConfig) -> DistanceBiasStack:
    """Post-norm blocks with gated units."""
    options = BlockOptions(activation=config.activation)
    kind = NormedQueriesBlock if config.norms_queries else DistanceBiasBlock
    blocks = [kind(config, options) for _ in range(config.num_layers)]
    return DistanceBiasStack(config, Embeddings(config, position_table=False), blocks, Alibi(config.num_heads))
