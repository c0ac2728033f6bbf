"""mine: makes groups from collections: BM25 finds candidates, teachers score them, and the hardest are kept.

Hard negatives are those that BM25 and a scorer rank high (Xiong et al. 2021, ANCE; Qu et al. 2021, RocketQA): the
teachers' scores go into the file, so that training can tell an unjudged relevant candidate from a negative.
"""

import argparse
import json
import random
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

from bandrank import __version__
from bandrank.models.loading import LoadedModel
from bandrank.models.shipped import FAST
from bandrank_training.arguments import positive
from bandrank_training.collection import BadCollection, open_collection
from bandrank_training.contents import digest, of_documents, of_judgements, of_model
from bandrank_training.dense import DenseIndex
from bandrank_training.errors import BadInput
from bandrank_training.groups import Group, read_groups, read_kept, write_groups
from bandrank_training.locking import locked
from bandrank_training.miner import Corpus, Miner
from bandrank_training.mining_recipe import MiningRecipe, Source
from bandrank_training.placement import CPU, Placement
from bandrank_training.recipe import read_recipe
from bandrank_training.scoring import OfflineScorer, score_offline
from bandrank_training.setting_apart import caution, set_apart
from bandrank_training.start import load_start

NOT_OF_A_SOURCE = {"out", "sources", "dev_out", "dev_groups"}  # fields that do not affect a source's groups
OF_A_COLLECTION = {  # options that are fields of a recipe, with their defaults
    "split": "train",
    "out": "runs/groups.jsonl.gz",
    "dev_out": "runs/dev.jsonl.gz",
    "dev_groups": 100,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument("source", help="a recipe (.toml), or a collection: a folder in BEIR layout or ir_datasets:ID")
    of_collection = parser.add_argument_group("options for a collection; a recipe has its own")
    of_collection.add_argument("--split", help="qrels/SPLIT.tsv (default: train)")
    of_collection.add_argument("--out", help="groups to train on (default: runs/groups.jsonl.gz)")
    of_collection.add_argument("--dev-out", help="groups to measure with (default: runs/dev.jsonl.gz)")
    of_collection.add_argument(
        "--dev-groups", type=positive, help="how many of them, at most a fifth of all (default: 100)"
    )
    parser.set_defaults(**OF_A_COLLECTION)
    Placement.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Mines by the recipe; or a collection's judged queries, scored by the shipped fast scorer."""
    if args.source.endswith(".toml"):
        recipe = read_recipe(Path(args.source), MiningRecipe)
        if given := [name for name, default in OF_A_COLLECTION.items() if getattr(args, name) != default]:
            raise BadInput(f"--{given[0].replace('_', '-')} is for a collection; {args.source} has its own")
    else:
        recipe = MiningRecipe(
            args.out,
            (Source(args.source, args.split),),
            teachers={FAST: FAST},
            dev_out=args.dev_out,
            dev_groups=args.dev_groups,
        )
    kept = Path(f"{recipe.out}.kept")
    with locked(kept):
        count = mine(recipe, Placement.of(args), kept=kept)
        for vectors in kept.glob("*.npy"):  # the groups stay: a rerun, with more sources perhaps, makes what is new
            vectors.unlink()
    apart = f"; the groups to measure with are in {recipe.dev_out}" if recipe.dev_out else ""
    print(f"{count} groups in {recipe.out}{apart}")  # noqa: T201 - the result
    if recipe.dev_out and (said := caution(read_groups(Path(recipe.dev_out)), read_groups(Path(recipe.out)))):
        print(said)  # noqa: T201
    return 0


def mine(recipe: MiningRecipe, placement: Placement = CPU, *, kept: Path | None = None) -> int:
    """Writes the groups and returns the number of those to train on. Raises BadCollection, BadCheckpoint.

    kept: a folder for the retriever's vectors and the groups made so far, so that a killed run can resume. They are
    named by all that they depend on: settings, texts, judgements, models, the dtype of the scores, and bandrank's
    version.
    """
    models = {name: load_start(model) for name, model in recipe.teachers.items()}
    files = None if kept is None else _Files(kept, recipe, models, placement)
    teachers = {
        name: score_offline(model, placement, max_candidate_tokens=recipe.max_tokens) for name, model in models.items()
    }
    groups = _shuffled(_all_groups(recipe, teachers, placement, files), recipe.seed)
    if recipe.dev_out:
        dev, groups = set_apart(groups, recipe.dev_groups)
        if not groups:
            raise BadCollection(f"no query is left to train on beside {len(dev)} to measure with; judge more queries")
        write_groups(Path(recipe.dev_out), dev)
    return write_groups(Path(recipe.out), groups)


def _shuffled(groups: Iterator[Group], seed: int) -> list[Group]:
    """Shuffles the groups of all sources, so that training can read the file in order."""
    listed = list(groups)
    random.Random(seed).shuffle(listed)
    return listed


class _Files:
    """The files in which the groups of sources are kept."""

    def __init__(
        self, folder: Path, recipe: MiningRecipe, teachers: Mapping[str, LoadedModel], placement: Placement
    ) -> None:
        self.folder = folder
        settings = {name: value for name, value in asdict(recipe).items() if name not in NOT_OF_A_SOURCE}
        models = [*teachers.values(), *([load_start(recipe.retriever)] if recipe.retriever else [])]
        made_by = [__version__, json.dumps(settings, sort_keys=True), str(placement.dtype)]
        self._shared = [*made_by, *map(of_model, models)]
        self._documents: dict[tuple[str, int], str] = {}

    def of(self, source: Source) -> Path:
        """The file of a source's groups, named by a digest of all that they depend on. Raises BadCollection."""
        collection, place = open_collection(source.collection), (source.collection, source.max_documents)
        if place not in self._documents:
            self._documents[place] = of_documents(collection, source.max_documents)
        judgements = "" if source.queries == "titles" else of_judgements(collection, source.split)
        settings = json.dumps(asdict(source), sort_keys=True)
        return self.folder / f"{digest([*self._shared, settings, self._documents[place], judgements])}.jsonl.gz"


def _all_groups(
    recipe: MiningRecipe, teachers: Mapping[str, OfflineScorer], placement: Placement, files: _Files | None
) -> Iterator[Group]:
    opened: tuple[str, int] | None = None
    for source in recipe.sources:
        file = files.of(source) if files else None
        if file is not None and file.is_file():
            yield from read_kept(file)
            continue
        if (source.collection, source.max_documents) != opened:
            opened = source.collection, source.max_documents
            corpus = Corpus(open_collection(source.collection), source.max_documents)
            dense, folder = None, files.folder if files else None
            if recipe.retriever:
                dense = DenseIndex(
                    load_start(recipe.retriever), corpus.texts, placement, max_tokens=recipe.max_tokens, folder=folder
                )
            for teacher in teachers.values():
                teacher.forget()
        miner = Miner(recipe, source, corpus, dense, teachers)
        if file is None:
            yield from miner.mine(kept=None)
        else:
            parts = file.with_name(f"{file.name}.parts")
            write_groups(file, miner.mine(parts))
            shutil.rmtree(parts, ignore_errors=True)
            yield from read_kept(file)
