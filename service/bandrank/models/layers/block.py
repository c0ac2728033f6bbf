"""The layers that encoders are stacks of, on packed rows: no padding, and a last layer for [CLS] alone.

Names follow the papers, not Hugging Face (models/hf translates).
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.layers.feed_forward import Activation, feed_forward, up_size
from bandrank.models.layers.linear import Linear
from bandrank.models.layers.norm import LayerNorm
from bandrank.models.layers.patterns import plan_within
from bandrank.models.layers.positions import Rotary
from bandrank_kernels.windowed_attention import AttentionPlan

# Rows that go through the feed-forward block at once on a CPU: its intermediate, 4 x hidden_size wide, then stays in
# the cache.
CPU_BLOCK_ROWS = 1024


@dataclass(frozen=True, kw_only=True)
class BlockOptions:
    """What a block is made of; BERT's by default.

    bias: whether linear layers and norms have one.  rotary: turns queries and keys by their rows' positions.
    window: tokens that a candidate row sees on each side, if fewer than the batch's pattern gives. As in a pattern,
    rows of queries, and of texts that are read apart, see all of their text.
    """

    activation: Activation = "gelu"
    bias: bool = True
    rotary: Rotary | None = None
    window: int | None = None


BERT = BlockOptions()


class Block(nn.Module, ABC):
    """Attention and feed-forward with residuals; subclasses say where the two norms are."""

    def __init__(self, config: EncoderConfig, options: BlockOptions = BERT) -> None:
        super().__init__()
        hidden_size, eps, bias = config.hidden_size, config.layer_norm_eps, options.bias
        self.num_heads, self.head_dim = config.num_heads, config.head_dim
        self.activation, self.rotary, self.window = options.activation, options.rotary, options.window
        self.qkv = Linear(hidden_size, 3 * hidden_size, bias=bias)
        self.attention_out = Linear(hidden_size, hidden_size, bias=bias)
        self.attention_norm = LayerNorm(hidden_size, eps=eps, bias=bias)
        self.up = Linear(hidden_size, up_size(config.intermediate_size, options.activation), bias=bias)
        self.down = Linear(config.intermediate_size, hidden_size, bias=bias)
        self.out_norm = LayerNorm(hidden_size, eps=eps, bias=bias)

    def forward(self, hidden: Tensor, positions: Tensor, plan: AttentionPlan) -> Tensor:
        """hidden: (total, hidden_size).  positions: (total,).  Returns the shape of `hidden`."""
        return self.update(hidden, self.project(hidden, positions), plan)

    def project(self, hidden: Tensor, positions: Tensor) -> Tensor:
        """(total, 3, num_heads, head_dim) query, key and value of each row."""
        return self._project(self.before_attention(hidden), positions)

    def update(self, hidden: Tensor, qkv: Tensor, plan: AttentionPlan) -> Tensor:
        """`forward` of rows that are projected already."""
        return self._after_attention(plan_within(plan, self.window).attend(qkv).flatten(1), hidden)

    def forward_cls(self, hidden: Tensor, positions: Tensor, plan: AttentionPlan, num_candidates: int) -> Tensor:
        """The first rows of `forward`, the [CLS] rows, alone: (num_candidates, hidden_size).

        With one attending row, the key projection moves to the query's side (u = W_K^T q; the key bias shifts all
        scores alike and drops out) and the value projection behind the weighted sum: no other row is projected at all.
        Rotary positions, which turn keys row by row, leave no such short cut.
        """
        rows, plan = self.before_attention(hidden), plan_within(plan, self.window)
        if self.rotary is not None:
            attended = plan.attend(self._project(rows, positions))[:num_candidates].flatten(1)
            return self._after_attention(attended, hidden[:num_candidates])
        query_rows, key_rows, value_rows = self.qkv.thirds
        query = self.qkv.project(rows[:num_candidates], query_rows)
        absorbed = self.qkv.absorb(query.view(num_candidates, self.num_heads, -1).transpose(0, 1), key_rows)
        # (num_candidates, num_heads, hidden_size)
        averaged = plan.attend_cls(absorbed.transpose(0, 1), rows, self.head_dim**-0.5)
        attended = self.qkv.project_heads(averaged.transpose(0, 1), value_rows).transpose(0, 1).flatten(1)
        return self._after_attention(attended, hidden[:num_candidates])

    @abstractmethod
    def before_attention(self, hidden: Tensor) -> Tensor:
        """The rows that are projected. hidden: (total, hidden_size).  Returns the same shape."""

    @abstractmethod
    def add_and_feed_forward(self, attended: Tensor, hidden: Tensor) -> Tensor:
        """The block's output. attended: heads' outputs end to end.  hidden: what entered the block."""

    def _project(self, rows: Tensor, positions: Tensor) -> Tensor:
        qkv: Tensor = self.qkv(rows).view(len(rows), 3, self.num_heads, self.head_dim)
        return qkv if self.rotary is None else self.rotary.turn(qkv, positions)

    def _after_attention(self, attended: Tensor, hidden: Tensor) -> Tensor:
        if hidden.device.type != "cpu" or torch.is_grad_enabled():
            return self.add_and_feed_forward(attended, hidden)
        out = torch.empty_like(hidden)
        for start in range(0, len(hidden), CPU_BLOCK_ROWS):
            block = slice(start, start + CPU_BLOCK_ROWS)
            out[block] = self.add_and_feed_forward(attended[block], hidden[block])
        return out


class PostNormBlock(Block):
    """BERT's: each half is followed by residual and LayerNorm (Devlin et al. 2019)."""

    def before_attention(self, hidden: Tensor) -> Tensor:
        return hidden

    def add_and_feed_forward(self, attended: Tensor, hidden: Tensor) -> Tensor:
        return self.feed_forward(self.attention_norm.of_sum(self.attention_out(attended), hidden))

    def feed_forward(self, hidden: Tensor) -> Tensor:
        """The second half, with residual and LayerNorm. hidden: (total, hidden_size).  Returns the same shape."""
        return self.out_norm.of_sum(feed_forward(self.up, self.down, hidden, self.activation), hidden)


class PreNormBlock(Block):
    """Each half starts with its norm, and residuals are not normed (Xiong et al. 2020, arXiv 2002.04745).

    out_norm: of what enters the feed-forward.  final_norm: of the output, which the last block of a stack has.
    """

    def __init__(self, config: EncoderConfig, options: BlockOptions, *, final: bool = False) -> None:
        super().__init__(config, options)
        self.final_norm = LayerNorm(config.hidden_size, eps=config.layer_norm_eps, bias=options.bias) if final else None

    def before_attention(self, hidden: Tensor) -> Tensor:
        return self.attention_norm(hidden)  # type: ignore[no-any-return]

    def add_and_feed_forward(self, attended: Tensor, hidden: Tensor) -> Tensor:
        hidden = self.attention_out(attended) + hidden
        hidden = feed_forward(self.up, self.down, self.out_norm(hidden), self.activation) + hidden
        return hidden if self.final_norm is None else self.final_norm(hidden)
