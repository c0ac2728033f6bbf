"""Makes Elasticsearch re-rank with bandrank: an inference endpoint, and an index to try it on.

    python set_up_elasticsearch.py --url http://elasticsearch:9200 --password-file FILE --reranker http://bandrank:8000

Needs a trial or an Enterprise licence: the basic one has neither the inference API nor text_similarity_reranker. Can
be run again at any time. A new --reranker-key-file counts after `DELETE /_inference/rerank/bandrank`.
Source: Elasticsearch's documentation of the inference API (service hugging_face) and of retrievers.
"""

import argparse
import time

from client import Client, Json, SetUpError, basic, command_line, done, run, secret
from sample import QUESTION, ensure_documents, ensure_index, is_healthy, show

ENDPOINT = "bandrank"
LICENCES = ("trial", "enterprise")
CANDIDATES = 15


def set_up(options: argparse.Namespace) -> None:
    """Brings a cluster into the state that this file describes. Raises SetUpError."""
    login = basic(options.user, options.password_file) if options.password_file else None
    key = secret(options.reranker_key_file) if options.reranker_key_file else "none"  # the service asks for one
    client = Client(options.url, login)
    deadline = time.monotonic() + options.wait_s
    client.wait_until("the cluster is healthy", lambda: is_healthy(client), deadline=deadline)

    check_licence(client)
    ensure_endpoint(client, f"{options.reranker.rstrip('/')}/rerank", key)
    ensure_index(client, options.index)
    ensure_documents(client, options.index)
    bodies = {"before": query_of(QUESTION, reranked=False), "after": query_of(QUESTION, reranked=True)}
    show(client, {name: (f"/{options.index}/_search", body) for name, body in bodies.items()})


def query_of(question: str, *, reranked: bool) -> dict[str, Json]:
    """A search by words, and the same with its best candidates re-ranked by their field text."""
    words = {"standard": {"query": {"match": {"text": question}}}}
    by_meaning = {
        "retriever": words,
        "field": "text",
        "inference_id": ENDPOINT,
        "inference_text": question,
        "rank_window_size": CANDIDATES,
    }
    return {"size": 3, "retriever": {"text_similarity_reranker": by_meaning} if reranked else words}


def check_licence(client: Client) -> None:
    """Raises SetUpError if the licence has no inference."""
    licence = client.call("GET", "/_license")["license"]
    if licence["type"] not in LICENCES or licence["status"] != "active":
        raise SetUpError(
            f"the licence is {licence['type']} ({licence['status']}), and re-ranking inside Elasticsearch needs an "
            "active trial or Enterprise one: POST /_license/start_trial?acknowledge=true starts a trial of 30 days"
        )


def ensure_endpoint(client: Client, url: str, key: str) -> None:
    """Makes the inference endpoint, or makes it anew if it has another address."""
    path = f"/_inference/rerank/{ENDPOINT}"
    found = client.get(path)
    if found is not None:
        endpoint = found["endpoints"][0]
        if endpoint["service"] == "hugging_face" and endpoint["service_settings"].get("url") == url:
            done("inference endpoint", "is right")
            return
        client.call("DELETE", f"{path}?force=true")
    client.call("PUT", path, {"service": "hugging_face", "service_settings": {"api_key": key, "url": url}})
    done("inference endpoint", "created" if found is None else "made anew")


if __name__ == "__main__":
    raise SystemExit(
        run(set_up, command_line(__doc__.splitlines()[0], url="http://elasticsearch:9200", user="elastic"))
    )
