"""The layers from a [CLS] or pooled state to a score."""

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.layers.precision import in_float32


class ScoreHead(nn.Module):
    """BERT's pooler and a classifier with one output, always in float32, so that rounding makes no ties."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.pooler = nn.Linear(config.hidden_size, config.hidden_size)
        self.classifier = nn.Linear(config.hidden_size, 1)

    def forward(self, cls: Tensor) -> Tensor:
        """(n,) float32 scores. cls: (n, hidden_size) of any float dtype."""
        with in_float32(cls.device):
            return self.classifier(torch.tanh(self.pooler(cls.float()))).squeeze(-1)  # type: ignore[no-any-return]


class NormedHead(nn.Module):
    """A dense layer, GELU, a norm, and a classifier with one output, always in float32 (ModernBERT, Ettin)."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.classifier = nn.Linear(config.hidden_size, 1)

    def forward(self, pooled: Tensor) -> Tensor:
        """(n,) float32 scores. pooled: (n, hidden_size) of any float dtype."""
        with in_float32(pooled.device):
            return self.classifier(self.norm(gelu(self.dense(pooled.float())))).squeeze(-1)  # type: ignore[no-any-return]
