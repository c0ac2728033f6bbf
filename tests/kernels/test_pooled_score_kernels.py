"""The CUDA kernel of pooled rows' scores, run on the CPU from the launches that a GPU would get."""

from dataclasses import replace

import pytest
import torch
from emulation.compiled import SCHEDULES, Schedule, needs_compiler
from emulation.launches import emulate, prepare, run_here
from emulation.mistakes import Mistake, assert_noticed, plant
from support.bands import random_rows
from support.guarded import guarded
from support.pooled import HALVES, Head, exact, is_close, make_head, run_heads_here
from torch import Tensor

from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.layers.execution import Execution
from bandrank.models.layers.head import ScoreHead
from bandrank_kernels.launch import Kernel, Launch
from bandrank_kernels.pooled_scores import ACTIVATIONS, HeadActivation, cuda

pytestmark = needs_compiler

SIZES = [(32, 32), (96, 64), (384, 384), (160, 352), (384, 96)]  # inputs and outputs


def run(
    rows: Tensor,
    head: Head,
    activation: HeadActivation = "tanh",
    *,
    schedule: Schedule = "depth first",
    seed: int = 0,
    kernel: Kernel | None = None,
) -> Tensor:
    """Returns the kernel's scores, which start as NaN. Raises EmulationError if the kernel writes anywhere else.
    kernel: used in place of the launch's.
    """
    with guarded(len(rows)) as out:
        launch = cuda.plan(rows, *head, activation=activation, out=out)
        emulate(replace(launch, kernel=kernel or launch.kernel), schedule, seed)
    return out


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    prepare(*cuda.instances())


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("dtype", HALVES)
def test_the_kernel_equals_the_formula(dtype: torch.dtype, schedule: Schedule) -> None:
    """For each activation, and any number of rows, the last block's included."""
    for inputs, outputs in SIZES:
        head = make_head(inputs, outputs, dtype)
        for num_rows, activation in zip((1, 17, 33), ACTIVATIONS, strict=True):
            rows = random_rows(num_rows, inputs, dtype=dtype, seed=num_rows)
            scores = run(rows, head, activation, schedule=schedule, seed=num_rows)

            assert is_close(scores, exact(rows, head, activation)), (inputs, outputs, activation)


def test_a_row_alone_has_the_bits_it_has_in_company() -> None:
    """The bits are the same under every schedule, wherever a row stands."""
    rows, head = random_rows(35, 384, dtype=torch.float16), make_head(384, 384, torch.float16)
    together = [run(rows, head, schedule=schedule, seed=seed) for schedule in SCHEDULES for seed in range(2)]

    assert all(torch.equal(together[0], other) for other in together[1:])
    for row in (0, 5, 12, 34):
        assert torch.equal(run(rows[row : row + 1], head)[0], together[0][row])


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_nan_in_a_row_makes_its_score_nan_and_no_other(activation: HeadActivation) -> None:
    rows, head = random_rows(20, 96, dtype=torch.bfloat16), make_head(96, 64, torch.bfloat16)
    rows[[3, 17]] = torch.nan

    assert run(rows, head, activation).isnan().nonzero().flatten().tolist() == [3, 17]


def test_rows_are_read_in_place_or_copied() -> None:
    """Rows apart are read in place; rows that do not start at 16-byte addresses are copied."""
    wide, head = random_rows(18, 500, dtype=torch.float16), make_head(384, 384, torch.float16)
    wide = torch.cat([wide, wide[:, :4]], 1)  # 504 columns
    for first, in_place in ((8, True), (3, False)):
        rows = wide[:, first : first + 384]
        held = cuda.plan(rows, *head, activation="tanh", out=torch.empty(18)).holds

        assert (rows.data_ptr() in [tensor.data_ptr() for tensor in held]) is in_place
        assert is_close(run(rows, head), exact(rows, head, "tanh"))


@pytest.mark.parametrize(
    ("dtype", "sizes", "reason"),
    [
        (torch.float32, (384, 384), "rows must be float16 or bfloat16, got torch.float32"),
        (
            torch.float16,
            (384, 416),
            "the layer's inputs and outputs must be multiples of 32 up to 384, got 384 and 416",
        ),
        (torch.float16, (24, 32), "the layer's inputs and outputs must be multiples of 32 up to 384, got 24 and 32"),
        (torch.bfloat16, (32, 384), None),
    ],
)
def test_what_the_kernel_cannot_do_is_said(dtype: torch.dtype, sizes: tuple[int, int], reason: str | None) -> None:
    assert cuda.why_unsupported(dtype, *sizes, torch.device("cpu")) == reason


def test_a_card_without_these_products_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "device_capability", lambda _: (7, 5))
    reason = cuda.why_unsupported(torch.float16, 384, 384, torch.device("cuda"))

    assert reason == "the GPU is older than compute capability 8.0"


@torch.inference_mode()
def test_a_head_in_half_precision_is_one_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, where rows in another dtype than the weights' take the usual path."""
    launches: list[Launch] = []

    def launch(request: Launch, device: torch.device) -> None:
        launches.append(request)
        run_here(request, device)

    run_heads_here(monkeypatch, launch)
    head = ScoreHead(EncoderConfig(100, 64, 1, 2, 64, 64), "gelu")
    rows = random_rows(20, 64, dtype=torch.float16)
    plain = head(rows)
    head.prepare_for(Execution(dtype=torch.float16))

    for given in (rows, rows.float()):
        torch.testing.assert_close(head(given), plain, rtol=0, atol=1e-3)
    assert len(launches) == 1


MISTAKES = (
    Mistake("stride", "static_cast<const T*>(p.rows) + existing * p.inputs + 8 * t"),
    Mistake("bias", "__ldg(reinterpret_cast<const float2*>(p.bias + output))"),
    Mistake("vector", "__ldg(reinterpret_cast<const float2*>(p.vector + 2 * t + 8 * tile))"),
    Mistake("quad", "sum"),
    Mistake("barrier", ""),
    Mistake("rows", "number >= kRows"),  # scores beyond the last are written
)


@pytest.mark.parametrize("number", range(len(MISTAKES)))
def test_a_mistake_is_noticed(number: int) -> None:
    """The rows are the first of memory that goes on with NaN."""
    memory = random_rows(48, 104, dtype=torch.float16)
    memory[20:] = torch.nan
    memory[:, 96:] = torch.nan
    rows, head = memory[:20, :96], make_head(96, 64, torch.float16)
    planted = plant(cuda.kernel(torch.float16, "gelu"), MISTAKES)
    expected = exact(rows, head, "gelu")

    def survives(schedule: Schedule) -> bool:
        return is_close(run(rows, head, "gelu", kernel=planted, schedule=schedule), expected)

    assert_noticed(planted, number, survives)
