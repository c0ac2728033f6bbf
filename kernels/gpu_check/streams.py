"""Stage 2, second part: the same bits from CUDA graphs, of whole batches too, on a side stream, and on two streams at
once.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from bandrank_kernels.windowed_attention import AttentionPlan, plan_attention
from bandrank_kernels.windowed_attention.ops import sparse_pattern
from gpu_check.cross_encoder import SIZE, build, packed, request
from gpu_check.lab import Lab
from gpu_check.shape import Shape
from gpu_check.stage import Case, Facts

REPLAYS = 100
BUCKET_BAR = 0.05  # of scores of the order of 1 after three layers in float16
BUSY_CYCLES = 20_000_000  # some ten milliseconds, for which the host runs ahead of a side stream


def cases(lab: Lab) -> Iterator[Case]:
    """For each of the two kernels on tensor cores."""
    tests: tuple[Callable[[Lab, Shape], Facts], ...] = (graph, side_stream, two_streams)
    for window in (4, 64):
        shape = Shape(30, window, 32, num_heads=2, num_candidates=4) if lab.dry else Shape(164, window, 32)
        for test in tests:
            name = f"{test.__name__.replace('_', ' ')} {shape}"
            yield Case(name, partial(test, lab, shape))
    yield Case("batches of a whole model", partial(batches, lab))


def graph(lab: Lab, shape: Shape) -> Facts:
    """Replays on fresh numbers in the same place give what a launch gives."""
    plan, qkv = plan_of(lab, shape), qkv_of(lab, shape)
    other = plan_of(lab, shape)
    captured = lab.capture(lambda: [plan.attend(qkv)])
    wrong = torch.zeros((), dtype=torch.int64, device=lab.device)
    replays = 2 if lab.dry else REPLAYS
    for seed in range(replays):
        qkv.copy_(qkv_of(lab, shape, seed=seed))
        captured.replay()
        wrong += (captured.outputs[0] != other.attend(qkv)).any()
    assert not wrong, f"{int(wrong)} of {replays} replays differ from launches"
    return {"replays": replays}


@torch.inference_mode()
def batches(lab: Lab) -> Facts:
    """Through the graphs of their buckets, on two streams in turns and nothing waited for: what launches give. How far
    that is from launches without a bucket, whose products are of other sizes, is on record.
    """
    lab.require_gpu()
    model = build(lab, replace(SIZE, num_layers=3), sparse_pattern(4), graphs=True)
    runner = model.graphs
    assert runner is not None, f"no graphs: {model.why_no_graphs()}"
    lengths = ([60] * 20, [163, 0, 40] * 6, [5, 300] * 4, [80] * 40, range(40, 120, 2))
    requests = [packed(model, request(each, seed=seed)) for seed, each in enumerate(lengths)]
    expected = [runner.score(each, capture=False) for each in requests]
    streams = [lab.side_stream() for _ in range(2)]
    found: list[tuple[int, Tensor | None]] = []
    for turn in range(REPLAYS):
        number = turn % len(requests)
        with streams[turn % 2]:
            found.append((number, runner.score(requests[number])))
    lab.synchronize()
    assert model.why_no_graphs() is None, model.why_no_graphs()
    wrong = [number for number, scores in found if not torch.equal(_there(scores), _there(expected[number]))]
    assert not wrong, f"{len(wrong)} of {REPLAYS} replays differ from launches, of batches {sorted(set(wrong))}"
    model.graphs = None
    apart = [
        float((model.score(request(each, seed=seed)) - _there(scores)).abs().max())
        for seed, (each, scores) in enumerate(zip(lengths, expected, strict=True))
    ]
    assert max(apart) < BUCKET_BAR, f"scores differ by {max(apart)} with and without a bucket"
    return {"replays": REPLAYS, "graphs": len(runner), "graph_bytes": runner.graph_bytes, "from_bucket": max(apart)}


def _there(scores: Tensor | None) -> Tensor:
    assert scores is not None, "a batch that is too large for a graph"
    return scores


def side_stream(lab: Lab, shape: Shape) -> Facts:
    """A launch waits for what its stream is busy with, and the host for nothing."""
    plan, qkv = plan_of(lab, shape), qkv_of(lab, shape)
    expected = plan.attend(qkv)
    late = torch.zeros_like(qkv)
    with lab.side_stream():
        if not lab.dry:
            torch.cuda._sleep(BUSY_CYCLES)  # type: ignore[no-untyped-call]  # torch leaves it bare
        late.copy_(qkv)
        found = plan.attend(late)
    lab.synchronize()
    assert torch.equal(found, expected), "other bits than on the default stream"
    return {}


def two_streams(lab: Lab, shape: Shape) -> Facts:
    """Two batches that run side by side, each with a plan of its own, do not meet."""
    plans = [plan_of(lab, shape) for _ in range(2)]
    inputs = [qkv_of(lab, shape, seed=seed) for seed in range(2)]
    expected = [plan.attend(qkv) for plan, qkv in zip(plans, inputs, strict=True)]
    lab.synchronize()
    streams = [lab.side_stream() for _ in range(2)]
    found: list[tuple[int, Tensor]] = []
    for _ in range(2 if lab.dry else 20):
        for number, stream in enumerate(streams):
            with stream:
                found.append((number, plans[number].attend(inputs[number])))
    lab.synchronize()
    assert all(torch.equal(out, expected[number]) for number, out in found), "other bits than one after the other"
    return {"launches": len(found)}


def plan_of(lab: Lab, shape: Shape) -> AttentionPlan:
    """For the timed dtype, by the backend that is under test and no other."""
    return plan_attention(
        shape.rows(),
        sparse_pattern(shape.window),
        device=lab.device,
        dtype=lab.dtype,
        head_dim=shape.head_dim,
        backend=lab.backend,
    )


def qkv_of(lab: Lab, shape: Shape, seed: int = 0) -> Tensor:
    """(num_rows, 3, num_heads, head_dim)."""
    return lab.randn(shape.rows().num_rows, 3, shape.num_heads, shape.head_dim, seed=seed)
