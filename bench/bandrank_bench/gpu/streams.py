"""Stage 2, second part: the same bits from CUDA graphs, of whole batches too, on a side stream, and on two streams at
once.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from bandrank_bench.gpu.cross_encoder import SIZE, build, packed, request
from bandrank_bench.gpu.lab import Lab
from bandrank_bench.gpu.layer_parts import Part, attention, last_layer, norms
from bandrank_bench.gpu.shape import Shape
from bandrank_bench.gpu.stage import Case, Facts
from bandrank_kernels.windowed_attention.ops import sparse_pattern

REPLAYS = 100
BUCKET_BAR = 0.05  # of scores of the order of 1 after three layers in float16
BUSY_CYCLES = 20_000_000  # some ten milliseconds, for which the host runs ahead of a side stream


def cases(lab: Lab) -> Iterator[Case]:
    """For attention by each kernel on tensor cores, for the last layer, for norms, and for batches of a whole model."""
    narrow, wide = (
        Shape(30, window, 32, num_heads=2, num_candidates=4) if lab.dry else Shape(164, window, 32)
        for window in (4, 64)
    )
    tests: tuple[Callable[[Lab, Part], Facts], ...] = (graph, side_stream, two_streams)
    for part in (
        attention(lab, narrow),
        attention(lab, wide),
        last_layer(lab, narrow),
        norms(lab, narrow.rows().num_rows, narrow.hidden),
    ):
        for test in tests:
            yield Case(f"{test.__name__.replace('_', ' ')}, {part.name}", partial(test, lab, part))
    yield Case("batches of a whole model", partial(batches, lab))


def graph(lab: Lab, part: Part) -> Facts:
    """Replays on fresh numbers in the same place give what a launch gives."""
    call, other, inputs = part.prepare(), part.prepare(), part.draw(0)
    captured = lab.capture(lambda: [call(*inputs)])
    wrong = torch.zeros((), dtype=torch.int64, device=lab.device)
    replays = 2 if lab.dry else REPLAYS
    for seed in range(replays):
        _copy(inputs, part.draw(seed))
        captured.replay()
        wrong += (captured.outputs[0] != other(*inputs)).any()
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


def side_stream(lab: Lab, part: Part) -> Facts:
    """A launch waits for what its stream is busy with, and the host for nothing."""
    call, inputs = part.prepare(), part.draw(0)
    expected = call(*inputs)
    late = [torch.zeros_like(tensor) for tensor in inputs]
    with lab.side_stream():
        if not lab.dry:
            torch.cuda._sleep(BUSY_CYCLES)  # type: ignore[no-untyped-call]  # torch leaves it bare
        _copy(late, inputs)
        found = call(*late)
    lab.synchronize()
    assert torch.equal(found, expected), "other bits than on the default stream"
    return {}


def two_streams(lab: Lab, part: Part) -> Facts:
    """Two batches that run side by side, each with scratch of its own, do not meet."""
    calls, inputs = [part.prepare() for _ in range(2)], [part.draw(seed) for seed in range(2)]
    expected = [call(*tensors) for call, tensors in zip(calls, inputs, strict=True)]
    lab.synchronize()
    streams = [lab.side_stream() for _ in range(2)]
    found: list[tuple[int, Tensor]] = []
    for _ in range(2 if lab.dry else 20):
        for number, stream in enumerate(streams):
            with stream:
                found.append((number, calls[number](*inputs[number])))
    lab.synchronize()
    assert all(torch.equal(out, expected[number]) for number, out in found), "other bits than one after the other"
    return {"launches": len(found)}


def _copy(into: Sequence[Tensor], numbers: Sequence[Tensor]) -> None:
    for old, new in zip(into, numbers, strict=True):
        old.copy_(new)
