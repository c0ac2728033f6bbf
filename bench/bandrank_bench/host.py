"""The host's part of a request on a GPU, without one: from cached token ids to inputs ready to be copied to the device.

Run as `python -m bandrank_bench host`. The batch is that of a sparse cross-encoder with heads of 32 numbers in float16,
planned for the bucket that a CUDA graph replays. Meanwhile a GPU would compute the batch before, so only the time
that the host takes beyond that is lost.
"""

import argparse
import math
import random
import time
import timeit
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

import torch

from bandrank.engine.clients import ITSELF
from bandrank.engine.engine import GPU_BATCH_ROWS
from bandrank.engine.lanes import ScoreLane, collate
from bandrank.engine.task_queue import TaskQueue
from bandrank.engine.tasks import AnySlice, Task
from bandrank.engine.tickets import Ticket
from bandrank.models.architectures.cross_encoder import CrossEncoder, CrossEncoderConfig
from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.ids import pack_ids, unpack_ids
from bandrank.models.layers import passages
from bandrank.models.layers.packing import pack
from bandrank.models.layers.patterns import sparse
from bandrank.models.prepared import prepare
from bandrank.models.ragged import Ragged
from bandrank_bench import machine
from bandrank_bench.output import bullets, table, write_page
from bandrank_kernels import transfer
from bandrank_kernels.windowed_attention import Capacity
from bandrank_kernels.windowed_attention.cuda.plan import CudaPlan

CPU = torch.device("cpu")
HOPPER = (9, 0)
QUERY_TOKENS = 11
SHAPES = {"W0": (10, 75), "W1": (100, 75), "short": (1000, 9)}  # candidates, and token ids of each with its [SEP]
CONFIG = CrossEncoderConfig(
    encoder=EncoderConfig(30522, 64, 1, 2, 64, 512), cls_id=101, sep_id=102, pattern=sparse(4), max_tokens=512
)
REPEATS, CALLS_S = 15, 0.02  # samples of each stage, each the mean of so many seconds of calls
AIM_US = 250  # of W1

Stages = dict[str, Callable[[], object]]


def stages(num_candidates: int, num_tokens: int) -> Stages:
    """The stages of a request with this many candidates, in order, each as a repeatable call."""
    rng = random.Random(0)
    scorer = CrossEncoder(CONFIG)
    template, encoder = scorer.candidate_template, CONFIG.encoder
    lane = ScoreLane("host", prepare(scorer, device=CPU, dtype=torch.float32), Ragged.from_ids)
    queue = TaskQueue(max_waiting_rows=math.inf, max_wait_s=math.inf, clock=time.monotonic)
    query, *pieces = (
        pack_ids([rng.randrange(1000, encoder.vocab_size) for _ in range(length)])
        for length in (QUERY_TOKENS, *[num_tokens - 1] * num_candidates)
    )
    ids, _ = template.apply_all(pieces)

    def queued() -> list[AnySlice]:
        rows = scorer.rows_of(QUERY_TOKENS, ids.lengths.tolist())
        queue.put(Task(lane, unpack_ids(query), ids, rows, time.monotonic(), Ticket(ITSELF, math.inf)))
        return queue.take_batch(GPU_BATCH_ROWS)

    slices = queued()
    batch, _ = collate(slices, Ragged.from_ids)
    parts = passages.split(batch, CONFIG.max_tokens)
    packed = pack(parts.batch, CONFIG.pattern, cls_id=CONFIG.cls_id, sentence_token=None)

    def planned() -> CudaPlan:
        rows = replace(packed.rows)  # without what it has kept
        return CudaPlan(
            rows,
            CONFIG.pattern,
            device=CPU,
            dtype=torch.float16,
            head_dim=encoder.head_dim,
            capability=HOPPER,
            capacity=Capacity.of(rows),
        )

    plan = planned()
    tables = [torch.from_numpy(packed.padded), *plan.host_tables]
    buffer = torch.empty(transfer.num_bytes(tables), dtype=torch.uint8)
    return {
        "template: pieces to token ids": lambda: template.apply_all(pieces),
        "queue: put and taken": queued,
        "batch: one of all slices": lambda: collate(slices, Ragged.from_ids),
        "passages: of long candidates": lambda: passages.split(batch, CONFIG.max_tokens),
        "rows: ids, positions, types": lambda: pack(
            parts.batch, CONFIG.pattern, cls_id=CONFIG.cls_id, sentence_token=None
        ),
        "plan: tiles of both kernels": planned,
        "buffer: padded and laid out": lambda: transfer.write(tables, buffer),
    }


def measure(stages: Stages) -> dict[str, float]:
    """The median microseconds of each stage."""
    measured = {}
    for name, stage in stages.items():
        stage()
        number = max(1, round(CALLS_S / min(timeit.repeat(stage, number=1, repeat=3))))
        measured[name] = median(timeit.repeat(stage, number=number, repeat=REPEATS)) / number * 1e6
    return measured


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks-host.md"))
    options = parser.parse_args(arguments)
    measured = {name: measure(stages(*shape)) for name, shape in SHAPES.items()}
    write_page(options.out, page(measured))
    return 0


def page(measured: Mapping[str, Mapping[str, float]]) -> str:
    """The page in Markdown."""
    head = [f"{count} x {num_tokens}" for count, num_tokens in SHAPES.values()]
    names = [*measured["W1"]]
    rows = [[name, *(f"{times[name]:.0f}" for times in measured.values())] for name in names]
    rows.append(["together", *(f"{sum(times.values()):.0f}" for times in measured.values())])
    parts = [
        "# The host's part of a request",
        "What the host does for a request before a GPU can compute it, measured without a GPU: microseconds of each "
        "stage, from cached token ids to inputs in the buffer from which they are copied to the device. Each number is "
        f"the median of {REPEATS} samples. The columns are the number of candidates, and of token ids in each; the "
        f"query has {QUERY_TOKENS}. The aim is {AIM_US} us for 100 x 75.\n\n"
        "Written by `python -m bandrank_bench host`.",
        bullets(machine.describe()),
        table(["stage, us", *head], rows),
    ]
    return "\n\n".join(parts) + "\n"
