"""pairs: makes groups from pairs of scored documents, as published for distillation (Hofstaetter et al. 2020)."""

import argparse
from collections.abc import Iterator
from pathlib import Path

from tqdm import tqdm

from bandrank_training.collection import BadCollection, numbered_lines, open_collection
from bandrank_training.groups import Group, write_groups


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument(
        "file", type=Path, help="lines of score, score, query id, relevant id and other id, tab-separated"
    )
    parser.add_argument("collection", help="its queries and documents: a folder in BEIR layout or ir_datasets:ID")
    parser.add_argument("--teacher", default="teacher", help="the scores' name in the groups")
    parser.add_argument("--out", type=Path, required=True, help="the file of groups to write, .jsonl or .jsonl.gz")


def run(args: argparse.Namespace) -> int:
    """Converts the file."""
    lines = tqdm(read_pairs(args.file, args.collection, args.teacher), desc=args.file.name, unit="pair")
    print(f"{write_groups(args.out, lines)} groups in {args.out}")  # noqa: T201 - the result
    return 0


def read_pairs(path: Path, collection: str, teacher: str) -> Iterator[Group]:
    """Yields a group of two candidates for each line. Raises BadCollection for a damaged line or an unknown query."""
    queries = open_collection(collection).queries()
    for number, line in numbered_lines(path):
        try:
            relevant_score, other_score, query_id, relevant, other = line.rstrip("\r\n").split("\t")
            scores = [float(relevant_score), float(other_score)]
            if query_id not in queries:
                raise ValueError(f"there is no query {query_id!r}")  # noqa: TRY301
            group = Group(collection, queries[query_id], [relevant, other], [1, 0], {teacher: scores})
        except ValueError as error:
            expected = "expected score, score, query id, relevant id, other id, with tabs between"
            raise BadCollection(f"{path}, line {number}: {expected}: {error}") from error
        yield group
