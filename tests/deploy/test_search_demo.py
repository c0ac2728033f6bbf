"""A search of the sample documents, through each engine's stand-in and the real service, comes back re-ranked."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sample
import set_up_opensearch
import set_up_weaviate
from support import bm25
from support.deploy import DEPLOY, PASSWORD, needs_program
from support.elasticsearch import Elasticsearch
from support.listening import listening
from support.ml_commons import connector_call, scores_of
from support.opensearch import OpenSearch
from support.plain_http import get, post
from support.tasks import HANG_S
from support.weaviate import Weaviate

from bandrank.serving import load_models
from bandrank.settings import Settings

SEARCH = DEPLOY / "search"
QUERIES: dict[str, str] = json.loads((SEARCH / "queries.json").read_text(encoding="utf-8"))
ANSWER = sample.documents()[QUERIES[sample.QUESTION]]["title"]
SHOWN = 3  # hits of a search in the documentation


@pytest.fixture(scope="module")
def bandrank() -> Iterator[str]:
    """Yields the URL of a service with the scorers that come with it."""
    settings = Settings(device="cpu")
    with listening(settings, files=load_models(settings), patience_s=HANG_S) as service:
        yield service.url


@pytest.fixture(scope="module")
def opensearch(bandrank: str, password_file: Path) -> Iterator[tuple[OpenSearch, str]]:
    """Yields a cluster that the script has set up for the service, and its URL."""
    engine = OpenSearch(PASSWORD)
    with engine.serving() as url:
        said = set_up("set_up_opensearch.py", url, password_file, "--reranker", bandrank)
        assert said[-2:] == [
            '"how to get rid of hiccups", before: Getting rid of furniture; A launch with hiccups; Black and green tea',
            '"how to get rid of hiccups", after: A twitch of the diaphragm; A launch with hiccups; '
            "Getting rid of furniture",
        ]
        yield engine, url


def set_up(script: str, url: str, password_file: Path, *options: str) -> list[str]:
    """Runs a set-up script, and returns the lines that it prints."""
    ended = subprocess.run(
        [sys.executable, SEARCH / script, "--url", url, "--password-file", password_file, *options],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout.splitlines()


def shell_blocks(text: str) -> list[str]:
    return re.findall(r"```sh\n(.+?)```", text, re.DOTALL)


def answers(commands: str, documented: str, url: str, password_file: Path) -> list[Any]:
    """Runs documented commands against another address than the documented one, and returns the lines of JSON that they
    print. Programs that would look into a container are replaced by one that prints the password.
    """
    needs_program("curl", "Debian: curl")
    login = "".join(f"{name}() {{ cat '{password_file}'; }}\n" for name in ("docker", "stack"))
    ended = subprocess.run(
        ["bash", "-euc", login + commands.replace(documented, url)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return [json.loads(line) for line in ended.stdout.splitlines()]


class TestSample:
    def test_documents_are_short_and_distinct(self) -> None:
        """Each document has a title, and a text short enough to be read whole."""
        documents = sample.documents()

        assert 60 <= len(documents) <= 100
        assert all(set(document) == {"title", "text"} for document in documents.values())
        assert all(len(document["text"].split()) <= 60 for document in documents.values())
        assert len({document["text"] for document in documents.values()}) == len(documents)

    def test_the_question_of_the_set_up_is_one_of_them(self) -> None:
        """Even without stemming, as in Weaviate, the answer is among the candidates but not first."""
        texts = {name: document["text"] for name, document in sample.documents().items()}
        ranked = [name for name, _ in bm25.search(texts, sample.QUESTION, analyze=bm25.words)]

        assert 1 <= ranked.index(QUERIES[sample.QUESTION]) < set_up_weaviate.CANDIDATES

    @pytest.mark.parametrize("question", QUERIES)
    def test_bm25_is_wrong_where_it_is_said_to_be(self, question: str) -> None:
        """The answer is among the candidates but not first, according to bm25s, which knows nothing of this project."""
        texts = {name: document["text"] for name, document in sample.documents().items()}
        ranked = [name for name, _ in bm25.search(texts, question)]

        assert ranked.index(QUERIES[question]) >= 1
        assert ranked.index(QUERIES[question]) < SHOWN * set_up_opensearch.CANDIDATES_PER_HIT


class TestOpenSearch:
    @pytest.mark.parametrize("question", QUERIES)
    def test_the_answer_comes_first(self, opensearch: tuple[OpenSearch, str], question: str) -> None:
        """A search has the answer first with the pipeline, and does not without it."""
        _, url = opensearch
        body = set_up_opensearch.query_of(question, SHOWN)
        found = []
        for parameters in ({}, {"search_pipeline": "bandrank"}):
            response = post(f"{url}/sample/_search", params=parameters, json=body, auth=("admin", PASSWORD))
            assert response.status_code == 200, response.text
            found.append([hit["_id"] for hit in response.json()["hits"]["hits"]])

        before, after = found
        assert before[0] != QUERIES[question]
        assert after[0] == QUERIES[question]
        assert len(after) == SHOWN

    @pytest.mark.parametrize(
        "query",
        [
            'a "quoted" word',
            "back\\slash / slash",
            "two\nlines\tand a tab",
            "naïve 東京 🚲",
            "{not json",
            "$100 ${parameters}",
        ],
    )
    def test_any_text_reaches_bandrank(self, opensearch: tuple[OpenSearch, str], bandrank: str, query: str) -> None:
        """The connector's body is JSON whatever query and documents hold, and each document gets one score."""
        engine, _ = opensearch
        (connector,) = engine.state.connectors.values()
        texts = ["plain", query, "", 'a "b" \\ </script> ' + query]
        url, headers, content = connector_call(connector, query, texts)
        response = post(url, headers=headers, content=content)

        assert url.startswith(bandrank)
        assert response.status_code == 200, response.text
        assert len(scores_of(response.text)) == len(texts)

    def test_the_lines_of_the_documentation_work(self, opensearch: tuple[OpenSearch, str], password_file: Path) -> None:
        """The commands of deploy/README.md, run as printed, give the results that are printed beneath them."""
        _, url = opensearch
        text = (DEPLOY / "README.md").read_text(encoding="utf-8")
        (section,) = re.findall(r"## A search, re-ranked\n(.+?)\n## ", text, re.DOTALL)
        commands, *_ = shell_blocks(section)
        before, after = (
            [hit["_source"]["title"] for hit in answer["hits"]["hits"]]
            for answer in answers(commands, "http://127.0.0.1:9200", url, password_file)
        )

        assert f"indexes {len(sample.documents())} short texts" in section
        for titles in (before, after):
            assert ", ".join(titles) in section
        assert before[0] != after[0] == ANSWER


class TestElasticsearch:
    """Elasticsearch's inference service `hugging_face` asks in the wire format of Text Embeddings Inference."""

    def test_the_answer_comes_first(self, bandrank: str, password_file: Path) -> None:
        """The answer comes first both in what the set-up prints and in what the example's commands print."""
        section = (DEPLOY / "examples" / "elasticsearch" / "README.md").read_text(encoding="utf-8")
        with Elasticsearch(PASSWORD).serving() as url:
            said = set_up("set_up_elasticsearch.py", url, password_file, "--reranker", bandrank)
            found = answers(shell_blocks(section)[1], "http://127.0.0.1:9202", url, password_file)
        before, after = ([hit["_source"]["title"] for hit in answer["hits"]["hits"]] for answer in found)

        for titles in (before, after):
            assert ", ".join(titles) in section
        assert before[0] != after[0] == ANSWER
        assert [line.split(": ")[1].split("; ") for line in said[-2:]] == [before, after]


class TestWeaviate:
    """Weaviate's module asks in a wire format of its own."""

    def test_bandrank_says_that_it_is_ready(self, bandrank: str) -> None:
        """Weaviate does not start before these paths have answered."""
        for path in ("/.well-known/ready", "/.well-known/live"):
            assert get(f"{bandrank}{path}").is_success
        assert isinstance(get(f"{bandrank}/meta").json(), dict)

    def test_the_answer_comes_first(self, bandrank: str, password_file: Path) -> None:
        """The answer comes first both in what the set-up prints and in what the example's commands print."""
        section = (DEPLOY / "examples" / "weaviate" / "README.md").read_text(encoding="utf-8")
        with Weaviate(PASSWORD, bandrank).serving() as url:
            said = set_up("set_up_weaviate.py", url, password_file)
            found = answers(shell_blocks(section)[1], "http://127.0.0.1:8081", url, password_file)
        before, after = ([hit["title"] for hit in answer["data"]["Get"]["Sample"]] for answer in found)

        assert f"Before: {before[0]} comes first" in section
        assert before[0] != after[0] == ANSWER
        assert [line.split(": ")[1].split("; ") for line in said[-2:]] == [before[:3], after[:3]]
