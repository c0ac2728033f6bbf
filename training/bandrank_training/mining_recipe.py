"""What groups are mined from, and how: read from a TOML file, or set by a command."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from bandrank_training.errors import BadInput
from bandrank_training.recipe import check_least


@dataclass(frozen=True)
class Source:
    """Where queries come from.

    queries: "judged": the judged queries of the split; "keywords": the same without function words; "titles": the first
    words of documents, unjudged.  domain: of the groups.
    """

    collection: str
    split: str = "train"
    queries: Literal["judged", "keywords", "titles"] = "judged"
    max_queries: int = 10**9
    max_documents: int = 10**9  # at the start of the corpus; queries without a relevant one there are left out
    domain: str = field(default="", repr=False)  # must not change what is drawn

    def __post_init__(self) -> None:
        check_least(self, 0, "max_queries", "max_documents")


@dataclass(frozen=True, kw_only=True)
class Mining:
    """What goes into a group, wherever its query comes from.

    depth: candidates that BM25 finds for a query.  hard, random: how many of these, and how many random documents, join
    the judged ones in a group.  max_judged: the most judged ones; further irrelevant ones are treated as unjudged.
    teachers: scorers by the name of their scores. There are always scores "bm25" and "bm25_share", the share of the
    query's highest possible BM25 score, which does not grow with the query's length.
    retriever: a bi-encoder whose `depth` nearest documents join those of BM25; its cosines are the scores "retriever".
    max_tokens: the tokens of a document that teachers and the retriever read.
    found_only: leaves out judged candidates that no search found, so that a group looks like a search result.
    drawn: how many of a group's other candidates are kept, at random (None: all). A large teacher then has fewer to
    score, and they are as hard as before.
    """

    teachers: Mapping[str, str] = field(default_factory=dict)
    retriever: str = ""
    depth: int = 50
    hard: int = 10
    random: int = 3
    max_judged: int = 4
    found_only: bool = False
    drawn: int | None = None
    max_tokens: int = 256

    def __post_init__(self) -> None:
        if taken := sorted(self.teachers.keys() & {"bm25", "bm25_share", "retriever"}):
            raise ValueError(f"teachers: {taken[0]} is the name of other scores; choose another")
        check_least(self, 1, "depth", "max_judged", "max_tokens")
        check_least(self, 0, "hard", "random", "drawn")


@dataclass(frozen=True)
class MiningRecipe(Mining):
    """How a file of groups is made.

    dev_out: a second file, for some groups of each collection that have a relevant candidate: at most `dev_groups` and
    at most a fifth, rounded up. Training sees neither their queries nor, where possible, their relevant documents
    (`set_apart`).
    """

    out: str
    sources: tuple[Source, ...]
    dev_out: str = ""
    dev_groups: int = 40
    seed: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, 0, "dev_groups")
        if self.dev_out and Path(self.dev_out).resolve() == Path(self.out).resolve():
            raise BadInput(f"dev_out: {self.out} is the file of `out`; choose another")
