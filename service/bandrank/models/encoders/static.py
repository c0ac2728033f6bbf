"""Static embeddings: a vector for each token, whatever stands beside it, and no layers, as in Model2Vec (Tulkens & van
Dongen 2024) and sentence-transformers' StaticEmbedding.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.encoders.stack import Stack
from bandrank.models.layers.embeddings import Embeddings
from bandrank.models.ragged import Ragged
from bandrank_kernels.transfer import to_device


@dataclass(frozen=True)
class StaticConfig(EncoderConfig):
    """The shape of a table, without any layers."""

    why_no_kernels: ClassVar[str | None] = "it has no attention"
    why_no_cpu_kernels: ClassVar[str | None] = why_no_kernels

    num_layers: int = 0
    num_heads: int = 1
    intermediate_size: int = 0
    max_positions: int = 16_384
    num_token_types: int = 0
    kind: str = "static"

    @property
    def summary(self) -> str:
        return f"{self.kind}, {self.vocab_size:,} vectors of {self.hidden_size}"


class StaticTable(Stack):
    """A `Stack` without layers."""

    def __init__(self, config: StaticConfig) -> None:
        super().__init__(config, Embeddings(config, position_table=False, normed=False), [])

    def means(self, tokens: Ragged) -> Tensor:
        """(n, hidden_size) float32 mean of each text's vectors, zeros for an empty text. tokens: in host memory."""
        starts = torch.from_numpy(tokens.cu_seqlens[:-1])
        ids, starts = to_device([tokens.values, starts], self.device)
        return embedding_bag(ids, self.embeddings.word.weight, starts, mode="mean").float()
