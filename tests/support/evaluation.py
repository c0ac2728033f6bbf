"""A collection with a run and candidate lists, and the command that evaluates on it."""

import random
from pathlib import Path

from support.collections import write_collection, write_lines, write_run_lines
from support.models import random_text

from bandrank_training.__main__ import main

# d2 is relevant and in no run; q3 has no candidates; q4 has nothing to find; q9 is not judged.
DOCUMENTS = {f"d{number}": random_text(random.Random(number), 5 + number) for number in range(6)}
QUERIES = {f"q{number}": random_text(random.Random(number), 3) for number in range(1, 10)}
QRELS = {"q1": {"d1": 2, "d2": 1}, "q2": {"d0": 1, "d5": 0}, "q3": {"d1": 1}, "q4": {"d3": 0}}
RUN = {"q1": {"d0": 1.0, "d1": 3.0, "d4": 2.0}, "q2": {"d5": 2.0, "d4": 1.0, "d0": 1.0}, "q9": {"d0": 1.0}}


def write_judged(folder: Path) -> Path:
    """A folder with a collection, its run, and candidate lists."""
    write_collection(folder / "tiny", documents=DOCUMENTS, queries=QUERIES, qrels=QRELS)
    write_run_lines(folder / "bm25.test.trec.gz", RUN)
    write_lines(folder / "lists.tsv", "query-id\tcandidate-ids", "q1\td5 d1", "q2\td0", "q3\td0 d1 d4", "q8\td0")
    return folder


def evaluate(folder: Path, model: object, *more: object) -> int:
    arguments = ["evaluate", model, folder / "tiny", "--device", "cpu", "--out", folder / "out", *more]
    return main([str(argument) for argument in arguments])
