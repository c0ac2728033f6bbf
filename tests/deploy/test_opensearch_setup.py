"""What the set-up job tells OpenSearch, that it can be run again at any time, and how it fails."""

import copy
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import client
import pytest
import sample
import set_up_opensearch
from support.certificates import make_certificate
from support.deploy import DEPLOY, PASSWORD
from support.opensearch import PRIVATE, TRUSTED, OpenSearch, State
from support.recording import Answer, RecordedCall
from support.search_engine import SearchEngine, running_engine

SCRIPT = DEPLOY / "search" / "set_up_opensearch.py"
SetUp = Callable[..., None]


@pytest.fixture
def engine() -> OpenSearch:
    return OpenSearch(PASSWORD)


@pytest.fixture
def url(engine: OpenSearch) -> Iterator[str]:
    with engine.serving() as address:
        yield address


@pytest.fixture
def set_up(run: Callable[..., None]) -> SetUp:
    """Returns a function that sets up OpenSearch, with its URL and perhaps further options."""
    return partial(run, set_up_opensearch.set_up, user="admin")


def normalised(state: State) -> State:
    """Returns the same state with ids by kind and number instead of those that OpenSearch drew."""
    ids = {
        identifier: f"{kind}-{number}"
        for kind in ("connectors", "model_groups", "models")
        for number, identifier in enumerate(getattr(state, kind))
    }

    def renamed(value: Any) -> Any:
        if isinstance(value, dict):
            return {ids.get(key, key): renamed(each) for key, each in value.items()}
        return ids.get(value, value) if isinstance(value, str) else value

    def walked(value: Any) -> Any:
        return [walked(each) for each in value] if isinstance(value, list) else renamed(value)

    text = {name: walked(each) for name, each in vars(copy.deepcopy(state)).items()}
    return State(**text)


def test_an_empty_cluster_is_given_all_of_it(engine: OpenSearch, url: str, set_up: SetUp) -> None:
    """Each thing is made by one documented call, after the things that it needs."""
    engine.polls = 1
    set_up(url)

    writes = [(call.method, re.sub("Zk[^/]+", "ID", call.path)) for call in engine.writes]
    assert writes == [
        ("PUT", "/_cluster/settings"),
        ("POST", "/_plugins/_ml/connectors/_create"),
        ("POST", "/_plugins/_ml/model_groups/_register"),
        ("POST", "/_plugins/_ml/models/_register"),
        ("POST", "/_plugins/_ml/models/ID/_deploy"),
        ("PUT", "/_search/pipeline/bandrank"),
        ("PUT", "/sample"),
        ("POST", "/sample/_bulk"),
    ]
    ((model, source),) = engine.state.models.items()
    assert source["model_state"] == "DEPLOYED"
    assert set(engine.state.connectors) == {source["connector_id"]}
    processors = engine.state.pipelines["bandrank"]["response_processors"]
    assert processors[0]["rerank"]["ml_opensearch"] == {"model_id": model}
    assert engine.state.documents["sample"] == sample.documents()


def test_connectors_may_call_bandrank_and_whom_they_could_before(
    engine: OpenSearch, url: str, reranker: str, set_up: SetUp
) -> None:
    """The list of trusted addresses gets one more entry, which matches bandrank's address alone."""
    set_up(url)

    *before, ours = engine.state.settings[TRUSTED]
    assert before == [r"^https://api\.cohere\.ai/.*$"]
    assert re.fullmatch(ours, f"{reranker}/rerank")
    assert not re.fullmatch(ours, f"{reranker}1/rerank")
    assert not re.fullmatch(ours, f"http://evil.example/?{reranker}/")
    assert engine.state.settings[PRIVATE] == "true"


def test_a_second_run_changes_nothing(engine: OpenSearch, url: str, set_up: SetUp) -> None:
    set_up(url)
    state, writes = copy.deepcopy(engine.state), len(engine.writes)
    set_up(url)

    assert engine.state == state
    assert len(engine.writes) == writes


def test_an_interrupted_run_is_completed_by_the_next(set_up: SetUp) -> None:
    """Wherever the first run ended, the next one leaves the state of an uninterrupted run, with nothing twice."""
    whole = OpenSearch(PASSWORD)
    with whole.serving() as address:
        set_up(address)
    assert len(whole.writes) == 8

    for number in range(1, len(whole.writes)):
        engine = OpenSearch(PASSWORD)
        engine.interrupt_after(number)
        with engine.serving() as address:
            with pytest.raises(client.SetUpError, match="interrupted"):
                set_up(address)
            set_up(address)
        assert normalised(engine.state) == normalised(whole.state), f"after {number} changes"


def test_what_differs_is_mended(engine: OpenSearch, url: str, set_up: SetUp) -> None:
    """A connector, a pipeline and documents that somebody changed become what they were, under their ids."""
    set_up(url)
    state = copy.deepcopy(engine.state)
    ((connector, source),) = engine.state.connectors.items()
    source["parameters"] = {"endpoint": "http://other:1"}
    engine.state.pipelines["bandrank"]["request_processors"] = []
    del engine.state.documents["sample"]["tides"]
    engine.state.documents["sample"]["onions"] = {"title": "x", "text": "y"}
    before = len(engine.writes)
    set_up(url)

    assert engine.state.connectors[connector] == state.connectors[connector]
    assert engine.state == state
    bulk = engine.writes[-1].body
    assert [line["index"]["_id"] for line in bulk[::2]] == ["onions", "tides"]
    assert len(engine.writes) == before + 5  # undeploy, connector, deploy, pipeline, documents


def test_a_model_of_a_lost_connector_gets_the_new_one(engine: OpenSearch, url: str, set_up: SetUp) -> None:
    """The model is updated and keeps its id, so the pipeline still finds it."""
    set_up(url)
    (model,) = engine.state.models
    engine.state.connectors.clear()
    set_up(url)

    assert set(engine.state.models) == {model}
    assert engine.state.models[model]["connector_id"] in engine.state.connectors
    assert engine.state.models[model]["model_state"] == "DEPLOYED"


def test_a_key_is_a_credential(engine: OpenSearch, url: str, set_up: SetUp, tmp_path: Path) -> None:
    """OpenSearch encrypts credentials, so the script must see a new key although it cannot read the old one."""
    key_file = tmp_path / "key"
    key_file.write_text("first-key\n", encoding="ascii")
    set_up(url, reranker_key_file=key_file)
    ((identifier, connector),) = engine.state.connectors.items()
    writes = len(engine.writes)
    set_up(url, reranker_key_file=key_file)
    assert len(engine.writes) == writes
    assert connector["credential"] == {"key": "first-key"}
    assert connector["actions"][0]["headers"]["Authorization"] == "Bearer ${credential.key}"
    assert "first-key" not in str({**connector, "credential": None})
    key_file.write_text("second-key\n", encoding="ascii")
    set_up(url, reranker_key_file=key_file)

    assert engine.state.connectors[identifier]["credential"] == {"key": "second-key"}


def test_an_index_with_other_fields_is_left_alone(engine: OpenSearch, url: str, set_up: SetUp) -> None:
    """An index of that name with other fields is somebody else's."""
    engine.state.mappings["sample"] = {"properties": {"title": {"type": "keyword"}}}
    engine.state.documents["sample"] = {}

    with pytest.raises(client.SetUpError, match="there is an index sample with other fields"):
        set_up(url)
    assert engine.state.documents["sample"] == {}


class TestFailures:
    def run(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        """Runs the script as the stack does."""
        return subprocess.run(
            [sys.executable, SCRIPT, *arguments], capture_output=True, text=True, timeout=60, check=False
        )

    def told(self, url: str, password_file: Path) -> str:
        """Returns the one line that a failing run leaves on standard error."""
        ended = self.run("--url", url, "--password-file", password_file, "--wait-s", "0")
        assert ended.returncode == 1
        assert ended.stderr.count("\n") == 1, ended.stderr
        return ended.stderr

    def test_a_cluster_that_does_not_answer(self, password_file: Path) -> None:
        """Once the time is over, the message gives the address and the system's reason."""
        told = self.told("http://127.0.0.1:9", password_file)

        assert "waited in vain until the cluster is healthy: cannot reach http://127.0.0.1:9" in told
        assert "refused" in told

    def test_another_password(self, url: str, tmp_path: Path) -> None:
        """The script does not wait, since that would not help."""
        wrong = tmp_path / "wrong"
        wrong.write_text("guess", encoding="ascii")

        assert "refuses the login (401): its password is another one" in self.told(url, wrong)

    def test_a_certificate_that_is_not_trusted(self, password_file: Path, tmp_path: Path) -> None:
        """The script does not wait, and names the variable that helps."""
        with running_engine(SearchEngine([]), make_certificate(tmp_path)) as engine:
            told = self.told(engine.url, password_file)
        assert re.search("failed: https:.* is not trusted, self.signed certificate: set SSL_CERT_FILE", told)

    def test_no_password(self, url: str, tmp_path: Path) -> None:
        """The message names the file that is missing or empty."""
        (tmp_path / "empty").touch()

        assert f"cannot read {tmp_path / 'none'}" in self.told(url, tmp_path / "none")
        assert f"{tmp_path / 'empty'} is empty" in self.told(url, tmp_path / "empty")

    def test_a_task_that_fails(self, engine: OpenSearch, url: str, password_file: Path) -> None:
        """The message gives OpenSearch's own reason."""
        engine.failing_task = "No eligible node found to execute this request."

        told = self.told(url, password_file)
        assert "registering the model ended as FAILED: No eligible node found" in told

    def test_a_refused_call(self, engine: OpenSearch, url: str, password_file: Path) -> None:
        """The message gives the call and the reason."""

        def refuse(call: RecordedCall) -> None:
            if call.path.startswith("/_search/pipeline"):
                raise Answer(400, {"error": {"type": "x", "reason": "Invalid processor type\nrerank"}, "status": 400})

        engine.interrupt = refuse

        told = self.told(url, password_file)
        assert "GET /_search/pipeline/bandrank was answered with 400: Invalid processor type rerank" in told


def test_a_cluster_that_is_starting_is_waited_for(engine: OpenSearch, url: str, set_up: SetUp) -> None:
    """While the security plugin loads, every answer is 503."""

    def starting(_: RecordedCall) -> None:
        if len(engine.calls) < 3:
            raise Answer(503, "OpenSearch Security not initialized.")

    engine.interrupt = starting
    set_up(url, wait_s=30.0)

    assert [call.path for call in engine.calls[:3]] == ["/_cluster/health"] * 3
    assert engine.state.pipelines
