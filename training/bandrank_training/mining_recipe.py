"""What groups are mined from, and how: a TOML file, or what the commands say."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from bandrank_training.recipe import check_least


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


@dataclass(frozen=True, kw_only=True)
class Mining:
    """What goes into a group, from wherever its query comes.

    depth: candidates that BM25 gives a query.  hard, random: how many of them, and how many of any other documents, go
    into a group beside the judged ones, of which at most `max_judged` do; further ones that were judged irrelevant are
    found like any other.  teachers: scorers by the name that their scores get; "bm25" is always there, and
    "bm25_share", its share of the most that BM25 could give to the query, which a long query does not raise.
    retriever: a bi-encoder whose `depth` nearest join those of BM25, and whose cosines are the scores named
    "retriever".  max_tokens: what teachers and the retriever read of a document.
    found_only: judged candidates that no search found are left out, so that a group is a list as a search gives it.
    drawn: so many of a group's other candidates stay, chosen at random: a large teacher has less to score, and they are
    as hard as before. None: all.
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
        check_least(self, 0, "hard", "random")


@dataclass(frozen=True)
class MiningRecipe(Mining):
    """How a file of groups is made.

    dev_out: a second file, for groups of each collection that have a relevant candidate, at most `dev_groups` of them
    and at most a fifth, rounded up. Training sees neither their queries nor, as far as there are enough such groups,
    their relevant documents (`set_apart`).
    """

    out: str
    sources: tuple[Source, ...]
    dev_out: str = ""
    dev_groups: int = 40
    seed: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, 0, "dev_groups")
