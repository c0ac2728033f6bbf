"""The sparse cross-encoder's attention as its paper computes it: band products in kernels of their own, all else in
torch (Schlatt et al. 2024, section 3.3). The kernels are ours; the query is attended once, not once a candidate.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from bandrank_bench.gpu.baselines.system import System
from bandrank_bench.gpu.lab import Lab
from bandrank_bench.gpu.shape import Shape
from bandrank_kernels import Backend
from bandrank_kernels.band_products import band_pv, band_qk
from bandrank_kernels.windowed_attention import AttentionPlan


class PaperAttention:
    """On whole pairs, (num_candidates, num_heads, sequence, head_dim).

    as_written: the softmax in the separate passes of the paper's published forward, in place of torch's own.
    """

    def __init__(self, shape: Shape, *, device: torch.device, backend: Backend, as_written: bool = False) -> None:
        self.shape, self.backend, self.as_written = shape, backend, as_written
        places = torch.arange(shape.candidate_rows, device=device)[:, None]
        other = places + torch.arange(-shape.window, shape.window + 1, device=device)
        outside = (other < 0) | (other >= shape.candidate_rows)
        # (candidate_rows, columns + globals)
        self.outside = torch.nn.functional.pad(outside, (0, shape.num_globals))

    def arrange(self, qkv: Tensor) -> Sequence[Tensor]:
        """Contiguous Q, K and V."""
        return [rows.transpose(1, 2).contiguous() for rows in self.shape.sequences(qkv).unbind(2)]

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Sequence[Tensor]:
        """Results of [CLS], query and candidate rows, heads before rows."""
        seen, columns = self.shape.num_globals, 2 * self.shape.window + 1
        band = band_qk(query[:, :, seen:], key[:, :, seen:], self.shape.window, backend=self.backend)
        shared = query[:, :, seen:] @ key[:, :, :seen].transpose(-1, -2)
        scores = torch.cat([band, shared], -1)
        weights = self._passes(scores) if self.as_written else self._softmax(scores)
        candidates = band_pv(weights[..., :columns], value[:, :, seen:], backend=self.backend)
        candidates += weights[..., columns:] @ value[:, :, :seen]
        cls = scaled_dot_product_attention(query[:, :, :1], key, value)
        own_query, own_key, own_value = (heads[:1, :, 1:seen] for heads in (query, key, value))
        return [cls, scaled_dot_product_attention(own_query, own_key, own_value), candidates]

    def pack(self, results: Sequence[Tensor]) -> Tensor:
        """As packed rows, (num_rows, num_heads, head_dim)."""
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
    """The same inside our encoder. It has no last layer for [CLS] alone."""

    def __init__(self, attention: PaperAttention) -> None:
        self.attention = attention

    def attend(self, qkv: Tensor) -> Tensor:
        return self.attention.pack(self.attention.attend(*self.attention.arrange(qkv)))

    def attend_cls(self, query: Tensor, rows: Tensor, scale: float) -> Tensor:
        raise NotImplementedError("the paper runs the whole last layer")


def system(lab: Lab, shape: Shape, name: str) -> System:
    """With one softmax, or "as written"."""
    as_written = name.endswith("as written")
    attention = PaperAttention(shape, device=lab.device, backend=lab.backend, as_written=as_written)
    return System(name, attention.arrange, attention.attend, attention.pack)
