"""CUDA graphs: the launches of a call, recorded once and repeated at about the cost of one launch; and the buffers and
events with which its inputs are laid out while the device computes something else.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Event(Protocol):
    """A point in a stream's work, like `torch.cuda.Event`. One that was never recorded counts as reached."""

    def record(self) -> None:
        """Moves the event to the end of the work enqueued on the current stream."""

    def wait(self) -> None:
        """Makes work enqueued on the current stream from now on wait for the event."""

    def synchronize(self) -> None:
        """Makes the host wait for the event."""


@dataclass(frozen=True)
class Captured:
    """A recorded call. output: holds the result of a replay until another graph of the device is replayed.
    replay: enqueues the call on the current stream.  release: frees the graph; no replay may be running.
    """

    output: Tensor
    replay: Callable[[], None]
    release: Callable[[], None]


class GraphDevice(Protocol):
    """The operations of a device that a runner of graphs needs."""

    device: torch.device

    def active(self) -> AbstractContextManager[object]:
        """Makes this the current device."""

    def event(self) -> Event: ...

    def host_buffer(self, num_bytes: int) -> Tensor:
        """(num_bytes,) uint8 in host memory that the device can read."""

    def buffer(self, num_bytes: int) -> Tensor:
        """(num_bytes,) uint8 on the device."""

    def copy(self, to: Tensor, source: Tensor) -> None:
        """Enqueues a copy on the current stream."""

    def capture(self, call: Callable[[], Tensor]) -> Captured:
        """Records the launches of `call`, which must not depend on numbers on the device, nor allocate memory except
        through torch.

        Raises RuntimeError if that cannot be captured, torch.OutOfMemoryError among others.
        """

    def graph_bytes(self) -> int:
        """Bytes of device memory that the graphs hold."""


class CudaGraphs:
    """A GPU. All graphs share one memory pool, so that together they take about as much as the largest. So they must be
    replayed one after the other, and the output of one read before the next is replayed.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        with self.active():
            self._pool = torch.cuda.graph_pool_handle()
            # A separate stream, so that work on other streams is not recorded.
            self._capturing = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch leaves it bare

    def active(self) -> AbstractContextManager[object]:
        return torch.cuda.device(self.device)

    def event(self) -> Event:
        return torch.cuda.Event()  # type: ignore[no-untyped-call]  # likewise

    def host_buffer(self, num_bytes: int) -> Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)

    def buffer(self, num_bytes: int) -> Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8, device=self.device)

    def copy(self, to: Tensor, source: Tensor) -> None:
        to.copy_(source, non_blocking=True)

    def capture(self, call: Callable[[], Tensor]) -> Captured:
        graph = torch.cuda.CUDAGraph()
        self._capturing.wait_stream(torch.cuda.current_stream())
        try:
            # This context restores the current stream, which a failed capture does not.
            with torch.cuda.stream(self._capturing):
                call()  # loads kernels and makes libraries allocate workspaces, neither of which can be captured
                # Other threads may go on using CUDA meanwhile.
                with torch.cuda.graph(
                    graph, pool=self._pool, stream=self._capturing, capture_error_mode="thread_local"
                ):
                    output = call()
        finally:  # what an interrupted call has launched still reads its inputs
            torch.cuda.current_stream().wait_stream(self._capturing)
        return Captured(output, graph.replay, graph.reset)

    def graph_bytes(self) -> int:
        segments = torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]  # likewise
        return sum(segment["total_size"] for segment in segments if tuple(segment["segment_pool_id"]) == self._pool)
