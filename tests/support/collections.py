"""Writes collections in BEIR layout, and TREC runs."""

import gzip
import json
from collections.abc import Mapping
from pathlib import Path


def write_collection(
    folder: Path,
    *,
    documents: Mapping[str, str] | None = None,
    queries: Mapping[str, str] | None = None,
    qrels: Mapping[str, Mapping[str, int]] | None = None,
    split: str = "test",
    compressed: bool = False,
) -> Path:
    """Writes corpus.jsonl, queries.jsonl and qrels/<split>.tsv into a folder, all of them .gz if `compressed`."""
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    end = ".gz" if compressed else ""
    for name, texts in (("corpus", documents), ("queries", queries)):
        rows = [json.dumps({"_id": each, "text": text}, ensure_ascii=False) for each, text in (texts or {}).items()]
        write_lines(folder / f"{name}.jsonl{end}", *rows)
    judgements = [
        f"{query_id}\t{document_id}\t{relevance}"
        for query_id, relevances in (qrels or {}).items()
        for document_id, relevance in relevances.items()
    ]
    write_lines(folder / "qrels" / f"{split}.tsv{end}", "query-id\tcorpus-id\tscore", *judgements)
    return folder


def write_run_lines(path: Path, run: Mapping[str, Mapping[str, float]]) -> Path:
    """Writes a TREC run file whose ranks are all 0, so that readers have to sort by the scores."""
    lines = [
        f"{query_id} Q0 {document_id} 0 {score} tag"
        for query_id, row in run.items()
        for document_id, score in row.items()
    ]
    return write_lines(path, *lines)


def write_lines(path: Path, *lines: str) -> Path:
    """Writes lines as UTF-8 (lone surrogates as bytes), compressed if the name ends in .gz; returns the path."""
    content = "".join(f"{line}\n" for line in lines).encode(errors="surrogateescape")
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path
