"""The files that an evaluation writes: a TREC run, and per-query values in JSON that `compare` reads."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path

from bandrank.models.checkpoint import whole, write_whole
from bandrank_training.candidates import Ranking
from bandrank_training.errors import BadInput
from bandrank_training.measures import MEASURES, Values, means


class BadEvaluation(BadInput):
    """An evaluation cannot be done, read or compared; the message says which, and why."""


@dataclass(frozen=True)
class Benchmark:
    """What systems are compared on. Evaluations are comparable if all fields are equal.

    candidates: a description of where they come from.  judgements_digest, candidates_digest: digests of those used,
    which tell them from others of the same names.
    """

    collection: str
    split: str
    candidates: str
    min_relevance: int
    judgements_digest: str = field(default="", compare=False)
    candidates_digest: str = field(default="", compare=False)

    def __str__(self) -> str:
        graded = f", relevance {self.min_relevance} and up" if self.min_relevance != 1 else ""
        return f"{self.collection} {self.split}, {self.candidates}{graded}"

    def differing(self, other: "Benchmark") -> str:
        """What differs between two benchmarks of the same names, with the digests; empty if nothing does."""
        digests = {
            "judgements": (self.judgements_digest, other.judgements_digest),
            "candidates": (self.candidates_digest, other.candidates_digest),
        }
        return " and ".join(
            f"other {name} (digests {ours} and {theirs})" for name, (ours, theirs) in digests.items() if ours != theirs
        )


@dataclass(frozen=True)
class Evaluation:
    """The values of one system on one benchmark.

    model: as given on the command line; of an absolute path, only the last part.  weights: the digest of the model.
    dtype: in which it scored. A first stage has no weights and no dtype.
    """

    system: str
    benchmark: Benchmark
    values: Values
    model: str = ""
    weights: str = ""
    dtype: str = ""

    def save(self, path: Path) -> None:
        """Writes JSON, with the means first, for people."""
        facts = {"system": self.system, "model": self.model, "weights": self.weights, "dtype": self.dtype}
        head = facts | asdict(self.benchmark)
        content = head | {"queries": len(self.values), "means": means(self.values), "values": self.values}
        write_whole(path, (json.dumps(content, indent=1) + "\n").encode())


def read_evaluation(path: Path) -> Evaluation:
    """Reads what `Evaluation.save` wrote. Raises BadEvaluation."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        values = {
            query_id: {name: float(by_name[name]) for name in MEASURES}
            for query_id, by_name in content["values"].items()
        }
        collection, split, candidates = (str(content[name]) for name in ("collection", "split", "candidates"))
        digests = (str(content[name]) for name in ("judgements_digest", "candidates_digest"))
        benchmark = Benchmark(collection, split, candidates, int(content["min_relevance"]), *digests)
        system, model, weights, dtype = (str(content[name]) for name in ("system", "model", "weights", "dtype"))
    except OSError as error:
        raise BadEvaluation(f"{path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadEvaluation(f"{path} is not what `evaluate` writes: {type(error).__name__}: {error}") from error
    if not values:
        raise BadEvaluation(f"{path}: there is no query")
    return Evaluation(system, benchmark, values, model, weights, dtype)


def write_run(path: Path, rankings: Mapping[str, Ranking], *, tag: str) -> None:
    """Writes a TREC run file: query Q0 document rank score tag. Documents with equal scores keep the ranking's order;
    to measure the file again, sort by rank, because most tools sort such documents by id.

    The separator is a space, or a tab if an id contains a space.
    """
    ids = chain(rankings, (document_id for ranking in rankings.values() for document_id, _ in ranking))
    between = "\t" if any(len(each.split()) > 1 for each in ids) else " "
    with whole(path) as partial, partial.open("w", encoding="utf-8", newline="\n") as file:
        for query_id, ranking in rankings.items():
            for rank, (document_id, score) in enumerate(ranking, 1):
                columns = query_id, "Q0", document_id, str(rank), repr(score), tag
                file.write(between.join(columns) + "\n")
