"""Which backend computes a scorer on its device, and why others do not."""

import logging
from typing import TypedDict

import torch

from bandrank.models.encoders.protocol import Encoder
from bandrank.models.layers.patterns import narrowed
from bandrank.models.scorer import Scorer
from bandrank_kernels import Backend
from bandrank_kernels.launch import cuda_obstacle, gpu_obstacle
from bandrank_kernels.trial import why_distrusted
from bandrank_kernels.windowed_attention import AttentionPattern, flash_runs, why_no_kernels, why_not_native

log = logging.getLogger(__name__)


class _Shape(TypedDict):
    device: torch.device
    dtype: torch.dtype
    head_dim: int


def backend_for(scorer: Scorer, asked: Backend) -> tuple[Backend, str | None]:
    """The backend that computes a scorer, and what `why_no_cuda` says of it, or why its CUDA kernels are distrusted."""
    without_kernels = why_no_cuda(scorer, scorer.attention, asked)
    if asked not in {"auto", "cuda"}:
        return asked, without_kernels
    distrust = next(filter(None, map(_why_distrusted, scorer.sides)), None)
    # Not "cuda": local layers, for example, may have no kernels where global ones have.
    return "vectorized" if distrust else "auto", without_kernels or distrust


def why_no_cuda(scorer: Scorer, pattern: AttentionPattern, backend: Backend = "auto") -> str | None:
    """Why no CUDA kernels compute a pattern of a scorer's attention, as a clause; None if they do."""
    encoder = scorer.encoder
    if reason := encoder.config.why_no_kernels:
        return reason
    if backend == "native":
        return "the CPU kernels run"
    if backend not in {"auto", "cuda"}:
        return f"{backend!r} was asked for"
    windows = [None] if pattern.is_apart else encoder.windows  # of texts, only the layers without one are asked about
    reasons = (why_no_kernels(narrowed(pattern, window), **_shape(encoder)) for window in windows)
    return next(filter(None, reasons), None)


def runs_flash(scorer: Scorer) -> bool:
    """Whether torch's FlashAttention, and not a kernel of ours, computes a scorer's attention where kernels do."""
    pattern = scorer.attention
    return flash_runs(pattern, **_shape(scorer.encoder), texts=pattern.is_apart)


def why_no_native_attention(scorer: Scorer) -> str | None:
    """Why the CPU kernels do not compute the attention of a scorer, as a clause; None if they do."""
    encoder = scorer.encoder
    config = encoder.config
    return config.why_no_cpu_kernels or why_not_native(encoder.device, encoder.dtype, config.head_dim)


def _why_distrusted(scorer: Scorer) -> str | None:
    """Why the kernels that the scorer would run cannot be trusted, logged as an error; None if they can.

    Even if no kernel computes its pattern, kernels may compute norms, and texts by themselves in lower layers.
    """
    encoder = scorer.encoder
    if encoder.config.causal or gpu_obstacle(encoder.device) is not None:
        return None
    patterns = (scorer.attention, AttentionPattern.apart())
    reason = why_distrusted(
        next((each for each in patterns if why_no_cuda(scorer, each) is None), None),
        **_shape(encoder),
        num_heads=encoder.config.num_heads,
        norms=cuda_obstacle(encoder.device) is None,
    )
    if reason is not None:
        log.error("the CUDA kernels are not used: %s", reason)
    return reason


def _shape(encoder: Encoder) -> _Shape:
    """What decides about kernels, besides the pattern."""
    return {"device": encoder.device, "dtype": encoder.dtype, "head_dim": encoder.config.head_dim}
