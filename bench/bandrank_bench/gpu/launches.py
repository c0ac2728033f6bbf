"""Profiles one served request with torch: how often each kernel runs, for how long and on how many registers, and for
how long the device idles.
"""

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from bandrank.models.batch import ScoreBatch
from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.layers.patterns import FULL, sparse
from bandrank.models.prepared import PreparedScorer
from bandrank_bench.gpu import cached
from bandrank_bench.gpu.lab import Lab
from bandrank_bench.gpu.stages import Case, Facts
from bandrank_bench.gpu.whole_model import DRY_LENGTHS, DRY_SIZE, LENGTHS, SIZE, WINDOW, build, request
from bandrank_kernels.windowed_attention import AttentionPattern

WARM_REQUESTS = 3
TAKEN = ("registers per thread", "shared memory", "blocks per SM", "est. achieved occupancy %")
DEVICE_KINDS = {"kernel", "gpu_memcpy", "gpu_memset"}
NAME_LENGTH = 80

Event = Mapping[str, Any]
Request = tuple[PreparedScorer, ScoreBatch]


def cases(lab: Lab) -> Iterator[Case]:
    """A case for each shape of request."""
    for name in DRY_LENGTHS if lab.dry else ("passages", "164", "4086"):
        yield Case(f"request: {name}", partial(traced, lab, name, partial(packed_request, lab, name, sparse(WINDOW))))
        if name == "passages":
            full = partial(packed_request, lab, name, FULL)
            yield Case(f"request: {name}, full attention", partial(traced, lab, name, full))
    size, count = (DRY_SIZE, cached.DRY_CANDIDATES) if lab.dry else (SIZE, cached.NUM_CANDIDATES)
    yield Case(f"request: {count} cached", partial(traced, lab, "cached", partial(cached_request, lab, size, count)))


def packed_request(lab: Lab, name: str, pattern: AttentionPattern, *, graphs: bool = True) -> Request:
    """A cross-encoder, and a request of these lengths."""
    size, lengths = (DRY_SIZE, DRY_LENGTHS[name]) if lab.dry else (SIZE, LENGTHS[name])
    return build(lab, size, pattern, graphs=graphs)[1], request(lengths)


def cached_request(lab: Lab, size: EncoderConfig, count: int) -> Request:
    """A MixEncoder, and a request of candidates whose representations are stored."""
    return cached.build(lab, size, graphs=True), cached.request(size, count)


@torch.inference_mode()
def traced(lab: Lab, name: str, prepare: Callable[[], Request]) -> Facts:
    """Profiles one request as the service runs it. Raises RuntimeError if the profiler saw no kernel."""
    prepared, batch = prepare()
    lab.require_gpu()
    for _ in range(WARM_REQUESTS):
        prepared.score(batch)
    lab.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        prepared.score(batch)
        lab.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    return {"lengths": name, **summary(events)}


def summary(events: Sequence[Event]) -> Facts:
    """Returns the microseconds from the first to the last event on the device, and those in which none ran; and for
    each kernel by name, the longest first, launches, microseconds and resources.

    Raises RuntimeError if there are no events.
    """
    ran = sorted((event for event in events if event.get("cat") in DEVICE_KINDS), key=lambda event: float(event["ts"]))
    if not ran:
        raise RuntimeError("the profiler saw nothing on the device")
    start, busy_until, idle = float(ran[0]["ts"]), float(ran[0]["ts"]), 0.0
    kernels: dict[str, dict[str, Any]] = {}
    for event in ran:
        begin, took = float(event["ts"]), float(event["dur"])
        idle += max(0.0, begin - busy_until)
        busy_until = max(busy_until, begin + took)
        known = {key: event["args"][key] for key in TAKEN if key in event.get("args", {})}
        entry = kernels.setdefault(str(event["name"])[:NAME_LENGTH], {"launches": 0, "us": 0.0, **known})
        entry["launches"] += 1
        entry["us"] = round(entry["us"] + took, 3)
    longest_first = dict(sorted(kernels.items(), key=lambda item: -item[1]["us"]))
    return {
        "device_us": round(busy_until - start, 3),
        "idle_us": round(idle, 3),
        "launches": len(ran),
        "kernels": longest_first,
    }
