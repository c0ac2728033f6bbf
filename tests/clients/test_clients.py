"""The public calls of the client libraries that people use, against the running service.

`make test-clients` installs them and runs these tests. Each answer is compared with the service's own answer to /rerank
for the same texts. A library that tries to reach another machine is refused, and fails its test.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from clients.ways import INFINITY, WAYS, ErrorStatus, Way
from support.clients import Outcome, RunningClient, running_client
from support.keys import KEYS, key_table, write_keys
from support.server import RunningService, Scrape, running_service

pytestmark = pytest.mark.clients

MODEL = "sparse-w4"
QUERY = "how do bees find their way home?"
DOCUMENTS = [
    "Honey is made from the nectar of flowers; a hive keeps what it does not eat for the winter.",
    "Bees navigate by the position of the sun and by landmarks that they remember from earlier flights.",
    "The house stands at the end of a long way.",
    "Eine Biene fliegt im Schnitt drei Kilometer weit und findet zurück. 🐝",
    "On the way home a forager flies straight, even if she went out in loops.",
    "Most trains home leave at six.",
    "A queen bee lays up to two thousand eggs a day.",
]
TOLERANCE = 1e-6  # of sigmoids in float32: the same texts may be batched with others
RAW_TOLERANCE = 1e-5
SLOW_KEY, SLOW_RATE = "slow-" + "s" * 40, 1.0  # requests a second: a second one at once must wait that long
UNKNOWN_KEY = "unknown-" + "u" * 40
MESSAGES: Mapping[ErrorStatus, str] = {
    401: "there is no such key",
    422: "query must not be empty",
    429: "requests a second",
}


@dataclass(frozen=True)
class Services:
    """Two services with the same model: one that any client may use, and one that wants a key."""

    open: RunningService
    keyed: RunningService

    def native(self, **fields: Any) -> list[tuple[int, float]]:
        """The ranking by the service's own wire format, as (index, score)."""
        body = {"query": QUERY, "candidates": DOCUMENTS} | fields
        response = httpx.post(f"{self.open.url}/rerank", json=body, timeout=60.0, trust_env=False).raise_for_status()
        return [(result["index"], result["relevance_score"]) for result in response.json()["results"]]

    def refusals(self) -> float:
        """How many requests of the slow key have been answered 429 so far."""
        headers = {"Authorization": f"Bearer {KEYS['admin']}"}
        text = httpx.get(f"{self.keyed.url}/metrics", headers=headers, timeout=30.0, trust_env=False).text
        return Scrape(text).value("bandrank_refused_requests_total", reason="rate")

    def use_up_the_slow_key(self) -> None:
        headers = {"Authorization": f"Bearer {SLOW_KEY}"}
        while httpx.get(f"{self.keyed.url}/v1/models", headers=headers, trust_env=False).status_code != 429:
            pass


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    folder = tmp_path_factory.mktemp("keyed")
    digest = hashlib.sha256(SLOW_KEY.encode("ascii")).hexdigest()
    slow = f'sha256 = "{digest}"\nscopes = ["rank"]\nrequests_per_s = {SLOW_RATE}\n'
    tables = {name: key_table(name) for name in ("rank", "admin")} | {"slow": slow}
    keys = write_keys(folder / "keys.toml", **tables)
    with (
        running_service(tmp_path_factory.mktemp("open"), arguments=["--model", MODEL], start_timeout_s=None) as opened,
        running_service(folder, arguments=["--model", MODEL, "--keys", keys], start_timeout_s=None) as keyed,
    ):
        opened.wait_until_ready()
        keyed.wait_until_ready()
        yield Services(opened, keyed)


@pytest.fixture(scope="module")
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningClient]:
    """The client library of a way, started once for all of its ways."""
    folder: Path = tmp_path_factory.mktemp(request.param.script)
    with running_client(request.param, folder) as running:
        yield running


def for_ways(ways: list[Way]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        ("client", "way"), [(way.client, way) for way in ways], indirect=["client"], ids=map(str, ways), scope="module"
    )


def ask(client: RunningClient, way: Way, service: RunningService, **different: Any) -> Outcome:
    """Asks for all documents with a good key, unless `different` says otherwise."""
    question = {"key": KEYS["rank"], "model": MODEL, "query": QUERY, "documents": DOCUMENTS, "top_n": None}
    outcome = client.ask(way.name, url=service.url, **question | different)
    assert outcome.strays <= way.strays
    return outcome


@for_ways(WAYS)
def test_the_ranking_is_that_of_the_service(way: Way, client: RunningClient, services: Services) -> None:
    """The scores are the same, too, and so are the texts where the library shows those of the answer."""
    outcome = ask(client, way, services.open)

    assert outcome.failure is None
    expected = services.native(raw_scores=way.raw)
    assert outcome.indices == [index for index, _ in expected]
    tolerance = RAW_TOLERANCE if way.raw else TOLERANCE
    assert [score for _, score, _ in outcome.results] == pytest.approx([score for _, score in expected], abs=tolerance)
    texts = [DOCUMENTS[index] if way.shows_texts else None for index in outcome.indices]
    assert [text for _, _, text in outcome.results] == texts


@for_ways([way for way in WAYS if way.cuts])
def test_as_many_results_as_asked_for(way: Way, client: RunningClient, services: Services) -> None:
    outcome = ask(client, way, services.open, top_n=2)

    assert outcome.failure is None
    assert outcome.indices == [index for index, _ in services.native(top_n=2)]


@for_ways([way for way in WAYS if way.has_key])
def test_a_known_key_opens_the_service(way: Way, client: RunningClient, services: Services) -> None:
    """The library sends the key where the service looks for it."""
    outcome = ask(client, way, services.keyed)

    assert outcome.failure is None
    assert len(outcome.results) == len(DOCUMENTS)


@for_ways([way for way in WAYS if way.has_key])
def test_an_unknown_key_is_an_exception_of_the_client(way: Way, client: RunningClient, services: Services) -> None:
    """The library raises its exception for a 401, with the service's message wherever it shows one."""
    outcome = ask(client, way, services.keyed, key=UNKNOWN_KEY)

    assert_failure(outcome, way, 401)


@for_ways(WAYS)
def test_an_invalid_request_is_an_exception_of_the_client(way: Way, client: RunningClient, services: Services) -> None:
    outcome = ask(client, way, services.open, query="   ")

    assert_failure(outcome, way, 422)


@for_ways([way for way in WAYS if way.has_key])
def test_a_refused_request_is_retried_or_an_exception_of_the_client(
    way: Way, client: RunningClient, services: Services
) -> None:
    """A library that retries gets its answer; one that obeys Retry-After is refused only once."""
    for _ in range(5):  # on a slow machine the key may be free again before the library asks
        services.use_up_the_slow_key()
        before = services.refusals()
        outcome = ask(client, way, services.keyed, key=SLOW_KEY)
        refused = services.refusals() - before
        if refused:
            break

    if not way.retries:
        assert_failure(outcome, way, 429)
        return
    assert outcome.failure is None
    assert outcome.indices == [index for index, _ in services.native()]
    assert refused == 1 if way.waits else refused >= 1


def test_infinitys_client_reads_what_is_served(services: Services, tmp_path: Path) -> None:
    """The library fails on a model without stats."""
    with running_client(INFINITY, tmp_path) as client:
        outcome = ask(client, Way(INFINITY, "models", {}), services.open)

    assert outcome.failure is None
    assert outcome.results == [(0, 0.0, MODEL)]


def assert_failure(outcome: Outcome, way: Way, status: ErrorStatus) -> None:
    """Checks that the library raised its exception for a status, with the service's message unless it hides that."""
    assert outcome.failure is not None
    assert outcome.failure.kinds[0] == way.exceptions[status]
    assert (MESSAGES[status] in outcome.failure.message) == (status not in way.silent)
