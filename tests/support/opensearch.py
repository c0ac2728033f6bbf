"""A stand-in for OpenSearch 3 with its security, ML Commons and neural search plugins, as far as they are documented.

It refuses every call that is not documented, and every body that is not of the documented shape. Sources:
OpenSearch's documentation of the cluster settings, ML Commons, search pipeline, index and document APIs; the classes
DocumentContextSourceFetcher and RescoringRerankProcessor.
"""

import copy
import re
from dataclasses import dataclass, field

import jsonschema
from support import bm25
from support.index_api import IndexApi, IndexState, Route, error
from support.ml_commons import connector_call, fill, scores_of
from support.opensearch_shapes import CONNECTOR, MODEL, NAMED, PIPELINE, SEARCH
from support.plain_http import post
from support.recording import Answer, Json, RecordedCall
from support.shapes import TEXT, shape

TRUSTED = "plugins.ml_commons.trusted_connector_endpoints_regex"
PRIVATE = "plugins.ml_commons.connector.private_ip_enabled"


@dataclass
class State(IndexState):
    """What a cluster keeps beside its indexes, by id or name."""

    settings: dict[str, Json] = field(default_factory=dict)
    connectors: dict[str, Json] = field(default_factory=dict)
    model_groups: dict[str, Json] = field(default_factory=dict)
    models: dict[str, Json] = field(default_factory=dict)
    pipelines: dict[str, Json] = field(default_factory=dict)


class OpenSearch(IndexApi):
    """failing_task: the reason why tasks fail, or None.  polls: how often a task says that it is still running."""

    state: State

    def __init__(self, password: str) -> None:
        super().__init__(State(), "admin", password)
        self.failing_task: str | None = None
        self.polls = 0
        self._tasks: dict[str, Json] = {}
        self._ids = 0

    def _routes(self) -> list[Route]:
        ml = "/_plugins/_ml"
        return [
            *super()._routes(),
            ("GET", "/_cluster/settings", self._settings),
            ("PUT", "/_cluster/settings", self._put_settings),
            ("POST", f"{ml}/(connectors|models|model_groups)/_search", self._search_ml),
            ("POST", f"{ml}/connectors/_create", self._create_connector),
            ("PUT", f"{ml}/connectors/([^/]+)", self._update_connector),
            ("POST", f"{ml}/model_groups/_register", self._register_group),
            ("POST", f"{ml}/models/_register", self._register_model),
            ("PUT", f"{ml}/models/([^/_]+)", self._update_model),
            ("POST", f"{ml}/models/([^/]+)/_(deploy|undeploy)", self._deploy),
            ("GET", f"{ml}/tasks/([^/]+)", self._task),
            ("GET", "/_search/pipeline/([^/]+)", self._pipeline),
            ("PUT", "/_search/pipeline/([^/]+)", self._put_pipeline),
        ]

    def _new_id(self) -> str:
        self._ids += 1
        return f"Zk{self._ids}-x"

    def _settings(self, call: RecordedCall) -> Json:
        assert call.parameters == {"include_defaults": "true", "flat_settings": "true"}
        defaults = {TRUSTED: [r"^https://api\.cohere\.ai/.*$"], PRIVATE: "false", "cluster.name": "docker-cluster"}
        defaults = {name: value for name, value in defaults.items() if name not in self.state.settings}
        return {"persistent": self.state.settings, "transient": {}, "defaults": defaults}

    def _put_settings(self, call: RecordedCall) -> Json:
        flags = {TRUSTED: {"type": "array", "items": TEXT}, PRIVATE: {"type": "boolean"}}
        self._write(call, shape({"persistent": shape({}, flags)}))
        for name, value in call.body["persistent"].items():
            self.state.settings[name] = str(value).lower() if isinstance(value, bool) else value
        return {"acknowledged": True}

    def _search_ml(self, call: RecordedCall, kind: str) -> Json:
        self._check(call, NAMED)
        name = call.body["query"]["term"]["name.keyword"]
        found = {i: s for i, s in getattr(self.state, kind).items() if s["name"] == name}
        hits = [{"_id": i, "_source": {k: v for k, v in s.items() if k != "credential"}} for i, s in found.items()]
        return {"hits": {"total": {"value": len(hits), "relation": "eq"}, "hits": hits[: call.body.get("size", 10)]}}

    def _create_connector(self, call: RecordedCall) -> Json:
        self._write(call, CONNECTOR)
        identifier = self._new_id()
        self.state.connectors[identifier] = self._stored_connector(call.body)
        return {"connector_id": identifier}

    def _update_connector(self, call: RecordedCall, identifier: str) -> Json:
        self._write(call, CONNECTOR | {"required": []})
        users = [
            m for m in self.state.models.values() if m["connector_id"] == identifier and m["model_state"] == "DEPLOYED"
        ]
        if users:
            reason = f"{len(users)} models are still using this connector, please undeploy the models first"
            raise Answer(400, error("status_exception", reason))
        self.state.connectors[identifier] |= self._stored_connector(call.body)
        return {"_id": identifier, "result": "updated"}

    def _stored_connector(self, body: Json) -> Json:
        stored = copy.deepcopy(body)
        for action in stored["actions"]:
            action["action_type"] = action["action_type"].upper()
            self._check_url(fill(action["url"], stored["parameters"], "parameters"))
        return stored

    def _check_url(self, url: str) -> None:
        if not any(re.fullmatch(pattern, url) for pattern in self.state.settings.get(TRUSTED, [])):
            reason = f"Connector URL is not matching the trusted connector endpoint regex, URL is: {url}"
            raise Answer(400, error("illegal_argument_exception", reason))
        if self.state.settings.get(PRIVATE) != "true":
            raise Answer(
                400, error("illegal_argument_exception", f"Remote inference host name has private ip address: {url}")
            )

    def _register_group(self, call: RecordedCall) -> Json:
        self._write(call, shape({"name": TEXT}, {"description": TEXT}))
        if any(group["name"] == call.body["name"] for group in self.state.model_groups.values()):
            reason = "The name you provided is already being used by a model group"
            raise Answer(400, error("illegal_argument_exception", reason))
        identifier = self._new_id()
        self.state.model_groups[identifier] = call.body
        return {"model_group_id": identifier, "status": "CREATED"}

    def _register_model(self, call: RecordedCall) -> Json:
        self._write(call, MODEL)
        if call.body["connector_id"] not in self.state.connectors:
            raise Answer(404, error("status_exception", "Failed to find connector"))
        if call.body["model_group_id"] not in self.state.model_groups:
            raise Answer(404, error("status_exception", "Failed to find model group"))
        identifier = self._new_id()
        self.state.models[identifier] = call.body | {"model_state": "REGISTERED", "algorithm": "REMOTE"}
        return {"task_id": self._new_task("REGISTER_MODEL", identifier), "status": "CREATED", "model_id": identifier}

    def _update_model(self, call: RecordedCall, identifier: str) -> Json:
        self._write(call, shape({}, {"name": TEXT, "description": TEXT, "connector_id": TEXT}))
        if self.state.models[identifier]["model_state"] == "DEPLOYED":
            raise Answer(400, error("status_exception", "Please undeploy the model first"))
        self.state.models[identifier] |= call.body
        return {"_id": identifier, "result": "updated"}

    def _deploy(self, call: RecordedCall, identifier: str, action: str) -> Json:
        self._write(call, {"type": "null"})
        if action == "undeploy":
            self.state.models[identifier]["model_state"] = "UNDEPLOYED"
            return {"node": {"stats": {identifier: "undeployed"}}}
        if self.failing_task is None:
            self.state.models[identifier]["model_state"] = "DEPLOYED"
        return {"task_id": self._new_task("DEPLOY_MODEL", identifier), "task_type": "DEPLOY_MODEL", "status": "CREATED"}

    def _new_task(self, kind: str, model: str) -> str:
        identifier = self._new_id()
        self._tasks[identifier] = {"model_id": model, "task_type": kind, "function_name": "REMOTE", "left": self.polls}
        return identifier

    def _task(self, _: RecordedCall, identifier: str) -> Json:
        task = self._tasks[identifier]
        task["left"] -= 1
        ended = {"state": "COMPLETED"}
        if self.failing_task:
            ended = {"state": "FAILED", "error": self.failing_task}
        return {**task, **({"state": "RUNNING"} if task["left"] >= 0 else ended), "is_async": True}

    def _pipeline(self, _: RecordedCall, name: str) -> Json:
        if name not in self.state.pipelines:
            raise Answer(404, {})
        return {name: self.state.pipelines[name]}

    def _put_pipeline(self, call: RecordedCall, name: str) -> Json:
        self._write(call, PIPELINE)
        self.state.pipelines[name] = call.body
        return {"acknowledged": True}

    def _search(self, call: RecordedCall, index: str) -> Json:
        """Ranks by BM25, then runs the processors of the search pipeline."""
        self._check(call, SEARCH)
        ((name, condition),) = call.body["query"]["match"].items()
        size = call.body.get("size", 10)
        pipeline: Json = {}
        if call.parameters.get("search_pipeline", "_none") != "_none":
            pipeline = self.state.pipelines[call.parameters["search_pipeline"]]
        fetched = size
        for processor in pipeline.get("request_processors", []):
            fetched *= processor["oversample"]["sample_factor"]
        stored = self.state.documents[index]
        ranked = bm25.search({i: document[name] for i, document in stored.items()}, condition["query"])
        shown = call.body.get("_source")
        hits = [
            {"_id": i, "_score": score, "_source": {k: v for k, v in stored[i].items() if shown is None or k in shown}}
            for i, score in ranked[: int(fetched)]
        ]
        for processor in pipeline.get("response_processors", []):
            if "rerank" in processor:
                hits = self._rerank(processor["rerank"], hits, call.body)
            else:
                jsonschema.validate(processor, shape({"truncate_hits": shape({})}))
                hits = hits[:size]
        return {"took": 1, "hits": {"total": {"value": len(ranked), "relation": "eq"}, "hits": hits}}

    def _rerank(self, processor: Json, hits: list[Json], body: Json) -> list[Json]:
        if not hits:
            return hits
        model = self.state.models[processor["ml_opensearch"]["model_id"]]
        connector = self.state.connectors[model["connector_id"]]
        value: Json = body
        for step in body["ext"]["rerank"]["query_context"]["query_text_path"].split("."):
            value = value[step]
        fields = processor["context"]["document_fields"]
        texts = ["".join(hit["_source"].get(name, "") for name in fields) for hit in hits]
        url, headers, content = connector_call(connector, value, texts)
        self._check_url(url)
        response = post(url, headers=headers, content=content)
        if response.status_code != 200:
            raise Answer(response.status_code, error("status_exception", f"Error from remote service: {response.text}"))
        scores = scores_of(response.text)
        if len(scores) != len(hits):
            raise Answer(500, error("illegal_state_exception", "scores and hits are not the same length"))
        ranked = [hit | {"_score": score} for hit, score in zip(hits, scores, strict=True)]
        return sorted(ranked, key=lambda hit: -hit["_score"])
