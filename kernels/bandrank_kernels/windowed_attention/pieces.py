"""A layer's attention as pieces that are gathered, attended and written one after the other, forward and backward.

Autograd through gathers and in-place writes would fill a gradient of the size of the whole layer for each piece; here
the backward pass gathers a piece again, attends again, and adds its gradients to the one tensor they belong to. So a
layer keeps nothing but its inputs for the backward pass.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import scaled_dot_product_attention

from bandrank_kernels.transfer import to_device

PART_SCORES = 1 << 21  # differentiated together, so that they stay in a CPU's cache
MAX_SCORES = 1 << 24  # of one attention, of which the closed form of the gradients holds four copies

Sources = tuple[Tensor, Tensor]  # of queries, and of keys and values


@dataclass(frozen=True)
class Piece(ABC):
    """Some rows of the result, with the rows that they depend on."""

    @abstractmethod
    def gather(self, sources: Sources) -> tuple[Tensor, Tensor]:
        """The piece's queries, and its keys and values, copied or viewed."""

    @abstractmethod
    def attend(self, query: Tensor, key_value: Tensor) -> Tensor:
        """The piece's rows of the result."""

    def differentiate(self, query: Tensor, key_value: Tensor, rows_gradient: Tensor) -> tuple[Tensor, Tensor]:
        """The gradients of the arguments of `attend`, given that of its result."""
        query.requires_grad_()
        key_value.requires_grad_()
        with torch.enable_grad():
            rows = self.attend(query, key_value)
        return torch.autograd.grad(rows, (query, key_value), rows_gradient)  # type: ignore[return-value]  # two for two

    @abstractmethod
    def write(self, rows: Tensor, out: Tensor) -> None:
        """Writes the piece's rows to the whole result."""

    @abstractmethod
    def read(self, out: Tensor) -> Tensor:
        """The piece's rows of the whole result."""

    @abstractmethod
    def add(self, query: Tensor, key_value: Tensor, sources: Sources) -> None:
        """Adds `query` and `key_value` to the rows of the sources that `gather` reads."""


AnyPiece = TypeVar("AnyPiece", bound=Piece)


@dataclass(frozen=True)
class Heads:
    """A piece as a batch of n padded attentions with several heads.

    query: (n, num_heads, num_rows, head_dim).  key, value: (n, num_heads, num_keys, head_dim).
    bias: (n, 1, num_rows or 1, num_keys) 0 or -inf, None when every row sees every key.  scale: of the scores.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    bias: Tensor | None
    scale: float

    def attend(self) -> Tensor:
        """(n, num_heads, num_rows, head_dim) the attended values."""
        return scaled_dot_product_attention(self.query, self.key, self.value, attn_mask=self.bias, scale=self.scale)

    @property
    def in_closed_form(self) -> bool:
        """Whether `gradients` is faster than torch's backward pass of `attend`, and its scores fit into memory.

        On a CPU in half precision torch's takes up to ten times as long as these products. In float32 it does not.
        """
        return self.query.device.type == "cpu" and self.query.dtype != torch.float32 and self._num_scores <= MAX_SCORES

    def gradients(self, towards: Tensor) -> tuple[Tensor, Tensor]:
        """The gradients of queries (n * num_rows, ...), and of keys and values as gathered (n * num_keys, 2, ...).

        towards: the gradient of the attended values, of the queries' shape.
        """
        size = max(1, PART_SCORES // max(1, self._num_scores))
        runs = [slice(first, first + size) for first in range(0, len(self.query), size)]
        by_query, by_key_value = zip(*(self._part(run)._differentiated(towards[run]) for run in runs), strict=True)
        return torch.cat(by_query), torch.cat(by_key_value)

    def _differentiated(self, towards: Tensor) -> tuple[Tensor, Tensor]:
        """With P the softmax of the scores S and dP = towards V^T, torch computes dS; then dQ = dS K, dK = dS^T Q and
        dV = P^T towards, the first two scaled.
        """
        towards, scaled = towards.contiguous(), self.query * self.scale
        scores = scaled @ self.key.transpose(-1, -2)
        if self.bias is not None:
            scores.add_(self.bias)
        with torch.enable_grad():
            shares = scores.requires_grad_().softmax(-1)
        (of_scores,) = torch.autograd.grad(shares, scores, towards @ self.value.transpose(-1, -2))
        query = of_scores @ (self.key * self.scale)
        key, value = of_scores.transpose(-1, -2) @ scaled, shares.detach().transpose(-1, -2) @ towards
        of_key_value = torch.stack((key.transpose(1, 2), value.transpose(1, 2)), 2)
        return query.transpose(1, 2).flatten(0, 1), of_key_value.flatten(0, 1)

    def _part(self, run: slice) -> "Heads":
        """Some of the attentions, copied for products, which take several times as long on views."""
        query, key, value = (each[run].contiguous() for each in (self.query, self.key, self.value))
        return replace(self, query=query, key=key, value=value, bias=None if self.bias is None else self.bias[run])

    @property
    def _num_scores(self) -> int:
        """Scores of one attention."""
        return math.prod(self.query.shape[1:3]) * self.key.shape[2]


def on_device(pieces: Sequence[AnyPiece], device: torch.device) -> list[AnyPiece]:
    """The pieces with their tensors, which are in host memory, on `device`: in one transfer, without waiting for it."""
    if device.type == "cpu":
        return list(pieces)
    named = [{field.name: getattr(piece, field.name) for field in fields(piece)} for piece in pieces]
    tables = [{name: value for name, value in each.items() if isinstance(value, Tensor)} for each in named]
    there = iter(to_device([table for each in tables for table in each.values()], device))
    return [replace(piece, **{name: next(there) for name in each}) for piece, each in zip(pieces, tables, strict=True)]


def attend_pieces(pieces: Sequence[Piece], out: Tensor, queries: Tensor, key_values: Tensor) -> Tensor:
    """Writes all rows of `out`, piece by piece, and returns it. Both sources are converted to its dtype."""
    sources = queries.to(out.dtype), key_values.to(out.dtype)
    if torch.is_grad_enabled() and any(source.requires_grad for source in sources):
        return _AttendPieces.apply(pieces, out, *sources)  # type: ignore[no-any-return, no-untyped-call]  # torch's
    for piece in pieces:
        piece.write(piece.attend(*piece.gather(sources)), out)
    return out


def split(qkv: Tensor) -> Sources:
    """Queries (num_rows, ...), and keys and values (num_rows, 2, ...), as views of qkv (num_rows, 3, ...).

    `split` and not two slices: its backward pass makes one copy.
    """
    queries, key_values = qkv.split((1, 2), 1)  # type: ignore[no-untyped-call]  # torch leaves it bare
    return queries[:, 0], key_values


class _AttendPieces(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, pieces: Sequence[Piece], out: Tensor, queries: Tensor, key_values: Tensor) -> Tensor:
        ctx.pieces = pieces
        ctx.save_for_backward(queries, key_values)
        ctx.mark_dirty(out)
        return attend_pieces(pieces, out, queries.detach(), key_values.detach())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, out_gradient: Tensor) -> tuple[Tensor | None, ...]:
        queries, key_values = sources = tuple(source.detach() for source in ctx.saved_tensors)
        # Contiguous: a CPU takes ten times as long to add rows to a view with gaps.
        gradients = queries.new_zeros(queries.shape), key_values.new_zeros(key_values.shape)
        for piece in ctx.pieces:
            piece.add(*piece.differentiate(*piece.gather(sources), piece.read(out_gradient)), gradients)
        return (None, None, *gradients)
