"""export: writes a compact checkpoint, in int8 and float16, as small as those that ship with the service."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from bandrank.models import checkpoint
from bandrank.models.compact import TooLarge
from bandrank.models.loading import LoadedModel
from bandrank.models.shipped import names
from bandrank_training.dev import DevSet
from bandrank_training.errors import BadInput
from bandrank_training.models import check_out, tokenizer_file
from bandrank_training.start import load_start
from bandrank_training.tuning import tune

DEFAULT_INT8 = ("embeddings.word",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument("model", metavar="MODEL", help="the folder of a run, or any model that can be served")
    parser.add_argument("out", metavar="FOLDER", type=Path, help="the folder to write, not the model's own")
    parser.add_argument(
        "--int8",
        nargs="*",
        default=DEFAULT_INT8,
        metavar="PART",
        help=f"matrices whose name contains a PART become int8, row by row (default: {' '.join(DEFAULT_INT8)})",
    )
    parser.add_argument(
        "--share", choices=names(), metavar="NAME", help="leave out the weights that this shipped checkpoint also has"
    )
    parser.add_argument(
        "--tune",
        type=Path,
        metavar="GROUPS",
        help="judged groups to fit the fusion's weight to, and what turns scores into logits",
    )


def run(args: argparse.Namespace) -> int:
    """Writes the checkpoint and prints its size. Raises BadCheckpoint, BadGroups, BadInput."""
    model = load_start(args.model)
    check_out(args.out, [model])
    _check_parts(args.int8, model)
    if args.tune:
        tuned = tune(model, DevSet.read(args.tune))
        model = tuned.model
        for weight, measure in tuned.by_weight.items():
            print(f"fusion weight {weight:g}: dev nDCG@10 {measure:.4f}")  # noqa: T201
        print(f"scores times {tuned.scale:.4g}, shifted by {tuned.shift:.3f}")  # noqa: T201
    try:
        checkpoint.save(
            model.scorer,
            args.out,
            tokenizer=tokenizer_file(model),
            fusion=model.fusion,
            int8=tuple(args.int8),
            share=args.share,
        )
    except TooLarge as error:
        raise BadInput(f"{args.model}: {error}; name it in --int8 if it is a finite matrix") from error
    size = sum(file.stat().st_size for file in args.out.iterdir())
    print(f"{args.out}: {size / 1e6:.1f} MB")  # noqa: T201 - the result
    return 0


def _check_parts(parts: Sequence[str], model: LoadedModel) -> None:
    """Raises BadInput for a PART that no matrix has in its name, unless it is the default."""
    matrices = [name for name, weight in model.scorer.state_dict().items() if weight.dim() == 2]
    for part in parts:
        if part not in DEFAULT_INT8 and not any(part in name for name in matrices):
            raise BadInput(f"--int8 {part}: no matrix has this in its name; there are {', '.join(matrices[:4])}, ...")
