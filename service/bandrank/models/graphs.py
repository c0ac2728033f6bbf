"""Packed batches replayed from CUDA graphs: one launch instead of the fifty-three of a MiniLM-L6.

A graph is captured for a bucket (`Capacity`). All read ids, positions, types and tables of tiles from one buffer, which
each batch fills in one transfer. Unused entries of the tables are marked. Unused rows hold token 0, and no other row
attends to them.
"""

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bandrank.models.layers.packing import PackedInputs, PackedTokens
from bandrank.models.usual import usual_layouts
from bandrank_kernels import transfer
from bandrank_kernels.graphs import Captured, GraphDevice
from bandrank_kernels.staging import Staging
from bandrank_kernels.windowed_attention import AttentionPlan, Capacity, PackedRows

log = logging.getLogger(__name__)

# Larger batches keep the GPU busy for longer than the host needs to launch: 16,384 rows of a MiniLM-L6 would take an
# H100 a millisecond, and 50 launches the host less than half of one (both estimated). This is the size of a bucket.
MOST_ROWS = 21_392
# Usual requests have 138 of them. A graph takes some hundred kilobytes of the driver's memory (estimated).
MOST_GRAPHS = 256

PlanRows = Callable[[PackedRows, Capacity], AttentionPlan]


@dataclass(frozen=True)
class _Bucket:
    """Computes the batches of one bucket.

    inputs: bytes on the device for a batch's inputs.  run: enqueues the computation of the scores of these
    inputs, and returns as many scores as fit the bucket.  release: frees the graph.
    """

    inputs: Tensor
    run: Callable[[], Tensor]
    release: Callable[[], None] = lambda: None


class GraphRunner:
    """Scores packed batches by buckets, with CUDA graphs where they can be captured; for inference only.

    It may be called from several threads and streams; batches are computed one after the other.
    obstacle: the reason why no more graphs are captured, or None.  graph_bytes: device memory that the graphs hold.
    """

    def __init__(
        self,
        compute: Callable[[PackedInputs], Tensor],
        plan: PlanRows,
        device: GraphDevice,
        *,
        most_rows: int = MOST_ROWS,
        most_graphs: int = MOST_GRAPHS,
    ) -> None:
        """compute: computes a batch's scores on the device, (num_candidates,).  plan: makes its plan for a capacity.
        most_rows: the most rows of a batch that `score` takes.  most_graphs: the most graphs that are kept; the least
        recently used one is dropped first.
        """
        self._compute, self._plan, self._device = compute, plan, device
        self._most_rows, self._most_graphs = most_rows, most_graphs
        self._graphs: OrderedDict[Hashable, _Bucket] = OrderedDict()
        self._lock = threading.Lock()
        with device.active():
            self._staging = Staging(device, self._input_bytes())
            self._inputs = device.buffer(self._input_bytes())
            self._idle = device.event()  # recorded behind the last batch, when its inputs and outputs are free again
        self.obstacle: str | None = None
        self.graph_bytes = 0

    def __len__(self) -> int:
        """The number of graphs."""
        return len(self._graphs)

    def capture_usual(self) -> None:
        """Captures the buckets of usual requests, so that none of these waits for it: a capture synchronises the device
        and gives unused memory back.
        """
        for rows in usual_layouts(self._most_rows):
            if self.obstacle is None:
                self.score(PackedTokens(np.zeros((3, rows.num_rows), np.int64), rows))

    @torch.inference_mode()
    def score(self, packed: PackedTokens, *, capture: bool = True) -> Tensor | None:
        """(num_candidates,) float32 scores on the device, or None for a batch of more than `most_rows` rows.

        capture: False launches kernel by kernel instead, with the same bits.
        """
        capacity = Capacity.of(packed.rows)
        if capacity.num_rows > self._most_rows:
            return None
        plan = self._plan(packed.rows, capacity)
        tables = [padded(packed, capacity.num_rows), *plan.host_tables]
        with self._lock, self._device.active():
            self._idle.wait()  # @idle-wait
            bucket = self._bucket(tables, plan, capacity) if capture else self._uncaptured(tables, plan, capacity)
            scores = torch.empty(packed.rows.num_candidates, device=self._device.device)
            self._device.copy(scores, bucket.run()[: len(scores)])  # @scores
            self._idle.record()  # @idle-record
        return scores

    def _bucket(self, tables: Sequence[Tensor], plan: AttentionPlan, capacity: Capacity) -> _Bucket:
        """The bucket of the batch, with the batch's tables in its inputs."""
        key = capacity.num_rows, capacity.num_candidates, plan.signature  # @bucket
        if bucket := self._graphs.get(key):
            self._graphs.move_to_end(key)
            self._staging.refill(tables, bucket.inputs)  # @refill
            return bucket
        fresh = self._uncaptured(tables, plan, capacity)
        if self.obstacle is not None:
            return fresh
        self._make_room()
        try:
            captured = self._device.capture(fresh.run)
        except RuntimeError as error:  # the batch is still computed without a graph
            self._give_up(error)
            return fresh
        self._graphs[key] = _replayed(fresh.inputs, captured)
        self.graph_bytes = self._device.graph_bytes()
        log.info("captured a CUDA graph", extra={"rows": capacity.num_rows, "candidates": capacity.num_candidates})
        return self._graphs[key]

    def _uncaptured(self, tables: Sequence[Tensor], plan: AttentionPlan, capacity: Capacity) -> _Bucket:
        inputs = self._inputs[: transfer.num_bytes(tables)]
        self._staging.refill(tables, inputs)
        numbers, *of_plan = transfer.views(inputs, tables)

        def run() -> Tensor:
            # Scratch is allocated at each run, so that a graph's is in the memory that all graphs share.
            bound = plan.bind(of_plan)  # @bind
            return self._compute(PackedInputs(numbers, bound, capacity.num_candidates))

        return _Bucket(inputs, run)

    def _make_room(self) -> None:
        while len(self._graphs) >= self._most_graphs:
            self._idle.synchronize()
            self._graphs.popitem(last=False)[1].release()

    def _give_up(self, error: RuntimeError) -> None:
        """Stops capturing, since each attempt would delay a request; graphs that exist are still replayed."""
        self.obstacle = f"capture failed ({type(error).__name__}: {str(error).splitlines()[0]})"
        remedy = "a lower max_batch_rows leaves more memory" if _is_out_of_memory(error) else "report it"
        log.warning(
            "a CUDA graph could not be captured; batches of new sizes are launched kernel by kernel until the service "
            "is restarted: %s, or set cuda_graphs to off",
            remedy,
            exc_info=error,
        )

    def _input_bytes(self) -> int:
        """Bytes for the largest batch: ids, positions, types, two tables of tiles of 32 bytes, with fewer than four
        tiles for each row, and counters of sixteen heads.
        """
        return self._most_rows * (3 * 8 + 4 * 32 + 16 * 4)


def _replayed(inputs: Tensor, captured: Captured) -> _Bucket:
    def run() -> Tensor:
        captured.replay()
        return captured.output

    return _Bucket(inputs, run, captured.release)


def padded(packed: PackedTokens, num_rows: int) -> Tensor:
    """(3, num_rows) ids, positions and token types, with token 0 at position 0 in unused rows."""
    fill = np.zeros((3, num_rows - packed.rows.num_rows), np.int64)
    return torch.from_numpy(np.concatenate([packed.numbers, fill], 1))  # @padding


def _is_out_of_memory(error: BaseException | None) -> bool:
    """Whether memory ran out, also if that caused the error: a capture that fails raises another error."""
    return error is not None and (
        isinstance(error, torch.OutOfMemoryError) or _is_out_of_memory(error.__cause__ or error.__context__)
    )
