"""What the set-up jobs of the examples tell Elasticsearch and Weaviate, also when they run again, and how they fail."""

import copy
from collections.abc import Callable, Iterator

import client
import pytest
import sample
import set_up_elasticsearch
import set_up_weaviate
from support.deploy import PASSWORD
from support.elasticsearch import Elasticsearch
from support.recording import Answer, RecordedCall
from support.weaviate import Weaviate

Run = Callable[..., None]


class TestElasticsearch:
    @pytest.fixture
    def engine(self) -> Elasticsearch:
        return Elasticsearch(PASSWORD)

    @pytest.fixture
    def url(self, engine: Elasticsearch) -> Iterator[str]:
        with engine.serving() as address:
            yield address

    def test_an_empty_cluster_is_given_all_of_it(
        self, engine: Elasticsearch, url: str, run: Run, reranker: str
    ) -> None:
        """The set-up makes an endpoint, an index and its documents; a second run changes nothing."""
        run(set_up_elasticsearch.set_up, url)
        state = copy.deepcopy(engine.state)
        run(set_up_elasticsearch.set_up, url)

        assert [(call.method, call.path) for call in engine.writes] == [
            ("PUT", "/_inference/rerank/bandrank"),
            ("PUT", "/sample"),
            ("POST", "/sample/_bulk"),
        ]
        assert engine.state == state
        assert state.endpoints["bandrank"] == {"api_key": "none", "url": f"{reranker}/rerank"}
        assert state.documents["sample"] == sample.documents()

    def test_an_interrupted_run_is_completed_by_the_next(self, run: Run) -> None:
        for number in (1, 2):
            engine = Elasticsearch(PASSWORD)
            engine.interrupt_after(number)
            with engine.serving() as address:
                with pytest.raises(client.SetUpError, match="interrupted"):
                    run(set_up_elasticsearch.set_up, address)
                run(set_up_elasticsearch.set_up, address)
            assert len(engine.writes) == 3

    def test_an_endpoint_elsewhere_is_made_anew(self, engine: Elasticsearch, url: str, run: Run, reranker: str) -> None:
        """Elasticsearch cannot change an endpoint's address."""
        engine.state.endpoints["bandrank"] = {"api_key": "x", "url": "http://elsewhere"}
        run(set_up_elasticsearch.set_up, url)

        assert engine.state.endpoints["bandrank"]["url"] == f"{reranker}/rerank"

    def test_a_basic_licence_is_not_enough(self, engine: Elasticsearch, url: str, run: Run) -> None:
        """The set-up names the licence and what would help, before it changes anything."""
        engine.state.licence = "basic"

        with pytest.raises(client.SetUpError, match=r"licence is basic .* POST /_license/start_trial"):
            run(set_up_elasticsearch.set_up, url)
        assert engine.writes == []


class TestWeaviate:
    @pytest.fixture
    def engine(self, reranker: str) -> Weaviate:
        return Weaviate(PASSWORD, reranker)

    @pytest.fixture
    def url(self, engine: Weaviate) -> Iterator[str]:
        with engine.serving() as address:
            yield address

    def test_an_empty_server_is_given_all_of_it(self, engine: Weaviate, url: str, run: Run) -> None:
        """The set-up makes a collection and its documents; a second run changes nothing."""
        run(set_up_weaviate.set_up, url)
        stored = copy.deepcopy((engine.collections, engine.objects))
        run(set_up_weaviate.set_up, url)

        assert [call.path for call in engine.writes] == ["/v1/schema", "/v1/batch/objects"]
        assert (engine.collections, engine.objects) == stored
        assert engine.collections["Sample"]["moduleConfig"] == {"reranker-transformers": {}}
        properties = [each["properties"] for each in engine.objects.values()]
        assert properties == list(sample.documents().values())

    def test_missing_and_changed_documents_are_stored(self, engine: Weaviate, url: str, run: Run) -> None:
        """Other documents are not sent again."""
        run(set_up_weaviate.set_up, url)
        changed, lost, *_ = engine.objects
        engine.objects[changed]["properties"] = {"title": "x", "text": "y"}
        del engine.objects[lost]
        run(set_up_weaviate.set_up, url)

        assert {each["id"] for each in engine.writes[-1].body["objects"]} == {changed, lost}

    def test_a_server_without_the_module_is_refused(self, engine: Weaviate, url: str, run: Run) -> None:
        """The message names the settings that the server lacks."""
        engine.modules.clear()

        with pytest.raises(client.SetUpError, match="ENABLE_MODULES=reranker-transformers and RERANKER_INFERENCE_API"):
            run(set_up_weaviate.set_up, url)
        assert engine.writes == []

    def test_options_without_effect_are_refused(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit, match="2"):
            client.command_line("test", url="http://weaviate:8080").parse_args(["--reranker-key-file", "FILE"])

        assert "unrecognized arguments: --reranker-key-file" in capsys.readouterr().err

    def test_a_re_ranker_that_fails_is_told(self, engine: Weaviate, url: str, run: Run) -> None:
        """GraphQL reports a failure with status 200 and a list of errors."""

        def fail(call: RecordedCall) -> None:
            if "rerank(" in str(call.body):
                raise Answer(200, {"data": {"Get": {"Sample": None}}, "errors": [{"message": "connection refused"}]})

        engine.interrupt = fail

        with pytest.raises(client.SetUpError, match=r"a search of the sample fails.*connection refused"):
            run(set_up_weaviate.set_up, url)
