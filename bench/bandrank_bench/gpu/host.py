"""Where the host's time goes in a request that a GPU computes: its steps, and what the cheapest calls cost on this
machine.
"""

import os
import platform
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from statistics import median
from typing import Any, TypeVar

import numpy as np
import torch

from bandrank.models import cached_buckets, packed_buckets, prepared
from bandrank.models.architectures import cross_encoder
from bandrank.models.graphs import GraphRunner
from bandrank.models.layers import passages
from bandrank.models.layers.lexical import Lexical
from bandrank.models.layers.patterns import sparse
from bandrank_bench import machine
from bandrank_bench.gpu import cached
from bandrank_bench.gpu.lab import Lab
from bandrank_bench.gpu.launches import Request, cached_request, packed_request
from bandrank_bench.gpu.stages import Case, Facts
from bandrank_bench.gpu.whole_model import SIZE, WINDOW
from bandrank_kernels import transfer
from bandrank_kernels.graphs import CudaGraphs
from bandrank_kernels.launch import Launch
from bandrank_kernels.row_norms import cuda as norms
from bandrank_kernels.row_norms.addend import Addend
from bandrank_kernels.staging import Staging
from bandrank_kernels.windowed_attention.cuda import plan

REQUESTS, WARM_REQUESTS = 50, 5
SAMPLES, SAMPLE_CALLS = 15, 20
COPIED_BYTES = 1_536_000  # 1,000 representations of 384 numbers in float32

Target = tuple[Any, str, str]  # an object, the name of a function in it, and the name of the step that it is
Result = TypeVar("Result")


def cases(lab: Lab) -> Iterator[Case]:
    """Costs of single calls, then requests from graphs, then one that is launched."""
    yield Case("single calls", partial(single_calls, lab))
    yield Case("passages, served", partial(measured, lab, partial(_passages, lab, graphs=True)))
    yield Case("cached, served", partial(measured, lab, partial(_cached, lab)))
    yield Case("passages, launched", partial(measured, lab, partial(_passages, lab, graphs=False)))


def _passages(lab: Lab, *, graphs: bool) -> Request:
    lab.require_gpu()
    return packed_request(lab, "passages", sparse(WINDOW), graphs=graphs)


def _cached(lab: Lab) -> Request:
    lab.require_gpu()
    return cached_request(lab, SIZE, cached.NUM_CANDIDATES)


def targets() -> list[Target]:
    """The functions that are steps of a request, by the modules and classes in which they are looked up."""
    return [
        (passages, "split", "split into passages"),
        (cross_encoder, "pack", "pack"),
        (packed_buckets.PackedBuckets, "fit", "fit to bucket"),
        (cached_buckets.CachedBuckets, "fit", "fit to bucket"),
        (plan.CudaPlan, "__init__", "plan"),
        (Lexical, "ask", "evidence of words"),
        (Staging, "refill", "staging, rest"),
        (transfer, "write", "write to pinned memory"),
        (CudaGraphs, "copy", "copies, enqueued"),
        (torch.cuda.Event, "record", "events"),
        (torch.cuda.Event, "wait", "events"),
        (torch.cuda.Event, "synchronize", "events, awaited"),
        (torch.cuda.CUDAGraph, "replay", "graph launch"),
        (plan.CudaPlan, "attend", "attention, rest"),
        (plan.CudaPlan, "attend_cls", "attention, rest"),
        (norms, "plan", "norms, planned"),
        (norms, "launch", "norms, rest"),
        (Launch, "call", "launches by cupy"),
        (Launch, "call_early", "launches by the driver"),
        (GraphRunner, "compute", "runner, rest"),
        (prepared, "to_host", "fetch, enqueued"),
    ]


class Steps:
    """Measures steps that call each other: the time of each without that of the steps within it."""

    def __init__(self) -> None:
        self._requests: list[tuple[Mapping[str, float], Mapping[str, int]]] = []
        self._within: list[float] = []  # microseconds of the steps within each step under way
        self._start()

    def _start(self) -> None:
        self._own: defaultdict[str, float] = defaultdict(float)
        self._calls: defaultdict[str, int] = defaultdict(int)

    @contextmanager
    def tapping(self, targets: Sequence[Target]) -> Iterator[None]:
        """Inside the block each call of these functions is measured."""
        with ExitStack() as stack:
            for owner, name, step in targets:
                original = getattr(owner, name)
                stack.callback(setattr, owner, name, original)
                setattr(owner, name, self._measured(original, step))
            yield

    def request(self, call: Callable[[], Result]) -> Result:
        """Measures a request, from its start to its end on the host."""
        self._start()
        result = self._measured(call, "rest")()
        self._requests.append((self._own, self._calls))
        return result

    def _measured(self, function: Callable[..., Result], step: str) -> Callable[..., Result]:
        @wraps(function)
        def measured(*args: object, **kwargs: object) -> Result:
            self._within.append(0.0)
            started = time.perf_counter_ns()
            try:
                return function(*args, **kwargs)
            finally:
                took = (time.perf_counter_ns() - started) / 1e3
                self._own[step] += took - self._within.pop()
                self._calls[step] += 1
                if self._within:
                    self._within[-1] += took

        return measured

    @property
    def facts(self) -> Facts:
        """Median microseconds of each step, their calls in the last request, and the median and least of all steps."""
        whole = [sum(own.values()) for own, _ in self._requests]
        _, calls = self._requests[-1]
        steps = {step: round(median(own[step] for own, _ in self._requests), 1) for step in calls}
        return {
            "host_us": round(median(whole), 1),
            "least_host_us": round(min(whole), 1),
            "steps_us": steps,
            "calls": dict(calls),
        }


@torch.inference_mode()
def measured(lab: Lab, make: Callable[[], Request]) -> Facts:
    """Microseconds of each step until a request's scores are on their way, with the card idle before, and of the wait
    until they have arrived. Raises AssertionError if a graph is asked for and not replayed.
    """
    count, steps, waits = 2 if lab.dry else REQUESTS, Steps(), []
    with steps.tapping(targets()):
        scorer, batch = make()
        for _ in range(WARM_REQUESTS):
            scorer.begin(batch)()
        for _ in range(count):
            arriving = steps.request(lambda: scorer.begin(batch))
            started = time.perf_counter()
            arriving()
            waits.append((time.perf_counter() - started) * 1e6)
    facts = steps.facts | {"wait_us": round(median(waits), 1)}

    # Made again: a graph holds the functions with which it was captured.
    scorer, batch = make()
    for _ in range(WARM_REQUESTS):
        scorer.begin(batch)()
    facts["host_us, steps not measured"] = _alone_us(lab, lambda: scorer.begin(batch), count)
    if not isinstance(scorer.replay, str):
        assert scorer.replay.obstacle is None, scorer.replay.obstacle
        (graph,) = scorer.replay._graphs.values()
        facts["graph launch alone, us"] = _alone_us(lab, graph.run, count)
    return facts


def _alone_us(lab: Lab, call: Callable[[], object], count: int) -> float:
    """Median microseconds of the host in one call, with the card idle before."""
    took = []
    for _ in range(count):
        lab.synchronize()
        started = time.perf_counter()
        call()
        took.append((time.perf_counter() - started) * 1e6)
    lab.synchronize()
    return round(median(took), 2)


def _each_us(lab: Lab, call: Callable[[], object]) -> float:
    """Median microseconds of the host in one of several calls in a row."""
    call()
    took = []
    for _ in range(2 if lab.dry else SAMPLES):
        lab.synchronize()
        started = time.perf_counter()
        for _ in range(SAMPLE_CALLS):
            call()
        took.append((time.perf_counter() - started) * 1e6 / SAMPLE_CALLS)
    lab.synchronize()
    return round(median(took), 2)


@torch.inference_mode()
def single_calls(lab: Lab) -> Facts:
    """The machine, and the microseconds of its host in calls that do next to nothing, or one known thing."""
    calls = {**_on_host(), **({} if lab.dry else _on_card(lab))}
    return {
        "cpu": machine.describe()["CPU"],
        "usable cpus": len(os.sched_getaffinity(0)),
        "torch threads": torch.get_num_threads(),
        "load": os.getloadavg()[0],
        "system": platform.platform(),
        "us": {name: _each_us(lab, call) for name, call in calls.items()},
    }


def _on_host() -> dict[str, Callable[[], object]]:
    def count() -> None:
        number = 0
        while number < 1000:
            number += 1

    def nothing() -> None:
        pass

    def call() -> None:
        for _ in range(1000):
            nothing()

    ten, of_torch = np.ones(10), torch.ones(10)
    source, target = (np.ones(COPIED_BYTES, np.uint8) for _ in range(2))
    return {
        "Python: counting to 1,000": count,
        "Python: 1,000 calls": call,
        "clock": time.perf_counter_ns,
        "numpy: a sum of 10 numbers": lambda: ten + ten,
        "numpy: a copy of 1.5 MB": lambda: np.copyto(target, source),
        "torch: a sum of 10 numbers": lambda: of_torch + of_torch,
    }


def _on_card(lab: Lab) -> dict[str, Callable[[], object]]:
    event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch leaves its types bare
    stream: Any = torch.cuda.Stream(lab.device)  # type: ignore[no-untyped-call]  # likewise
    ten, source = lab.randn(10), np.ones(COPIED_BYTES, np.uint8)
    pinned, landing = torch.empty(COPIED_BYTES, dtype=torch.uint8, pin_memory=True), lab.randn(COPIED_BYTES // 2)
    few = torch.empty(100, dtype=lab.dtype, pin_memory=True)
    memory, room = pinned.numpy(), landing.view(torch.uint8)
    one_node = lab.capture(lambda: ten.add_(1))
    rows, weight = lab.randn(8, SIZE.hidden_size), lab.randn(SIZE.hidden_size)
    addends = [Addend(rows), Addend(rows)]

    def in_device() -> None:
        with torch.cuda.device(lab.device):
            pass

    def in_stream() -> None:
        with torch.cuda.stream(stream):
            pass

    return {
        "numpy: a copy of 1.5 MB to pinned memory": lambda: np.copyto(memory, source),
        "event: recorded": event.record,
        "event: waited for by the stream": event.wait,
        "event: synchronised with, once past": event.synchronize,
        "device: made current": in_device,
        "stream: made current": in_stream,
        "stream: looked up": lambda: torch.cuda.current_stream(lab.device).cuda_stream,
        "torch: a sum of 10 numbers on the card": lambda: ten + ten,
        "torch: 10 numbers of the card, empty": lambda: torch.empty_like(ten),
        "torch: 100 numbers of pinned memory, empty": lambda: torch.empty_like(few, device="cpu", pin_memory=True),
        "torch: 1.5 MB to the card": lambda: room.copy_(pinned, non_blocking=True),
        "torch: 10 numbers from the card": lambda: few[:10].copy_(ten, non_blocking=True),
        "graph of one kernel": one_node,
        "our kernel for norms": lambda: norms.norm_of_sum(addends, weight, weight, 1e-12),
    }
