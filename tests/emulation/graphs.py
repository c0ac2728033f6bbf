"""CUDA graphs, streams and events in the CPU's memory.

A capture records operators and launches with the tensors and addresses they were given. A replay runs them again in the
same memory, filled with NaN before, so that results depend on the inputs alone. Streams are lists of work: how soon
each runs is up to the device, within what events allow, so that a missing wait shows.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bandrank_kernels.graphs import Captured, Event
from bandrank_kernels.launch import Kernel, Launch
from bandrank_kernels.windowed_attention.cuda.tiles import UNUSED_TILE
from emulation.launches import run_here

Running = Literal["at once", "late"]
GARBAGE = UNUSED_TILE  # 32 bits of fresh memory: a launch skips such a tile, and no table has such a row


class Tape(TorchDispatchMode):
    """Records the operations that run while it is active; the device adds the launches."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[Callable[[], object]] = []
        self._outputs: list[Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError("operation not permitted when stream is capturing: the host waits for a number")
        kwargs = kwargs or {}
        with self:  # in inference mode torch does not decompose composite operators by itself
            if (parts := func.decompose(*args, **kwargs)) is not NotImplemented:
                return parts
        out = func(*args, **kwargs)
        before = {_storage(tensor) for tensor in _tensors((args, kwargs))}
        fresh = [tensor for tensor in _tensors(out) if _storage(tensor) not in before]
        if fresh:
            self._outputs += fresh
            if not func.__name__.startswith(("empty", "new_empty")):
                self.steps.append(lambda: _write(fresh, func(*args, **kwargs)))
        elif func._schema.is_mutable:  # all others give views, which need no replay
            self.steps.append(lambda: func(*args, **kwargs))
        return out

    def replay(self) -> None:
        """Runs the operations again, in the same memory."""
        self.poison()
        for step in self.steps:
            step()

    def poison(self) -> None:
        """Fills all tensors that the operations created with NaN, or -1 for integers."""
        for tensor in self._outputs:
            tensor.fill_(torch.nan if tensor.is_floating_point() else -1)


def _tensors(values: object) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _write(into: list[Tensor], out: object) -> None:
    for old, new in zip(into, _tensors(out), strict=True):
        old.copy_(new)


@dataclass(eq=False)
class Stream:
    """Work in order, of which the first `done` pieces have run."""

    work: list[Callable[[], object]] = field(default_factory=list)
    done: int = 0

    def run(self, end: int | None = None) -> None:
        """Runs those of the first `end` pieces of work that have not run yet."""
        end = len(self.work) if end is None else end
        while self.done < end:
            self.done += 1
            with torch.inference_mode():
                self.work[self.done - 1]()


@dataclass
class Point:
    """A point in a stream. As work of another stream it runs everything before that point first."""

    stream: Stream
    end: int

    def __call__(self) -> None:
        self.stream.run(self.end)


@dataclass(eq=False)
class RecordedEvent:
    """An event of a `RecordingDevice`."""

    device: "RecordingDevice"
    point: Point | None = None

    def record(self) -> None:
        self.point = Point(self.device.current, len(self.device.current.work))

    def wait(self) -> None:
        if self.point is not None:
            self.device.enqueue(self.point)

    def synchronize(self) -> None:
        if self.point is not None:
            self.point()


class RecordingDevice:
    """A GraphDevice.  fails: the error that captures raise, or None.  nodes: operations of the last graph."""

    device = torch.device("cpu")

    def __init__(self, running: Running = "at once") -> None:
        self.running = running
        self.main = Stream()
        self.replays = 0  # that have run
        self.fails: RuntimeError | None = None
        self.captures = 0  # that were tried
        self.released = 0
        self.nodes = 0
        self._current = threading.local()
        self._tape: Tape | None = None
        self._known: set[Kernel] = set()

    @property
    def current(self) -> Stream:
        """This thread's current stream."""
        stream: Stream = getattr(self._current, "stream", self.main)
        return stream

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        """Makes a stream this thread's current one inside the block."""
        before, self._current.stream = self.current, stream
        try:
            yield
        finally:
            self._current.stream = before

    def active(self) -> AbstractContextManager[object]:
        return nullcontext()

    def event(self) -> Event:
        return RecordedEvent(self)

    def host_buffer(self, num_bytes: int) -> Tensor:
        return torch.full((num_bytes // 4,), GARBAGE, dtype=torch.int32).view(torch.uint8)

    def buffer(self, num_bytes: int) -> Tensor:
        return self.host_buffer(num_bytes)

    def copy(self, to: Tensor, source: Tensor) -> None:
        self.enqueue(lambda: to.copy_(source))

    def enqueue(self, work: Callable[[], object]) -> None:
        """Enqueues work on the current stream, and runs it at once if that is how the device runs."""
        stream = self.current
        stream.work.append(work)
        if self.running == "at once":
            stream.run()

    def drain(self) -> None:
        """Runs all work that is left on the main stream."""
        self.main.run()

    def alternate(self, other: Stream) -> None:
        """Runs all work that is left on the main stream and another, one piece of each in turn."""
        while self.main.done < len(self.main.work) or other.done < len(other.work):
            for stream in (self.main, other):
                stream.run(min(stream.done + 1, len(stream.work)))

    def launch(self, request: Launch, device: torch.device) -> None:
        """Stands in for `bandrank_kernels.launch.launch`."""
        if self._tape is None:
            self._known.add(request.kernel)
            run_here(request, device)
            return
        if request.kernel not in self._known:
            raise RuntimeError("operation not permitted when stream is capturing: a kernel is loaded")
        self._tape.steps.append(lambda: run_here(request, device))

    def capture(self, call: Callable[[], Tensor]) -> Captured:
        self.captures += 1
        self.current.run()
        if self.fails is not None:
            raise self.fails
        call()
        tape = self._tape = Tape()
        try:
            with tape:
                output = call()
        finally:
            self._tape = None
        tape.poison()
        self.nodes = len(tape.steps)

        def replay() -> None:
            tape.replay()
            self.replays += 1

        return Captured(output, lambda: self.enqueue(replay), self._release)

    def graph_bytes(self) -> int:
        return 1000 * (self.captures - self.released)

    def _release(self) -> None:
        self.released += 1


class LateBranch:
    """A `Branch` whose work replays do as late as the waits for it allow, and never if nothing waits."""

    def __init__(self, device: RecordingDevice) -> None:
        self._device, self._steps, self._done = device, list[Callable[[], object]](), 0

    @contextmanager
    def fork(self) -> Iterator[None]:
        tape = self._device._tape or Tape()
        before, tape.steps = tape.steps, self._steps
        yield
        tape.steps = before

    def mark(self) -> Callable[[], None]:
        tape, end = self._device._tape or Tape(), len(self._steps)

        def wait() -> None:
            tape.steps += self._steps[self._done : end]
            self._done = max(self._done, end)

        return wait


class ExactProducts(TorchDispatchMode):
    """Computes matrix products in float64 and rounds once, so that their bits do not depend on the number of rows."""

    PRODUCTS = tuple(getattr(torch.ops.aten, name).default for name in ("mm", "bmm", "addmm"))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in self.PRODUCTS:
            return func(*(tensor.double() for tensor in args), **(kwargs or {})).to(args[-1].dtype)
        with self:
            if (parts := func.decompose(*args, **(kwargs or {}))) is not NotImplemented:
                return parts
        return func(*args, **(kwargs or {}))
