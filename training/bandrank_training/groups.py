"""Groups are what training reads: a query with some candidates, their labels, and their scores by teachers.

A file of groups is JSON lines (.jsonl or .jsonl.gz). It names candidates by id; their texts stay in the collection.
"""

import gzip
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sized
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import TextIO

from bandrank.models.checkpoint import whole
from bandrank_training.collection import MOST_RELEVANT, BadCollection, numbered_lines
from bandrank_training.errors import BadInput

TOO_LARGE = 2.0**127  # for float32


class BadGroups(BadInput):
    """A file of groups that is missing or damaged; the message says where."""


@dataclass(frozen=True)
class Group:
    """A query with one or more candidates of one collection.

    labels: relevance of each candidate (0: not judged relevant), or None for an unjudged query.
    scores: by teacher, one raw score per candidate, higher is better.
    domain: the domain of a mixture's part; empty elsewhere.
    """

    collection: str
    query: str
    candidates: list[str]
    labels: list[int] | None
    scores: dict[str, list[float]]
    domain: str = ""

    def __post_init__(self) -> None:
        if not self.candidates:
            raise ValueError("a group needs a candidate")
        columns: list[Sized] = [*self.scores.values(), *([] if self.labels is None else [self.labels])]
        if any(len(column) != len(self.candidates) for column in columns):
            raise ValueError("labels and scores must have one entry for each candidate")
        texts = self.collection, self.query, self.domain, *self.candidates
        if not all(isinstance(text, str) for text in texts):
            raise ValueError("collection, query, domain and candidates must be texts")
        "".join(texts).encode()  # JSON can escape lone surrogates, which are not text
        if len(set(self.candidates)) < len(self.candidates):
            raise ValueError("a candidate is there twice")
        if not all(isinstance(label, int) and 0 <= label <= MOST_RELEVANT for label in self.labels or []):
            most = f"of at least 0 and at most {MOST_RELEVANT:,}"
            raise ValueError(f"labels must be integers {most}, or null in place of the list")
        scores = chain.from_iterable(self.scores.values())
        if not all(isinstance(score, int | float) and abs(score) < TOO_LARGE for score in scores):
            raise ValueError("scores must be finite numbers, as float32 can hold them")

    @property
    def area(self) -> str:
        """The domain if there is one, else the collection: measures are averaged within areas, then over them."""
        return self.domain or self.collection

    @property
    def has_relevant(self) -> bool:
        """Whether a candidate is relevant, so that rankings of the group can be measured."""
        return max(self.labels or [0]) > 0

    def weighed(self, weights: Mapping[str, float]) -> list[float]:
        """The weighted sum of the named scores, for each candidate. Raises BadGroups for an unknown name."""
        if missing := weights.keys() - self.scores.keys():
            raise BadGroups(f"no scores of {sorted(missing)} for {self.query!r}; there are {sorted(self.scores)}")
        named = [[weight * score for score in self.scores[name]] for name, weight in weights.items()]
        return [sum(column) for column in zip(*named, strict=True)] if named else [0.0] * len(self.candidates)


def check_areas(setting: str, named: Iterable[str], areas: Collection[str]) -> None:
    """Raises BadGroups if a setting names an area that no group has."""
    if unknown := sorted(set(named) - set(areas)):
        raise BadGroups(f"{setting}: no group is of {unknown[0]!r}; there are {', '.join(sorted(areas))}")


def write_groups(path: Path, groups: Iterable[Group]) -> int:
    """Writes a file of groups and returns their number. The file appears once it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    count = 0
    with whole(path) as partial, _opened(partial, zipped=path.suffix == ".gz") as lines:
        for group in groups:
            count += 1
            row = asdict(group)
            row["scores"] = {name: [*map(_rounded, scores)] for name, scores in group.scores.items()}
            lines.write(json.dumps(row, ensure_ascii=False) + "\n")
    return count


def _rounded(score: float) -> float:
    """Rounds to five decimals, or below 1 to five significant digits: more would be noise that depends on the batch."""
    return round(score, 5) if abs(score) >= 1 else float(f"{score:.5g}")


def _opened(path: Path, *, zipped: bool) -> TextIO:
    return gzip.open(path, "wt", 5, encoding="utf-8") if zipped else path.open("w", encoding="utf-8")


def read_groups(path: Path) -> Iterator[Group]:
    """Yields the groups of a file. Raises BadGroups for a file that cannot be read or a line that is not a group."""
    try:
        for number, line in numbered_lines(path):
            try:
                yield Group(**json.loads(line))
            except (ValueError, TypeError, AttributeError, RecursionError) as error:
                raise BadGroups(f"{path}, line {number}: {error}") from error
    except BadCollection as error:
        raise BadGroups(str(error)) from error


def read_kept(path: Path) -> Iterator[Group]:
    """`read_groups` of a file that an earlier run kept; the error also says how to go on."""
    try:
        yield from read_groups(path)
    except BadGroups as error:
        raise BadGroups(f"{error}; delete this file, and run the command again") from error
