"""Whatever Redis holds, does or answers: scores stay right, no request gets 500, and memory is bounded."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from chaos.redis_contents import CANDIDATES, REPLIES, REPRESENTATIONS, STATES
from chaos.table import ask, results_of
from support.models import save_bi_encoder
from support.proxy import Proxy, proxy_to
from support.redis_server import RedisServer, redis_server
from support.server import RunningService, running_service
from support.tasks import wait_until
from support.witness import Witness, witness_of

from bandrank.engine.cache.keys import digest

pytestmark = pytest.mark.slow

TEXTS = ["the man", "she was", "who would", "over there", "", "man " * 50]
BODY = {"query": "who is the man", "candidates": TEXTS, "raw_scores": True}
KEYS_END = tuple(b":" + digest(text).hex().encode() for text in TEXTS)
IDS = [f"id {number}" for number in range(len(TEXTS))]
BY_ID = BODY | {"candidates": [{"id": name} for name in IDS]}
TOLERANCE = 1e-4
MOST_MEMORY = 3 * 2**29


@dataclass(frozen=True)
class Attacked:
    """A service with a Redis of its own behind a relay, and the scores of the texts."""

    witness: Witness
    server: RedisServer
    proxy: Proxy
    expected: dict[int, float]

    @property
    def service(self) -> RunningService:
        return self.witness.service

    def scores(self) -> dict[int, float]:
        """The scores of the texts now, by their indices."""
        return {result["index"]: result["relevance_score"] for result in results_of(self.service.url, BODY)}

    def stored(self) -> list[bytes]:
        """The keys of the texts' representations, once all are in Redis and the relay forwards again.

        Redis may have other keys, too: of texts that an earlier witness asked about, and that the service stores late.
        """
        self.proxy.calm()
        self.server.do("FLUSHALL")

        def found() -> list[bytes]:
            self.scores()
            return [key for key in self.keys("bandrank:r*") if key.endswith(KEYS_END)]

        try:
            wait_until(lambda: len(found()) == len(TEXTS))
        except TimeoutError:
            raise AssertionError(self.account()) from None
        return found()

    def account(self) -> str:
        """What Redis holds, the state of the circuit breaker, and the service's log."""
        state = self.service.scrape().value("bandrank_redis_breaker_state")
        log = self.service.log.read_text(errors="replace")
        return f"keys: {self.keys('*')}; state of the circuit breaker: {state:.0f}; log of the service:\n{log}"

    def registered(self) -> None:
        """Registers the texts by their ids, as soon as the service uses Redis."""
        candidates = [{"id": name, "text": text} for name, text in zip(IDS, TEXTS, strict=True)]
        body = {"candidates": candidates}
        wait_until(lambda: ask(self.service.url, "PUT", "/candidates", json=body).status_code == httpx.codes.OK)

    def keys(self, pattern: str) -> list[bytes]:
        return sorted(self.server.do("KEYS", pattern))

    def used_again(self) -> None:
        """Returns once the service finds the representations of all texts in Redis again."""

        def hits() -> float:
            return self.service.scrape().value("bandrank_cache_lookups_total", tier="redis", outcome="hit")

        def all_found() -> bool:
            known = hits()
            self.scores()
            return hits() - known == len(TEXTS)

        try:
            wait_until(all_found)
        except TimeoutError:
            raise AssertionError(self.account()) from None


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    """A service that keeps nothing in memory, so that every text is looked up in Redis."""
    folder = tmp_path_factory.mktemp("contents")
    model = str(save_bi_encoder(folder / "model"))
    with redis_server(folder / "redis") as server, proxy_to(server.port) as proxy:
        arguments = ["--model", model, "--device", "cpu", "--redis-url", proxy.url, "--cache-memory-bytes", "0"]
        with running_service(folder, arguments=arguments) as service, witness_of(service) as witness:
            expected = {result["index"]: result["relevance_score"] for result in results_of(service.url, BODY)}
            yield Attacked(witness, server, proxy, expected)


@pytest.mark.parametrize("name", REPRESENTATIONS)
def test_no_representation_that_is_wrong_is_scored(name: str, attacked: Attacked) -> None:
    """The service computes a wrong representation anew, and replaces it."""
    keys = attacked.stored()
    with attacked.witness.watching() as testimony:
        REPRESENTATIONS[name](attacked.server, keys)
        for _ in range(3):
            assert attacked.scores() == pytest.approx(attacked.expected, abs=TOLERANCE)

    assert testimony.wrong == []
    assert testimony.most_memory < MOST_MEMORY
    if name != "values of megabytes":  # which may never be read in time
        attacked.used_again()


@pytest.mark.parametrize("name", CANDIDATES)
def test_no_candidate_in_redis_is_an_error_of_the_service(name: str, attacked: Attacked) -> None:
    """An id whose stored value is not a text counts as not registered."""
    attacked.registered()
    with attacked.witness.watching() as testimony:
        CANDIDATES[name](attacked.server, attacked.keys("bandrank:candidate:*"))
        statuses = {ask(attacked.service.url, "POST", "/rerank", json=BY_ID).status_code for _ in range(3)}

    assert statuses <= {200, 404, 413, 503}
    assert testimony.wrong == []
    assert testimony.most_memory < MOST_MEMORY
    attacked.server.do("FLUSHALL")


@pytest.mark.chaos
@pytest.mark.parametrize("state", STATES)
def test_nothing_that_redis_does_changes_a_score(state: str, attacked: Attacked) -> None:
    """The service answers meanwhile, and uses Redis again afterwards."""
    attacked.stored()
    with attacked.witness.watching() as testimony:
        STATES[state](attacked.server)
        assert attacked.scores() == pytest.approx(attacked.expected, abs=TOLERANCE)

    assert testimony.wrong == []
    attacked.used_again()


@pytest.mark.chaos
@pytest.mark.parametrize("reply", REPLIES)
def test_nothing_that_redis_answers_changes_a_score(reply: str, attacked: Attacked) -> None:
    """Another server may listen where Redis should, and answer anything."""
    attacked.stored()
    with attacked.witness.watching() as testimony:
        attacked.proxy.instead = REPLIES[reply]
        for _ in range(5):
            assert attacked.scores() == pytest.approx(attacked.expected, abs=TOLERANCE)
        attacked.proxy.calm()

    assert testimony.wrong == []
    assert testimony.most_memory < MOST_MEMORY
    attacked.used_again()


def test_the_service_has_logged_no_failure_of_its_own(attacked: Attacked) -> None:
    """The log covers all tests above, which share the service."""
    assert "Traceback" not in Path(attacked.service.log).read_text()
