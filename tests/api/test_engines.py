"""Search engines can read bandrank's answers to their requests, sent byte for byte over one kept connection each."""

import http.client
import json
import socket
from collections.abc import Iterator

import pytest
from support.engines import DOCUMENTS, ENGINES, QUERY, Engine
from support.listening import Listening, listening
from support.scorers import lookup
from support.serving import files_of


@pytest.fixture(scope="module")
def service() -> Iterator[Listening]:
    """A service whose sigmoids are 0, 1 and 0.5."""
    with listening(files=[files_of(lookup(man=200.0, she=-200.0))]) as running:
        yield running


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_an_engine_reads_its_answer(engine: Engine, service: Listening) -> None:
    """The engine's parser finds a score for each document, even after an error on the same connection."""
    with service.connection() as connection:
        status, refused = exchange(connection, engine.request(query="  "))
        assert status == 422
        assert "query must not be empty" in json.loads(refused)[engine.error]
        status, answer = exchange(connection, engine.request())

    assert status == 200, answer
    assert engine.read(json.loads(answer)) == ([-200.0, 200.0, 0.0] if engine.raw else [0.0, 1.0, 0.5])


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_recorded_requests_say_the_same(engine: Engine) -> None:
    """The requests of all engines decode to the same query and documents, however an engine escapes these."""
    body = json.loads(engine.request().partition(b"\r\n\r\n")[2])
    query, documents = body["query"], body.get("documents") or body.get("texts") or body["passages"]

    assert (query["text"] if isinstance(query, dict) else query) == QUERY
    assert [item["text"] if isinstance(item, dict) else item for item in documents] == DOCUMENTS


def exchange(connection: socket.socket, request: bytes) -> tuple[int, bytes]:
    connection.sendall(request)
    response = http.client.HTTPResponse(connection, method="POST")
    response.begin()
    return response.status, response.read()
