"""Batches replayed from CUDA graphs: one launch instead of a cross-encoder's forty-four.

A graph is captured for a bucket (`bandrank.models.buckets`). It reads its inputs from one buffer, which each batch
fills in one transfer.

In lines marked with @, tests plant mistakes (tests/emulation/README.md).
"""

import logging
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from bandrank.models.buckets import Buckets, Fitted
from bandrank.models.placement import is_out_of_memory
from bandrank_kernels import transfer
from bandrank_kernels.graphs import Captured, GraphDevice
from bandrank_kernels.staging import Staging

log = logging.getLogger(__name__)

# Usual requests of a cross-encoder need 144. A graph takes some hundred kilobytes of the driver's memory (estimated).
MAX_GRAPHS = 256
RETRY_S = 60.0  # until captures are tried again after memory ran out

Batch = TypeVar("Batch")


@dataclass(frozen=True)
class _Bucket:
    """Computes the batches of one bucket.

    inputs: bytes on the device for a batch's inputs.  run: enqueues the computation of the results of these inputs, and
    returns as many as the bucket holds.  release: frees the graph.
    """

    inputs: Tensor
    run: Callable[[], Tensor]
    release: Callable[[], None] = lambda: None


class GraphRunner(Generic[Batch]):
    """Computes batches by buckets, with CUDA graphs where they can be captured; for inference only.

    It may be called from several threads and streams; batches are computed one after the other.
    obstacle: the reason why no graphs are captured at present, or None.  graph_bytes: device memory of the graphs.
    """

    def __init__(
        self,
        buckets: Buckets[Batch],
        device: GraphDevice,
        *,
        max_graphs: int = MAX_GRAPHS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """max_graphs: the most graphs that are kept; the least recently used one is dropped first."""
        self._buckets, self._device, self._max_graphs, self._clock = buckets, device, max_graphs, clock
        self._graphs: OrderedDict[Hashable, _Bucket] = OrderedDict()
        self._lock = threading.Lock()
        with device.active():
            self._staging = Staging(device, buckets.num_bytes)
            self._inputs = device.buffer(buckets.num_bytes)
            self._idle = device.event()  # recorded behind each batch, whose inputs and outputs are free after it
        self.obstacle: str | None = None
        self._retry_at = math.inf
        self.graph_bytes = 0

    def __len__(self) -> int:
        """The number of graphs."""
        return len(self._graphs)

    def capture_usual(self, max_rows: int) -> None:
        """Captures the buckets of usual requests in advance, because a capture synchronises the device and frees unused
        memory. Stops at the first failure.

        max_rows: the most rows that a batch will have.
        """
        for fitted in self._buckets.usual(max_rows):
            try:
                self._compute(fitted)
            except torch.OutOfMemoryError as error:  # even without a graph; a request's batch would be split
                if self.obstacle is None:
                    self._give_up(error)
            if self.obstacle is not None:
                return

    def compute(self, batch: Batch, *, capture: bool = True) -> Tensor | None:
        """The batch's float32 results on the device, such as scores, or None for a batch that has no bucket.

        capture: False launches kernel by kernel instead, with the same bits.
        """
        fitted = self._buckets.fit(batch)
        return None if fitted is None else self._compute(fitted, capture=capture)

    @torch.inference_mode()
    def _compute(self, fitted: Fitted, *, capture: bool = True) -> Tensor:
        with self._lock, self._device.active():
            self._idle.wait()  # @idle-wait
            bucket = self._bucket(fitted) if capture else self._uncaptured(fitted)
            found = bucket.run()[: fitted.num_results]
            results = torch.empty(found.shape, device=self._device.device)
            self._device.copy(results, found)  # @results
            self._idle.record()  # @idle-record
        return results

    def _bucket(self, fitted: Fitted) -> _Bucket:
        """The bucket of the batch, with the batch's tables in its inputs."""
        if bucket := self._graphs.get(fitted.bucket):
            self._graphs.move_to_end(fitted.bucket)
            self._staging.refill(fitted.tables, bucket.inputs, fitted.shapes)  # @refill
            return bucket
        fresh = self._uncaptured(fitted)
        if self.obstacle is not None and self._clock() < self._retry_at:
            return fresh
        self._make_room()
        try:
            captured = self._device.capture(fresh.run)
        except RuntimeError as error:  # the batch is still computed without a graph
            self._give_up(error)
            return fresh
        self.obstacle = None
        self._graphs[fitted.bucket] = _replayed(fresh.inputs, captured)
        self.graph_bytes = self._device.graph_bytes()
        log.info("captured a CUDA graph", extra={"bucket": str(fitted.bucket)})
        return self._graphs[fitted.bucket]

    def _uncaptured(self, fitted: Fitted) -> _Bucket:
        inputs = self._inputs[: transfer.num_bytes(fitted.shapes)]
        self._staging.refill(fitted.tables, inputs, fitted.shapes)
        views = transfer.views(inputs, fitted.shapes)
        return _Bucket(inputs, lambda: fitted.compute(views))

    def _make_room(self) -> None:
        while len(self._graphs) >= self._max_graphs:
            self._idle.synchronize()
            self._graphs.popitem(last=False)[1].release()

    def _give_up(self, error: RuntimeError) -> None:
        """Stops capturing, since each attempt delays a request: for a while if memory ran out, otherwise for good.
        Existing graphs are still replayed.
        """
        self.obstacle = f"capture failed ({type(error).__name__}: {str(error).splitlines()[0]})"
        if _is_out_of_memory(error):
            self._retry_at = self._clock() + RETRY_S
            how_long, remedy = "for a minute", "a lower max_batch_rows leaves more memory"
        else:
            self._retry_at = math.inf
            how_long, remedy = "until the service is restarted", "report it"
        log.warning(
            "a CUDA graph could not be captured; batches of new sizes are launched kernel by kernel %s: %s, or set "
            "cuda_graphs to off",
            how_long,
            remedy,
            exc_info=error,
        )


def _replayed(inputs: Tensor, captured: Captured) -> _Bucket:
    def run() -> Tensor:
        captured.replay()
        return captured.output

    return _Bucket(inputs, run, captured.release)


def _is_out_of_memory(error: BaseException | None) -> bool:
    """Whether the error, or one that led to it, is a lack of memory: a failed capture raises another error."""
    return error is not None and (is_out_of_memory(error) or _is_out_of_memory(error.__cause__ or error.__context__))
