"""The demo: BM25 finds passages, the service re-ranks them over HTTP, and the gain is measured on judged questions.

    python loadtests/demo.py                          the small collection of tests/data/demo
    python loadtests/demo.py --data FOLDER            any collection in BEIR layout (or BANDRANK_DEMO_DATA=FOLDER)
    python loadtests/demo.py --url http://host:8000   a service that runs already; else one is started and stopped

It prints what it measured, gain or loss; the exit status says only whether everything ran.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Collection as Ids
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
from demo_collection import SPLITS, Collection, DemoError, FirstStage, load_collection
from tqdm import tqdm  # type: ignore[import-untyped]  # ships no types

from bandrank_bench.service import free_port, running
from bandrank_training.arguments import positive
from bandrank_training.measures import measure

SMALL_COLLECTION = Path(__file__).resolve().parent.parent / "tests" / "data" / "demo"
CUTOFF = 10  # of the lists that are shown
MEASURE = "nDCG@10"
SMALL_CORPUS = 1000  # passages; in a smaller corpus 50 candidates are most of it, and BM25 has sorted out nothing


@dataclass(frozen=True)
class Outcome:
    """A question: ids before and after re-ranking, nDCG of both, seconds of its request (0.0 without candidates)."""

    question_id: str
    before: list[str]
    after: list[str]
    ndcg_before: float
    ndcg_after: float
    latency_s: float

    @property
    def gain(self) -> float:
        """The change in nDCG by re-ranking; negative if it did harm."""
        return self.ndcg_after - self.ndcg_before


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the demo and returns the exit status: 0, or 1 with the reason on stderr."""
    options = parse_options(argv)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]  # passages hold letters no ASCII terminal shows
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwinds, so that the service is stopped too
    try:
        run(options)
    except (DemoError, RuntimeError) as error:  # the latter of a service that does not start
        print(f"\ndemo failed: {error}", file=sys.stderr)
        return 1
    except httpx.HTTPError as error:
        print(f"\ndemo failed: the service did not answer: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ndemo interrupted", file=sys.stderr)
        return 130
    return 0


def parse_options(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line, with BANDRANK_DEMO_DATA as the default of --data."""
    parser = argparse.ArgumentParser(description="Re-rank BM25 candidates through bandrank and measure the change.")
    data = Path(os.environ.get("BANDRANK_DEMO_DATA") or SMALL_COLLECTION)
    parser.add_argument("--data", type=Path, default=data, help="collection in BEIR layout (default: %(default)s)")
    parser.add_argument("--split", help=f"judgements to use (default: the first present of {', '.join(SPLITS)})")
    parser.add_argument("--questions", type=positive, default=100, help="how many to sample (default: %(default)s)")
    parser.add_argument("--candidates", type=positive, help="BM25 candidates per question (default: 50, or 20 of few)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sample (default: %(default)s)")
    parser.add_argument("--url", help="use the service at this URL instead of starting one")
    return parser.parse_args(argv)


def run(options: argparse.Namespace) -> None:
    """Reads the collection, searches, re-ranks, and prints the gain. Raises DemoError and httpx.HTTPError."""
    collection = load_collection(options.data, options.split)
    question_ids = collection.sample(options.questions, options.seed)
    depth = options.candidates or (50 if len(collection.passages) >= SMALL_CORPUS else 20)
    print(f"collection: {collection.name}, {len(collection.passages)} passages")
    print(
        f"questions: {len(question_ids)} of the {len(collection.questions)} judged ones"
        f" of split {collection.split} (seed {options.seed})"
    )
    first_stage = FirstStage(collection.passages)
    print(f"first stage: BM25, top {depth}", flush=True)

    before: dict[str, list[str]] = {}
    after: dict[str, list[str]] = {}
    latencies_s = []
    with service(options) as url, httpx.Client(base_url=url, timeout=120.0, trust_env=bool(options.url)) as client:
        # On a terminal the bar moves; in a log file it writes a line now and then.
        for question_id in tqdm(question_ids, unit="question", mininterval=0.1 if sys.stderr.isatty() else 10.0):
            question = collection.questions[question_id]
            ids = before[question_id] = first_stage.search(question, depth)
            started = time.perf_counter()
            after[question_id] = rerank(client, question, ids, collection.passages) if ids else []
            latencies_s.append(time.perf_counter() - started)
    judgements = {question_id: collection.judgements[question_id] for question_id in question_ids}
    values_before, values_after = measure(before, judgements), measure(after, judgements)
    outcomes = [
        Outcome(name, before[name], after[name], values_before[name][MEASURE], values_after[name][MEASURE], latency_s)
        for name, latency_s in zip(question_ids, latencies_s, strict=True)
    ]
    show_examples(outcomes, collection)
    report(outcomes, collection)


def rerank(client: httpx.Client, question: str, ids: Sequence[str], passages: Mapping[str, str]) -> list[str]:
    """The ids in the service's order. Raises DemoError unless the answer is a permutation of what was sent."""
    candidates = [{"id": passage_id, "text": passages[passage_id]} for passage_id in ids]
    response = client.post("/rerank", json={"query": question, "candidates": candidates})
    if response.status_code != 200:
        raise DemoError(f"POST /rerank answered {response.status_code}: {response.text[:500]}")
    try:
        answer = [(result["index"], result["id"]) for result in response.json()["results"]]
    except (ValueError, KeyError, TypeError) as error:
        raise DemoError(f"POST /rerank answered 200 with a body of another form: {response.text[:500]}") from error
    if sorted(answer) != list(enumerate(ids)):
        raise DemoError(f"POST /rerank answered 200 with no permutation of the candidates: {response.text[:500]}")
    return [passage_id for _, passage_id in answer]


@contextlib.contextmanager
def service(options: argparse.Namespace) -> Iterator[str]:
    """The URL of a ready service: the one named by --url, or one that is started here and stopped at the end."""
    if options.url:
        status = httpx.get(f"{options.url.rstrip('/')}/readyz", timeout=10.0).status_code
        if status != httpx.codes.OK:
            raise DemoError(f"{options.url}/readyz answered {status}, expected 200")
        print(f"service: {options.url}", flush=True)
        yield options.url
        return
    port = free_port()
    command = [sys.executable, "-m", "bandrank", "serve", "--host", "127.0.0.1", "--port", str(port)]
    print(f"service: http://127.0.0.1:{port}, loading the model ...", flush=True)
    with (
        tempfile.TemporaryDirectory(prefix="bandrank-demo-") as folder,
        running(command, os.environ, Path(folder) / "service.log", port=port, ready="/readyz") as started,
    ):
        yield started.url


def show_examples(outcomes: Sequence[Outcome], collection: Collection) -> None:
    """Prints the lists of the question that gained most and, if any lost, of the one that lost most."""
    best, worst = max(outcomes, key=lambda o: o.gain), min(outcomes, key=lambda o: o.gain)
    width = max(shutil.get_terminal_size((120, 24)).columns, 80)
    for what, outcome in [("gained", best)] + [("lost", worst)] * (worst.gain < 0):
        print(f"\nThe question that {what} most, {MEASURE} {outcome.ndcg_before:.2f} -> {outcome.ndcg_after:.2f}:")
        print(f"  {clip(collection.questions[outcome.question_id], width - 2)}\n")
        relevant = {p for p in outcome.before if collection.is_relevant(outcome.question_id, p)}
        print("\n".join(side_by_side(outcome.before, outcome.after, collection.passages, relevant, width)))


def side_by_side(
    before: Sequence[str], after: Sequence[str], passages: Mapping[str, str], relevant: Ids[str], width: int
) -> list[str]:
    """The heads of both rankings as lines of at most `width` characters: * relevant, ^ 3 moved up by 3, v 3 down."""
    column = (width - 16) // 2
    lines = [f"rank  {'  before: BM25':<{column}}  moved    after: bandrank   (* relevant)"]
    old_rank = {passage_id: rank for rank, passage_id in enumerate(before)}
    for rank, (left, right) in enumerate(zip(before[:CUTOFF], after[:CUTOFF], strict=True)):
        moved = old_rank[right] - rank
        arrow = f"^ {moved}" if moved > 0 else f"v {-moved}" if moved < 0 else "="
        texts = [clip(f"{'*' if p in relevant else ' '} {passages[p]}", column) for p in (left, right)]
        lines.append(f"{rank + 1:>4}  {texts[0]:<{column}}  {arrow:<5}  {texts[1]}")
    return lines


def clip(text: str, width: int) -> str:
    """The text on one line, without control characters, cut to `width` characters."""
    line = "".join(c if c.isprintable() else " " for c in text)
    return line if len(line) <= width else line[: width - 2] + ".."


def report(outcomes: Sequence[Outcome], collection: Collection) -> None:
    """Prints the means over ALL sampled questions, including those for which the first stage returns nothing."""
    count = len(outcomes)
    before, after = sum(o.ndcg_before for o in outcomes) / count, sum(o.ndcg_after for o in outcomes) / count
    better, worse = sum(o.gain > 0 for o in outcomes), sum(o.gain < 0 for o in outcomes)
    missed = sum(not any(collection.is_relevant(o.question_id, p) for p in o.before) for o in outcomes)
    print(f"\n{MEASURE} over {count} questions: BM25 {before:.4f} -> bandrank {after:.4f} ({after - before:+.4f})")
    print(f"  {better} better, {worse} worse, {count - better - worse} unchanged; BM25 missed the answer of {missed}")
    sent = [o for o in outcomes if o.before]
    if sent:
        latencies_ms = [1000 * o.latency_s for o in sent]
        p50, p95, p99 = np.percentile(latencies_ms, (50, 95, 99), method="inverted_cdf")  # the nearest rank
        mean = sum(len(o.before) for o in sent) / len(sent)
        print(f"latency of POST /rerank, one request at a time, {mean:.1f} candidates on average:")
        print(f"  p50 {p50:.1f} ms   p95 {p95:.1f} ms   p99 {p99:.1f} ms")


if __name__ == "__main__":
    sys.exit(main())
