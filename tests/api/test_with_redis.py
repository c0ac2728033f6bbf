"""The service with a real Redis, in good and in bad times: no request fails, and no score changes."""

import asyncio
import random
from typing import Any

import pytest
from support.app import RunningApp, assert_error, running_app
from support.models import random_text, tiny_bi_encoder
from support.redis_server import RedisServer
from support.scorers import encoded_lookup

from bandrank.settings import Settings

TOLERANCE = 1e-5  # of float32 scores; a score must not depend on the other candidates


def settings(server: RedisServer, **more: Any) -> Settings:
    """The settings of a replica that caches nothing in memory, so that every hit is in Redis, and that waits for it
    long.
    """
    return Settings(device="cpu", redis_url=server.url, **({"cache_memory_bytes": 0, "redis_timeout_s": 20.0} | more))


def texts_of(rng: random.Random, count: int) -> list[str]:
    return [random_text(rng, rng.randint(1, 12)) for _ in range(count)]


async def scores(running: RunningApp, texts: list[str]) -> list[float]:
    """Raw scores in the order of the texts; the answer's status must be 200."""
    response = await running.rerank({"query": "who is the man", "candidates": texts, "raw_scores": True})
    assert response.status_code == 200, response.text
    by_index = {result["index"]: result["relevance_score"] for result in response.json()["results"]}
    return [by_index[index] for index in range(len(texts))]


async def stored(running: RunningApp) -> None:
    """Waits until all computed representations are in Redis."""
    await running.service.registry.stored()


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
async def test_a_second_replica_gives_the_same_scores_without_encoding(server: RedisServer, dtype: str) -> None:
    """Stored representations score like computed ones, apart from rounding in other batches."""
    texts = texts_of(random.Random(1), 20)
    async with running_app(tiny_bi_encoder(), settings=settings(server, cache_dtype=dtype)) as first:
        cold = await scores(first, texts)
        await stored(first)
    async with running_app(tiny_bi_encoder(), settings=settings(server, cache_dtype=dtype)) as second:
        warm = await scores(second, texts)
        metrics = await second.scrape()
    async with running_app(tiny_bi_encoder()) as without_redis:
        exact = await scores(without_redis, texts)

    assert warm == pytest.approx(cold, abs=TOLERANCE)
    assert metrics.value("bandrank_cache_candidates_total", outcome="hit") == len(set(texts))
    assert warm == pytest.approx(exact, abs=0.02 if dtype == "int8" else 1e-3)


async def test_requests_go_on_while_redis_is_killed_and_comes_back(server: RedisServer) -> None:
    rng = random.Random(2)
    pages = [texts_of(rng, 10) for _ in range(8)]
    async with running_app(tiny_bi_encoder()) as calm:
        expected = [await scores(calm, page) for page in pages]
    async with running_app(tiny_bi_encoder(), settings=settings(server)) as running:
        for round_number in range(5):
            if round_number == 1:
                server.kill()
            if round_number == 3:
                server.start()
            found = await asyncio.gather(*(scores(running, page) for page in pages))
            for ours, right in zip(found, expected, strict=True):
                assert ours == pytest.approx(right, abs=TOLERANCE)
        metrics = await running.scrape()

    assert metrics.value("bandrank_requests_total", status="200") == 40
    looked_up = [metrics.value("bandrank_cache_candidates_total", outcome=outcome) for outcome in ("hit", "miss")]
    assert sum(looked_up) == 400


async def test_a_frozen_redis_costs_its_timeout_and_then_nothing(server: RedisServer) -> None:
    """The breaker opens, as the metrics show; a request takes no longer than a few timeouts."""
    texts = texts_of(random.Random(3), 10)
    async with running_app(tiny_bi_encoder(), settings=settings(server, redis_timeout_s=0.05)) as running:
        right = await scores(running, texts)
        server.freeze()
        for _ in range(6):
            async with asyncio.timeout(2.0):
                assert await scores(running, texts) == pytest.approx(right, abs=TOLERANCE)
        metrics = await running.scrape()
        server.thaw()

    assert metrics.value("bandrank_redis_breaker_state") > 0
    assert metrics.value("bandrank_cache_lookups_total", tier="redis", outcome="unavailable") > 0


async def test_garbage_under_our_keys_is_never_scored(server: RedisServer) -> None:
    """Values replaced by others of the same length are misses, counted as corrupt."""
    texts = texts_of(random.Random(4), 10)
    async with running_app(tiny_bi_encoder(), settings=settings(server)) as running:
        right = await scores(running, texts)
        await stored(running)
        for key in server.do("KEYS", "bandrank:r*"):
            server.do("SETRANGE", key, 30, b"garbage")
        assert await scores(running, texts) == pytest.approx(right, abs=TOLERANCE)
        metrics = await running.scrape()

    assert metrics.value("bandrank_cache_lookups_total", tier="redis", outcome="corrupt") == len(set(texts))


async def test_registered_candidates_are_shared(server: RedisServer) -> None:
    """A replica ranks by id what another one registered, from the representations that the other one computed."""
    body = {"candidates": [{"id": f"doc {word}", "text": word} for word in ("man", "she", "you")]}
    async with running_app(encoded_lookup(man=3.0, she=2.0), settings=settings(server)) as first:
        assert (await first.client.put("/candidates", json=body)).json()["encoded"] == 3
        await stored(first)
    async with running_app(encoded_lookup(man=3.0, she=2.0), settings=settings(server)) as second:
        candidates = [{"id": "doc you"}, {"id": "doc man"}, {"id": "doc he"}]
        answer = (await second.rerank({"query": "who", "candidates": candidates})).json()
        deleted = await second.client.request("DELETE", "/candidates", json={"ids": ["doc man", "doc he"]})
        rest = (await second.rerank({"query": "who", "candidates": candidates})).json()

    assert [result["id"] for result in answer["results"]] == ["doc man", "doc you"]
    assert [item["id"] for item in answer["unresolved"]] == ["doc he"]
    assert answer["meta"]["stages"][0]["cache_hits"] == 2
    assert deleted.json() == {"deleted": 1}
    assert [result["id"] for result in rest["results"]] == ["doc you"]


async def test_registered_bytes_that_are_no_text_are_not_registered(server: RedisServer) -> None:
    """Whatever another program stored under a candidate's key, the others are ranked; a new text replaces it."""
    body = {"candidates": [{"id": "good", "text": "man"}, *({"id": f"bad {n}", "text": "she"} for n in range(4))]}
    asked = {"query": "who", "candidates": [{"id": item["id"]} for item in body["candidates"]]}
    async with running_app(encoded_lookup(man=3.0, she=2.0), settings=settings(server)) as running:
        await running.client.put("/candidates", json=body)
        keys = sorted(key for key in server.do("KEYS", "bandrank:candidate:*") if b"bad" in key)
        for key, value in zip(keys, [b"\xff\xfe", b"man \xc3", b"\xed\xa0\x80", b"\xf8\x88"], strict=True):
            server.do("SET", key, value)
        response = await running.rerank(asked)
        only_bad = await running.rerank(asked | {"candidates": asked["candidates"][1:]})
        await running.client.put("/candidates", json=body)
        again = await running.rerank(asked)

    assert response.status_code == 200, response.text
    assert [result["id"] for result in response.json()["results"]] == ["good"]
    assert len(response.json()["unresolved"]) == 4
    assert_error(only_bad, 404, "unknown_candidates")
    assert len(again.json()["results"]) == 5


async def test_registering_without_redis_is_refused_and_texts_still_rank(server: RedisServer) -> None:
    """A failed registration is reported as such; ids are unresolved, and candidates with a text are ranked."""
    async with running_app(encoded_lookup(man=3.0), settings=settings(server)) as running:
        server.kill()
        put = await running.client.put("/candidates", json={"candidates": [{"id": "a", "text": "man"}]})
        by_id = await running.rerank({"query": "who", "candidates": [{"id": "a"}]})
        mixed = (await running.rerank({"query": "who", "candidates": [{"id": "a"}, "man"]})).json()
        deleted = await running.client.request("DELETE", "/candidates", json={"ids": ["a"]})

    for refused in (put, by_id, deleted):
        assert "Redis" in assert_error(refused, 503, "not_ready")
    assert [result["index"] for result in mixed["results"]] == [1]
    assert "Redis" in mixed["unresolved"][0]["error"]


async def test_registering_in_a_full_redis_is_refused_as_such(server: RedisServer) -> None:
    """The error tells the client not to retry but to delete. What was registered before is still ranked."""
    large = {"candidates": [{"id": str(number), "text": "man " * 50_000} for number in range(20)]}
    async with running_app(encoded_lookup(man=3.0), settings=settings(server)) as running:
        await running.client.put("/candidates", json={"candidates": [{"id": "a", "text": "man"}]})
        server.do("CONFIG", "SET", "maxmemory", server.do("INFO", "memory")["used_memory"] + 1_000_000)
        refused = await running.client.put("/candidates", json=large)
        by_id = await running.rerank({"query": "who", "candidates": [{"id": "a"}]})
        await running.client.request("DELETE", "/candidates", json={"ids": [str(number) for number in range(20)]})
        small = await running.client.put("/candidates", json={"candidates": [{"id": "b", "text": "man"}]})

    assert "of 20 candidates and is full; delete some" in assert_error(refused, 507, "store_full")
    assert (by_id.status_code, small.status_code) == (200, 200)


async def test_many_large_texts_are_read_in_time(server: RedisServer) -> None:
    """Redis cannot send forty megabytes within one timeout; many commands read them, and it is not taken for dead."""
    ids = [str(number) for number in range(40)]
    async with running_app(tiny_bi_encoder(), settings=settings(server)) as running:
        for name in ids:
            put = {"candidates": [{"id": name, "text": f"{name} " + "man " * 240_000}]}
            assert (await running.client.put("/candidates", json=put)).status_code == 200
        server.do("CONFIG", "RESETSTAT")
        answer = await running.rerank({"query": "who", "candidates": [{"id": name} for name in ids]})
        errors = (await running.scrape()).value("bandrank_redis_errors_total")
        reads = server.do("INFO", "commandstats")["cmdstat_mget"]["calls"]

    assert answer.status_code == 200, answer.text
    assert len(answer.json()["results"]) == len(ids)
    assert errors == 0
    assert reads >= len(ids)
