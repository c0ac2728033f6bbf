"""The systems to compare the fused operation with, each in the layout that suits it best."""

from collections.abc import Sequence
from functools import partial
from importlib import import_module
from inspect import signature

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import pad, scaled_dot_product_attention

from bandrank_bench.gpu.lab import Lab, Skipped
from bandrank_bench.gpu.shape import Shape
from bandrank_bench.gpu.system import System
from bandrank_kernels import Backend
from bandrank_kernels.band_products import band_pv, band_qk
from bandrank_kernels.windowed_attention import AttentionPlan

BACKENDS = {
    "full flash": SDPBackend.FLASH_ATTENTION,
    "full cudnn": SDPBackend.CUDNN_ATTENTION,
    "full efficient": SDPBackend.EFFICIENT_ATTENTION,
    "full math": SDPBackend.MATH,
}


def heads(shape: Shape, qkv: Tensor) -> list[Tensor]:
    """Q, K and V of whole pairs, (num_candidates, num_heads, sequence, head_dim) each, laid out in memory as rows."""
    return [rows.contiguous().transpose(1, 2) for rows in shape.sequences(qkv).unbind(2)]


def full(lab: Lab, shape: Shape, name: str) -> System:
    """Full attention over padded pairs, by the torch backend of this name."""
    del lab
    backend = BACKENDS[name]

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Sequence[Tensor]:
        with sdpa_kernel(backend):
            return [scaled_dot_product_attention(query, key, value)]

    return System(name, partial(heads, shape), attend)


def flex(lab: Lab, shape: Shape) -> System:
    """FlexAttention with the same mask over whole pairs, compiled by torch except in a dry run."""
    module = import_module("torch.nn.attention.flex_attention")
    seen, window = shape.num_globals, shape.window

    def visible(batch: Tensor, head: Tensor, row: Tensor, key: Tensor) -> Tensor:
        del batch, head
        near = (key - row).abs() <= window
        of_candidate = (row >= seen) & ((key < seen) | near)
        of_query = (row > 0) & (row < seen) & (key > 0) & (key < seen)
        return (row == 0) | of_query | of_candidate

    mask = module.create_block_mask(visible, None, None, shape.sequence, shape.sequence, device=str(lab.device))
    run = module.flex_attention if lab.dry else torch.compile(module.flex_attention, dynamic=False)

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Sequence[Tensor]:
        return [run(query, key, value, block_mask=mask)]

    def pack(results: Sequence[Tensor]) -> Tensor:
        rows = results[0].transpose(1, 2)  # (num_candidates, sequence, num_heads, head_dim)
        return torch.cat([rows[:, 0], rows[0, 1:seen], rows[:, seen:].flatten(0, 1)])

    return System("flex", partial(heads, shape), attend, pack)


def varlen(lab: Lab, shape: Shape) -> System:
    """The strongest composition of library calls: torch's varlen attention over the band and again over the globals,
    merged by their log-sum-exps.

    Raises Skipped if torch has no varlen attention with a window, or no GPU.
    """
    try:
        module = import_module("torch.nn.attention.varlen")
    except ImportError as error:
        raise Skipped(f"this torch has no varlen attention: {error}") from None
    if "window_size" not in signature(module.varlen_attn).parameters:
        raise Skipped("this torch's varlen attention has no window")
    lab.require_gpu()

    count, length, seen = shape.num_candidates, shape.candidate_rows, shape.num_globals

    def starts(step: int, number: int = count) -> Tensor:
        return torch.arange(number + 1, device=lab.device, dtype=torch.int32) * step

    cls = torch.arange(count, device=lab.device)[:, None]
    query = torch.arange(count, count + seen - 1, device=lab.device).expand(count, -1)
    shared = torch.cat([cls, query], 1).flatten()  # rows that a candidate sees besides its own
    by_one, by_seen, by_length = starts(1), starts(seen), starts(length)
    of_query = starts(seen - 1, 1)
    aux = module.AuxRequest(lse=True)

    def call(rows: Tensor, keys: Sequence[Tensor], *sizes: Tensor | int, **options: object) -> tuple[Tensor, Tensor]:
        out, lse = module.varlen_attn(rows, *keys, *sizes, return_aux=aux, **options)
        return out, lse if lse.shape == out.shape[:2] else lse.T  # depends on torch's version

    def merge(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> Tensor:
        weight = torch.sigmoid(one[1] - other[1])[..., None]
        return torch.lerp(other[0], one[0], weight.to(one[0].dtype))

    def attend(query_rows: Tensor, key: Tensor, value: Tensor) -> Sequence[Tensor]:
        first = count + seen - 1
        shared_keys = [rows.index_select(0, shared) for rows in (key, value)]
        candidate_keys = [key[first:], value[first:]]
        candidates, cls_rows = query_rows[first:], query_rows[:count]
        window = (shape.window, shape.window)
        near = call(candidates, candidate_keys, by_length, by_length, length, length, window_size=window)
        far = call(candidates, shared_keys, by_length, by_seen, length, seen)
        cls_near = call(cls_rows, candidate_keys, by_one, by_length, 1, length)
        cls_far = call(cls_rows, shared_keys, by_one, by_seen, 1, seen)
        asked = slice(count, first)
        keys = [key[asked], value[asked]]
        query_out, _ = call(query_rows[asked], keys, of_query, of_query, seen - 1, seen - 1)
        return [merge(cls_near, cls_far), query_out, merge(near, far)]

    return System(
        "varlen", lambda qkv: [rows.contiguous() for rows in qkv.unbind(1)], attend, lambda out: torch.cat([*out])
    )


def paper(lab: Lab, shape: Shape, name: str, *, as_written: bool) -> System:
    """The paper's computation, with one softmax or, as written, in separate passes."""
    attention = PaperAttention(shape, device=lab.device, backend=lab.backend, as_written=as_written)
    return System(name, attention.arrange, attention.attend, attention.pack)


class PaperAttention:
    """The sparse cross-encoder's attention as its paper computes it: band products in separate kernels, the rest in
    torch (Schlatt et al. 2024, section 3.2). The kernels are ours, and the query attends once, not once per candidate.

    Works on whole pairs, (num_candidates, num_heads, sequence, head_dim).
    as_written: computes the softmax in separate passes, like the paper's published code, instead of by torch's.
    """

    def __init__(self, shape: Shape, *, device: torch.device, backend: Backend, as_written: bool = False) -> None:
        self.shape, self.backend, self.as_written = shape, backend, as_written
        rows = torch.arange(shape.candidate_rows, device=device)[:, None]
        other = rows + torch.arange(-shape.window, shape.window + 1, device=device)
        # (candidate_rows, columns + globals)
        self.outside = pad((other < 0) | (other >= shape.candidate_rows), (0, shape.num_globals))

    def arrange(self, qkv: Tensor) -> Sequence[Tensor]:
        """Contiguous Q, K and V."""
        return [rows.transpose(1, 2).contiguous() for rows in self.shape.sequences(qkv).unbind(2)]

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Sequence[Tensor]:
        """The outputs of [CLS], query and candidate rows, heads before rows."""
        seen, columns = self.shape.num_globals, 2 * self.shape.window + 1
        band = band_qk(query[:, :, seen:], key[:, :, seen:], self.shape.window, backend=self.backend)
        shared = query[:, :, seen:] @ key[:, :, :seen].transpose(-1, -2)
        scores = torch.cat([band, shared], -1)
        weights = self._passes(scores) if self.as_written else self._softmax(scores)
        candidates = band_pv(weights[..., :columns], value[:, :, seen:], backend=self.backend)
        candidates += weights[..., columns:] @ value[:, :, :seen]
        cls = scaled_dot_product_attention(query[:, :, :1], key, value)
        query, key, value = (rows[:1, :, 1:seen] for rows in (query, key, value))
        return [cls, scaled_dot_product_attention(query, key, value), candidates]

    def pack(self, results: Sequence[Tensor]) -> Tensor:
        """The outputs as packed rows, (num_rows, num_heads, head_dim)."""
        return torch.cat([part.transpose(1, 2).flatten(0, 1) for part in results])

    def _softmax(self, scores: Tensor) -> Tensor:
        scores.mul_(self.shape.head_dim**-0.5).masked_fill_(self.outside, -torch.inf)
        return scores.softmax(-1)

    def _passes(self, scores: Tensor) -> Tensor:
        lowest = torch.finfo(scores.dtype).min
        scores = scores * self.shape.head_dim**-0.5
        scores = scores + torch.zeros_like(self.outside, dtype=scores.dtype).masked_fill(self.outside, lowest)
        scores = scores.clamp(min=lowest)
        weights = (scores - scores.amax(-1, keepdim=True)).exp()
        return weights / weights.sum(-1, keepdim=True)


class PaperPlan(AttentionPlan):
    """The paper's attention inside our encoder. It has no last layer for [CLS] alone."""

    def __init__(self, attention: PaperAttention) -> None:
        self.attention = attention

    def attend(self, qkv: Tensor) -> Tensor:
        return self.attention.pack(self.attention.attend(*self.attention.arrange(qkv)))

    def attend_cls(self, query: Tensor, rows: Tensor, scale: float) -> Tensor:
        raise NotImplementedError("the paper runs the whole last layer")
