"""Packed linear layers, BERT's block and dense layers on torch tensors, by the CPU kernels.

Every row is computed by itself, in an order that no other row changes: its results are the same bits in any batch. All
functions take and return float32 tensors in host memory, and all but `linear` copy those with gaps between rows. They
raise ValueError for other tensors, and share large ones among as many threads as torch has for the caller.
"""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from bandrank_kernels.native.checks import check
from bandrank_kernels.native.library import (
    LayerStruct,
    NormStruct,
    PostNormStruct,
    PreNormStruct,
    ProductsStruct,
    TurnStruct,
    native,
)
from bandrank_kernels.native.threads import in_parts
from bandrank_kernels.native.weights import MULTIPLE, PackedWeights, filled


def linear(x: Tensor, weights: PackedWeights, *, gelu: bool = False) -> Tensor:
    """(n, outputs) x W^T + b, then GELU if asked for. x: (n, inputs), any stride between rows.

    Rows are quantised one by one to 255 equal steps between their least and their largest number, or rounded
    to bfloat16.
    """
    check("x", x, None, weights.inputs)
    if x.stride(1) != 1:
        x = x.contiguous()
    out = x.new_empty(len(x), weights.outputs)

    def run(begin: int, end: int) -> None:
        part = x[begin:end]
        native().linear(part.data_ptr(), x.stride(0), len(part), weights.struct, int(gelu), out[begin:].data_ptr())

    in_parts(len(x), native().block_rows, run)
    return out


class Unit(IntEnum):
    """`Unit` of layers.h: what a feed-forward sublayer computes between its two products."""

    GELU = 0
    GEGLU = 1
    SWIGLU = 2
    GEGLU_TANH = 3


class Norm(NamedTuple):
    """A LayerNorm or, unless rows are centred, an RMSNorm (Zhang & Sennrich 2019, arXiv 1910.07467).

    weight, bias: (n,) float32; the bias may be None.
    """

    weight: Tensor
    bias: Tensor | None
    eps: float
    centred: bool = True


@dataclass(frozen=True, eq=False)
class Turn:
    """Rotary positions (Su et al. 2021) of the first heads of rows.

    heads: how many.  positions: (n,) int64.  tables: cosines and sines, (m, head_dim / 2), of all positions below m.
    norms: (heads, head_dim) weights of the RMSNorms before, or None.  eps: of these.
    """

    head_dim: int
    heads: int
    positions: Tensor
    tables: tuple[Tensor, Tensor]
    norms: Tensor | None = None
    eps: float = 0.0


def project(x: Tensor, qkv: PackedWeights, norm: Norm | None, turn: Turn) -> Tensor:
    """(n, heads, head_dim) queries, keys and values of rows, or some of these. x: (n, inputs), normed first by `norm`.

    Raises ValueError for other tensors and unsupported sizes.
    """
    head_dim, norms = turn.head_dim, turn.norms
    if qkv.outputs % head_dim or turn.heads * head_dim > qkv.outputs:
        raise ValueError(f"{qkv.outputs} outputs must be heads of {head_dim}, of which {turn.heads} are turned")
    check("x", x, None, qkv.inputs)
    check("positions", turn.positions, len(x), dtype=torch.int64)
    cosines, sines = (table.contiguous() for table in turn.tables)
    check("cosines", cosines, None, head_dim // 2)
    check("sines", sines, len(cosines), head_dim // 2)
    if norms is not None:
        if head_dim % MULTIPLE:
            raise ValueError(f"heads that are normed need a multiple of {MULTIPLE} numbers, got {head_dim}")
        check("weights of heads' norms", norms, turn.heads, head_dim)
        norms = norms.contiguous()
    x, positions = x.contiguous(), turn.positions.contiguous()
    out = x.new_empty(len(x), qkv.outputs // head_dim, head_dim)
    before = _norm(norm, qkv.inputs)
    addresses = cosines.data_ptr(), sines.data_ptr(), None if norms is None else norms.data_ptr()

    def run(begin: int, end: int) -> None:
        struct = TurnStruct(turn.heads, head_dim, positions[begin:].data_ptr(), *addresses, turn.eps)
        native().project(x[begin:].data_ptr(), end - begin, qkv.struct, before, struct, out[begin:].data_ptr())

    in_parts(len(x), native().block_rows, run)
    return out


@dataclass(frozen=True, eq=False)
class _BehindAttention:
    """A block after its attention: the output projection, the feed-forward sublayer, and the norms.

    any_width: whether the heads together may have another size than the hidden states.
    """

    any_width: ClassVar[bool] = False

    out: PackedWeights
    up: PackedWeights
    down: PackedWeights
    unit: Unit

    def __post_init__(self) -> None:
        """Raises ValueError unless the layers' sizes are those of a block."""
        size, inner = self.out.outputs, self.up.outputs // (1 if self.unit is Unit.GELU else 2)
        given = self.out.inputs if self.any_width else size
        sizes = [(each.outputs, each.inputs) for each in (self.out, self.up, self.down)]
        if sizes != [(size, given), (self.up.outputs, size), (size, inner)]:
            raise ValueError(f"the layers of a block must fit together, got outputs and inputs {sizes}")

    def _products(self) -> ProductsStruct:
        return ProductsStruct(*(ctypes.pointer(each.struct) for each in (self.out, self.up, self.down)), self.unit)

    def _by_blocks(self, compute: Callable[..., None], attended: Tensor, hidden: Tensor, struct: object) -> Tensor:
        size = self.out.outputs
        check("hidden", hidden, None, size)
        check("attended", attended, len(hidden), self.out.inputs)
        attended, hidden = attended.contiguous(), hidden.contiguous()
        out = torch.empty_like(hidden)

        def run(begin: int, end: int) -> None:
            before, behind, to = (each[begin:].data_ptr() for each in (attended, hidden, out))
            compute(before, behind, end - begin, struct, to)

        in_parts(len(hidden), native().block_rows, run)
        return out


@dataclass(frozen=True, eq=False)
class PostNorm(_BehindAttention):
    """BERT's block: a norm follows each sublayer."""

    attention_norm: Norm
    out_norm: Norm

    @cached_property
    def struct(self) -> PostNormStruct:
        """The kernels' argument; valid as long as this object."""
        size = self.out.outputs
        return PostNormStruct(self._products(), _norm(self.attention_norm, size), _norm(self.out_norm, size))

    def __call__(self, attended: Tensor, hidden: Tensor) -> Tensor:
        """(n, hidden_size) the block's output. attended: the heads' output.  hidden: the block's input."""
        return self._by_blocks(native().post_norm, attended, hidden, self.struct)


@dataclass(frozen=True, eq=False)
class PreNorm(_BehindAttention):
    """ModernBERT's block: a norm precedes the feed-forward sublayer.

    final_norm: of an encoder's last block.  update_norm, down_norm: of what the sublayers add.
    """

    any_width: ClassVar[bool] = True

    up_norm: Norm
    final_norm: Norm | None = None
    update_norm: Norm | None = None
    down_norm: Norm | None = None

    @cached_property
    def struct(self) -> PreNormStruct:
        """The kernels' argument; valid as long as this object."""
        norms = self.up_norm, self.final_norm, self.update_norm, self.down_norm
        return PreNormStruct(self._products(), *(_norm(each, self.out.outputs) for each in norms))

    def __call__(self, attended: Tensor, hidden: Tensor) -> Tensor:
        """(n, hidden_size) the block's output. attended: the heads' output.  hidden: the block's input."""
        return self._by_blocks(native().pre_norm, attended, hidden, self.struct)


def _norm(norm: Norm | None, size: int) -> NormStruct:
    if norm is None:
        return NormStruct()
    for name, each in (("weight", norm.weight), ("bias", norm.bias)):
        if each is not None:
            check(f"a norm's {name}", each, size)
            if not each.is_contiguous():
                raise ValueError(f"a norm's {name} must be without gaps, got a stride of {each.stride(0)}")
    bias = None if norm.bias is None else norm.bias.data_ptr()
    return NormStruct(norm.weight.data_ptr(), bias, norm.eps, norm.centred)


@dataclass(frozen=True, eq=False)
class PackedLayer:
    """A BERT layer. qkv: makes the queries, keys and values of all heads.  rest: what follows attention."""

    qkv: PackedWeights
    rest: PostNorm
    heads: int

    @cached_property
    def struct(self) -> LayerStruct:
        """The kernels' argument; valid as long as this object."""
        return LayerStruct(ctypes.pointer(self.qkv.struct), ctypes.pointer(self.rest.struct))


@dataclass(frozen=True, eq=False)
class Dense:
    """A small linear layer in float32, such as a head's. transposed: (inputs, padded outputs)."""

    outputs: int
    transposed: Tensor
    bias: Tensor

    @classmethod
    def of(cls, layer: nn.Linear) -> "Dense":
        """A copy of a torch layer."""
        weight = layer.weight.detach().float()
        padded = native().padded(len(weight))
        transposed = weight.new_zeros(weight.shape[1], padded)
        transposed[:, : len(weight)] = weight.T
        return cls(len(weight), transposed, filled(layer.bias, padded))

    def __call__(self, x: Tensor) -> Tensor:
        """(n, outputs). x: (n, inputs) float32."""
        check("x", x, None, len(self.transposed))
        x = x.contiguous()
        out = x.new_empty(len(x), self.outputs)
        addresses = self.transposed.data_ptr(), self.bias.data_ptr()
        native().dense(x.data_ptr(), *x.shape, *addresses, self.outputs, out.data_ptr())
        return out
