"""Judged collections: a folder in BEIR layout (Thakur et al. 2021), or a dataset of `ir_datasets`.

BEIR layout: corpus.jsonl ({"_id", "title"?, "text"}), queries.jsonl ({"_id", "text"}), and qrels/<split>.tsv (query id,
document id, relevance; or the four columns of TREC), with or without a header. Each may be plain or .gz, not both.
Documents are streamed, so a corpus need not fit in memory. As in mixtures, a line of the corpus may also have a "page":
passages of one page are never each other's negatives.
"""

import gzip
import importlib
import json
import math
import re
import zlib
from collections.abc import Container, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import IO, Any, Protocol

from bandrank.models.checkpoint import write_whole
from bandrank_training.errors import BadInput

Qrels = dict[str, dict[str, int]]  # relevance by query and document
IR_DATASETS = "ir_datasets:"
QUERY_COLUMNS = {"query", "queryid", "qid", "topic"}  # how a header begins, without marks
MOST_RELEVANT = 10**6  # trec_eval needs memory for each grade, and finds an nDCG of 0 where 32 bits overflow


class BadCollection(BadInput):
    """A collection that is missing or cannot be read; the message says which part, and what was expected."""


class Collection(Protocol):
    """What training and evaluation read. All methods raise BadCollection if a part is missing or damaged."""

    name: str

    def documents(self) -> Iterator[tuple[str, str]]:
        """Yields the id and the text of each document. The text begins with the title, if there is one."""

    def pages(self) -> dict[str, str]:
        """The page of each document, by id, where known: documents of one page may answer the same query."""

    def queries(self) -> dict[str, str]:
        """The texts of all queries, by id."""

    def qrels(self, split: str) -> Qrels:
        """The relevance judgements of a split, zeros included."""


def open_collection(source: str | Path) -> Collection:
    """Opens a folder in BEIR layout, or "ir_datasets:<id>" (needs `pip install ir_datasets`). Raises BadCollection."""
    if isinstance(source, str) and source.startswith(IR_DATASETS):
        return IrDataset(source.removeprefix(IR_DATASETS))
    return BeirFolder(Path(source))


def documents_of(
    collection: Collection, ids: Container[str] | None = None, *, most: int | None = None
) -> dict[str, str]:
    """The texts, by id, of the documents with these ids (default: all) among the first `most`. Ids that are not there
    are left out. Raises BadCollection for an id with two texts.
    """
    texts: dict[str, str] = {}
    for document_id, text in islice(collection.documents(), most):
        if (ids is None or document_id in ids) and texts.setdefault(document_id, text) != text:
            raise BadCollection(f"{collection.name}: two documents have the id {document_id!r}; leave one of them out")
    return texts


def by_text(judged: Iterable[tuple[str, Mapping[str, int]]]) -> Qrels:
    """Merges the judgements of queries with the same text, because logs give every search its own id. If a document was
    judged twice, the higher relevance counts.
    """
    together: Qrels = {}
    for text, labels in judged:
        known = together.setdefault(text, {})
        for document_id, label in labels.items():
            known[document_id] = max(label, known.get(document_id, label))
    return together


def write_qrels(folder: Path, split: str, qrels: Mapping[str, Mapping[str, int]]) -> None:
    """Writes the judgements of a split into a folder in BEIR layout."""
    rows = (f"{query}\t{document}\t{label}\n" for query, labels in qrels.items() for document, label in labels.items())
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    write_whole(folder / "qrels" / f"{split}.tsv", ("query-id\tcorpus-id\tscore\n" + "".join(rows)).encode())


class BeirFolder:
    """A collection on disk."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise BadCollection(
                f"{folder} is no folder; expected one in BEIR layout: corpus.jsonl, queries.jsonl, qrels/"
            )
        self.folder = folder
        self.name = folder.resolve().name

    def documents(self) -> Iterator[tuple[str, str]]:
        for document_id, title, text in self.titled_documents():
            yield document_id, f"{title} {text}" if title else text

    def titled_documents(self) -> Iterator[tuple[str, str, str]]:
        """Yields the id, the title (which may be empty) and the text of each document."""
        for row in self._json_lines("corpus.jsonl"):
            yield row["_id"], row["title"].strip(), row["text"]

    def pages(self) -> dict[str, str]:
        return {row["_id"]: str(row["page"]) for row in self._json_lines("corpus.jsonl") if row["page"]}

    def queries(self) -> dict[str, str]:
        texts: dict[str, str] = {}
        for row in self._json_lines("queries.jsonl"):
            if texts.setdefault(row["_id"], row["text"]) != row["text"]:
                raise BadCollection(f"{self.name}: two queries have the id {row['_id']!r}; leave one of them out")
        return texts

    def qrels(self, split: str) -> Qrels:
        qrels: Qrels = {}
        path = self._find(f"qrels/{split}.tsv")
        for number, line in numbered_lines(path):
            try:
                query_id, document_id, label = _judgement(line)
            except ValueError as error:
                if not qrels and re.sub(r"[\W_]", "", _columns(line)[0]).lower() in QUERY_COLUMNS:
                    continue
                expected = "expected a query id, a document id and a whole number, with tabs between, or a line of TREC"
                raise BadCollection(f"{path}, line {number}: {expected}: {error}") from error
            if (known := qrels.setdefault(query_id, {}).setdefault(document_id, label)) != label:
                twice = f"query {query_id!r} and document {document_id!r} were judged {known} before, and {label} here"
                raise BadCollection(f"{path}, line {number}: {twice}; leave one of them out")
        return qrels

    def _json_lines(self, name: str) -> Iterator[dict[str, Any]]:
        path = self._find(name)
        for number, line in numbered_lines(path):
            try:
                row = json.loads(line)
                read = {"_id": _text(row["_id"]), "page": row.get("page")}
                optional = ("text", row["text"]), ("title", row.get("title"))
                read |= {name: "" if value is None else _text(value) for name, value in optional}
                "".join(map(str, read.values())).encode()  # JSON can escape lone surrogates, which are not text
                if "\0" in read["_id"]:  # pytrec_eval would end the process
                    raise ValueError("the id has a NUL character")  # noqa: TRY301
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                expected = f"expected an object with `_id` and `text`: {type(error).__name__}: {error}"
                raise BadCollection(f"{path}, line {number}: {expected}") from error
            yield read

    def _find(self, name: str) -> Path:
        found = [path for path in (self.folder / name, self.folder / f"{name}.gz") if path.is_file()]
        if len(found) > 1:
            raise BadCollection(f"{self.folder} has both {name} and {name}.gz; keep the one to read")
        if found:
            return found[0]
        splits = ", ".join(sorted(path.name.partition(".tsv")[0] for path in self.folder.glob("qrels/*.tsv*")))
        raise BadCollection(
            f"{self.folder} has no {name}[.gz]; expected corpus.jsonl, queries.jsonl and qrels/<split>.tsv"
            + (f"; there are judgements of {splits}" if splits else "")
        )


def _text(value: object) -> str:
    """A text, or a whole number as one. Raises TypeError: of a list, or the NaN of a missing cell, none is made."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise TypeError(f"{value!r:.80} is no text")
    return str(value)


def _judgement(line: str) -> tuple[str, str, int]:
    """Parses the query id, the document id and the relevance. A line has three columns separated by tabs, or TREC's
    four, with an iteration after the query id, separated by tabs or spaces. Raises ValueError.
    """
    columns = _columns(line)
    if len(columns) == 4:
        del columns[1]
    elif "\t" not in line:
        raise ValueError(f"{len(columns)} columns without a tab")  # an id may have spaces
    query_id, document_id, relevance = columns
    label = float(relevance)  # some tools write 1.0
    if not label.is_integer():
        raise ValueError(f"{relevance.strip()} is no whole number")
    if abs(label) > MOST_RELEVANT:
        raise ValueError(f"a relevance of {relevance.strip()} is beyond {MOST_RELEVANT:,}")
    return query_id, document_id, int(label)


def _columns(line: str) -> list[str]:
    return line.split("\t") if "\t" in line else line.split()


class IrDataset:
    """A dataset of `ir_datasets`. The id includes the split, so `qrels` ignores its argument."""

    def __init__(self, dataset_id: str) -> None:
        try:
            ir_datasets = importlib.import_module("ir_datasets")
        except ImportError:
            raise BadCollection(f"{IR_DATASETS}{dataset_id} needs the package: pip install ir_datasets") from None
        try:
            self._dataset = ir_datasets.load(dataset_id)
        except KeyError:
            raise BadCollection(f"ir_datasets has no dataset {dataset_id!r}") from None
        self.name, self._id = dataset_id.replace("/", "-"), dataset_id

    def documents(self) -> Iterator[tuple[str, str]]:
        for document in self._rows("docs"):
            yield document.doc_id, document.default_text()

    def pages(self) -> dict[str, str]:
        return {}

    def queries(self) -> dict[str, str]:
        return {query.query_id: query.default_text() for query in self._rows("queries")}

    def qrels(self, split: str) -> Qrels:
        del split
        qrels: Qrels = {}
        for judgement in self._rows("qrels"):
            qrels.setdefault(judgement.query_id, {})[judgement.doc_id] = judgement.relevance
        return qrels

    def _rows(self, kind: str) -> Iterator[Any]:
        """Iterates over the dataset's docs, queries or qrels."""
        if not getattr(self._dataset, f"has_{kind}")():
            raise BadCollection(f"{IR_DATASETS}{self._id} has no {kind}; one of its subsets may have them, as /train")
        yield from getattr(self._dataset, f"{kind}_iter")()


def read_run(path: Path) -> dict[str, dict[str, float]]:
    """Reads the scores of a TREC run file (query Q0 document rank score tag), plain or .gz, by query and document. In a
    line with five tabs, ids may contain spaces.

    Raises BadCollection for a file that cannot be read or a line that is not of this format.
    """
    run: dict[str, dict[str, float]] = {}
    for number, line in numbered_lines(path):
        try:
            columns = map(str.strip, line.split("\t" if line.count("\t") == 5 else None))
            query_id, _, document_id, _, score, _ = columns
            ranked, value = run.setdefault(query_id, {}), float(score)
        except ValueError as error:
            raise BadCollection(f"{path}, line {number}: not a line of a TREC run: {error}") from error
        if math.isnan(value):
            raise BadCollection(f"{path}, line {number}: nothing can be ranked by a score that is {score}")
        if document_id in ranked:
            raise BadCollection(f"{path}, line {number}: query {query_id} has document {document_id} twice")
        ranked[document_id] = value
    return run


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yields the lines of a UTF-8 text file, plain or .gz, with their numbers from 1; a byte order mark is left out.
    Blank lines are counted, but skipped. Raises BadCollection.
    """
    number = 0
    try:
        with _open(path) as lines:
            for number, content in enumerate(lines, 1):  # decoded line by line: whole files are in chunks of many lines
                line = str(content, "utf-8" if number > 1 else "utf-8-sig")
                if "\0" in line:
                    raise BadCollection(f"{path}, line {number}: it has a NUL character")
                if "\r" in line and "\r" in line.rstrip():
                    said = "lines end in a carriage return alone; end them with a line feed"
                    raise BadCollection(f"{path}, line {number}: {said}")
                if line.strip():
                    yield number, line
    except FileNotFoundError:
        raise BadCollection(f"{path}: no such file") from None
    except UnicodeDecodeError as error:
        raise BadCollection(f"{path}, line {number}: it is not UTF-8; save the file as UTF-8 ({error})") from error
    except (OSError, EOFError, zlib.error) as error:
        raise BadCollection(f"{path}, after line {number}: {error}") from error


def _open(path: Path) -> gzip.GzipFile | IO[bytes]:
    """Opens a file; decompresses it if its name ends in .gz. Raises EOFError for a .gz of 0 bytes, which gzip takes for
    whole.
    """
    if path.suffix == ".gz":
        if not path.stat().st_size:
            raise EOFError("the file has 0 bytes")
        return gzip.open(path)
    return path.open("rb")
