"""Compares the scores of one family's systems, then times the systems by turns."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch

from bandrank_bench import machine
from bandrank_bench.calibrate import Calibration, Sample
from bandrank_bench.cpu.agreement import Disagreement, check
from bandrank_bench.cpu.measure import measure
from bandrank_bench.families.checkpoints import Published
from bandrank_bench.families.infinity_peer import open_infinity
from bandrank_bench.families.pairs import pairs_of, writer_of
from bandrank_bench.families.peers import load_peers, logits_of
from bandrank_bench.families.results import FamilyResults
from bandrank_bench.ours import load
from bandrank_bench.output import say
from bandrank_bench.systems import Scores, System, dtypes, torch_precision
from bandrank_bench.workloads import WORKLOADS, Request, Workload, load_tokenizer

WARM_UP_ROUND, CHECK_ROUND = 1001, 1003  # not timed rounds, so with other texts
WARM_UP_PASSAGES, CHECKED_PASSAGES = 4, 6


def time_family(
    published: Published, checkpoint: Path, workloads: Sequence[Workload], rounds: int, *, environment: Path
) -> FamilyResults:
    """Times all systems on the workloads, once their scores agree. Leaves out a service whose scores differ from the
    reference; raises Disagreement for any other system.

    rounds: 0 for the family's own.  environment: where infinity is installed.
    """
    writer = writer_of(published, load_tokenizer(checkpoint))
    checked = WORKLOADS["W1"].request(writer, CHECK_ROUND).head(CHECKED_PASSAGES)
    reference = reference_scores(published, checkpoint, checked)
    samples: list[Sample] = []
    with ExitStack() as stack:
        say(f"{published.name}: loading")
        over_http, left_out = open_infinity(stack, checkpoint, environment)
        systems = [*load_peers(published, checkpoint), *open_ours(stack, checkpoint)]
        agreements = check(systems, checked, {"full": reference})
        for system in over_http:
            try:
                agreements += check([system], checked, {"full": reference})
            except Disagreement as disagreement:
                left_out[system.name] = str(disagreement)
            else:
                systems.append(system)
        calibration = Calibration()
        for workload in workloads:
            samples += measure(
                workload,
                systems,
                writer,
                rounds=rounds or published.rounds[workload.name],
                warm_up=workload.request(writer, WARM_UP_ROUND).head(WARM_UP_PASSAGES),
                calibration=calibration,
            )
    return FamilyResults(
        family=published.name,
        machine=machine.describe() | {"calibration product": calibration.describe()},
        around=writer.special_tokens,
        systems=[(system.name, system.precision, system.kind) for system in systems],
        calm_s=calibration.calm_s,
        samples=samples,
        agreements=agreements,
        left_out=left_out,
    )


def open_ours(stack: ExitStack, checkpoint: Path) -> Iterator[System]:
    """Opens bandrank in process in every precision; `stack` closes it."""
    for dtype in dtypes():
        precision = torch_precision(getattr(torch, dtype))
        score = stack.enter_context(load(checkpoint, dtype))
        yield System(f"bandrank {precision}", precision, "full", "in process", score)


def reference_scores(published: Published, checkpoint: Path, request: Request) -> Scores:
    """Scores of `transformers` in float32, pair by pair, without padding."""
    pairs = pairs_of(published, load_tokenizer(checkpoint))(request.query, request.passages)
    run = logits_of(published, checkpoint, torch.float32, attention="eager")
    return np.array([float(run(torch.tensor([ids]), None)) for ids in pairs], np.float32)
