"""Transformer layers on packed rows, without padding. Names follow the papers; models/hf translates other names."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.layers.cls_attention import FoldedProjections, folds
from bandrank.models.layers.execution import Execution
from bandrank.models.layers.feed_forward import GATES, Activation, feed_forward, up_size
from bandrank.models.layers.linear import Linear, LinearLayer
from bandrank.models.layers.norm import LayerNorm, RMSNorm
from bandrank.models.layers.packed_linear import PackedLinear
from bandrank.models.layers.positions import Rotary
from bandrank.models.layers.window_plans import plan_within
from bandrank_kernels.native.tensors import Norm, PackedLayer, PostNorm, PreNorm, Turn, Unit, project
from bandrank_kernels.native.weights import PackedWeights
from bandrank_kernels.windowed_attention import AttentionPlan

# Rows that go through the feed-forward block at once on a CPU, so that its intermediate stays in the cache.
CPU_BLOCK_ROWS = 1024
# The activations that the CPU kernels compute between packed layers.
UNITS: dict[Activation, Unit] = {
    "gelu": Unit.GELU,
    "geglu": Unit.GEGLU,
    "geglu_tanh": Unit.GEGLU_TANH,
    "swiglu": Unit.SWIGLU,
}

Step = Callable[[Tensor, Tensor, AttentionPlan], Tensor]  # rows, positions and the plan to rows


@dataclass(frozen=True, kw_only=True)
class BlockOptions:
    """The variants of a block; the defaults are BERT's.

    bias: whether linear layers have a bias; the first of a gated unit never has (Shazeer 2020).  norm_bias: whether
    norms have one.  rotary: positions by which queries and keys are turned, or None.
    window: the most tokens on each side that a row attends to, or None. In a pattern it limits only candidate rows, in
    texts that are encoded separately all rows.  linear, norm: the kinds of layers.
    """

    activation: Activation = "gelu"
    bias: bool = True
    norm_bias: bool = True
    rotary: Rotary | None = None
    window: int | None = None
    linear: type[Linear] = Linear
    norm: type[LayerNorm] = LayerNorm


BERT = BlockOptions()


class Block(nn.Module, ABC):
    """Attention and feed-forward with residuals; subclasses place the two norms.

    The CPU kernels compute everything behind the attention in one call, if the linear layers are packed.
    whole: the weights of a layer that they compute in one call, or None.
    """

    whole: PackedLayer | None = None
    _fused: PostNorm | PreNorm | None = None
    _native = False
    _folded: FoldedProjections | None = None

    def __init__(self, config: EncoderConfig, options: BlockOptions = BERT) -> None:
        super().__init__()
        hidden_size, eps, bias = config.hidden_size, config.layer_norm_eps, options.bias
        self.num_heads, self.head_dim = config.num_heads, config.head_dim
        linear, norm = options.linear, partial(options.norm, hidden_size, eps=eps, bias=options.norm_bias)
        self.activation, self.rotary, self.window = options.activation, options.rotary, options.window
        width = config.num_heads * config.head_dim
        self.qkv = linear(hidden_size, 3 * width, bias=bias)
        self.attention_out = linear(width, hidden_size, bias=bias)
        self.attention_norm = norm()
        up_bias = bias and options.activation not in GATES
        self.up = linear(hidden_size, up_size(config.intermediate_size, options.activation), bias=up_bias)
        self.down = linear(config.intermediate_size, hidden_size, bias=bias)
        self.out_norm = norm()

    def prepare_for(self, execution: Execution) -> None:
        """Lets the CPU kernels project rows if all linear layers are packed."""
        layers = [layer for layer in self.children() if isinstance(layer, LinearLayer)]
        self._native = execution.backend == "native" and all(isinstance(layer, PackedLinear) for layer in layers)

    def fold(self) -> None:
        """Prepares `forward_cls` to project with two products in place of four and their copies, if that saves time."""
        if self.rotary is None and folds(self.qkv, self.num_heads):
            self._folded = FoldedProjections(self.qkv, self.attention_out, self.num_heads)

    def forward(self, hidden: Tensor, positions: Tensor, plan: AttentionPlan) -> Tensor:
        """(total, hidden_size) output. hidden: (total, hidden_size).  positions: (total,) int64."""
        return self._after_attention(self._attended(hidden, positions, plan), hidden)

    def steps(self, hidden: Tensor) -> Sequence[Step]:
        """What `forward` does with `hidden`, in steps of which each needs only the rows of the one before.

        A caller that keeps no other rows saves the memory of the layer's input during its second sublayer.
        """
        del hidden
        return (self,)

    def _attended(self, hidden: Tensor, positions: Tensor, plan: AttentionPlan) -> Tensor:
        """(total, num_heads * head_dim) outputs of the heads for each row."""
        return self.attend(self.project(hidden, positions), positions, plan)

    def project(self, hidden: Tensor, positions: Tensor) -> Tensor:
        """(total, 3, num_heads, head_dim) query, key and value of each row of `hidden`."""
        shape = len(hidden), 3, self.num_heads, self.head_dim
        if (heads := self._heads(self.qkv, hidden, positions, 2 * self.num_heads)) is not None:
            return heads.view(shape)
        qkv: Tensor = self.qkv(self.before_attention(hidden)).view(shape)
        return qkv if self.rotary is None else self.rotary.turn(qkv, positions)

    def _heads(
        self, layer: LinearLayer, rows: Tensor, positions: Tensor, turned: int, norms: Tensor | None = None
    ) -> Tensor | None:
        """(n, heads, head_dim) outputs of a layer for normed rows, with the first `turned` heads turned; None if the
        CPU kernels do not compute them. norms: (turned, head_dim) weights of the heads' norms.
        """
        if not self._native or self.rotary is None or not isinstance(layer, PackedLinear) or not len(rows):
            return None
        norm, tables = self.norm_before, self.rotary.tables(self.head_dim, positions)
        turn = Turn(self.head_dim, turned, positions, tables, norms, 0.0 if norm is None else norm.eps)
        return project(rows, layer.packed, None if norm is None else numbers_of(norm), turn)

    def update(self, hidden: Tensor, qkv: Tensor, positions: Tensor, plan: AttentionPlan) -> Tensor:
        """Like `forward`, from the result of `project`."""
        return self._after_attention(self.attend(qkv, positions, plan), hidden)

    def attend(self, qkv: Tensor, positions: Tensor, plan: AttentionPlan) -> Tensor:
        """(total, hidden_size) concatenated outputs of the heads. qkv: the result of `project`."""
        del positions  # rotary positions have already turned queries and keys
        return plan_within(plan, self.window).attend(qkv).flatten(1)

    def forward_cls(self, hidden: Tensor, positions: Tensor, plan: AttentionPlan, num_candidates: int) -> Tensor:
        """(num_candidates, hidden_size) output of `forward` for the [CLS] rows, which come first.

        With one attending row per candidate, the key projection moves to the query's side (u = W_K^T q; the key bias
        shifts all logits alike and drops out), and the value projection behind the weighted sum, so that no other row
        is projected. Rotary positions turn each key and so rule this out; packed layers would take longer.
        """
        plan = plan_within(plan, self.window)
        if self.rotary is not None or not self.qkv.absorbs:
            attended = plan.attend_first(self.project(hidden, positions), num_candidates).flatten(1)
            return self._after_attention(attended, hidden[:num_candidates])
        rows = self.before_attention(hidden)
        if self._folded is not None:
            averaged = plan.attend_cls(self._folded.queries(rows[:num_candidates]), rows, self.head_dim**-0.5)
            return self.feed_forward(self.add(self._folded.outputs(averaged), hidden[:num_candidates]))
        return self._after_attention(self.attend_absorbed(rows[:num_candidates], rows, plan), hidden[:num_candidates])

    def attend_absorbed(self, cls: Tensor, rows: Tensor, plan: AttentionPlan) -> Tensor:
        """(n, num_heads * head_dim) outputs of the heads for `cls`, (n, hidden_size). rows: keys and values at once."""
        query_rows, key_rows, value_rows = self.qkv.thirds
        query = self.qkv.project(cls, query_rows).view(len(cls), self.num_heads, -1)
        absorbed = self.qkv.absorb(query.transpose(0, 1), key_rows)  # (num_heads, n, hidden_size)
        averaged = plan.attend_cls(absorbed.transpose(0, 1), rows, self.head_dim**-0.5)
        return self.qkv.project_heads(averaged.transpose(0, 1), value_rows).transpose(0, 1).flatten(1)

    def forward_each(self, hidden: Tensor, positions: Tensor, plan: AttentionPlan, rows: Tensor) -> Tensor:
        """(n, hidden_size) output of `forward` for one row of each text; for others, only what these attend to is
        computed.

        rows: (n,) int64 indices on the device, in the order of the texts.
        """
        own = plan_within(plan, self.window)
        if own.attends_each:
            attended = own.attend_each(self.project(hidden, positions), rows).flatten(1)
        else:
            attended = self._attended(hidden, positions, plan)[rows]
        return self._after_attention(attended, hidden[rows])

    @property
    def norm_before(self) -> LayerNorm | None:
        """The norm of the rows that are projected to queries, keys and values, if there is one."""
        return None

    def before_attention(self, hidden: Tensor) -> Tensor:
        """(total, hidden_size) rows that are projected to queries, keys and values. hidden: the block's input."""
        return hidden if self.norm_before is None else self.norm_before(hidden)

    @abstractmethod
    def add(self, update: Tensor, hidden: Tensor) -> Tensor:
        """(total, hidden_size) rows that enter the second sublayer.

        update: outputs of the attention, projected.  hidden: the block's input.
        """

    @abstractmethod
    def feed_forward(self, rows: Tensor) -> Tensor:
        """(total, hidden_size) output of the second sublayer. rows: the result of `add`."""

    def _packed(self) -> tuple[PackedWeights, PackedWeights, PackedWeights, Unit] | None:
        """What the CPU kernels need of the layers behind the attention; None if these are not packed."""
        layers: list[LinearLayer] = [self.attention_out, self.up, self.down]
        packed = [layer.packed for layer in layers if isinstance(layer, PackedLinear)]
        if len(packed) < len(layers) or self.activation not in UNITS:
            return None
        out, up, down = packed
        return out, up, down, UNITS[self.activation]

    def _after_attention(self, rows: Tensor, hidden: Tensor) -> Tensor:
        """(total, hidden_size) output. rows: outputs of the heads.  hidden: the block's input."""
        if self._fused is not None:
            return self._fused(rows, hidden)
        if not self._in_blocks(hidden):
            return self.feed_forward(self._first_sublayer(rows, hidden))
        out = torch.empty_like(hidden)
        for start in range(0, len(hidden), CPU_BLOCK_ROWS):
            block = slice(start, start + CPU_BLOCK_ROWS)
            out[block] = self.feed_forward(self._first_sublayer(rows[block], hidden[block]))
        return out

    def _first_sublayer(self, rows: Tensor, hidden: Tensor) -> Tensor:
        """(total, hidden_size) rows that enter the second sublayer. rows: outputs of the heads.  hidden: the input."""
        rows = self.attention_out(rows)  # under one name, so that none outlives its use
        return self.add(rows, hidden)

    @staticmethod
    def _in_blocks(hidden: Tensor) -> bool:
        """Whether the rows go through what follows the attention in blocks."""
        return hidden.device.type == "cpu" and not torch.is_grad_enabled() and len(hidden) > CPU_BLOCK_ROWS


class PostNormBlock(Block):
    """BERT's block: residual and LayerNorm follow each sublayer (Devlin et al. 2019).

    With packed layers it is one call of the CPU kernels, if the attention plan supports it.
    """

    def forward(self, hidden: Tensor, positions: Tensor, plan: AttentionPlan) -> Tensor:
        out = None if self.whole is None else plan_within(plan, self.window).layer(hidden, self.whole)
        return super().forward(hidden, positions, plan) if out is None else out

    def steps(self, hidden: Tensor) -> Sequence[Step]:
        def first(hidden: Tensor, positions: Tensor, plan: AttentionPlan) -> Tensor:
            return self._first_sublayer(self._attended(hidden, positions, plan), hidden)

        def second(rows: Tensor, positions: Tensor, plan: AttentionPlan) -> Tensor:
            del positions, plan
            return self.feed_forward(rows)

        hooked = self._forward_hooks or self._forward_pre_hooks  # which see what the whole layer gets and gives
        return (self,) if hooked or self._fused is not None or self._in_blocks(hidden) else (first, second)

    def forward_cls(self, hidden: Tensor, positions: Tensor, plan: AttentionPlan, num_candidates: int) -> Tensor:
        out = None
        if self.whole is not None:
            out = plan_within(plan, self.window).layer_first(hidden, self.whole, num_candidates)
        return super().forward_cls(hidden, positions, plan, num_candidates) if out is None else out

    def prepare_for(self, execution: Execution) -> None:
        super().prepare_for(execution)
        if (packed := self._packed()) is not None:
            rest = PostNorm(*packed, numbers_of(self.attention_norm), numbers_of(self.out_norm))
            self._fused = rest
            if isinstance(self.qkv, PackedLinear) and self.rotary is None:
                self.whole = PackedLayer(self.qkv.packed, rest, self.num_heads)

    def add(self, update: Tensor, hidden: Tensor) -> Tensor:
        return self.attention_norm.of_sum(update, hidden)

    def feed_forward(self, rows: Tensor) -> Tensor:
        return self.out_norm.of_sum(feed_forward(self.up, self.down, rows, self.activation), rows)


class PreNormBlock(Block):
    """A norm precedes each sublayer, and residuals are not normed (Xiong et al. 2020, arXiv 2002.04745).

    out_norm: precedes the feed-forward.  final_norm: follows the last block of a stack.  update_norm, down_norm: follow
    the sublayers.
    """

    def __init__(self, config: EncoderConfig, options: BlockOptions, *, final: bool = False) -> None:
        super().__init__(config, options)
        eps, bias = config.layer_norm_eps, options.norm_bias
        self.final_norm = options.norm(config.hidden_size, eps=eps, bias=bias) if final else None
        self.update_norm: nn.Module = nn.Identity()
        self.down_norm: nn.Module = nn.Identity()

    def prepare_for(self, execution: Execution) -> None:
        super().prepare_for(execution)
        if (packed := self._packed()) is not None:
            others = self.final_norm, self.update_norm, self.down_norm
            norms = [numbers_of(norm) if isinstance(norm, LayerNorm) else None for norm in others]
            self._fused = PreNorm(*packed, numbers_of(self.out_norm), *norms)

    @property
    def norm_before(self) -> LayerNorm | None:
        return self.attention_norm

    def add(self, update: Tensor, hidden: Tensor) -> Tensor:
        return self.update_norm(update) + hidden  # type: ignore[no-any-return]  # a module's

    def feed_forward(self, rows: Tensor) -> Tensor:
        rows = self.down_norm(feed_forward(self.up, self.down, self.out_norm(rows), self.activation)) + rows
        return rows if self.final_norm is None else self.final_norm(rows)


class UnnormedPreNormBlock(PreNormBlock):
    """ModernBERT's first block: no norm precedes its attention, because the embeddings are normed."""

    def __init__(self, config: EncoderConfig, options: BlockOptions, *, final: bool = False) -> None:
        super().__init__(config, options, final=final)
        del self.attention_norm

    @property
    def norm_before(self) -> None:
        return None


def numbers_of(norm: LayerNorm) -> Norm:
    """The norm as the CPU kernels take it."""
    return Norm(norm.weight, norm.bias, norm.eps, not isinstance(norm, RMSNorm))
