"""Which backend computes a scorer on its device, and why others do not."""

import logging

from bandrank.models.encoders.protocol import Encoder
from bandrank.models.layers.patterns import sparse
from bandrank.models.scorer import Scorer
from bandrank_kernels import Backend
from bandrank_kernels.launch import cuda_obstacle
from bandrank_kernels.trial import why_distrusted
from bandrank_kernels.windowed_attention import AttentionPattern, why_no_kernels, why_not_native

log = logging.getLogger(__name__)


def backend_for(scorer: Scorer, asked: Backend) -> tuple[Backend, str | None]:
    """The backend that computes a scorer, and what `why_no_cuda` says of it, or why its CUDA kernels are distrusted."""
    without_kernels = why_no_cuda(scorer, scorer.attention, asked)
    if asked not in {"auto", "cuda"}:
        return asked, without_kernels
    distrust = _why_distrusted(scorer)
    # Not "cuda": local layers, for example, may have no kernels where global ones have.
    return "vectorized" if distrust else "auto", without_kernels or distrust


def why_no_cuda(scorer: Scorer, pattern: AttentionPattern, backend: Backend = "auto") -> str | None:
    """Why no CUDA kernels compute a pattern of a scorer's attention, as a clause; None if they do."""
    encoder: Encoder | None = getattr(scorer, "encoder", None)
    if encoder is None:
        return "it has no encoder"
    if reason := encoder.config.why_no_kernels:
        return reason
    if backend == "native":
        return "the CPU kernels run"
    if backend not in {"auto", "cuda"}:
        return f"{backend!r} was asked for"
    return why_no_kernels(pattern, device=encoder.device, dtype=encoder.dtype, head_dim=encoder.config.head_dim)


def why_no_native_attention(scorer: Scorer) -> str | None:
    """Why the CPU kernels do not compute the attention of a scorer in int8, as a clause; None if they do."""
    encoder = scorer.encoder
    config = encoder.config
    return config.why_no_cpu_kernels or why_not_native(encoder.device, encoder.dtype, config.head_dim)


def _why_distrusted(scorer: Scorer) -> str | None:
    """Why the kernels that the scorer would run cannot be trusted, logged as an error; None if they can.

    Even if no kernel computes its pattern, kernels may compute norms, and texts by themselves in lower layers.
    """
    encoder: Encoder | None = getattr(scorer, "encoder", None)
    if encoder is None or encoder.config.causal or cuda_obstacle(encoder.device) is not None:
        return None
    patterns = (scorer.attention, sparse(window=None))
    reason = why_distrusted(
        next((each for each in patterns if why_no_cuda(scorer, each) is None), None),
        device=encoder.device,
        dtype=encoder.dtype,
        num_heads=encoder.config.num_heads,
        head_dim=encoder.config.head_dim,
    )
    if reason is not None:
        log.error("the CUDA kernels are not used: %s", reason)
    return reason
