"""The proxy as it is run: its metrics and probes, HTTPS to the engine, its settings, and the command."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.certificates import make_certificate
from support.deploy import ROOT
from support.keys import KEYS, write_keys
from support.models import save_cross_encoder
from support.plain_http import get, post
from support.proxied import proxied
from support.scorers import lookup
from support.scripted_server import scripted_server
from support.search_engine import SearchEngine, running_engine
from support.server import RunningService, running_service
from support.tasks import HANG_S

from bandrank.__main__ import main
from bandrank.api.only_probes import ANSWERED, PROBES
from bandrank.errors import BadSetting
from bandrank.metrics import OUTCOMES
from bandrank.proxy.app import HEALTH, METRICS, READY
from bandrank.proxy.outcomes import FailReason, Outcome, SkipReason

DOCUMENTS = ['{"title":"man"}', '{"title":"he"}']
BODY = {"query": {"match": {"title": "who"}}}
HEADERS = {"x-rerank": "title"}


def test_requests_are_counted(engine: SearchEngine) -> None:
    """Requests are counted by their outcome, and every outcome has a metric from the start."""
    with proxied(engine.url) as proxy, proxy.client() as client:
        assert set(OUTCOMES) == {*Outcome}
        for outcome in OUTCOMES:
            assert proxy.count("proxy_requests", outcome=outcome) == 0
        client.get("/docs")
        client.post("/docs/_search", json=BODY, headers=HEADERS)
        client.post("/docs/_search", json=BODY, headers={"x-rerank": "off"})
        client.post("/docs/_search", json=BODY, headers={"x-rerank": "nothing"})

        for each in ("passed", "reranked", "skipped", "failed"):
            proxy.wait_for_count("proxy_requests", 1, outcome=each)
        assert proxy.count("proxy_unranked") == 2
        assert proxy.count("candidates") == 2


def test_a_shadow_scores_what_was_re_ranked(engine: SearchEngine) -> None:
    """As in `bandrank serve`, a shadow model scores a sample of the rankings, and no request that was not re-ranked."""
    shadow = lookup(man=4.0, he=1.5)
    labels = {"model": "tiny", "shadow": "shadow"}
    with proxied(engine.url, shadow=shadow, shadow_share=1.0) as proxy, proxy.client() as client:
        client.get("/docs")
        client.post("/docs/_search", json={}, headers=HEADERS)
        client.post("/docs/_search", json=BODY, headers=HEADERS)

        proxy.wait_for_count("shadow_scored", 1, **labels)
        assert proxy.count("shadow_sampled", **labels) == 1


def test_the_proxys_own_paths(engine: SearchEngine, tmp_path: Path) -> None:
    """With keys, the proxy's metrics need one; searches need none, because the engine decides who may search."""
    assert {HEALTH, READY} <= PROBES
    assert METRICS in ANSWERED
    engine.seen.clear()
    with proxied(engine.url, keys=write_keys(tmp_path / "keys.toml")) as proxy, proxy.client() as client:
        assert client.get(HEALTH).json() == {"status": "alive"}
        assert client.get(READY).json() == {"status": "ready", "reranking": "ready"}
        refused = client.get(METRICS)
        assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
        for path in (HEALTH, METRICS):  # an answer and an error
            assert client.get(path).headers["x-content-type-options"] == "nosniff"
        assert client.get(METRICS, headers={"authorization": f"Bearer {KEYS['rank']}"}).status_code == 403
        assert client.get(METRICS, headers={"authorization": f"Bearer {KEYS['admin']}"}).status_code == 200
        assert client.post(HEALTH).status_code == 405
        assert engine.seen == []
        answer = client.post("/docs/_search", json=BODY, headers=HEADERS)
        assert answer.headers["x-rerank-status"] == "reranked; hits=2"
        assert client.get("/healthz").json() == {"acknowledged": True}
        proxy.service.drain()
        assert client.get(READY).status_code == 503
        assert client.get("/docs").status_code == 200


def test_every_reason_is_documented() -> None:
    page = (ROOT / "docs" / "search-proxy.md").read_text(encoding="utf-8")

    assert [reason for reason in (*SkipReason, *FailReason) if f"`{reason}`" not in page] == []


def test_an_engine_behind_https(tmp_path: Path) -> None:
    """An authority in `proxy_ca` must have signed the engine's certificate; otherwise nothing is sent."""
    made = make_certificate(tmp_path)
    with running_engine(SearchEngine(DOCUMENTS), made) as engine:
        with proxied(engine.url, proxy_ca=made.certificate) as proxy, proxy.client() as client:
            answer = client.post("/docs/_search", json=BODY, headers=HEADERS)
            assert answer.headers["x-rerank-status"] == "reranked; hits=2"
        engine.seen.clear()
        with proxied(engine.url) as proxy, proxy.client() as client:
            assert client.post("/docs/_search", json=BODY, headers=HEADERS).status_code == 502
        assert engine.seen == []


def test_an_engine_below_a_path() -> None:
    with scripted_server(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n") as server:
        with proxied(f"{server.url}/search/") as proxy, proxy.client() as client:
            client.get("/docs?a=b")
        assert server.got[0].startswith(b"GET /search/docs?a=b HTTP/1.1\r\n")


@contextmanager
def running_proxy(folder: Path, upstream: str, **settings: str) -> Iterator[RunningService]:
    """Starts `bandrank proxy` and waits until it is ready. settings: by their names in capitals."""
    chosen = {"PROXY_UPSTREAM": upstream, **settings}
    environment = {f"BANDRANK_{name}": value for name, value in chosen.items()}
    arguments = ["--model", str(save_cross_encoder(folder / "model")), "--device", "cpu"]
    with running_service(folder, verb="proxy", ready=READY, arguments=arguments, environment=environment) as running:
        yield running


def test_the_command(engine: SearchEngine, tmp_path: Path) -> None:
    """`bandrank proxy` serves until SIGTERM, exits with 0, and logs the ids of requests."""
    headers = HEADERS | {"x-request-id": "r-7"}
    with running_proxy(tmp_path, engine.url, ACCESS_LOG="true") as proxy:
        answer = post(f"{proxy.url}/docs/_search", json=BODY, headers=headers)
        proxy.terminate()
        assert proxy.exit_status(HANG_S) == 0

    assert answer.headers["x-rerank-status"] == "reranked; hits=2"
    assert answer.headers.keys() == {"content-type", "x-elastic-product", "content-length", "x-rerank-status"}
    (line,) = [line for line in proxy.log.read_text().splitlines() if "answered" in line and "/docs/_search" in line]
    assert "request_id=r-7" in line
    assert "status=200" in line


@pytest.mark.slow
def test_a_stop_waits_for_the_engine(tmp_path: Path) -> None:
    """A stop waits for as long as the engine may take to answer, even if that exceeds `request_timeout_s`."""
    with (
        scripted_server(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nlate") as engine,
        running_proxy(tmp_path, engine.url, REQUEST_TIMEOUT_S="1") as proxy,
        ThreadPoolExecutor() as pool,
    ):
        engine.delay_s = 4.0
        answer = pool.submit(get, f"{proxy.url}/docs")
        assert engine.arrived.wait(HANG_S)
        proxy.terminate()

        assert answer.result().text == "late"
        assert proxy.exit_status(HANG_S) == 0


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "BANDRANK_PROXY_UPSTREAM must be the address of a search engine"),
        (
            ["--proxy-upstream", "http://localhost:9200", "--proxy-rules", "RULES"],
            "RULES: docs has a depth beyond 2048",
        ),
    ],
)
def test_settings_that_cannot_be_used(
    arguments: list[str], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text('[[rules]]\nindex = "docs"\nfields = ["title"]\ndepth = 5000\n')
    model = str(save_cross_encoder(tmp_path / "model"))
    capsys.readouterr()
    given = [argument.replace("RULES", str(rules)) for argument in arguments]

    assert main(["proxy", "--model", model, "--device", "cpu", *given]) == 2
    assert expected.replace("RULES", str(rules)) in capsys.readouterr().err


@pytest.mark.parametrize("wrong", ['model = "other"', 'strategy = "odd"'])
def test_a_rule_for_what_is_not_served(engine: SearchEngine, wrong: str, tmp_path: Path) -> None:
    """The proxy does not start with a rule that names an unknown model or strategy."""
    rules = tmp_path / "rules.toml"
    rules.write_text(f'[[rules]]\nindex = "docs"\nfields = ["title"]\n{wrong}\n')
    with pytest.raises(BadSetting) as refused, proxied(engine.url, proxy_rules=str(rules)):
        pass
    assert str(refused.value).startswith(f"{rules}: docs ")
