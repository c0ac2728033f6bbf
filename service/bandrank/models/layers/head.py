"""The layers from the state of [CLS] or of a decoder's last token, or from pooled states, to a score."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.layers.execution import Execution
from bandrank.models.layers.norm import infers_on_gpu
from bandrank.models.layers.precision import in_float32
from bandrank_kernels.cuda import is_half
from bandrank_kernels.launch import cuda_obstacle
from bandrank_kernels.native.tensors import Dense
from bandrank_kernels.pooled_scores import ACTIVATIONS, HeadActivation, pooled_scores, why_unsupported


def on_gpu(layer: nn.Linear) -> bool:
    """Whether a layer's weights are on a GPU."""
    return layer.weight.is_cuda


class Float32Head(nn.Module):
    """A head whose dense layers compute in float32, so that rounding makes no ties. With the CPU kernels, a row's score
    is the same bits in any batch.

    On a GPU, rows in half precision meet weights in half precision, with sums and results in float32: a product of 100
    rows of 384 numbers takes tensor cores a third of the time.
    """

    def __init__(self) -> None:
        super().__init__()
        self._native: dict[nn.Linear, Dense] = {}
        self._halves: dict[nn.Linear, Tensor] = {}

    def prepare_for(self, execution: Execution) -> None:
        layers = [layer for layer in self.children() if isinstance(layer, nn.Linear)]
        if execution.backend == "native":
            self._native = {layer: Dense.of(layer) for layer in layers}
        elif is_half(execution.dtype):
            # A product with one vector is no faster.
            wide = [layer for layer in layers if on_gpu(layer) and layer.out_features > 1]
            self._halves = {layer: layer.weight.detach().to(execution.dtype) for layer in wide}

    def product(self, layer: nn.Linear, x: Tensor) -> Tensor:
        """(n, outputs) float32, of one of the head's layers. x: (n, inputs) of any float dtype."""
        if layer in self._native:
            return self._native[layer](x.float())
        half = self._halves.get(layer)
        if half is None or x.dtype != half.dtype:
            return layer(x.float())  # type: ignore[no-any-return]  # torch leaves it bare
        product = torch.mm(x, half.T, out_dtype=torch.float32)
        return product if layer.bias is None else product + layer.bias


class ScoreHead(Float32Head):
    """A pooler, by default BERT's, and a classifier with one output. On a GPU, small ones are a single launch."""

    def __init__(self, config: EncoderConfig, activation: HeadActivation = "tanh") -> None:
        super().__init__()
        self.activation = activation
        self.pooler = nn.Linear(config.hidden_size, config.hidden_size)
        self.classifier = nn.Linear(config.hidden_size, 1)
        self._fused = False

    def prepare_for(self, execution: Execution) -> None:
        super().prepare_for(execution)
        half = self._halves.get(self.pooler)
        self._fused = (
            half is not None
            and execution.backend in {"auto", "cuda"}
            and cuda_obstacle(half.device) is None
            and why_unsupported(half.dtype, half.shape[1], half.shape[0], half.device) is None
        )

    def extra_repr(self) -> str:
        """The head in a few words."""
        return f"a layer with {self.activation}, 1 output"

    def forward(self, cls: Tensor) -> Tensor:
        """(n,) float32 scores. cls: (n, hidden_size) of any float dtype."""
        if self._fused and infers_on_gpu(cls) and cls.dtype == self._halves[self.pooler].dtype:
            weights = self._halves[self.pooler], self.pooler.bias, self.classifier.weight[0], self.classifier.bias
            return pooled_scores(cls, *weights, activation=self.activation, backend="cuda")
        with in_float32(cls.device):
            pooled = ACTIVATIONS[self.activation](self.product(self.pooler, cls))
            return self.product(self.classifier, pooled).squeeze(-1)


class LogitHead(Float32Head):
    """The product with one vector: a decoder's logit for "relevant" minus that for "not relevant", or a score of pooled
    states.
    """

    def __init__(self, config: EncoderConfig, *, bias: bool = False) -> None:
        super().__init__()
        self.classifier = nn.Linear(config.hidden_size, 1, bias=bias)

    def forward(self, last: Tensor) -> Tensor:
        """(n,) float32 scores. last: (n, hidden_size) of any float dtype."""
        with in_float32(last.device):
            return self.product(self.classifier, last).squeeze(-1)


class DenseNorm(Float32Head):
    """A dense layer, GELU and a norm, as before the decoder of a masked language model."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, states: Tensor) -> Tensor:
        """(n, hidden_size) float32. states: (n, hidden_size) of any float dtype."""
        with in_float32(states.device):
            normed: Tensor = self.norm(functional.gelu(self.product(self.dense, states)))
            return normed


class NormedHead(DenseNorm):
    """A `DenseNorm` before a classifier with one output (ModernBERT, Ettin)."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        self.classifier = nn.Linear(config.hidden_size, 1)

    def forward(self, pooled: Tensor) -> Tensor:
        """(n,) float32 scores. pooled: (n, hidden_size) of any float dtype."""
        with in_float32(pooled.device):
            return self.product(self.classifier, super().forward(pooled)).squeeze(-1)
