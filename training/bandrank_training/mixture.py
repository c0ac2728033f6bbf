"""mix: combines parts of many collections into one, with queries in every form, and mines groups from it."""

import argparse
import gzip
import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from bandrank.models.checkpoint import whole, write_whole
from bandrank.models.ids import ID_BYTES
from bandrank.models.texts import TextEncoder
from bandrank_training.collection import BadCollection, BeirFolder, write_qrels
from bandrank_training.contents import digest, of_documents, of_judgements
from bandrank_training.errors import BadRecipe
from bandrank_training.forms import words
from bandrank_training.locking import locked
from bandrank_training.mining import mine
from bandrank_training.mining_recipe import Mining, MiningRecipe, Source
from bandrank_training.parts import FORMS, SPLITS, Drawn, Part, Passage, Query, draw, measured
from bandrank_training.placement import CPU, Placement
from bandrank_training.recipe import read_recipe
from bandrank_training.start import MINILM, load_start

COUNTS, RECIPE = "counts.md", "recipe.json"


@dataclass(frozen=True, kw_only=True)
class MixtureMining(Mining):
    """How groups are mined from the mixture, with its own defaults."""

    depth: int = 30
    max_judged: int = 2
    max_tokens: int = 192


@dataclass(frozen=True)
class MixtureRecipe:
    """A mixture of collections, and how groups are mined from it.

    out: a folder in BEIR layout, with qrels/PART.train.tsv and qrels/PART.dev.tsv for each part, groups.jsonl.gz,
    dev.jsonl.gz and a table of counts.  most_share: a domain's largest share of the training queries.  pieces: the
    fewest and the most word pieces of a candidate; shorter candidates are left out, longer ones cut.
    """

    out: str
    parts: tuple[Part, ...]
    mining: MixtureMining = field(default_factory=MixtureMining)
    most_share: float = 0.25
    pieces: tuple[int, ...] = (10, 450)
    seed: int = 1

    def __post_init__(self) -> None:
        if len({part.name for part in self.parts}) < len(self.parts):
            raise ValueError("parts: two have the same name")
        if any(Path(part.collection).resolve() == Path(self.out).resolve() for part in self.parts):
            raise ValueError(f"out: {self.out} is the collection of a part, which would be written over")
        if not 0 < self.most_share <= 1:
            raise ValueError(f"most_share must be above 0 and at most 1, got {self.most_share}")
        if len(self.pieces) != 2 or not 0 < self.pieces[0] <= self.pieces[1]:
            raise ValueError(f"pieces must be the fewest and the most of a candidate, got {self.pieces}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument("recipe", type=Path, help="a TOML file, such as training/recipes/mixture.toml")
    Placement.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Makes the mixture, or resumes, and prints the counts."""
    recipe: MixtureRecipe = read_recipe(args.recipe, MixtureRecipe)
    with locked(Path(recipe.out)):
        print(mix(recipe, Placement.of(args)), end="")  # noqa: T201 - the result
    return 0


def mix(recipe: MixtureRecipe, placement: Placement = CPU) -> str:
    """Writes the collection if it is missing, and its groups, mining only those that the recipe or its models have
    changed. Returns the table of counts.

    Raises BadCollection, BadCheckpoint, and BadRecipe if the folder has the mixture of another recipe or other texts.
    """
    folder = Path(recipe.out)
    if not (folder / COUNTS).is_file():
        if not (folder / RECIPE).is_file() and any(folder.glob("corpus.jsonl*")):
            raise BadRecipe(f"{folder} holds a collection that is no mixture; choose another `out`")
        _write(folder, recipe)
    else:
        try:
            saved = json.loads((folder / RECIPE).read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError) as error:
            raise BadRecipe(f"{folder / RECIPE}: {error}; delete the folder, and run the command again") from error
        if saved != _drawn_by(recipe):
            raise BadRecipe(f"{folder} is a mixture of other parts or texts; choose another `out`, or delete it")
    for split, name in zip(SPLITS, ("groups.jsonl.gz", "dev.jsonl.gz"), strict=True):
        mine(_mining(recipe, folder / name, split), placement, kept=folder / "mining")
    return (folder / COUNTS).read_text(encoding="utf-8")


def _write(folder: Path, recipe: MixtureRecipe) -> None:
    start = load_start(MINILM)
    texts = start.texts()
    parts = [(part, BeirFolder(Path(part.collection))) for part in recipe.parts]
    apart = {each for part in parts for each in measured(*part)}
    drawn = [draw(*part, recipe.seed, apart=apart) for part in parts]
    drawn = [one.keeping(list(of_length(one.passages, texts, recipe.pieces))) for one in drawn]
    drawn = _thinned(drawn, recipe)
    if not any(one.queries for one in drawn):
        raise BadCollection("no query is left: no relevant passage has enough `pieces`, or there are no parts")
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / RECIPE, json.dumps(_drawn_by(recipe), indent=1).encode())
    _write_lines(
        folder / "corpus.jsonl.gz",
        (_row(passage, page=one.part.page_answers) for one in drawn for passage in one.passages),
    )
    _write_lines(
        folder / "queries.jsonl.gz", ({"_id": each.id, "text": each.text} for one in drawn for each in one.queries)
    )
    for one in drawn:
        for split in SPLITS:
            qrels = {each.id: dict.fromkeys(each.relevant, 1) for each in one.queries if each.split == split}
            write_qrels(folder, f"{one.part.name}.{split}", qrels)
    write_whole(folder / COUNTS, table(drawn).encode())  # last, to mark the rest as complete


def _drawn_by(recipe: MixtureRecipe) -> dict[str, Any]:
    """All that the collection depends on, as read back from JSON: most of the recipe, and digests of the sources."""
    settings = {name: value for name, value in asdict(recipe).items() if name not in {"out", "mining"}}
    drawn_by: dict[str, Any] = json.loads(json.dumps(settings | {"contents": [*map(_contents, recipe.parts)]}))
    return drawn_by


def _contents(part: Part) -> str:
    collection = BeirFolder(Path(part.collection))
    splits = [split for split in (part.train_split, part.dev_split) if split]
    return digest([of_documents(collection), *(of_judgements(collection, split) for split in splits)])


def allowed(counts: Mapping[str, int], most_share: float) -> dict[str, float]:
    """The share of each domain's queries to keep, so that no domain has more than `most_share` of all that are kept. It
    is 1 if there are too few domains for that.
    """
    cap = max(counts.values())
    if len(counts) * most_share > 1:
        while (lower := int(most_share * sum(min(count, cap) for count in counts.values()))) < cap:
            cap = lower
    return {domain: min(1.0, cap / count) for domain, count in counts.items()}


def table(drawn: Sequence[Drawn]) -> str:
    """A table of what was drawn, in Markdown."""
    head = ["part", "domain", "candidates", *(f"{form}, train" for form in FORMS), "all, train", "all, dev"]
    lines = [head, ["---", "---", *["--:"] * (len(head) - 2)]]
    sums = Counter[str]()
    for one in drawn:
        of_form = Counter(each.form for each in one.queries if each.split == "train")
        numbers = [len(one.passages), *(of_form[form] for form in FORMS), of_form.total()]
        numbers.append(len(one.queries) - of_form.total())
        sums.update(dict(zip(head[2:], numbers, strict=True)))
        lines.append([one.part.name, one.part.domain, *(f"{number:,}" for number in numbers)])
    lines.append(["all", "", *(f"{sums[name]:,}" for name in head[2:])])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _thinned(drawn: Sequence[Drawn], recipe: MixtureRecipe) -> list[Drawn]:
    """Drops training queries of domains that have too many."""
    counts = Counter(one.part.domain for one in drawn for each in one.queries if each.split == "train")
    shares = allowed(counts, recipe.most_share) if counts else {}
    chance = random.Random(recipe.seed)

    def kept(one: Drawn, query: Query) -> bool:
        return query.split != "train" or chance.random() < shares[one.part.domain]

    return [replace(one, queries=[each for each in one.queries if kept(one, each)]) for one in drawn]


def of_length(passages: Sequence[Passage], texts: TextEncoder, pieces: Sequence[int]) -> Iterator[Passage]:
    """Yields the passages that are long enough, each cut at a word to about the most pieces."""
    least, most = pieces
    for passage, read in zip(passages, texts.pieces([passage.text for passage in passages]), strict=True):
        num_pieces = len(read) // ID_BYTES
        if num_pieces > most:
            all_words = words(passage.text)
            yield replace(passage, text="".join(all_words[: len(all_words) * most // num_pieces]).strip())
        elif num_pieces >= least:
            yield passage


def _mining(recipe: MixtureRecipe, out: Path, split: str) -> MiningRecipe:
    sources = tuple(
        Source(recipe.out, split=f"{part.name}.{split}", domain=part.domain)
        for part in recipe.parts
        if BeirFolder(Path(recipe.out)).qrels(f"{part.name}.{split}")
    )
    return MiningRecipe(str(out), sources, **vars(recipe.mining), seed=recipe.seed)


def _row(passage: Passage, *, page: bool) -> dict[str, str]:
    row = {"_id": passage.id, "title": passage.title, "text": passage.text}
    return row | {"page": f"{passage.id.partition('/')[0]}/{passage.page}"} if page and passage.page else row


def _write_lines(path: Path, rows: Iterable[Mapping[str, str]]) -> None:
    with whole(path) as partial, gzip.open(partial, "wt", 5, encoding="utf-8") as lines:
        lines.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
