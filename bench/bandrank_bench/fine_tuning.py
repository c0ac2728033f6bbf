"""What `fine-tune` gains on a collection, by the number of judged queries: docs/fine-tuning.md.

Run as `python -m bandrank_bench fine-tuning COLLECTION...`, with folders in BEIR layout that the start was not trained
on. In each, some judged queries are held back, which share no relevant document with any other query; fine-tuning gets
the first of the others, in random order. Results are kept in --work, by the weights of the start, the processor and the
settings, so that a killed run can resume.
"""

import argparse
import json
import random
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

import torch

from bandrank.dtypes import FloatName
from bandrank.models.checkpoint import write_whole
from bandrank.models.placement import DTYPES
from bandrank_bench import machine
from bandrank_bench.output import bullets, say, table, write_page
from bandrank_bench.systems import has_native_bf16
from bandrank_training.collection import open_collection, write_qrels
from bandrank_training.contents import digest, of_model
from bandrank_training.dev import DevSet
from bandrank_training.fine_tuning import BEFORE, MOST_TOKENS, Task, fine_tune
from bandrank_training.mining import mine
from bandrank_training.mining_recipe import MiningRecipe, Source
from bandrank_training.placement import Placement
from bandrank_training.scoring import score_offline
from bandrank_training.significance import difference_p
from bandrank_training.start import load_start

DEPTH = 50  # BM25 candidates of a query held back
HELD_BACK = "held-back"
INTRODUCTION = """# What fine-tuning on your own queries gains

How much nDCG@10 improves when {start} is fine-tuned on the first judged queries of a collection that it was not trained
on. Written by `python -m bandrank_bench fine-tuning`, which runs `python -m bandrank_training fine-tune`.

Before and after are nDCG@10 of BM25's best {depth}, re-ranked, over other queries of the same collection that were held
back and have a relevant document among these. No query held back shares a relevant document with one that was trained
on. The p is that of a paired t test."""
LEGEND = """Kept: a fifth of the judged queries, at most 100, choose between the scorer before training, after it, and
the mean of both. Minutes: from the collection to the checkpoint, mining included."""


@dataclass(frozen=True)
class Point:
    """A fine-tuning. queries: the number of judged queries.  before, after: nDCG@10 of each query held back.
    minutes: from the collection to the checkpoint.  kept: the weights that the queries set apart chose.
    """

    collection: str
    queries: int
    before: Sequence[float]
    after: Sequence[float]
    minutes: float
    kept: str

    @property
    def gains(self) -> list[float]:
        """The gain of each query held back."""
        return [after - before for before, after in zip(self.before, self.after, strict=True)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Fine-tunes, measures, and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("collections", nargs="+", type=Path, metavar="COLLECTION")
    parser.add_argument("--split", default="train", help="qrels/SPLIT.tsv (default: train)")
    parser.add_argument("--queries", type=int, nargs="+", default=[100, 300, 1000], metavar="N")
    parser.add_argument("--held-back", type=int, default=250, help="how many queries of each collection (default: 250)")
    parser.add_argument("--start", default="sparse-w4")
    parser.add_argument("--dtype", choices=DTYPES, default="int8", help="the dtype to score in (default: int8)")
    parser.add_argument("--work", type=Path, default=Path("build/fine-tuning"))
    parser.add_argument("--page-only", action="store_true", help="write the page from the results so far")
    parser.add_argument("--out", type=Path, default=Path("docs/fine-tuning.md"))
    args = parser.parse_args(arguments)
    start = of_model(load_start(args.start))
    points = [point for folder in args.collections for point in curve(folder, start, args)]
    write_page(args.out, report(points, start, args))
    return 0


def curve(folder: Path, start: str, args: argparse.Namespace) -> Iterable[Point]:
    """Yields the points of a collection. start: the digest of the start's weights."""
    settings = digest([start, args.dtype, args.split, str(args.held_back), machine.describe()["CPU"]])
    work, placement = args.work / settings / folder.resolve().name, Placement(torch.device("cpu"), DTYPES[args.dtype])
    available = prepare(folder, args.split, work, args.queries, args.held_back)
    lists = work / "held-back.jsonl.gz"
    if not lists.exists():
        source, teachers = Source(str(work), HELD_BACK), {BEFORE: args.start}
        mine(
            MiningRecipe(
                str(lists),
                (source,),
                teachers=teachers,
                depth=DEPTH,
                hard=DEPTH,
                random=0,
                found_only=True,
                max_tokens=MOST_TOKENS,
            ),
            placement,
        )
    dev = DevSet.read(lists)
    before = dev.by_query([group.scores[BEFORE] for group in dev.groups])
    for count in args.queries:
        if count > available:
            say(f"{folder.name}: {available} queries are left to fine-tune on, not {count}")
            continue
        done = work / f"{count}.json"
        if not done.exists():
            if args.page_only:
                continue
            say(f"{folder.name}: {count} queries")
            began, out = time.monotonic(), work / str(count)
            precision: FloatName = "bfloat16" if has_native_bf16() else "float32"
            chosen, _ = fine_tune(Task(str(work), f"first-{count}", args.start, out, count, precision), placement)
            minutes = (time.monotonic() - began) / 60
            scorer = score_offline(load_start(str(out)), placement, max_candidate_tokens=MOST_TOKENS)
            after = dev.by_query(dev.scores(scorer))
            point = Point(folder.resolve().name, count, before, after, minutes, chosen.name)
            write_whole(done, json.dumps(asdict(point)).encode())
        point = Point(**json.loads(done.read_text(encoding="utf-8")))
        say(
            f"{point.collection}, {count}: {fmean(point.before):.4f}, {fmean(point.after):.4f}, {point.minutes:.1f} min"
        )
        yield point


def prepare(folder: Path, split: str, work: Path, counts: Sequence[int], held_back: int) -> int:
    """Writes a collection with the same texts and divided judgements: those held back, and the first `count` others for
    each of `counts` that there are enough queries for.

    Returns how many queries there are to fine-tune on.
    """
    qrels = {
        query: relevant
        for query, labels in open_collection(folder).qrels(split).items()
        if (relevant := {document: label for document, label in labels.items() if label > 0})
    }
    work.mkdir(parents=True, exist_ok=True)
    for name in ("corpus", "queries"):
        for file in folder.glob(f"{name}.jsonl*"):
            (work / file.name).unlink(missing_ok=True)
            (work / file.name).symlink_to(file.resolve())
    apart, others = divided(qrels, held_back)
    first = {f"first-{count}": others[:count] for count in counts if count <= len(others)}
    for name, queries in {HELD_BACK: apart, **first}.items():
        write_qrels(work, name, {query: qrels[query] for query in queries})
    return len(others)


def divided(qrels: Mapping[str, Mapping[str, int]], held_back: int) -> tuple[list[str], list[str]]:
    """Returns queries to hold back, and all queries that share no relevant document with these, in random order."""
    queries = sorted(qrels)
    random.Random(0).shuffle(queries)
    apart = queries[:held_back]
    known = {document for query in apart for document in qrels[query]}
    return apart, [query for query in queries[held_back:] if known.isdisjoint(qrels[query])]


def report(points: Sequence[Point], start: str, args: argparse.Namespace) -> str:
    """The page. start: the digest of the start's weights."""
    rows = [
        [
            point.collection,
            f"{point.queries:,}",
            f"{len(point.before)}",
            f"{fmean(point.before):.3f}",
            f"{fmean(point.after):.3f}",
            f"{fmean(point.gains):+.3f}",
            f"{difference_p(point.gains):.2g}",
            point.kept,
            f"{point.minutes:.0f}",
        ]
        for point in points
    ]
    head = ["collection", "judged", "held back", "before", "after", "change", "p", "kept", "minutes"]
    facts = machine.describe() | {"dtype of scores": args.dtype, "weights of the start": start}
    return (
        "\n\n".join([INTRODUCTION.format(start=args.start, depth=DEPTH), bullets(facts), table(head, rows), LEGEND])
        + "\n"
    )
