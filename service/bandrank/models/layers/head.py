"""The layers from the state of [CLS], or of a decoder's last token, to a score."""

import torch
from torch import Tensor, nn

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


class LogitHead(nn.Module):
    """The product with one vector, always in float32: a decoder's logit for "relevant" less that for "not relevant"."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.classifier = nn.Linear(config.hidden_size, 1, bias=False)

    def forward(self, last: Tensor) -> Tensor:
        """(n,) float32 scores. last: (n, hidden_size) of any float dtype."""
        with in_float32(last.device):
            return self.classifier(last.float()).squeeze(-1)  # type: ignore[no-any-return]
