"""How OpenSearch's ML Commons calls a connector for a rerank processor, and what it takes for an answer.

Sources: its classes ConnectorUtils, HttpConnector, CohereRerankPreProcessFunction and CohereRerankPostProcessFunction.
"""

import json

from support.recording import Json


def connector_call(connector: Json, query: str, texts: list[str]) -> tuple[str, dict[str, str], bytes]:
    """URL, headers and body of the call that ML Commons makes for a query and the texts of its hits."""
    action = connector["actions"][0]
    assert action["pre_process_function"] == "connector.pre_process.cohere.rerank"
    found = {"query": query, "documents": json.dumps(texts), "top_n": json.dumps(len(texts))}
    escaped = {name: value if _is_json(value) else _escaped(value) for name, value in found.items()}
    body = fill(action["request_body"], connector["parameters"] | escaped, "parameters")
    json.loads(body)  # as ML Commons does before it sends
    headers = {name: fill(value, connector["credential"], "credential") for name, value in action["headers"].items()}
    return fill(action["url"], connector["parameters"], "parameters"), headers, body.encode()


def scores_of(response: str) -> list[float]:
    """The scores in the order of the texts. Their types must be exact, because the post-process function casts them."""
    results = json.loads(response)["results"]
    scores: list[float | None] = [None] * len(results)
    for result in results:
        assert type(result["index"]) is int, "an index must be an Integer"
        assert type(result["relevance_score"]) is float, "a score must be a Double"
        scores[result["index"]] = result["relevance_score"]
    assert None not in scores, "an index is missing"
    return [score for score in scores if score is not None]


def _is_json(value: str) -> bool:
    try:
        return isinstance(json.loads(value), dict | list)
    except ValueError:
        return False


def _escaped(value: str) -> str:
    return json.dumps(value)[1:-1].replace("/", r"\/")


def fill(template: str, values: dict[str, str], scope: str) -> str:
    """A template with its placeholders, like ${parameters.query}, filled in."""
    filled = template
    for name, value in values.items():
        filled = filled.replace(f"${{{scope}.{name}}}", value)
    assert f"${{{scope}." not in filled, f"a placeholder has no value: {filled}"
    return filled
