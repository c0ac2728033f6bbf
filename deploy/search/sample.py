"""The sample documents, and their index in an engine that speaks the API of Elasticsearch."""

import json
from collections.abc import Mapping
from pathlib import Path

from client import Client, Json, SetUpError, done

QUESTION = "how to get rid of hiccups"
FILE = Path(__file__).with_name("documents.jsonl")
# One shard, so that BM25 counts over all documents; english: stems and stop words.
SETTINGS = {"number_of_shards": 1, "number_of_replicas": 0}
PROPERTIES = {"title": {"type": "text", "analyzer": "english"}, "text": {"type": "text", "analyzer": "english"}}


def documents() -> dict[str, dict[str, str]]:
    """The title and the text of each document by its id."""
    lines = [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]
    return {line.pop("id"): line for line in lines}


def is_healthy(client: Client) -> bool:
    """Whether all primary shards are there within seconds."""
    answer = client.call("GET", "/_cluster/health?wait_for_status=yellow&timeout=5s", expected=(200, 408))
    return not answer["timed_out"]


def ensure_index(client: Client, index: str) -> None:
    """Makes the index unless there is one. Raises SetUpError if there is one with other fields."""
    found = client.get(f"/{index}/_mapping")
    if found is None:
        client.call("PUT", f"/{index}", {"settings": {"index": SETTINGS}, "mappings": {"properties": PROPERTIES}})
        done(f"index {index}", "created")
    elif next(iter(found.values()))["mappings"].get("properties") != PROPERTIES:
        raise SetUpError(f"there is an index {index} with other fields; delete it, or choose another name with --index")
    else:
        done(f"index {index}", "is there")


def ensure_documents(client: Client, index: str) -> None:
    """Indexes the sample documents that are missing or differ."""
    wanted = documents()
    found: list[Json] = client.call("POST", f"/{index}/_mget", {"ids": list(wanted)})["docs"]
    same = {hit["_id"] for hit in found if hit.get("found") and hit["_source"] == wanted[hit["_id"]]}
    lines: list[Json] = []
    for name, document in wanted.items():
        if name not in same:
            lines += [{"index": {"_id": name}}, document]
    if not lines:
        done("documents", f"{len(same)} are there")
        return
    answer = client.call("POST", f"/{index}/_bulk?refresh=true", lines)
    if answer["errors"]:
        reasons = [item["index"]["error"]["reason"] for item in answer["items"] if "error" in item["index"]]
        raise SetUpError(f"{len(reasons)} documents were not indexed; the first: {reasons[0]}")
    done("documents", f"{len(wanted) - len(same)} indexed")


def show(client: Client, searches: Mapping[str, tuple[str, Json]]) -> None:
    """Sends searches for the question and prints their titles. Raises SetUpError if one does not work.

    searches: by name, the path and the body of each.
    """
    known = documents()
    for name, (path, body) in searches.items():
        try:
            hits = client.call("POST", path, body)["hits"]["hits"]
        except SetUpError as error:
            raise SetUpError(f"a search of the sample fails; does bandrank run? {error}") from error
        done(f'"{QUESTION}", {name}', "; ".join(known[hit["_id"]]["title"] for hit in hits))
