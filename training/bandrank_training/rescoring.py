"""score: adds a scorer's scores to groups, to distil from them or to train a scorer that adds to them."""

import argparse
from collections.abc import Iterator
from dataclasses import replace
from itertools import tee
from pathlib import Path

from tqdm import tqdm

from bandrank_training.arguments import positive
from bandrank_training.batches import read_documents
from bandrank_training.collection import numbered_lines
from bandrank_training.errors import BadInput
from bandrank_training.groups import Group, read_groups, write_groups
from bandrank_training.placement import Placement
from bandrank_training.scoring import OfflineScorer, Question, score_offline
from bandrank_training.start import load_start

MAX_TOKENS = 256


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument("groups", metavar="GROUPS", type=Path, help="a file that `mine` wrote")
    parser.add_argument("model", metavar="MODEL", help="a folder, a hub id, or the name of a shipped checkpoint")
    parser.add_argument("out", metavar="OUT", type=Path, help="the file of groups to write, with the scores added")
    parser.add_argument("--name", help="the scores' name in the file (default: the last part of MODEL)")
    parser.add_argument(
        "--max-tokens",
        type=positive,
        default=MAX_TOKENS,
        help=f"the most tokens to read of a candidate (default: {MAX_TOKENS})",
    )
    Placement.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Writes the groups. Raises BadGroups, BadCollection, BadCheckpoint, or BadInput for a name that is taken."""
    name = args.name or Path(args.model).absolute().name
    scorer = score_offline(load_start(args.model), Placement.of(args), max_candidate_tokens=args.max_tokens)
    count = write_groups(args.out, rescored(args.groups, scorer, name))
    print(f"{count} groups in {args.out}, with scores of {name}")  # noqa: T201 - the result
    return 0


def rescored(path: Path, scorer: OfflineScorer, name: str) -> Iterator[Group]:
    """Yields the file's groups, each with the scorer's scores under `name`."""
    texts, total = read_documents([path]), sum(1 for _ in numbered_lines(path))
    groups, again = tee(read_groups(path))
    questions = (Question(g.query, [texts[g.collection, candidate] for candidate in g.candidates]) for g in again)
    progress = tqdm(scorer.score(questions), name, total, unit="group")
    for group, scores in zip(groups, progress, strict=True):
        if name in group.scores:
            raise BadInput(f"{path} has scores of {name} already; choose another --name")
        yield replace(group, scores=group.scores | {name: scores})
