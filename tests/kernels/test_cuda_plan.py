"""The CUDA backend of a whole batch, its launches run on the CPU: what `plan_attention` gives on a GPU."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from support.emulated_launch import run_here
from support.emulation import needs_compiler
from support.layouts import CPU, packed_rows
from torch import Tensor

from bandrank_kernels import BackendUnavailable, choose_backend, dispatch
from bandrank_kernels.launch import Launch
from bandrank_kernels.transfer import ALIGNMENT, to_device
from bandrank_kernels.windowed_attention import AttentionPattern, AttentionPlan, PackedRows, plan_attention
from bandrank_kernels.windowed_attention.cuda.plan import CudaPlan
from bandrank_kernels.windowed_attention.ops import sparse_pattern

ROWS = packed_rows([11, 3], [[70, 0, 17], [64]], shared=True)
EMPTY = PackedRows(np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(0, np.int64))
SPARSE = sparse_pattern(4)


def cuda_plan(
    dtype: torch.dtype, *, rows: PackedRows = ROWS, run: Callable[[Launch, torch.device], None] = run_here
) -> CudaPlan:
    """For tensors in the CPU's memory, as for a card with tensor cores."""
    return CudaPlan(rows, SPARSE, device=CPU, dtype=dtype, head_dim=32, capability=(8, 0), run=run)


def other_plan(dtype: torch.dtype) -> AttentionPlan:
    """The same in plain torch."""
    return plan_attention(ROWS, SPARSE, device=CPU, dtype=dtype, head_dim=32, backend="vectorized")


def random_rows(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """N(0, 1)."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def random_qkv(num_heads: int = 2, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """Of `ROWS`."""
    return random_rows(ROWS.num_rows, 3, num_heads, 32, dtype=dtype, seed=seed)


@needs_compiler
def test_layers_of_a_batch_share_a_plan() -> None:
    """One launch each, counters ready for the next, whatever the number of heads and the dtype."""
    launches: list[Launch] = []

    def run(launch: Launch, device: torch.device) -> None:
        launches.append(launch)
        run_here(launch, device)

    plan = cuda_plan(torch.float16, run=run)
    for layer, (num_heads, dtype) in enumerate([(2, torch.float16), (2, torch.float16), (1, torch.float32)]):
        qkv = random_qkv(num_heads, dtype, seed=layer)
        found, expected = plan.attend(qkv), other_plan(torch.float64).attend(qkv.double())
        assert (found.double() - expected).norm() < (4e-4 if dtype == torch.float16 else 2e-6) * expected.norm()

    assert [launch.kernel.expression.partition("<")[0] for launch in launches] == [
        "narrow_forward",
        "narrow_forward",
        "simt_forward",
    ]


@needs_compiler
def test_gradients_flow_through_a_plan() -> None:
    """From the result to a projection whose rows lie apart, in two launches; towards may be expanded, as of a sum."""
    wide = random_rows(ROWS.num_rows, 4, 2, 32).requires_grad_()
    weights = random_rows(32)
    found, expected = (
        torch.autograd.grad((plan.attend(wide[:, :3]) * weights).sum() + plan.attend(wide[:, :3]).sum(), wide)[0]
        for plan in (cuda_plan(torch.float32), other_plan(torch.float32))
    )

    torch.testing.assert_close(found, expected, rtol=0, atol=2e-5)


@needs_compiler
def test_rows_that_kernels_cannot_read_are_copied() -> None:
    """Transposed heads, and rows that begin between two 16-byte pieces."""
    qkv = random_qkv()
    plan = cuda_plan(torch.float32)
    expected = plan.attend(qkv)
    shifted = torch.empty(qkv.numel() + 1)[1:].view(qkv.shape).copy_(qkv)
    transposed = qkv.transpose(1, 2).contiguous().transpose(1, 2)

    assert torch.equal(plan.attend(shifted), expected)
    assert torch.equal(plan.attend(transposed), expected)
    out, lse = plan.forward(qkv)
    towards = torch.empty(out.numel() + 1)[1:].view(out.shape).copy_(qkv[:, 0])
    assert torch.equal(plan.backward(towards, shifted, out, lse), plan.backward(towards.clone(), qkv, out, lse))


def test_the_last_layer_reads_cls_alone() -> None:
    """With the groups of the plan in plain torch, whose tensors came over with the tiles."""
    query, hidden = random_rows(ROWS.num_candidates, 2, 64), random_rows(ROWS.num_rows, 64)

    torch.testing.assert_close(
        cuda_plan(torch.float32).attend_cls(query, hidden, 0.2),
        other_plan(torch.float32).attend_cls(query, hidden, 0.2),
    )


def test_a_batch_of_nothing_is_not_launched() -> None:
    """CUDA has no grid of no blocks."""
    qkv = torch.zeros(0, 3, 2, 32, requires_grad=True)
    attended = cuda_plan(torch.float32, rows=EMPTY).attend(qkv)
    (gradient,) = torch.autograd.grad(attended.sum(), qkv)

    assert (attended.shape, gradient.shape) == ((0, 2, 32), (0, 3, 2, 32))


def test_many_tensors_go_in_one_transfer() -> None:
    """Shapes, dtypes and numbers as they were, at aligned addresses in one allocation; empty ones too."""
    tensors = [torch.arange(5), torch.zeros(0, 8, dtype=torch.int32), torch.ones(3, 2).bool(), torch.rand(7).half()]
    copies = to_device(tensors, CPU)

    assert len({copy.untyped_storage().data_ptr() for copy in copies}) == 1
    for tensor, copy in zip(tensors, copies, strict=True):
        assert copy.dtype == tensor.dtype
        assert torch.equal(copy, tensor)
        assert copy.storage_offset() * copy.element_size() % ALIGNMENT == 0
    with pytest.raises(ValueError, match="only tensors in host memory are copied together, got one on meta"):
        to_device([torch.zeros(1, device="meta")], CPU)


def test_what_kernels_cannot_do_is_said(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Where a GPU could run: 'auto' logs the reason once and takes plain torch, 'cuda' raises it."""
    monkeypatch.setattr(dispatch, "cuda_obstacle", lambda _: None)
    dispatch._log_choice.cache_clear()
    plan = partial(plan_attention, ROWS, device=CPU, dtype=torch.float32)
    full = AttentionPattern(4, query_to_cls=False, query_to_candidate=False, cls_to_query=False)
    with caplog.at_level("INFO", logger="bandrank_kernels"):
        assert not isinstance(plan(full, head_dim=32), CudaPlan)
        assert not isinstance(plan(SPARSE, head_dim=48), CudaPlan)
        assert not isinstance(plan(SPARSE, head_dim=48), CudaPlan)
        assert choose_backend("auto", CPU) == "cuda"

    assert [message.split(":")[0] for message in caplog.messages] == ["plain torch runs"] * 2 + ["CUDA kernels run"]
    assert "head_dim must be one of (32, 64), got 48" in caplog.messages[1]
    with pytest.raises(
        BackendUnavailable, match=r"backend 'cuda' cannot run: head_dim must be one of \(32, 64\), got 48"
    ):
        plan(SPARSE, head_dim=48, backend="cuda")
