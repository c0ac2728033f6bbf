"""A search of the sample documents, through each engine's stand-in and the real service, comes back re-ranked."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import sample
import set_up_opensearch
from support import bm25
from support.deploy import DEPLOY, needs_program
from support.ml_commons import connector_call, scores_of
from support.opensearch import OpenSearch
from support.server import running_service

SEARCH = DEPLOY / "search"
QUERIES: dict[str, str] = json.loads((SEARCH / "queries.json").read_text(encoding="utf-8"))
PASSWORD = "correct-horse"  # noqa: S105 -- of a stand-in
SHOWN = 3  # hits of a search in the documentation


@pytest.fixture(scope="module")
def bandrank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The service with the scorers that come with it."""
    with running_service(tmp_path_factory.mktemp("bandrank")) as service:
        yield service.url


@pytest.fixture(scope="module")
def password_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that the login of the stack leaves."""
    file = tmp_path_factory.mktemp("login") / "password"
    file.write_text(PASSWORD, encoding="ascii")
    return file


@pytest.fixture(scope="module")
def opensearch(bandrank: str, password_file: Path) -> Iterator[tuple[OpenSearch, str]]:
    """A cluster that the script has set up for the service, and its URL."""
    engine = OpenSearch(PASSWORD)
    with engine.serving() as url:
        said = set_up("set_up_opensearch.py", url, password_file, bandrank)
        assert said[-2:] == [
            '"how to get rid of hiccups", before: Getting rid of furniture; A launch with hiccups; Black and green tea',
            '"how to get rid of hiccups", after: A twitch of the diaphragm; A launch with hiccups; '
            "Getting rid of furniture",
        ]
        yield engine, url


def set_up(script: str, url: str, password_file: Path, reranker: str) -> list[str]:
    """The lines that a set-up script prints."""
    ended = subprocess.run(
        [sys.executable, SEARCH / script, "--url", url, "--password-file", password_file, "--reranker", reranker],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout.splitlines()


class TestSample:
    def test_documents_are_short_and_distinct(self) -> None:
        """Each has a title, and a text that is read whole."""
        documents = sample.documents()

        assert 60 <= len(documents) <= 100
        assert all(set(document) == {"title", "text"} for document in documents.values())
        assert all(len(document["text"].split()) <= 60 for document in documents.values())
        assert len({document["text"] for document in documents.values()}) == len(documents)

    @pytest.mark.parametrize("question", QUERIES)
    def test_bm25_is_wrong_where_it_is_said_to_be(self, question: str) -> None:
        """The answer is among the candidates, but not first: bm25s knows nothing of this project."""
        texts = {name: document["text"] for name, document in sample.documents().items()}
        ranked = [name for name, _ in bm25.search(texts, question)]

        assert ranked.index(QUERIES[question]) >= 1
        assert ranked.index(QUERIES[question]) < SHOWN * set_up_opensearch.CANDIDATES_PER_HIT


class TestOpenSearch:
    @pytest.mark.parametrize("question", QUERIES)
    def test_the_answer_comes_first(self, opensearch: tuple[OpenSearch, str], question: str) -> None:
        """With the pipeline, of a search that does not have it first without."""
        _, url = opensearch
        body = set_up_opensearch.query_of(question, SHOWN)
        found = []
        for parameters in ({}, {"search_pipeline": "bandrank"}):
            response = httpx.post(
                f"{url}/sample/_search", params=parameters, json=body, auth=("admin", PASSWORD), timeout=60.0
            )
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
        """The connector's body is JSON whatever is in query and documents, one score a document comes back."""
        engine, _ = opensearch
        (connector,) = engine.state.connectors.values()
        texts = ["plain", query, "", 'a "b" \\ </script> ' + query]
        url, headers, content = connector_call(connector, query, texts)
        response = httpx.post(url, headers=headers, content=content, timeout=60.0)

        assert url.startswith(bandrank)
        assert response.status_code == 200, response.text
        assert len(scores_of(response.text)) == len(texts)

    def test_the_lines_of_the_documentation_work(
        self, opensearch: tuple[OpenSearch, str], password_file: Path, tmp_path: Path
    ) -> None:
        """Each curl command of deploy/README.md, run as it is printed, shows what is printed beneath it."""
        _, url = opensearch
        needs_program("curl", "Debian: curl")
        text = (DEPLOY / "README.md").read_text(encoding="utf-8")
        (section,) = re.findall(r"## A search, re-ranked\n(.+?)\n## ", text, re.DOTALL)
        commands, *_ = re.findall(r"```sh\n(.+?)```", section, re.DOTALL)
        docker = tmp_path / "docker"
        docker.write_text(f"#!/bin/sh\ncat {password_file}\n", encoding="utf-8")
        docker.chmod(0o755)
        ended = subprocess.run(
            ["bash", "-euc", commands.replace("http://127.0.0.1:9200", url)],
            env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

        assert ended.returncode == 0, ended.stderr
        before, after = (
            [hit["_source"]["title"] for hit in json.loads(line)["hits"]["hits"]] for line in ended.stdout.splitlines()
        )
        for titles in (before, after):
            assert ", ".join(titles) in section
        assert before[0] != after[0] == sample.documents()[QUERIES["how to get rid of hiccups"]]["title"]
