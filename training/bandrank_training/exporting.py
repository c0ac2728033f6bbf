"""export: a checkpoint in few bytes, float16 and int8 rows, as those that ship with the service."""

import argparse
from pathlib import Path

from bandrank.models import checkpoint
from bandrank_training.models import tokenizer_file
from bandrank_training.start import load_start


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument("model", metavar="MODEL", help="the folder of a run, or any model that can be served")
    parser.add_argument("out", metavar="FOLDER", type=Path, help="where to; not the model's own folder")
    parser.add_argument(
        "--int8",
        nargs="*",
        default=["embeddings.word"],
        metavar="PART",
        help="parts of names of the matrices whose rows become int8 (default: embeddings.word)",
    )


def run(args: argparse.Namespace) -> int:
    """Writes the folder and prints its size. Raises BadCheckpoint."""
    model = load_start(args.model)
    checkpoint.save(model.scorer, args.out, tokenizer=tokenizer_file(model), fusion=model.fusion, int8=tuple(args.int8))
    size = sum(file.stat().st_size for file in args.out.iterdir())
    print(f"{args.out}: {size / 1e6:.1f} MB")  # noqa: T201 - the answer
    return 0
