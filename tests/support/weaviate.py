"""A stand-in for Weaviate with its module reranker-transformers, as far as they are documented."""

import json
import re

import jsonschema
from support import bm25
from support.plain_http import post
from support.recording import Answer, Json, RecordedCall, RecordingServer
from support.shapes import TEXT, shape

PROPERTY = shape({"name": TEXT, "dataType": {"enum": [["text"]]}}, {"tokenization": {"enum": ["word"]}})
COLLECTION = shape(
    {"class": {"type": "string", "pattern": "^[A-Z]"}, "properties": {"type": "array", "items": PROPERTY}},
    {"vectorizer": {"enum": ["none"]}, "moduleConfig": {"type": "object"}},
)
OBJECT = shape({"class": TEXT, "id": {"type": "string", "format": "uuid"}, "properties": {"type": "object"}})
BATCH = shape({"objects": {"type": "array", "items": OBJECT, "minItems": 1}})
QUERY = re.compile(
    r'\{Get \{(\w+)\(bm25: \{query: ("(?:[^"\\]|\\.)*"), properties: \["text"\]\}, limit: (\d+)\) '
    r'\{title ?(?:_additional \{rerank\(property: "text", query: ("(?:[^"\\]|\\.)*")\) \{score\}\})?\}\}\}'
)
CHUNK = 32  # the most documents in a call of the module


class Weaviate(RecordingServer):
    """The stand-in, which asks a re-ranker at an origin."""

    def __init__(self, key: str, reranker: str) -> None:
        super().__init__()
        self.modules: dict[str, Json] = {"reranker-transformers": {}}
        self.collections: dict[str, Json] = {}
        self.objects: dict[str, Json] = {}
        self._login = f"Bearer {key}"
        self._reranker = reranker

    def answer(self, call: RecordedCall) -> Json:
        """The JSON of the answer to a call. Raises Answer for any status but 200."""
        if call.path == "/v1/.well-known/ready":
            return None
        if call.headers.get("authorization") != self._login:
            raise Answer(401, {"code": 401, "message": "invalid api key"})
        routes = {
            "GET /v1/meta": self._meta,
            "POST /v1/schema": self._create,
            "GET /v1/objects": self._list,
            "POST /v1/batch/objects": self._store,
            "POST /v1/graphql": self._search,
            **{f"GET /v1/schema/{name}": self._schema for name in self.collections},
        }
        handle = routes.get(f"{call.method} {call.path}")
        if handle is None:
            raise Answer(404, None)
        return handle(call)

    def _write(self, call: RecordedCall, schema: Json) -> None:
        jsonschema.validate(call.body, schema)
        self.writes.append(call)

    def _meta(self, _: RecordedCall) -> Json:
        return {"hostname": "http://[::]:8080", "modules": self.modules, "version": "1.39.6"}

    def _create(self, call: RecordedCall) -> Json:
        self._write(call, COLLECTION)
        self.collections[call.body["class"]] = call.body
        return call.body

    def _schema(self, call: RecordedCall) -> Json:
        return self.collections[call.path.removeprefix("/v1/schema/")]

    def _list(self, call: RecordedCall) -> Json:
        return {"objects": [each for each in self.objects.values() if each["class"] == call.parameters["class"]]}

    def _store(self, call: RecordedCall) -> Json:
        self._write(call, BATCH)
        self.objects |= {each["id"]: each for each in call.body["objects"]}
        return [each | {"result": {"status": "SUCCESS"}} for each in call.body["objects"]]

    def _search(self, call: RecordedCall) -> Json:
        match = QUERY.fullmatch(call.body["query"])
        assert match, call.body
        collection, words, limit, question = match.groups()
        texts = {i: o["properties"]["text"] for i, o in self.objects.items() if o["class"] == collection}
        ranked = [i for i, _ in bm25.search(texts, json.loads(words), analyze=bm25.words)][: int(limit)]
        scores: dict[str, float] = {}
        if question:
            try:
                found = rerank(self._reranker, json.loads(question), [texts[i] for i in ranked])
            except Answer as failed:
                return {"data": {"Get": {collection: None}}, "errors": [{"message": str(failed.body)}]}
            scores = dict(zip(ranked, found, strict=True))
            ranked.sort(key=lambda i: -scores[i])
        titles = [{"title": self.objects[i]["properties"]["title"]} for i in ranked]
        extra = [{"_additional": {"rerank": [{"score": scores[i]}]}} if scores else {} for i in ranked]
        return {"data": {"Get": {collection: [t | e for t, e in zip(titles, extra, strict=True)]}}}


def rerank(origin: str, question: str, texts: list[str]) -> list[float]:
    """Asks for scores as the module does, in chunks and without a content type, and reads them by position."""
    scores: list[float] = []
    for start in range(0, len(texts), CHUNK):
        chunk = texts[start : start + CHUNK]
        body = json.dumps({"query": question, "documents": chunk, "property": ""}).encode()
        response = post(f"{origin}/rerank", content=body)
        if response.status_code != 200:
            raise Answer(response.status_code, response.json()["error"])
        answered = response.json()["scores"]
        assert [each["document"] for each in answered] == chunk
        scores += [float(each["score"]) for each in answered]
    return scores
