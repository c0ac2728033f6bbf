"""Tries the CUDA kernels on the card at hand, before anything is served with them."""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from bandrank_kernels.arrays import offsets
from bandrank_kernels.dispatch import Backend
from bandrank_kernels.pooled_scores import pooled_scores
from bandrank_kernels.pooled_scores import why_unsupported as why_no_pooled_scores
from bandrank_kernels.row_norms import add_norm
from bandrank_kernels.row_norms.cuda import why_unsupported
from bandrank_kernels.windowed_attention import AttentionPattern, AttentionPlan, PackedRows, plan_attention

# A ragged batch: rows of three queries, and of the candidates of each.
QUERY_ROWS = (3, 12, 30)
CANDIDATE_ROWS = ((1, 5, 64, 200), (33,), (15, 16, 130))
EPS = 1e-12
TOLERANCE = {torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 3e-2}  # relative to the norm: a few roundings

Compute = Callable[[Backend, torch.dtype], Tensor]


@torch.inference_mode()
def why_distrusted(
    pattern: AttentionPattern | None,
    *,
    device: torch.device,
    dtype: torch.dtype,
    num_heads: int,
    head_dim: int,
    backend: Backend = "cuda",
    norms: bool = True,
) -> str | None:
    """Why a backend's results cannot be trusted, as a clause; None if they equal those of plain torch in float32, up to
    rounding, on random numbers in a fixed ragged batch.

    pattern: None tries the norm alone, which may run even if attention has no kernels; `AttentionPattern.apart()` tries
    texts without candidates.  norms: whether norms and heads may run in kernels; what has none is not tried.
    Takes milliseconds, and the time to compile kernels that have not run yet.
    """
    for name, compute in _operations(pattern, num_heads, head_dim, device, dtype, norms=norms):
        try:
            exact, result = compute("vectorized", torch.float32).float(), compute(backend, dtype).float()
            difference = float((result - exact).norm() / exact.norm())
        except Exception as error:  # noqa: BLE001  # whatever it is, plain torch may still run
            return f"in a trial, {name} failed: {type(error).__name__}: {error}"
        if not difference <= TOLERANCE[dtype]:  # true of NaN, too
            return f"in a trial, {name} differed from plain torch by {difference:.2g} of its norm"
    return None


def _rows(pattern: AttentionPattern) -> PackedRows:
    """The batch, with a copy of its query for each candidate where the pattern needs that."""
    candidates = [length for group in CANDIDATE_ROWS for length in group]
    if pattern.is_apart:
        return PackedRows.of_texts(offsets([*QUERY_ROWS, *candidates]))
    owner = np.repeat(np.arange(len(QUERY_ROWS)), [len(group) for group in CANDIDATE_ROWS])
    queries = np.array(QUERY_ROWS)
    if not pattern.shares_queries:
        queries, owner = queries[owner], np.arange(len(owner))
    return PackedRows(offsets(queries), offsets(candidates), owner)


def _operations(
    pattern: AttentionPattern | None,
    num_heads: int,
    head_dim: int,
    device: torch.device,
    dtype: torch.dtype,
    *,
    norms: bool,
) -> Iterator[tuple[str, Compute]]:
    """The operations that a request runs, by name."""
    generator = torch.Generator().manual_seed(0)
    hidden_size = num_heads * head_dim
    rows = _rows(pattern or AttentionPattern())
    qkv = torch.randn(rows.num_rows, 3, num_heads, head_dim, generator=generator)
    states = torch.randn(rows.num_rows, hidden_size, generator=generator)
    query = torch.randn(rows.num_candidates, num_heads, hidden_size, generator=generator)
    weight, bias = torch.randn(2, hidden_size, generator=generator)

    def plan(backend: Backend, dtype: torch.dtype) -> AttentionPlan:
        assert pattern is not None, "attention is tried without a pattern. This is a bug."
        return plan_attention(rows, pattern, device=device, dtype=dtype, head_dim=head_dim, backend=backend)

    def attend(backend: Backend, dtype: torch.dtype) -> Tensor:
        return plan(backend, dtype).attend(qkv.to(device, dtype))

    def attend_first(backend: Backend, dtype: torch.dtype) -> Tensor:
        return plan(backend, dtype).attend_first(qkv.to(device, dtype), rows.num_candidates)

    def attend_each(backend: Backend, dtype: torch.dtype) -> Tensor:
        first = torch.from_numpy(rows.cu_queries[:-1]).to(device)
        return plan(backend, dtype).attend_each(qkv.to(device, dtype), first)

    def attend_cls(backend: Backend, dtype: torch.dtype) -> Tensor:
        return plan(backend, dtype).attend_cls(query.to(device, dtype), states.to(device, dtype), hidden_size**-0.5)

    def norm(backend: Backend, dtype: torch.dtype) -> Tensor:
        first, second, scale, shift = (part.to(device, dtype) for part in (states, states.flip(0), weight, bias))
        return add_norm(first, second, scale, shift, eps=EPS, backend=backend)

    def head(backend: Backend, dtype: torch.dtype) -> Tensor:
        square = torch.randn(hidden_size, hidden_size, generator=torch.Generator().manual_seed(1)) * hidden_size**-0.5
        pooled, layer = (part.to(device, dtype) for part in (states, square))
        vectors = (part.to(device) for part in (bias, weight, bias[:1]))
        return pooled_scores(pooled, layer, *vectors, backend=backend)

    if pattern is not None:
        yield "the attention of a layer", attend
        last = attend_each if pattern.is_apart else attend_first if pattern.is_full else attend_cls
        yield "the attention of the last layer", last
    if norms and why_unsupported(dtype, hidden_size) is None:
        yield "the sum of a residual and its norm", norm
    if norms and why_no_pooled_scores(dtype, hidden_size, hidden_size, device) is None:
        yield "the scores of pooled rows", head
