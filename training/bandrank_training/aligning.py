"""align: rotates the vectors of a bi-encoder towards those of another, which can then be trained to give the same ones.

The rotation keeps all cosines. It solves the orthogonal Procrustes problem (Schönemann 1966), and becomes a dense layer
at the end of the model. Vectors longer than the other model's are first reduced to its length by their principal
components.
"""

import argparse
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from bandrank.models.architectures import BiEncoder
from bandrank.models.layers.dense import DenseConfig
from bandrank.models.loading import LoadedModel
from bandrank_training.arguments import positive
from bandrank_training.collection import open_collection
from bandrank_training.dense import DenseIndex, Vectors
from bandrank_training.errors import BadInput
from bandrank_training.models import check_out, rebuilt, write_model
from bandrank_training.placement import Placement
from bandrank_training.start import load_start

MAX_TOKENS = 256  # of each text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument("model", metavar="MODEL", help="the bi-encoder whose vectors to rotate")
    parser.add_argument("like", metavar="LIKE", help="the bi-encoder towards whose vectors to rotate them")
    parser.add_argument(
        "collection", metavar="COLLECTION", help="a collection to whose documents the rotation is fitted"
    )
    parser.add_argument("out", metavar="FOLDER", type=Path, help="the folder to write, not one of the models'")
    parser.add_argument("--most", type=positive, default=10_000, help="the most documents to read (default: 10000)")
    Placement.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Writes the checkpoint and prints how close the vectors are. Raises BadCheckpoint, BadCollection, BadInput."""
    model, like = load_start(args.model), load_start(args.like)
    check_out(args.out, [model, like])
    texts = [text for _, text in islice(open_collection(args.collection).documents(), args.most)]
    if not texts:
        raise BadInput(f"{args.collection} has no document")
    placement = Placement.of(args)
    vectors, others = (DenseIndex(each, texts, placement, max_tokens=MAX_TOKENS).vectors for each in (model, like))
    rotation = rotation_towards(vectors, others)
    aligned = rotated(model, rotation)
    write_model(aligned, args.out)
    now = vectors @ rotation
    cosines = (now * others).sum(1) / np.linalg.norm(now, axis=1)
    print(f"mean cosine of the two models' vectors of a text: {cosines.mean():.3f}; the checkpoint is in {args.out}")  # noqa: T201 - the result
    return 0


def rotation_towards(vectors: Vectors, others: Vectors) -> Vectors:
    """Returns the matrix, (size, other_size), that brings `vectors @ matrix` closest to `others`.

    vectors: (n, size).  others: (n, other_size), of the same texts.  The matrix has orthonormal columns, or orthonormal
    rows if size < other_size.
    """
    kept = np.eye(vectors.shape[1], dtype=np.float32)
    if vectors.shape[1] > others.shape[1]:
        _, axes = np.linalg.eigh(vectors.T @ vectors)  # by ascending energy
        kept = axes[:, -others.shape[1] :]
    left, _, right = np.linalg.svd((vectors @ kept).T @ others, full_matrices=False)
    return np.asarray(kept @ left @ right, np.float32)


def rotated(model: LoadedModel, rotation: Vectors) -> LoadedModel:
    """Appends a dense layer to the model. rotation: (size, new_size), for vectors as the model cuts them."""
    scorer = model.scorer
    assert isinstance(scorer, BiEncoder), "an index is of a bi-encoder. This is a bug."
    layers, cut = scorer.config.dense, scorer.config.sizes[-1] - len(rotation)
    config = replace(scorer.config, dense=(*layers, DenseConfig(rotation.shape[1], bias=False)), size=None)
    matrix = np.pad(rotation, ((0, cut), (0, 0))).T.copy()
    weights = scorer.state_dict() | {f"dense.{len(layers)}.linear.weight": torch.from_numpy(matrix)}
    return replace(model, scorer=rebuilt(scorer, config, weights, source="the rotated model"))
