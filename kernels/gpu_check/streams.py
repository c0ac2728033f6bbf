"""Stage 2, second part: the same bits from CUDA graphs, on a side stream, and on two streams at once."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from gpu_check.lab import Lab
from gpu_check.layer_parts import Part, attention, last_layer, norms
from gpu_check.shape import Shape
from gpu_check.stage import Case, Facts

REPLAYS = 100
BUSY_CYCLES = 20_000_000  # some ten milliseconds, for which the host runs ahead of a side stream


def cases(lab: Lab) -> Iterator[Case]:
    """For attention by each of the two kernels on tensor cores, for the last layer, and for norms."""
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
