"""The trial trusts a backend that computes the same as plain torch, and no other."""

import pytest
import torch
from torch import Tensor

from bandrank_kernels.pooled_scores import pooled_scores
from bandrank_kernels.row_norms import add_norm
from bandrank_kernels.trial import why_distrusted
from bandrank_kernels.windowed_attention import AttentionPattern
from bandrank_kernels.windowed_attention.reference import ReferencePlan

CPU = torch.device("cpu")
SPARSE = AttentionPattern.sparse(4)


def tried(
    pattern: AttentionPattern | None = SPARSE, dtype: torch.dtype = torch.float32, *, num_heads: int = 2
) -> str | None:
    """Returns what a trial says of the reference backend, which stands in for the kernels."""
    return why_distrusted(pattern, device=CPU, dtype=dtype, num_heads=num_heads, head_dim=32, backend="reference")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "pattern", [SPARSE, AttentionPattern.sparse(None), AttentionPattern(), AttentionPattern.apart(), None]
)
def test_what_is_right_is_trusted(pattern: AttentionPattern, dtype: torch.dtype) -> None:
    """The rounding of each dtype is allowed, with and without shared queries."""
    assert tried(pattern, dtype) is None


@pytest.mark.parametrize("row", [0, 30, -1])
@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), 9.0])
def test_one_wrong_row_is_seen(row: int, wrong: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wrong row is that of a [CLS], a query or a candidate."""
    attend = ReferencePlan.attend

    def attend_wrongly(plan: ReferencePlan, qkv: Tensor) -> Tensor:
        result = attend(plan, qkv)
        result[row] = wrong
        return result

    monkeypatch.setattr(ReferencePlan, "attend", attend_wrongly)

    assert "the attention of a layer differed from plain torch by" in (tried() or "")


def test_a_wrong_last_layer_norm_and_head_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    attend_cls = ReferencePlan.attend_cls
    with monkeypatch.context() as patch:
        patch.setattr(ReferencePlan, "attend_cls", lambda *arguments: 1.01 * attend_cls(*arguments))
        assert "the attention of the last layer differed" in (tried() or "")

    def score_wrongly(rows: Tensor, weight: Tensor, *vectors: Tensor, backend: str) -> Tensor:
        scores = pooled_scores(rows, weight, *vectors, backend="vectorized")
        return scores * 1.01 if backend == "reference" else scores

    with monkeypatch.context() as patch:
        patch.setattr("bandrank_kernels.trial.pooled_scores", score_wrongly)
        assert "the scores of pooled rows differed" in (tried(dtype=torch.float16) or "")
        assert tried(dtype=torch.float32) is None  # no kernel takes float32

    def norm_wrongly(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor, *, eps: float, backend: str) -> Tensor:
        result = add_norm(x, y, weight, bias, eps=eps, backend="vectorized")
        return result + bias if backend == "reference" else result

    monkeypatch.setattr("bandrank_kernels.trial.add_norm", norm_wrongly)
    assert "its norm differed" in (tried() or "")
    assert "its norm differed" in (tried(None) or "")
    assert tried(num_heads=33) is None  # the norm's kernel does not take such wide rows, so it is not tried


def test_what_fails_is_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason quotes the error, which may be that of a kernel that does not compile."""

    def fail(*_: object) -> Tensor:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(ReferencePlan, "attend", fail)

    assert tried() == "in a trial, the attention of a layer failed: RuntimeError: no compiler"
