"""Shared by tests of kernels on a GPU: the device, the reason why there is none, and assertions about launches."""

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from bandrank_kernels.launch import cuda_obstacle

GPU = torch.device("cuda", 0)
OBSTACLE = cuda_obstacle(GPU) if torch.cuda.is_available() else "torch sees no GPU"
BUSY_CYCLES = 100_000_000  # some fifty milliseconds, in which a host starts a batch

needs_gpu = pytest.mark.skipif(OBSTACLE is not None, reason=str(OBSTACLE))

Launched = Callable[[], Sequence[Tensor]]


def capture(launched: Launched) -> tuple[Sequence[Tensor], torch.cuda.CUDAGraph]:
    """Launches once, captures a second launch, and returns the tensors that replays write, and the graph."""
    launched()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = launched()
    return outputs, graph


def assert_replays(launched: Launched, *inputs: Tensor) -> None:
    """Asserts that two replays, before each of which `inputs` are reversed in place, give the same bits as launches."""
    outputs, graph = capture(launched)
    for _ in range(2):
        for tensor in inputs:
            tensor.copy_(tensor.flip(0))
        graph.replay()
        assert_same_bits(outputs, launched())


def assert_runs_on_the_current_stream(launched: Callable[[Tensor], Sequence[Tensor]], given: Tensor) -> None:
    """Asserts that a launch waits for its turn on a busy side stream, and that the host waits for nothing."""
    expected = launched(given)
    late = torch.zeros_like(given)
    stream = torch.cuda.Stream(GPU)  # type: ignore[no-untyped-call]  # torch leaves it bare
    stream.wait_stream(torch.cuda.current_stream(GPU))
    with torch.cuda.stream(stream), awaiting_nothing():
        late.copy_(given)
        actual = launched(late)
    stream.synchronize()
    assert_same_bits(actual, expected)


@contextmanager
def awaiting_nothing() -> Iterator[None]:
    """Keeps the current stream busy, and fails if the host waits for it meanwhile."""
    torch.cuda._sleep(BUSY_CYCLES)  # type: ignore[no-untyped-call]  # torch leaves it bare
    try:
        with warnings.catch_warnings(action="ignore"):  # torch warns that this mode is a prototype
            torch.cuda.set_sync_debug_mode("error")
        yield
        assert not torch.cuda.current_stream(GPU).query()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@contextmanager
def poisoned() -> Iterator[None]:
    """Fills memory that torch leaves unset with NaN, so that what a kernel does not write shows."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        assert math.isnan(float(torch.empty(1, device=GPU))), "poison does not work here"
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def assert_same_bits(actual: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    for one, other in zip(actual, expected, strict=True):
        assert torch.equal(one, other)
