"""Makes a collection in Weaviate whose searches bandrank re-ranks.

    python set_up_weaviate.py --url http://weaviate:8080 --password-file FILE

Weaviate itself knows where bandrank is: its module reranker-transformers has the address from RERANKER_INFERENCE_API.
--password-file holds an API key of Weaviate. Can be run again at any time.
Source: Weaviate's documentation of its REST API, of GraphQL, and of the module.
"""

import argparse
import json
import time
import uuid

from client import Client, Json, SetUpError, command_line, done, run, secret
from sample import QUESTION, documents

MODULE = "reranker-transformers"
CANDIDATES = 10
PROPERTIES = [{"name": name, "dataType": ["text"], "tokenization": "word"} for name in ("title", "text")]


def set_up(options: argparse.Namespace) -> None:
    """Brings a server into the state that this file describes. Raises SetUpError."""
    key = secret(options.password_file) if options.password_file else None
    client = Client(options.url, f"Bearer {key}" if key else None)
    collection = options.index[:1].upper() + options.index[1:]  # as Weaviate writes it
    deadline = time.monotonic() + options.wait_s
    client.wait_until("Weaviate is ready", lambda: _is_ready(client), deadline=deadline)

    check_module(client)
    ensure_collection(client, collection)
    ensure_objects(client, collection)
    show(client, collection)


def query_of(collection: str, question: str, *, reranked: bool) -> dict[str, Json]:
    """A search by words, and the same with its candidates in order of relevance."""
    text = json.dumps(question)
    extra = f' _additional {{rerank(property: "text", query: {text}) {{score}}}}' if reranked else ""
    words = f'bm25: {{query: {text}, properties: ["text"]}}'
    return {"query": f"{{Get {{{collection}({words}, limit: {CANDIDATES}) {{title{extra}}}}}}}"}


def check_module(client: Client) -> None:
    """Raises SetUpError if Weaviate runs without the module."""
    modules = client.call("GET", "/v1/meta").get("modules") or {}
    if MODULE not in modules:
        raise SetUpError(
            f"Weaviate runs without the module {MODULE}: set ENABLE_MODULES={MODULE} and RERANKER_INFERENCE_API to the "
            "address of bandrank"
        )


def ensure_collection(client: Client, collection: str) -> None:
    """Makes the collection unless there is one. Raises SetUpError if there is one of another kind."""
    found = client.get(f"/v1/schema/{collection}")
    if found is None:
        wanted = {
            "class": collection,
            "vectorizer": "none",
            "moduleConfig": {MODULE: {}},
            "properties": PROPERTIES,
        }
        client.call("POST", "/v1/schema", wanted)
        done(f"collection {collection}", "created")
        return
    names = {each["name"] for each in found["properties"]}
    if MODULE not in (found.get("moduleConfig") or {}) or not {"title", "text"} <= names:
        raise SetUpError(
            f"there is a collection {collection} of another kind; delete it, or choose another name with --index"
        )
    done(f"collection {collection}", "is there")


def ensure_objects(client: Client, collection: str) -> None:
    """Stores the sample documents that are missing or differ."""
    wanted = {str(uuid.uuid5(uuid.NAMESPACE_URL, name)): document for name, document in documents().items()}
    stored = client.call("GET", f"/v1/objects?class={collection}&limit=1000")["objects"]
    same = {each["id"] for each in stored if each["properties"] == wanted.get(each["id"])}
    missing = [
        {"class": collection, "id": identifier, "properties": document}
        for identifier, document in wanted.items()
        if identifier not in same
    ]
    if missing:
        results = client.call("POST", "/v1/batch/objects", {"objects": missing})
        failed = [each["result"]["errors"] for each in results if each["result"].get("errors")]
        if failed:
            raise SetUpError(f"{len(failed)} documents were not stored; the first: {failed[0]['error'][0]['message']}")
    done("documents", f"{len(missing)} stored" if missing else f"{len(same)} are there")


def show(client: Client, collection: str) -> None:
    """Searches without and with re-ranking, and prints both. Raises SetUpError if that does not work."""
    for title, reranked in (("before", False), ("after", True)):
        answer = client.call("POST", "/v1/graphql", query_of(collection, QUESTION, reranked=reranked))
        if answer.get("errors"):
            reason = answer["errors"][0]["message"]
            raise SetUpError(f"a search of the sample fails; does bandrank run? {reason}")
        hits = [hit["title"] for hit in answer["data"]["Get"][collection]]
        done(f'"{QUESTION}", {title}', "; ".join(hits[:3]))


def _is_ready(client: Client) -> bool:
    client.call("GET", "/v1/.well-known/ready")
    return True


if __name__ == "__main__":
    raise SystemExit(run(set_up, command_line(__doc__.splitlines()[0], url="http://weaviate:8080")))
