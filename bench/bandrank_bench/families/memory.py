"""Measures how much memory a request adds to a warm process, by the tokens of the request. Linux only.

Each system runs in its own process, on requests of growing length: what one request leaves allocated, the next, larger
one reuses.
"""

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import torch

from bandrank.dtypes import DtypeName
from bandrank_bench.families.checkpoints import Published
from bandrank_bench.families.pairs import writer_of
from bandrank_bench.families.peers import plain_transformers
from bandrank_bench.ours import load
from bandrank_bench.output import say
from bandrank_bench.proc import sizes
from bandrank_bench.systems import Score, has_native_bf16
from bandrank_bench.workloads import QUERY_TOKENS, Request, Workload, load_tokenizer

OURS, THEIRS = "bandrank", "transformers, sorted"
DOCUMENT, CANDIDATES = "one document", "100 candidates"
NUM_CANDIDATES, CANDIDATE_TOKENS = 100, (75, 150, 300)
DOCUMENT_SHARES = (8, 4, 2, 1)  # divide the longest document that the model takes


@dataclass(frozen=True)
class Point:
    """A request. tokens: of all its pairs.  added_bytes: at the peak."""

    tokens: int
    added_bytes: int

    @property
    def mb_per_thousand(self) -> float:
        """Megabytes per 1,000 tokens."""
        return self.added_bytes / self.tokens / 1e3


@dataclass(frozen=True)
class Growth:
    """The memory that requests of one kind added in one system, shortest first."""

    family: str
    system: str
    kind: str
    points: Sequence[Point]

    @property
    def of_quarter(self) -> float | None:
        """The longest request's megabytes per 1,000 tokens, divided by those of the one a quarter as long."""
        longest = self.points[-1]
        quarter = min(self.points, key=lambda point: abs(point.tokens - longest.tokens / 4))
        return longest.mb_per_thousand / quarter.mb_per_thousand if quarter.added_bytes > 0 else None


def measure_memory(published: Published, checkpoint: Path) -> list[Growth]:
    """Measures what documents and lists of candidates add, in our process and in one of plain transformers."""
    growths = []
    for system in (OURS, THEIRS):
        for kind, lengths in _requests(published).items():
            say(f"{published.name} memory: {system}, {kind}")
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
                points = process.submit(probe, published, checkpoint, system, lengths).result()
            growths.append(Growth(published.name, system, kind, points))
    return growths


def _requests(published: Published) -> dict[str, list[list[int]]]:
    """By kind, the tokens of each request's candidates: pairs' for documents, texts' for lists of candidates."""
    longest = published.most_tokens
    return {
        DOCUMENT: [[longest // share] for share in DOCUMENT_SHARES],
        CANDIDATES: [[tokens] * NUM_CANDIDATES for tokens in CANDIDATE_TOKENS],
    }


def probe(published: Published, checkpoint: Path, system: str, requests: Sequence[Sequence[int]]) -> list[Point]:
    """Measures requests in this process, which should be new. requests: the tokens of their candidates."""
    writer = writer_of(published, load_tokenizer(checkpoint))

    def request(number: int, lengths: Sequence[int]) -> Request:
        around = QUERY_TOKENS + writer.special_tokens if len(lengths) == 1 else 0
        workload = Workload(f"memory {number}", "", 1, lambda _: [length - around for length in lengths])
        return workload.request(writer, number)

    with ExitStack() as stack:
        score = _open(stack, published, checkpoint, system)
        _ask(score, request(0, [64, 64]))
        points, before = [], sizes("self", "status")["VmRSS"]
        for number, lengths in enumerate(requests, 1):
            asked = request(number, lengths)
            Path("/proc/self/clear_refs").write_text("5")  # resets the peak
            _ask(score, asked)
            peak = sizes("self", "status")["VmHWM"]
            points.append(Point(asked.total_tokens, max(0, peak - before)))
    return points


def _open(stack: ExitStack, published: Published, checkpoint: Path, system: str) -> Score:
    dtype: DtypeName = "bfloat16" if has_native_bf16() else "float32"
    if system == OURS:
        return stack.enter_context(load(checkpoint, dtype))
    return plain_transformers(published, checkpoint, getattr(torch, dtype))


def _ask(score: Score, request: Request) -> None:
    score(request.query, request.passages)
