"""A stand-in for Elasticsearch 9, as far as its licence, inference and retriever APIs are documented."""

from dataclasses import dataclass, field

from support import bm25
from support.index_api import IndexApi, IndexState, Route, error
from support.plain_http import post
from support.recording import Answer, Json, RecordedCall
from support.shapes import TEXT, shape

SERVICE_SETTINGS = shape({"api_key": TEXT, "url": TEXT})
ENDPOINT = shape({"service": {"enum": ["hugging_face"]}, "service_settings": SERVICE_SETTINGS})
STANDARD = shape({"standard": shape({"query": shape({"match": {"type": "object"}})})})
RERANKER = shape(
    {"retriever": STANDARD, "field": TEXT, "inference_id": TEXT, "inference_text": TEXT},
    {"rank_window_size": {"type": "integer", "minimum": 1}},
)
SEARCH = shape(
    {"retriever": {"anyOf": [STANDARD, shape({"text_similarity_reranker": RERANKER})]}}, {"size": {"type": "integer"}}
)


@dataclass
class State(IndexState):
    """What a cluster keeps beside its indexes: its licence, and the settings of each inference endpoint."""

    licence: str = "trial"
    endpoints: dict[str, Json] = field(default_factory=dict)


class Elasticsearch(IndexApi):
    state: State

    def __init__(self, password: str) -> None:
        super().__init__(State(), "elastic", password)

    def _routes(self) -> list[Route]:
        return [
            *super()._routes(),
            ("GET", "/_license", self._license),
            ("GET", "/_inference/rerank/([^/]+)", self._endpoint),
            ("PUT", "/_inference/rerank/([^/]+)", self._put_endpoint),
            ("DELETE", "/_inference/rerank/([^/]+)", self._delete_endpoint),
        ]

    def _license(self, _: RecordedCall) -> Json:
        return {"license": {"status": "active", "type": self.state.licence, "uid": "x"}}

    def _endpoint(self, _: RecordedCall, name: str) -> Json:
        if name not in self.state.endpoints:
            raise Answer(404, error("resource_not_found_exception", f"Inference endpoint not found [{name}]"))
        settings = {key: value for key, value in self.state.endpoints[name].items() if key != "api_key"}
        return {"endpoints": [{"inference_id": name, "service": "hugging_face", "service_settings": settings}]}

    def _put_endpoint(self, call: RecordedCall, name: str) -> Json:
        self._write(call, ENDPOINT)
        if self.state.licence not in ("trial", "enterprise"):
            raise Answer(403, error("security_exception", "current license is non-compliant for [inference]"))
        if name in self.state.endpoints:
            raise Answer(400, error("status_exception", f"Inference endpoint [{name}] already exists"))
        self.state.endpoints[name] = call.body["service_settings"]
        return {"inference_id": name, "task_type": "rerank"}

    def _delete_endpoint(self, call: RecordedCall, name: str) -> Json:
        self._write(call)
        assert call.parameters == {"force": "true"}
        del self.state.endpoints[name]
        return {"acknowledged": True}

    def _search(self, call: RecordedCall, index: str) -> Json:
        """Ranks by BM25, and has the inference endpoint re-rank the best hits if the search asks for it."""
        self._check(call, SEARCH)
        retriever, size = call.body["retriever"], call.body.get("size", 10)
        reranker = retriever.get("text_similarity_reranker")
        inner = reranker["retriever"] if reranker else retriever
        ((name, question),) = inner["standard"]["query"]["match"].items()
        stored = self.state.documents[index]
        ranked = bm25.search({i: document[name] for i, document in stored.items()}, question)
        if reranker:
            ranked = ranked[: reranker.get("rank_window_size", 10)]
            texts = [stored[i][reranker["field"]] for i, _ in ranked]
            scores = rerank(self.state.endpoints[reranker["inference_id"]], reranker["inference_text"], texts)
            ranked = sorted(((i, score) for (i, _), score in zip(ranked, scores, strict=True)), key=lambda hit: -hit[1])
        hits = [{"_id": i, "_score": score, "_source": stored[i]} for i, score in ranked[:size]]
        return {"took": 1, "hits": {"total": {"value": len(ranked), "relation": "eq"}, "hits": hits}}


def rerank(endpoint: Json, question: str, texts: list[str]) -> list[float]:
    """Asks for scores as the service `hugging_face` does: the answer must be a bare list with a score for each text."""
    headers = {"Authorization": f"Bearer {endpoint['api_key']}", "Content-Type": "application/json"}
    body = {"query": question, "texts": texts, "return_text": False}
    response = post(endpoint["url"], json=body, headers=headers)
    if response.status_code != 200:
        raise Answer(response.status_code, error("status_exception", response.json()["error"]))
    results = response.json()
    if not isinstance(results, list) or len(results) != len(texts):
        raise Answer(
            500, error("illegal_state_exception", "Reranker input document count and returned score count mismatch")
        )
    by_index = {result["index"]: float(result["score"]) for result in results}
    return [by_index[index] for index in range(len(texts))]
