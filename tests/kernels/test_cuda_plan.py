"""The CUDA backend's plan of a whole batch, as `plan_attention` gives it on a GPU, with its launches run on the CPU."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from emulation.compiled import needs_compiler
from emulation.launches import run_here
from support import bands
from support.layouts import CPU, packed_rows
from torch import Tensor

from bandrank_kernels import BackendUnavailable, choose_backend, dispatch
from bandrank_kernels.launch import Launch
from bandrank_kernels.transfer import ALIGNMENT, to_device
from bandrank_kernels.windowed_attention import AttentionPattern, AttentionPlan, PackedRows, plan_attention
from bandrank_kernels.windowed_attention.cuda.plan import CudaPlan, _log_groups

ROWS = packed_rows([11, 3], [[70, 0, 17], [64]], shared=True)
EMPTY = PackedRows(np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(0, np.int64))
SPARSE = AttentionPattern.sparse(4)


def cuda_plan(
    dtype: torch.dtype, *, rows: PackedRows = ROWS, run: Callable[[Launch, torch.device], None] = run_here
) -> CudaPlan:
    """Returns a plan for a card with tensor cores, for tensors in the CPU's memory."""
    return CudaPlan(rows, SPARSE, device=CPU, dtype=dtype, head_dim=32, capability=(8, 0), run=run)


def other_plan(dtype: torch.dtype) -> AttentionPlan:
    return plan_attention(ROWS, SPARSE, device=CPU, dtype=dtype, head_dim=32, backend="vectorized")


random_rows = partial(bands.random_rows, dtype=torch.float32)


def random_qkv(num_heads: int = 2, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return random_rows(ROWS.num_rows, 3, num_heads, 32, dtype=dtype, seed=seed)


def recording(launches: list[Launch]) -> Callable[[Launch, torch.device], None]:
    """Returns a function that runs launches on the CPU, and appends them to the list."""

    def run(launch: Launch, device: torch.device) -> None:
        launches.append(launch)
        run_here(launch, device)

    return run


@needs_compiler
def test_layers_of_a_batch_share_a_plan() -> None:
    """Each layer, of any number of heads and any dtype, makes one launch and leaves the counters ready for the next."""
    launches: list[Launch] = []
    plan = cuda_plan(torch.float16, run=recording(launches))
    for layer, (num_heads, dtype) in enumerate([(2, torch.float16), (2, torch.float16), (1, torch.float32)]):
        qkv = random_qkv(num_heads, dtype, seed=layer)
        actual, expected = plan.attend(qkv), other_plan(torch.float64).attend(qkv.double())
        assert (actual.double() - expected).norm() < (4e-4 if dtype == torch.float16 else 2e-6) * expected.norm()

    assert [launch.kernel.expression.partition("<")[0] for launch in launches] == [
        "narrow_forward",
        "narrow_forward",
        "simt_forward",
    ]


@needs_compiler
def test_gradients_flow_through_a_plan() -> None:
    """The projection's rows lie apart, and the gradient of a sum comes as an expanded tensor."""
    wide = random_rows(ROWS.num_rows, 4, 2, 32).requires_grad_()
    weights = random_rows(32)
    actual, expected = (
        torch.autograd.grad((plan.attend(wide[:, :3]) * weights).sum() + plan.attend(wide[:, :3]).sum(), wide)[0]
        for plan in (cuda_plan(torch.float32), other_plan(torch.float32))
    )

    torch.testing.assert_close(actual, expected, rtol=0, atol=2e-5)


@needs_compiler
def test_rows_that_kernels_cannot_read_are_copied() -> None:
    """The kernels cannot read transposed heads, or rows that do not start at 16-byte addresses."""
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


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_the_last_layer_reads_cls_alone(dtype: torch.dtype) -> None:
    """Each call makes one launch and leaves the counters ready for the next. Rows may start at any address, and may be
    of another dtype, as under autocast.
    """
    launches: list[Launch] = []
    plan = cuda_plan(dtype, run=recording(launches))
    for num_heads in (2, 12, 2):
        query = random_rows(ROWS.num_candidates, num_heads, 64, dtype=dtype)
        hidden = random_rows(ROWS.num_rows, 64, dtype=dtype, seed=1)
        exact = other_plan(torch.float64).attend_cls(query.double(), hidden.double(), 0.2)
        shifted = torch.empty(hidden.numel() + 1, dtype=dtype)[1:].view(hidden.shape).copy_(hidden)
        for rows in (hidden, hidden.float(), shifted):
            actual = plan.attend_cls(query, rows, 0.2)
            assert (actual.double() - exact).norm() < (4e-4 if dtype == torch.float16 else 2e-6) * exact.norm()

    assert len(launches) == 9


def test_the_last_layer_is_differentiable() -> None:
    """The gradient is computed in plain torch, with nothing launched."""
    query, hidden = random_rows(ROWS.num_candidates, 2, 64), random_rows(ROWS.num_rows, 64, seed=1).requires_grad_()
    launches: list[Launch] = []
    actual, expected = (
        torch.autograd.grad(plan.attend_cls(query, hidden, 0.2).square().sum(), hidden)[0]
        for plan in (cuda_plan(torch.float32, run=recording(launches)), other_plan(torch.float32))
    )

    torch.testing.assert_close(actual, expected)
    assert not launches


def test_more_heads_than_the_last_layers_kernels_have_go_to_plain_torch(caplog: pytest.LogCaptureFixture) -> None:
    _log_groups.cache_clear()
    query, hidden = random_rows(ROWS.num_candidates, 17, 64), random_rows(ROWS.num_rows, 64)
    launches: list[Launch] = []
    plan = cuda_plan(torch.float32, run=recording(launches))
    for _ in range(2):
        actual = plan.attend_cls(query, hidden, 0.2)
        torch.testing.assert_close(actual, other_plan(torch.float32).attend_cls(query, hidden, 0.2))

    assert not launches
    assert caplog.messages == [
        "plain torch attends with [CLS] in the last layer: num_heads must be within 1..16, got 17"
    ]


def test_a_batch_of_nothing_is_not_launched() -> None:
    """CUDA refuses a grid without blocks."""
    qkv = torch.zeros(0, 3, 2, 32, requires_grad=True)
    plan = cuda_plan(torch.float32, rows=EMPTY)
    attended, cls = plan.attend(qkv), plan.attend_cls(torch.zeros(0, 2, 64), torch.zeros(0, 64), 0.2)
    (gradient,) = torch.autograd.grad(attended.sum(), qkv)

    assert (attended.shape, gradient.shape, cls.shape) == ((0, 2, 32), (0, 3, 2, 32), (0, 2, 64))


def test_many_tensors_go_in_one_transfer() -> None:
    """Shapes, dtypes and numbers arrive unchanged, at aligned addresses in one allocation; empty tensors too."""
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
    """With a GPU at hand, 'auto' logs the reason once and takes plain torch, and 'cuda' raises it."""
    monkeypatch.setattr(dispatch, "cuda_obstacle", lambda _: None)
    dispatch._log_choice.cache_clear()
    plan = partial(plan_attention, ROWS, device=CPU, dtype=torch.float32)
    full = AttentionPattern(4, query_to_cls=False, query_to_candidate=False, cls_to_query=False)
    with caplog.at_level("INFO", logger="bandrank_kernels"):
        assert not isinstance(plan(full, head_dim=32), CudaPlan)
        assert not isinstance(plan(SPARSE, head_dim=48), CudaPlan)
        assert not isinstance(plan(SPARSE, head_dim=48), CudaPlan)
        assert choose_backend("auto", CPU) == "cuda"

    assert [message.split(":")[0] for message in caplog.messages] == ["CUDA kernels do not run"] * 2 + [
        "CUDA kernels run"
    ]
    assert "head_dim must be one of (32, 64), got 48" in caplog.messages[1]
    with pytest.raises(
        BackendUnavailable, match=r"backend 'cuda' cannot run: head_dim must be one of \(32, 64\), got 48"
    ):
        plan(SPARSE, head_dim=48, backend="cuda")
