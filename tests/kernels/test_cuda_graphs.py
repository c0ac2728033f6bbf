"""Captures on a GPU's streams, which are emulated here: tests/models/test_graphs_on_gpu.py has real ones."""

from contextlib import nullcontext

import pytest
import torch
from emulation.graphs import Point, RecordingDevice, Stream
from torch import Tensor

from bandrank_kernels.graphs import CudaGraphs


class CudaStream(Stream):
    """An emulated stream with the method of `torch.cuda.Stream` that captures call."""

    def wait_stream(self, other: Stream) -> None:
        """Makes later work wait for what is enqueued on the other stream."""
        self.work.append(Point(other, len(other.work)))


def test_a_warm_up_that_fails_has_read_its_inputs_before_they_are_written_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the warm-up launched before it failed runs late, on another stream."""
    device = RecordingDevice("late")
    device.main = CudaStream()
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "Stream", CudaStream)
    monkeypatch.setattr(torch.cuda, "stream", device.on)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: device.current)
    for name in ("CUDAGraph", "graph_pool_handle"):
        monkeypatch.setattr(torch.cuda, name, lambda: None)
    inputs, seen = torch.zeros(9), torch.ones(9)

    def fails() -> Tensor:
        device.copy(seen, inputs)
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(torch.OutOfMemoryError):
        CudaGraphs(device.device).capture(fails)
    device.copy(inputs, torch.ones(9))
    device.main.run()

    assert not seen.any()
