"""The BERT encoder on packed rows (Devlin et al. 2019): no padding, and a last layer for [CLS] alone.

Post-LN layers; names follow the paper, not Hugging Face (hf_weights.py translates).
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bandrank.models.layers.embeddings import Embeddings
from bandrank.models.layers.execution import Execution
from bandrank.models.layers.linear import Linear
from bandrank.models.layers.norm import LayerNorm
from bandrank_kernels.windowed_attention import AttentionPattern, AttentionPlan, Capacity, PackedRows, plan_attention

# Rows that go through the feed-forward block at once on a CPU: its intermediate, 4 x hidden_size wide, then stays in
# the cache.
CPU_BLOCK_ROWS = 1024

ALL = slice(None)


@dataclass(frozen=True)
class EncoderConfig:
    """The shape of a BERT encoder."""

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    intermediate_size: int
    max_positions: int
    num_token_types: int = 2
    layer_norm_eps: float = 1e-12

    @property
    def head_dim(self) -> int:
        """Numbers of a row in one head."""
        return self.hidden_size // self.num_heads

    @property
    def products_per_layer(self) -> int:
        """Multiplications of one row with a layer's weights."""
        return self.hidden_size * (4 * self.hidden_size + 2 * self.intermediate_size)

    def __post_init__(self) -> None:
        if self.hidden_size % self.num_heads:
            raise ValueError(f"hidden_size {self.hidden_size} is not a multiple of num_heads {self.num_heads}")


class EncoderLayer(nn.Module):
    """Attention and feed-forward, each followed by residual and LayerNorm."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        hidden = config.hidden_size
        self.num_heads = config.num_heads
        self.head_dim = config.head_dim
        self.qkv = Linear(hidden, 3 * hidden)
        self.attention_out = Linear(hidden, hidden)
        self.attention_norm = LayerNorm(hidden, eps=config.layer_norm_eps)
        self.up = Linear(hidden, config.intermediate_size)
        self.down = Linear(config.intermediate_size, hidden)
        self.out_norm = LayerNorm(hidden, eps=config.layer_norm_eps)

    def forward(self, hidden: Tensor, plan: AttentionPlan) -> Tensor:
        """hidden: (total, hidden_size).  Returns the same shape."""
        return self.update(hidden, self.project(hidden), plan)

    def project(self, hidden: Tensor) -> Tensor:
        """(total, 3, num_heads, head_dim) query, key and value of each row."""
        return self.qkv(hidden).view(len(hidden), 3, self.num_heads, self.head_dim)  # type: ignore[no-any-return]

    def update(self, hidden: Tensor, qkv: Tensor, plan: AttentionPlan) -> Tensor:
        """`forward` of rows that are projected already."""
        return self._after_attention(plan.attend(qkv).flatten(1), hidden)

    def feed_forward(self, hidden: Tensor) -> Tensor:
        """The layer's second half, with residual and LayerNorm. hidden: (total, hidden_size).  Returns the same."""
        return self.out_norm.of_sum(self.down(self.up(hidden, "gelu")), hidden)

    def forward_cls(self, hidden: Tensor, num_candidates: int, plan: AttentionPlan) -> Tensor:
        """The first rows of `forward`, the [CLS] rows, alone: (num_candidates, hidden_size).

        With one attending row, the key projection moves to the query's side (u = W_K^T q; the key bias shifts all
        scores alike and drops out) and the value projection behind the weighted sum: no other row is projected at all.
        """
        hidden_size = hidden.shape[1]
        query_weight, key_weight, value_weight = self.qkv.weight.view(3, self.num_heads, self.head_dim, hidden_size)
        query_bias, _, value_bias = self.qkv.bias.chunk(3)
        cls = hidden[:num_candidates]
        query = torch.einsum("ne,hde->nhd", cls, query_weight) + query_bias.view(self.num_heads, self.head_dim)
        absorbed = torch.einsum("nhd,hde->nhe", query, key_weight)
        averaged = plan.attend_cls(absorbed, hidden, self.head_dim**-0.5)  # (num_candidates, num_heads, hidden_size)
        attended = torch.einsum("nhe,hde->nhd", averaged, value_weight).flatten(1) + value_bias
        return self._after_attention(attended, cls)

    def _after_attention(self, attended: Tensor, hidden: Tensor) -> Tensor:
        if hidden.device.type != "cpu" or torch.is_grad_enabled():
            return self._add_and_feed_forward(attended, hidden)
        out = torch.empty_like(hidden)
        for start in range(0, len(hidden), CPU_BLOCK_ROWS):
            block = slice(start, start + CPU_BLOCK_ROWS)
            out[block] = self._add_and_feed_forward(attended[block], hidden[block])
        return out

    def _add_and_feed_forward(self, attended: Tensor, hidden: Tensor) -> Tensor:
        return self.feed_forward(self.attention_norm.of_sum(self.attention_out(attended), hidden))


class Encoder(nn.Module):
    """Embeddings and layers."""

    execution = Execution()

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.embeddings = Embeddings(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            max_positions=config.max_positions,
            num_token_types=config.num_token_types,
            layer_norm_eps=config.layer_norm_eps,
        )
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.num_layers))

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.embeddings.word.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights, and so of all states."""
        return self.embeddings.word.weight.dtype

    def prepare_for(self, execution: Execution) -> None:
        self.execution = execution

    def plan(self, rows: PackedRows, pattern: AttentionPattern, capacity: Capacity | None = None) -> AttentionPlan:
        """Of a batch, for all layers; capacity: for which their launches are sized. Raises what `plan_attention`
        raises.
        """
        return plan_attention(
            rows,
            pattern,
            device=self.device,
            dtype=self.dtype,
            head_dim=self.head_dim,
            backend=self.execution.backend,
            capacity=capacity,
        )

    def forward(self, hidden: Tensor, plan: AttentionPlan, *, layers: slice = ALL) -> Tensor:
        """hidden: (total, hidden_size), what enters the first of `layers`.  Returns what leaves the last, the same
        shape.
        """
        for layer in self.layers[layers]:
            hidden = layer(hidden, plan)
        return hidden

    def forward_cls(self, hidden: Tensor, num_candidates: int, plan: AttentionPlan, *, first: int = 0) -> Tensor:
        """The last layer's output for the [CLS] rows alone, (num_candidates, hidden_size); it is not run for others.

        hidden: what enters layer `first`.
        """
        for layer in self.layers[first:-1]:
            hidden = layer(hidden, plan)
        last: EncoderLayer = self.layers[-1]  # type: ignore[assignment]  # a ModuleList forgets what it holds
        return last.forward_cls(hidden, num_candidates, plan)
