"""What OpenSearch and Elasticsearch have in common, for stand-ins of both: indexes, documents and the login."""

import base64
import re
from collections.abc import Callable
from dataclasses import dataclass, field

import jsonschema
from support.recording import Answer, Json, RecordedCall, RecordingServer
from support.shapes import TEXT, shape

Route = tuple[str, str, Callable[..., Json]]  # method, pattern of the path, what answers


@dataclass
class IndexState:
    """What a cluster keeps: the mapping of each index, and its documents by id."""

    mappings: dict[str, Json] = field(default_factory=dict)
    documents: dict[str, dict[str, Json]] = field(default_factory=dict)


class IndexApi(RecordingServer):
    """A cluster that keeps indexes and documents."""

    def __init__(self, state: IndexState, user: str, password: str) -> None:
        super().__init__()
        self.state = state
        self._login = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()

    def answer(self, call: RecordedCall) -> Json:
        """The JSON of the answer to a call. Raises Answer for any status but 200."""
        if call.headers.get("authorization") != self._login:
            raise Answer(401, "Unauthorized")
        for method, pattern, handle in self._routes():
            match = re.fullmatch(pattern, call.path)
            if match and method == call.method:
                return handle(call, *match.groups())
        raise Answer(400, {"error": f"no handler found for uri [{call.path}] and method [{call.method}]"})

    def _routes(self) -> list[Route]:
        return [
            ("GET", "/_cluster/health", self._health),
            ("GET", "/([a-z][^/]*)/_mapping", self._mapping),
            ("PUT", "/([a-z][^/]*)", self._create_index),
            ("POST", "/([a-z][^/]*)/_mget", self._mget),
            ("POST", "/([a-z][^/]*)/_bulk", self._bulk),
            ("POST", "/([a-z][^/]*)/_search", self._search),
        ]

    def _check(self, call: RecordedCall, schema: Json) -> None:
        try:
            jsonschema.validate(call.body, schema)
        except jsonschema.ValidationError as error:
            raise Answer(400, error("parse_exception", f"{call.method} {call.path}: {error.message}")) from error

    def _write(self, call: RecordedCall, schema: Json = None) -> None:
        self._check(call, schema or {})
        self.writes.append(call)

    def _health(self, call: RecordedCall) -> Json:
        assert call.parameters["wait_for_status"] in ("yellow", "green")
        return {"cluster_name": "docker-cluster", "status": "green", "timed_out": False}

    def _mapping(self, _: RecordedCall, index: str) -> Json:
        if index not in self.state.mappings:
            raise Answer(404, error("index_not_found_exception", f"no such index [{index}]") | {"status": 404})
        return {index: {"mappings": self.state.mappings[index]}}

    def _create_index(self, call: RecordedCall, index: str) -> Json:
        self._write(call, shape({"mappings": {"type": "object"}}, {"settings": {"type": "object"}}))
        if index in self.state.mappings:
            raise Answer(400, error("resource_already_exists_exception", f"index [{index}] already exists"))
        self.state.mappings[index] = call.body["mappings"]
        self.state.documents[index] = {}
        return {"acknowledged": True, "shards_acknowledged": True, "index": index}

    def _mget(self, call: RecordedCall, index: str) -> Json:
        self._check(call, shape({"ids": {"type": "array", "items": TEXT, "minItems": 1}}))
        stored = self.state.documents[index]
        docs = [
            {"_index": index, "_id": i, "found": i in stored} | ({"_source": stored[i]} if i in stored else {})
            for i in call.body["ids"]
        ]
        return {"docs": docs}

    def _bulk(self, call: RecordedCall, index: str) -> Json:
        self._write(call, {"type": "array", "minItems": 2})
        assert call.headers["content-type"] == "application/x-ndjson"
        assert call.parameters == {"refresh": "true"}
        items = []
        for action, document in zip(call.body[::2], call.body[1::2], strict=True):
            jsonschema.validate(action, shape({"index": shape({"_id": TEXT})}))
            unknown = set(document) - set(self.state.mappings[index]["properties"])
            if unknown:
                items.append({"index": {"status": 400, "error": {"type": "mapper", "reason": f"no field {unknown}"}}})
                continue
            self.state.documents[index][action["index"]["_id"]] = document
            items.append({"index": {"_id": action["index"]["_id"], "status": 201}})
        return {"took": 1, "errors": any("error" in item["index"] for item in items), "items": items}

    def _search(self, call: RecordedCall, index: str) -> Json:
        raise NotImplementedError


def error(kind: str, reason: str) -> dict[str, Json]:
    return {"error": {"root_cause": [], "type": kind, "reason": reason}}
