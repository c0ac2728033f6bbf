"""Makes OpenSearch re-rank with bandrank: a connector, a model, a search pipeline, and an index to try them on.

    python set_up_opensearch.py --url http://opensearch:9200 --password-file FILE --reranker http://bandrank:8000

Looks for each thing by its name, makes what is missing and mends what differs, so that it can be run again at any time,
also after a run that was interrupted. Ends with 1 and a sentence if it cannot.
Sources: OpenSearch's documentation of the ML Commons APIs, and of the processors oversample, rerank and truncate_hits.
"""

import argparse
import hashlib
import re
import time
from collections.abc import Mapping
from urllib.parse import quote

from client import Client, Json, SetUpError, basic, command_line, done, run, secret
from sample import QUESTION, ensure_documents, ensure_index, is_healthy, show

NAME = "bandrank"  # of the connector, the model, its group and the pipeline
ML = "/_plugins/_ml"
TRUSTED = "plugins.ml_commons.trusted_connector_endpoints_regex"
PRIVATE = "plugins.ml_commons.connector.private_ip_enabled"
CANDIDATES_PER_HIT = 5  # a search for ten hits re-ranks the best fifty of BM25
TASK_S = 120.0


def set_up(options: argparse.Namespace) -> None:
    """Brings a cluster into the state that this file describes. Raises SetUpError."""
    login = basic(options.user, options.password_file) if options.password_file else None
    key = secret(options.reranker_key_file) if options.reranker_key_file else None
    client = Client(options.url, login)
    deadline = time.monotonic() + options.wait_s
    client.wait_until("the cluster is healthy", lambda: is_healthy(client), deadline=deadline)

    ensure_settings(client, options.reranker)
    connector = ensure_connector(client, connector_of(options.reranker, key))
    model = ensure_model(client, connector)
    ensure_pipeline(client, model)
    ensure_index(client, options.index)
    ensure_documents(client, options.index)
    search, body = f"/{options.index}/_search", query_of(QUESTION)
    show(client, {"before": (search, body), "after": (f"{search}?search_pipeline={NAME}", body)})


def connector_of(reranker: str, key: str | None) -> dict[str, Json]:
    """The connector as ML Commons is given it.

    The pre-process function gives the parameters query (escaped for the quotes around it), documents and top_n; the
    post-process function reads results[].index and results[].relevance_score.
    """
    headers = {"Content-Type": "application/json"}
    about = "Sends a query and its hits to bandrank, which scores them."
    if key:
        headers["Authorization"] = "Bearer ${credential.key}"
        # By which a later run sees whether the key is still the same: OpenSearch never shows it.
        about += f" Digest of its key: {hashlib.sha256(key.encode()).hexdigest()[:16]}."
    return {
        "name": NAME,
        "description": about,
        "version": "1",
        "protocol": "http",
        "parameters": {"endpoint": reranker.rstrip("/")},
        "credential": {"key": key or "none"},  # ML Commons takes no connector without a credential
        "actions": [
            {
                "action_type": "predict",
                "method": "POST",
                "url": "${parameters.endpoint}/rerank",
                "headers": headers,
                "request_body": '{"query": "${parameters.query}", "documents": ${parameters.documents}, '
                '"top_n": ${parameters.top_n}}',
                "pre_process_function": "connector.pre_process.cohere.rerank",
                "post_process_function": "connector.post_process.cohere.rerank",
            }
        ],
    }


def pipeline_of(model: str) -> dict[str, Json]:
    """The search pipeline: more hits than were asked for are fetched, re-ranked by their text, and cut again."""
    return {
        "description": "Re-ranks hits by the field text with bandrank.",
        "request_processors": [{"oversample": {"sample_factor": CANDIDATES_PER_HIT}}],
        "response_processors": [
            {"rerank": {"ml_opensearch": {"model_id": model}, "context": {"document_fields": ["text"]}}},
            {"truncate_hits": {}},
        ],
    }


def query_of(question: str, size: int = 3) -> dict[str, Json]:
    """A search by words. The pipeline finds the question at query_text_path, and the texts to score in the hits."""
    return {
        "size": size,
        "query": {"match": {"text": {"query": question}}},
        "ext": {"rerank": {"query_context": {"query_text_path": "query.match.text.query"}}},
    }


def ensure_settings(client: Client, reranker: str) -> None:
    """Lets connectors call this one address, private as it may be, and no others than before."""
    found = client.call("GET", "/_cluster/settings?include_defaults=true&flat_settings=true")
    in_force: dict[str, Json] = {**found["defaults"], **found["persistent"], **found["transient"]}
    trusted = in_force.get(TRUSTED, [])
    if isinstance(trusted, str):  # as a file of settings may have it
        trusted = trusted.split(",")
    ours = f"^{re.escape(reranker.rstrip('/'))}/.*$"
    changes: dict[str, Json] = {}
    if ours not in trusted:
        changes[TRUSTED] = [*trusted, ours]
    if str(in_force.get(PRIVATE)).lower() != "true":
        changes[PRIVATE] = True
    if changes:
        client.call("PUT", "/_cluster/settings", {"persistent": changes})
    done("cluster settings", "updated" if changes else "are right")


def ensure_connector(client: Client, wanted: Mapping[str, Json]) -> str:
    """The id of the connector, made or mended if need be."""
    found = _named(client, "connectors")
    if found is None:
        created = client.call("POST", f"{ML}/connectors/_create", wanted)
        done("connector", "created")
        return str(created["connector_id"])
    identifier, source = found
    if _same_connector(source, wanted):
        done("connector", "is right")
        return identifier
    model = _named(client, "models")
    if model is not None:  # a connector in use cannot be changed
        client.call("POST", f"{ML}/models/{quote(model[0])}/_undeploy")
    client.call("PUT", f"{ML}/connectors/{quote(identifier)}", wanted)
    done("connector", "updated")
    return identifier


def ensure_model(client: Client, connector: str) -> str:
    """The id of the model that calls the connector, deployed."""
    group = _named(client, "model_groups")
    if group is None:
        body = {"name": NAME, "description": "Models that call bandrank."}
        group = client.call("POST", f"{ML}/model_groups/_register", body)["model_group_id"], {}
    found = _named(client, "models")
    if found is None:
        body = {
            "name": NAME,
            "function_name": "remote",
            "model_group_id": group[0],
            "description": "Scores a query's hits with bandrank.",
            "connector_id": connector,
        }
        registered = client.call("POST", f"{ML}/models/_register", body)
        identifier = str(_finished(client, registered["task_id"], "registering the model")["model_id"])
        state, how = "REGISTERED", "created"
    else:
        identifier, source = found
        state, how = str(source.get("model_state")), "is right"
        if source.get("connector_id") != connector:
            client.call("POST", f"{ML}/models/{quote(identifier)}/_undeploy")
            client.call("PUT", f"{ML}/models/{quote(identifier)}", {"connector_id": connector})
            state, how = "UNDEPLOYED", "updated"
    if state != "DEPLOYED":
        task = client.call("POST", f"{ML}/models/{quote(identifier)}/_deploy")["task_id"]
        _finished(client, task, "deploying the model")
        how += ", deployed"
    done("model", how)
    return identifier


def ensure_pipeline(client: Client, model: str) -> None:
    """Makes or mends the search pipeline."""
    path = f"/_search/pipeline/{NAME}"
    found, wanted = client.get(path), pipeline_of(model)
    if found is None or found.get(NAME) != wanted:
        client.call("PUT", path, wanted)
    done("search pipeline", "created" if found is None else "is right" if found.get(NAME) == wanted else "updated")


def _named(client: Client, kind: str) -> tuple[str, dict[str, Json]] | None:
    """The id and the source of the one thing of a kind that has our name. Raises SetUpError if there are several."""
    body = {"query": {"term": {"name.keyword": NAME}}, "size": 2}
    answer = client.call("POST", f"{ML}/{kind}/_search", body, expected=(200, 404))  # 404: none was ever made
    hits = answer["hits"]["hits"] if "hits" in answer else []
    if len(hits) > 1:
        raise SetUpError(f"there are several {kind} named {NAME}; delete all but one")
    return (hits[0]["_id"], hits[0]["_source"]) if hits else None


def _same_connector(found: Mapping[str, Json], wanted: Mapping[str, Json]) -> bool:
    """Whether a connector is what we want, but for its credential, which OpenSearch does not show."""
    shown = [name for name in wanted if name not in ("credential", "actions")]
    (action,) = wanted["actions"]
    found_actions = found.get("actions") or [{}]
    return (
        all(found.get(name) == wanted[name] for name in shown)
        and len(found_actions) == 1
        and {**found_actions[0], "action_type": str(found_actions[0].get("action_type")).lower()} == action
    )


def _finished(client: Client, task: str, what: str) -> dict[str, Json]:
    """A task of ML Commons that has been completed. Raises SetUpError if it fails or takes too long."""
    state: dict[str, Json] = {}

    def is_over() -> bool:
        state.update(client.call("GET", f"{ML}/tasks/{quote(task)}"))
        return state["state"] not in ("CREATED", "RUNNING")

    client.wait_until(f"{what} is over", is_over, deadline=time.monotonic() + TASK_S)
    if state["state"] != "COMPLETED":
        raise SetUpError(f"{what} ended as {state['state']}: {state.get('error', 'OpenSearch does not say why')}")
    return state


if __name__ == "__main__":
    raise SystemExit(run(set_up, command_line(__doc__.splitlines()[0], url="http://opensearch:9200", user="admin")))
