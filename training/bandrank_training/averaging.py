"""average: averages the weights of several models of one architecture, such as a start and a model trained from it. The
mean often ranks better than each of them, above all on collections that training did not see.

"Model soups" (Wortsman et al. 2022, arXiv 2203.05482); with a start among them, WiSE-FT (Wortsman et al. 2022, arXiv
2109.01903).
"""

import argparse
import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from torch import Tensor

from bandrank.models.loading import LoadedModel
from bandrank.models.scorer import Scorer
from bandrank_training.errors import BadInput
from bandrank_training.models import check_out, rebuilt, write_model
from bandrank_training.start import load_start


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument("out", metavar="FOLDER", type=Path, help="the folder to write, not one of the models'")
    parser.add_argument(
        "models",
        metavar="MODEL",
        nargs="+",
        help="folders of runs, or any models that can be served; the mean has the settings and the fusion of the first",
    )
    parser.add_argument(
        "--weights", nargs="+", type=float, metavar="W", help="one for each model, in order (default: equal weights)"
    )


def run(args: argparse.Namespace) -> int:
    """Writes the checkpoint. Raises BadCheckpoint, or BadInput for models that cannot be averaged."""
    if len(args.models) < 2:
        raise BadInput(f"{args.models[0]} is one model; average takes the folder to write, and then two models or more")
    models = [load_start(name) for name in args.models]
    check_out(args.out, models)
    weights = args.weights or [1.0] * len(models)
    if len(weights) != len(models):
        raise BadInput(f"--weights: {len(weights)} of them for {len(models)} models")
    if not 0 < sum(weights) < math.inf or min(weights) < 0:
        raise BadInput(f"--weights must be at least 0, and not all 0, got {weights}")
    write_model(replace(models[0], scorer=averaged(models, weights)), args.out)
    print(f"the mean of {len(models)} models is in {args.out}")  # noqa: T201 - the result
    return 0


def averaged(models: Sequence[LoadedModel], weights: Sequence[float]) -> Scorer:
    """Returns a scorer with the first model's settings and the weighted mean of all models' weights.

    Raises BadInput if the models differ in architecture, settings or tokenizer.
    """
    first = models[0]
    for other in models[1:]:
        if other.scorer.architecture != first.scorer.architecture:
            raise BadInput(f"{other.name} is a {other.scorer.architecture}, {first.name} a {first.scorer.architecture}")
        ours, theirs = asdict(first.scorer.config), asdict(other.scorer.config)
        if differing := sorted(name for name in ours if ours[name] != theirs[name]):
            raise BadInput(f"{other.name} differs from {first.name} in {', '.join(differing)}")
        if other.tokenizer.to_str() != first.tokenizer.to_str():
            raise BadInput(f"{other.name} has another tokenizer than {first.name}")
    shares = [weight / sum(weights) for weight in weights]
    states = [model.scorer.state_dict() for model in models]
    mean: dict[str, Tensor] = {
        name: sum((share * state[name] for share, state in zip(shares, states, strict=True)), 0 * tensor)
        for name, tensor in states[0].items()
    }
    return rebuilt(first.scorer, first.scorer.config, mean, source="the mean")
