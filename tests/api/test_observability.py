"""What operators and their tools see: metrics, probes, and the description of the API."""

import asyncio
import random
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.app import RunningApp, assert_error, running_app
from support.models import random_text, tiny_cross_encoder
from support.scorers import Gate, WatchedScorer, encoded_lookup, lookup

from bandrank import __version__
from bandrank.api import pace
from bandrank.errors import ScoringFailed
from bandrank.models.batch import ScoreBatch
from bandrank.settings import Settings

COUNTERS = {
    "bandrank_requests_total": ["200", "401", "403", "404", "413", "415", "422", "429", "499", "500", "503", "504"],
    "bandrank_refused_requests_total": [
        *("ranking", "unauthorized", "other", "unauthorized"),
        *("ranking", "forbidden", "other", "forbidden"),
        *("ranking", "rate", "other", "rate"),
    ],
    "bandrank_dropped_tasks_total": ["cancelled", "expired", "cut"],
    "bandrank_token_cache_lookups_total": ["hit", "miss"],
    "bandrank_candidates_total": [],
    "bandrank_tokens_total": [],
    "bandrank_truncated_tokens_total": [],
    "bandrank_stages_total": ["fast", "accurate"],
    "bandrank_stage_candidates_total": ["fast", "accurate"],
    "bandrank_degraded_total": [],
    "bandrank_cache_candidates_total": ["hit", "miss"],
    "bandrank_cache_writes_total": ["stored", "failed", "dropped"],
}
HISTOGRAMS = [
    "bandrank_request_seconds",
    "bandrank_tokenize_seconds",
    "bandrank_cache_seconds",
    "bandrank_encode_seconds",
    "bandrank_queue_seconds",
    "bandrank_score_seconds",
    "bandrank_batch_tokens",
    "bandrank_batch_tasks",
]
GAUGES = [
    "bandrank_waiting_tokens",
    "bandrank_waiting_tasks",
    "bandrank_token_cache_bytes",
    "bandrank_process_resident_memory_bytes",
    "bandrank_device_memory_bytes",
    "bandrank_ready",
    "bandrank_build_info",
]


async def samples(running: RunningApp) -> list[Any]:
    text = (await running.client.get("/metrics")).text
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]


async def test_every_series_is_there_before_the_first_request() -> None:
    """Every series has all labels, at 0 where requests are counted, so that no alert starts from nothing."""
    async with running_app(lookup(), fast=encoded_lookup()) as running:
        seen = await samples(running)

    for name, labels in COUNTERS.items():
        found = [sample for sample in seen if sample.name == name]
        assert [value for sample in found for value in sample.labels.values()] == labels
        if name != "bandrank_token_cache_lookups_total":  # which the self-test of the start uses too
            assert all(sample.value == 0 for sample in found)
    for name in HISTOGRAMS:
        assert {sample.name for sample in seen} >= {f"{name}_bucket", f"{name}_sum", f"{name}_count"}
    for name in GAUGES:
        assert any(sample.name == name for sample in seen)
    kinds = {sample.labels["kind"] for sample in seen if sample.name == "bandrank_device_memory_bytes"}
    assert kinds == {"allocated", "peak", "reserved", "graphs", "total"}


async def test_histograms_of_seconds_reach_from_a_millisecond_to_the_longest_request() -> None:
    """Alerts on a quantile work with any threshold that a request can exceed, also through the proxy."""
    async with running_app(lookup()) as running:
        seen = await samples(running)

    longest = dict.fromkeys(HISTOGRAMS[:6], Settings().request_timeout_s)
    longest["bandrank_proxy_request_seconds"] = Settings().proxy_timeout_s
    for name, last in longest.items():
        bounds = [float(sample.labels["le"]) for sample in seen if sample.name == f"{name}_bucket"]
        assert (min(bounds), *sorted({*bounds})[-2:]) == (0.001, last, float("inf"))


async def test_what_is_served_can_be_read_from_the_metrics() -> None:
    async with running_app(lookup(), name="org/tiny") as running:
        seen = await running.scrape()

    labels = {"version": __version__, "model": "org/tiny", "device": "cpu", "dtype": "float32"}
    assert seen.value("bandrank_build_info", **labels) == 1
    assert seen.value("bandrank_process_resident_memory_bytes") > 10_000_000
    assert seen.value("bandrank_device_memory_bytes") == 0


async def test_sums_equal_what_was_sent() -> None:
    """Statuses, candidates, tokens, cut tokens, durations and lookups add up over good and bad requests."""
    rng = random.Random(1)
    good, bad = [], [{"query": ""}, {"query": "who"}, {"query": "who", "candidates": ["man"], "model": "gpt"}]
    for _ in range(12):
        texts = [random_text(rng, rng.randint(0, 40)) for _ in range(rng.randint(1, 9))]
        good.append({"query": random_text(rng, rng.randint(1, 20)), "candidates": texts})
    model = tiny_cross_encoder(positions=32, max_query_tokens=8, long_candidates="truncate")
    async with running_app(model) as running:
        while (before := await running.scrape()).value("bandrank_batch_tokens_count") < 1:
            pass  # the self-test's batch is counted once its scores are out
        answers = [(await running.rerank(body)).json() for body in good]
        for body in bad:
            await running.rerank(body)
        await running.client.get("/rerank")
        for path in ("/healthz", "/metrics", "/nothing"):
            await running.client.get(path)
        after = await running.scrape()

    def growth(name: str, **labels: str) -> float:
        return after.value(f"bandrank_{name}", **labels) - before.value(f"bandrank_{name}", **labels)

    num_candidates = sum(len(body["candidates"]) for body in good)
    assert growth("requests_total") == 12 + 3 + 1
    assert growth("request_seconds_count") == 12
    statuses = {status: growth("requests_total", status=status) for status in ("200", "422", "404", "405")}
    assert statuses == {"200": 12, "422": 2, "404": 1, "405": 1}
    assert growth("candidates_total") == num_candidates
    assert growth("tokens_total") == sum(answer["usage"]["total_tokens"] for answer in answers)
    assert growth("truncated_tokens_total") == sum(answer["meta"]["truncated_tokens"] for answer in answers) > 0
    assert growth("token_cache_lookups_total") == num_candidates
    for name in ("tokenize_seconds", "queue_seconds", "score_seconds"):
        assert growth(f"{name}_count") == 12
    assert growth("batch_tasks_sum") == growth("batch_tasks_count") == growth("batch_tokens_count") == 12
    assert after.value("bandrank_waiting_tokens") == after.value("bandrank_waiting_tasks") == 0


async def test_the_steps_are_parts_of_the_whole() -> None:
    """The seconds of each step are those that the answers have, and add up to no more than those of the requests."""
    steps = ("tokenize", "cache", "encode", "queue", "score")
    told = dict.fromkeys(steps, 0.0)
    async with running_app(encoded_lookup(man=1.0)) as running:
        for text in ("man", "she", "man"):
            answer = await running.rerank({"query": "who", "candidates": [text]})
            told = {step: told[step] + answer.json()["meta"]["timings_ms"][step] / 1000 for step in steps}
        seen = await running.scrape()

    parts = {step: seen.value(f"bandrank_{step}_seconds_sum") for step in steps}
    assert parts == pytest.approx(told, abs=1e-5)
    assert all(parts.values())
    assert sum(parts.values()) <= seen.value("bandrank_request_seconds_sum")


async def test_others_get_turns_while_metrics_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop goes round between the series of one name and those of the next."""
    monkeypatch.setattr(pace, "QUANTUM_S", 0.0)
    async with running_app(lookup()) as running:
        scrape = asyncio.ensure_future(running.client.get("/metrics"))
        rounds = 0
        while not scrape.done():
            await asyncio.sleep(0)
            rounds += 1

    assert rounds > scrape.result().text.count("# TYPE ") / 2  # those of a counter have two
    async with running_app(lookup()) as running:
        response = await running.client.get("/metrics")

    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = list(text_string_to_metric_families(response.text))
    assert all(family.name.startswith("bandrank_") and family.documentation for family in families)


async def test_two_services_in_one_process_do_not_mix() -> None:
    async with running_app(lookup()) as one, running_app(lookup()) as other:
        await one.rerank({"query": "who", "candidates": ["man"]})

        assert (await one.scrape()).value("bandrank_candidates_total") == 1
        assert (await other.scrape()).value("bandrank_candidates_total") == 0


async def test_ready_from_the_start_to_the_end() -> None:
    """The gauge is 0 before the self-test of the start and after the end; /readyz is 200 between, 503 after."""
    async with running_app(tiny_cross_encoder(), started=False) as running:
        assert (await running.scrape()).value("bandrank_ready") == 0
        async with running.app.router.lifespan_context(running.app):
            assert (await running.scrape()).value("bandrank_ready") == 1
            ready = await running.client.get("/readyz")
            assert (ready.status_code, ready.json()) == (200, {"status": "ready", "model": "tiny"})
        assert (await running.scrape()).value("bandrank_ready") == 0
        assert_error(await running.client.get("/readyz"), 503, "not_ready")


async def test_a_model_that_cannot_score_does_not_start(caplog: pytest.LogCaptureFixture) -> None:
    """The start fails, rather than the first request; a probe reports the reason too, and the log has it once."""

    def choke(_: ScoreBatch) -> None:
        raise RuntimeError("choked")

    async with running_app(WatchedScorer(lookup(), choke), started=False) as running:
        for _ in range(2):
            assert "self-test failed" in assert_error(await running.client.get("/readyz"), 503, "not_ready")
        with pytest.raises(ScoringFailed):
            async with running.app.router.lifespan_context(running.app):
                pass
        assert (await running.scrape()).value("bandrank_ready") == 0
    assert [line for line in caplog.messages if "ready" in line] == [
        "not ready: the self-test failed: scoring failed: RuntimeError"
    ]


async def test_a_service_that_scores_again_is_ready_again(caplog: pytest.LogCaptureFixture) -> None:
    """The log has one line for the failure and one for its end."""
    errors = [RuntimeError("choked")]

    def choke(_: ScoreBatch) -> None:
        if errors:
            raise errors.pop()

    async with running_app(WatchedScorer(lookup(), choke), started=False) as running:
        statuses = [(await running.client.get("/readyz")).status_code for _ in range(3)]

    assert statuses == [503, 200, 200]
    assert [line.partition(":")[0] for line in caplog.messages if "ready" in line] == ["not ready", "ready again"]


async def test_a_self_test_does_not_take_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe has its answer long before the scoring thread counts as hung."""
    monkeypatch.setattr("bandrank.api.service.SELF_TEST_TIMEOUT_S", 0.05)
    gate = Gate()
    async with running_app(WatchedScorer(lookup(), gate), started=False) as running:
        assert "self-test took longer" in assert_error(await running.client.get("/readyz"), 503, "not_ready")
        gate.let_through()


async def test_the_api_describes_itself() -> None:
    async with running_app(lookup()) as running:
        document = (await running.client.get("/openapi.json")).json()

    operation = document["paths"]["/rerank"]["post"]
    schema, *_ = operation["requestBody"]["content"]["application/json"]["schema"]["anyOf"]
    fields = {"query", "candidates", "documents", "top_n", "return_documents", "raw_scores", "model"}
    fields |= {"strategy", "budget_ms", "first_stage_weight", "instruction", "pooled"}
    fields |= {"max_tokens_per_candidate", "return_passages"}
    assert set(schema["properties"]) == fields
    assert schema["required"] == ["query", "candidates"]
    assert schema["examples"][0].keys() <= fields
    assert set(operation["responses"]) >= {"200", "404", "413", "415", "422", "429", "500", "503", "504"}
    answers = operation["responses"]["200"]["content"]["application/json"]["schema"]["anyOf"]
    answer = resolve(document, answers[0])
    assert set(answer["properties"]) == {"id", "model", "results", "unresolved", "usage", "meta"}
    (header,) = operation["parameters"]
    assert (header["name"], header["in"], header.get("required", False)) == ("X-Budget-Ms", "header", False)
    assert set(document["paths"]["/metrics"]["get"]["responses"]["200"]["content"]) == {"text/plain"}
    assert "head" not in document["paths"]["/healthz"]


@pytest.mark.parametrize("path", ["/docs", "/redoc"])
async def test_no_page_loads_scripts_from_elsewhere(path: str) -> None:
    """FastAPI's own pages would load scripts from another site, so they are not served."""
    async with running_app(lookup()) as running:
        response = await running.client.get(path)

    assert_error(response, 404, "http")


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics", "/v1/models", "/openapi.json"])
async def test_where_get_is_answered_head_is(path: str) -> None:
    """HTTP asks for HEAD where there is GET, and some load balancers probe with it."""
    async with running_app(lookup()) as running:
        response = await running.client.head(path)

    assert response.status_code == 200


async def test_every_endpoint_is_counted() -> None:
    """Requests count by path and status, and all unknown paths under one name, so that no client can create series."""
    async with running_app(lookup()) as running:
        await running.scrape()  # before the first answer, no path has times
        before = await running.scrape()
        await running.rerank({"query": "who", "candidates": ["man"]})
        await running.client.put("/candidates", json={"candidates": [{"id": "a", "text": "man"}]})
        await running.client.put("/candidates", json={})
        await running.client.put("/candidates", content=b"x", headers={"content-type": "text/plain"})
        await running.client.request("DELETE", "/candidates", json={"ids": ["a"]})
        for name in ("a", "b/c"):
            await running.client.post(f"/inference/cross/{name}", json={"input": [{"query": "who", "text": "man"}]})
            await running.client.get(f"/inference/cross/{name}")
        for path in ("/healthz", "/openapi.json", "/nothing", "/rerank/", "/" + "x" * 1000):
            await running.client.get(path)
        after = await running.scrape()

    def growth(name: str, **labels: str) -> float:
        name = f"bandrank_http_request{name}"
        return after.value(name, **labels) - before.value(name, **labels)

    assert growth("s_total", path="/rerank", status="200") == growth("_seconds_count", path="/rerank") == 1
    template = "/inference/cross/{model:path}"
    assert growth("s_total", path=template, status="200") == 2
    assert after.value("bandrank_http_requests_total", path=template, status="405") == 2
    assert growth("s_total", path="/candidates", status="200") == 2
    assert after.value("bandrank_http_requests_total", path="/candidates", status="422") == 1
    assert after.value("bandrank_http_requests_total", path="/candidates", status="415") == 1
    assert growth("_seconds_count", path="/candidates") == 2
    assert (
        growth("s_total", path="/healthz", status="200") == growth("s_total", path="/openapi.json", status="200") == 1
    )
    assert after.value("bandrank_http_requests_total", path="other", status="404") == 3
    assert growth("_seconds_count", path="other") == 0
    assert growth("_seconds_count", path="/metrics") == 1


async def test_every_reference_in_the_description_resolves() -> None:
    """Tools that read the description fail at a broken reference, and the page shows an error and no request."""
    async with running_app(lookup()) as running:
        document = (await running.client.get("/openapi.json")).json()

    found = list(references(document))
    assert found
    for reference in found:
        assert resolve(document, {"$ref": reference})


def references(node: Any) -> list[str]:
    """All `$ref` values below a node."""
    if isinstance(node, dict):
        here = [node["$ref"]] if "$ref" in node else []
        return here + [reference for value in node.values() for reference in references(value)]
    if isinstance(node, list):
        return [reference for value in node for reference in references(value)]
    return []


def resolve(document: Any, schema: dict[str, Any]) -> dict[str, Any]:
    """The schema itself, or the one to which it refers. Raises KeyError if that is missing."""
    if "$ref" not in schema:
        return schema
    node = document
    for step in schema["$ref"].removeprefix("#/").split("/"):
        node = node[step]
    return dict(node)
