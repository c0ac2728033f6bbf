"""mine: makes groups from collections: BM25 finds candidates, teachers score them, and the hardest are kept.

Hard negatives are those that BM25 and a scorer rank high (Xiong et al. 2021, ANCE; Qu et al. 2021, RocketQA): the
teachers' scores go into the file, so that training can tell an unjudged relevant candidate from a negative.
"""

import argparse
import json
import math
import random
import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice, repeat
from pathlib import Path
from typing import Literal

import numpy as np
from tqdm import tqdm

from bandrank.models.loading import LoadedModel
from bandrank.models.shipped import FAST
from bandrank_training.bm25 import BM25
from bandrank_training.collection import BadCollection, Collection, by_text, open_collection
from bandrank_training.contents import digest, of_documents, of_judgements, of_model
from bandrank_training.dense import DenseIndex
from bandrank_training.forms import asked_for, keywords
from bandrank_training.groups import Group, read_groups, write_groups
from bandrank_training.placement import CPU, Placement
from bandrank_training.recipe import read_recipe
from bandrank_training.scoring import OfflineScorer, Question, score_offline
from bandrank_training.start import load_start

NOT_OF_A_SOURCE = {"out", "sources", "dev_out", "dev_groups", "dev_share"}  # what one source's groups do not depend on


@dataclass(frozen=True)
class Source:
    """Where queries come from.

    queries: "judged" queries of the split; "keywords": the same without function words; "titles": the first words of
    documents, which nobody judged.  domain: of the groups.
    """

    collection: str
    split: str = "train"
    queries: Literal["judged", "keywords", "titles"] = "judged"
    max_queries: int = 10**9
    max_documents: int = 10**9  # the first of the corpus; queries without a relevant one among these are left out
    domain: str = field(default="", repr=False)  # what is drawn does not depend on it


@dataclass(frozen=True)
class MiningRecipe:
    """How a file of groups is made.

    depth: candidates that BM25 gives a query.  hard, random: how many of them, and how many of any other documents, go
    into a group beside the judged ones, of which at most `max_judged` do; further ones that were judged irrelevant are
    found like any other.  teachers: scorers by the name that their scores get; "bm25" is always there, and
    "bm25_share", its share of the most that BM25 could give to the query, which a long query does not raise.
    retriever: a bi-encoder whose `depth` nearest join those of BM25, and whose
    cosines are the scores named "retriever".  max_tokens: what teachers and the retriever read of a document.
    found_only: judged candidates that no search found are left out, so that a group is a list as a search gives it.
    drawn: so many of a group's other candidates stay, chosen at random: a large teacher has less to score, and they are
    as hard as before. None: all.
    dev_out: a second file, for groups of each collection that have a relevant candidate, at most `dev_groups` of them
    and at most `dev_share`, rounded up; other groups of their queries, or of the keywords of these, are left out.
    """

    out: str
    sources: tuple[Source, ...]
    teachers: Mapping[str, str] = field(default_factory=dict)
    retriever: str = ""
    depth: int = 50
    hard: int = 10
    random: int = 3
    max_judged: int = 4
    found_only: bool = False
    drawn: int | None = None
    max_tokens: int = 256
    dev_out: str = ""
    dev_groups: int = 40
    dev_share: float = 0.2
    seed: int = 1

    def __post_init__(self) -> None:
        if taken := sorted(self.teachers.keys() & {"bm25", "bm25_share", "retriever"}):
            raise ValueError(f"teachers: {taken[0]} is the name of other scores; choose another")
        if not 0 < self.dev_share < 1:
            raise ValueError(f"dev_share must be between 0 and 1, got {self.dev_share}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument("source", help="a recipe (.toml), or a collection: a folder in BEIR layout, ir_datasets:ID")
    parser.add_argument("--split", default="train", help="of a collection: qrels/SPLIT.tsv (default: train)")
    parser.add_argument(
        "--out", default="runs/groups.jsonl.gz", help="for a collection (default: runs/groups.jsonl.gz)"
    )
    parser.add_argument(
        "--dev-out", default="runs/dev.jsonl.gz", help="for what training measures with (default: runs/dev.jsonl.gz)"
    )
    parser.add_argument(
        "--dev-groups", type=int, default=100, help="queries to measure with, at most a fifth of all (default: 100)"
    )
    Placement.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Mines by the recipe; or a collection's judged queries, scored by the shipped fast scorer."""
    if args.source.endswith(".toml"):
        recipe = read_recipe(Path(args.source), MiningRecipe)
    else:
        recipe = MiningRecipe(
            args.out,
            (Source(args.source, args.split),),
            {FAST: FAST},
            dev_out=args.dev_out,
            dev_groups=args.dev_groups,
        )
    kept = Path(f"{recipe.out}.kept")
    count = mine(recipe, Placement.of(args), kept=kept)
    shutil.rmtree(kept, ignore_errors=True)
    apart = f"; the groups to measure with are in {recipe.dev_out}" if recipe.dev_out else ""
    print(f"{count} groups in {recipe.out}{apart}")  # noqa: T201 - the result
    return 0


def mine(recipe: MiningRecipe, placement: Placement = CPU, *, kept: Path | None = None) -> int:
    """Writes the groups and returns how many there are to train on. Raises BadCollection, BadCheckpoint.

    kept: a folder for the retriever's vectors and the groups of each source, so that a killed run goes on where it was.
    They are found again by all that they depend on: settings, texts, judgements, models and the dtype of the scores.
    """
    models = {name: load_start(model) for name, model in recipe.teachers.items()}
    files = None if kept is None else _Files(kept, recipe, models, placement)
    teachers = {
        name: score_offline(model, placement, max_candidate_tokens=recipe.max_tokens) for name, model in models.items()
    }
    groups = _shuffled(_all_groups(recipe, teachers, placement, files), recipe.seed)
    if recipe.dev_out:
        dev, groups = _split(groups, recipe.dev_groups, recipe.dev_share)
        if not groups:
            raise BadCollection(f"no query is left to train on beside {len(dev)} to measure with; judge more queries")
        write_groups(Path(recipe.dev_out), dev)
    return write_groups(Path(recipe.out), groups)


def _shuffled(groups: Iterator[Group], seed: int) -> list[Group]:
    """The groups of all sources in random order, so that training can read the file from its start."""
    listed = list(groups)
    random.Random(seed).shuffle(listed)
    return listed


def _split(groups: Sequence[Group], most: int, share: float) -> tuple[list[Group], list[Group]]:
    """At most so many groups of each collection to measure with, and the groups that have none of their queries."""
    usable = [group for group in groups if group.has_relevant]
    room = {name: min(most, math.ceil(share * count)) for name, count in Counter(x.collection for x in usable).items()}
    dev = []
    for group in usable:
        if room[group.collection] > 0:
            room[group.collection] -= 1
            dev.append(group)
    asked = {asked_for(group.query) for group in dev}
    return dev, [group for group in groups if asked_for(group.query) not in asked]


class _Files:
    """Where the groups of sources are kept."""

    def __init__(
        self, folder: Path, recipe: MiningRecipe, teachers: Mapping[str, LoadedModel], placement: Placement
    ) -> None:
        self.folder = folder
        settings = {name: value for name, value in asdict(recipe).items() if name not in NOT_OF_A_SOURCE}
        models = [*teachers.values(), *([load_start(recipe.retriever)] if recipe.retriever else [])]
        self._shared = [json.dumps(settings, sort_keys=True), str(placement.dtype), *map(of_model, models)]
        self._documents: dict[tuple[str, int], str] = {}

    def of(self, source: Source) -> Path:
        """The file of a source's groups, named by all that they depend on. Raises BadCollection."""
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
            yield from read_groups(file)
            continue
        if (source.collection, source.max_documents) != opened:
            opened = source.collection, source.max_documents
            corpus = _Corpus(open_collection(source.collection), source.max_documents)
            dense = _dense(recipe, corpus, placement, files.folder if files else None)
            for teacher in teachers.values():
                teacher.forget()
        groups = _mine_source(recipe, source, corpus, dense, teachers)
        if file is None:
            yield from groups
        else:
            write_groups(file, groups)
            yield from read_groups(file)


def _dense(recipe: MiningRecipe, corpus: "_Corpus", placement: Placement, folder: Path | None) -> DenseIndex | None:
    if not recipe.retriever:
        return None
    return DenseIndex(recipe.retriever, corpus.texts, placement, max_tokens=recipe.max_tokens, folder=folder)


class _Corpus:
    """A collection's texts by number, and BM25 over them."""

    def __init__(self, collection: Collection, max_documents: int) -> None:
        self.collection = collection
        documents = dict(islice(collection.documents(), max_documents))
        if not documents:
            raise BadCollection(f"{collection.name}: no document to mine from")
        self.ids, self.texts = list(documents), list(documents.values())
        self.number = {document_id: number for number, document_id in enumerate(self.ids)}
        self.bm25 = BM25(self.texts)
        pages = collection.pages()
        self.page = [pages.get(document_id, text) for document_id, text in documents.items()]  # copies answer alike


def _mine_source(
    recipe: MiningRecipe,
    source: Source,
    corpus: _Corpus,
    dense: DenseIndex | None,
    teachers: Mapping[str, OfflineScorer],
) -> Iterator[Group]:
    # By name: the same collection in another folder gives the same groups.
    chance = random.Random(f"{recipe.seed} {replace(source, collection=corpus.collection.name)}")
    asked = _queries(source, corpus, chance)
    texts = [text for text, _ in asked]
    judged: list[dict[int, int]] = []
    pools: list[list[int]] = []
    cosines: list[list[float]] = []
    nearest = dense.search(texts, recipe.depth) if dense else repeat(None)
    for (_, judgements), (best, _), near in zip(asked, corpus.bm25.search(texts, recipe.depth), nearest, strict=False):
        # Some collections say -1 or -2 of spam; a label has no use for that, and -1 is taken.
        known = {corpus.number[name]: max(0, label) for name, label in judgements.items() if name in corpus.number}
        by_search = [*best.tolist(), *(near[0].tolist() if near else [])]
        usable = [item for item in known.items() if not recipe.found_only or item[0] in by_search]
        kept = dict(sorted(usable, key=lambda item: -item[1])[: recipe.max_judged])
        others = [chance.randrange(len(corpus.ids)) for _ in range(recipe.random)]
        answered = {corpus.page[number] for number, label in known.items() if label > 0}
        found = [*by_search, *others]
        judged.append(kept)
        # A relevant document that was left out is no negative, and neither is another of its page, unless judged so.
        negatives = [each for each in dict.fromkeys(found) if known.get(each) == 0 or corpus.page[each] not in answered]
        pools.append([*kept, *(each for each in negatives if each not in kept)])
        cosines.append(near[1][pools[-1]].tolist() if near else [])
    columns = [
        tqdm(
            teacher.score(
                Question(text, [corpus.texts[number] for number in pool])
                for text, pool in zip(texts, pools, strict=True)
            ),
            total=len(texts),
            desc=f"{corpus.collection.name} {source.queries}: {name}",
        )
        for name, teacher in teachers.items()
    ]
    rows = zip(asked, judged, pools, cosines, *columns, strict=True)
    for (text, _), known, pool, cosine, *by_teacher in rows:
        scores = dict(zip(teachers, by_teacher, strict=True))
        if recipe.retriever:
            scores["retriever"] = cosine
        scores["bm25"] = corpus.bm25.scores(text, np.array(pool, np.int64))
        chosen = _choose(recipe, known, pool, scores)
        most = corpus.bm25.most(text) or 1.0
        scores["bm25_share"] = [score / most for score in scores["bm25"]]
        if not chosen:
            continue
        if recipe.drawn is not None:
            others = chosen[len(known) :]
            chosen = chosen[: len(known)] + chance.sample(others, min(recipe.drawn, len(others)))
        yield Group(
            collection=source.collection,
            query=text,
            candidates=[corpus.ids[pool[index]] for index in chosen],
            labels=None if source.queries == "titles" else [known.get(pool[index], 0) for index in chosen],
            scores={name: [values[index] for index in chosen] for name, values in scores.items()},
            domain=source.domain,
        )


def _choose(
    recipe: MiningRecipe, known: Mapping[int, int], pool: Sequence[int], scores: Mapping[str, Sequence[float]]
) -> list[int]:
    """Indices into the pool: the judged, the hardest by each teacher in turn, and the random ones at its end."""
    chosen = dict.fromkeys(range(len(known)))
    rankings = [sorted(range(len(pool)), key=lambda index: -values[index]) for values in scores.values()]
    size = len(known) + min(recipe.hard, len(pool) - len(known))
    for indices in zip(*rankings, strict=True):
        for index in indices:
            if len(chosen) < size:
                chosen[index] = None
    chosen |= dict.fromkeys(range(max(len(known), len(pool) - recipe.random), len(pool)))
    return list(chosen)


def _queries(source: Source, corpus: _Corpus, chance: random.Random) -> list[tuple[str, dict[str, int]]]:
    """The texts of the source's queries, each once, with its judgements."""
    if source.queries == "titles":
        first_words = [re.split(r"(?<=[.!?])\s", text, maxsplit=1)[0] for text in corpus.texts]
        fitting = [words for words in dict.fromkeys(first_words) if 3 <= len(words.split()) <= 30]
        return [(text, {}) for text in chance.sample(fitting, min(source.max_queries, len(fitting)))]
    queries, qrels = corpus.collection.queries(), corpus.collection.qrels(source.split)
    asked = {name: queries[name] for name in sorted(qrels.keys() & queries.keys())}
    if source.queries == "keywords":
        asked = {name: keywords(text) for name, text in asked.items()}
    judged = {
        text: labels
        for text, labels in by_text((text, qrels[name]) for name, text in asked.items()).items()
        if any(label > 0 and document in corpus.number for document, label in labels.items())
    }
    if not judged:
        raise BadCollection(
            f"{corpus.collection.name}: no query of split {source.split!r} has a text and a relevant document"
        )
    if left_out := len(qrels) - sum(text in judged for text in asked.values()):
        said = f"{left_out} of {len(qrels)} judged queries have no text or no relevant document, and are left out"
        print(f"{corpus.collection.name}: {said}", file=sys.stderr)  # noqa: T201
    return [(text, judged[text]) for text in chance.sample(list(judged), min(source.max_queries, len(judged)))]
