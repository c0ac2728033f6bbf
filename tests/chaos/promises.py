"""Attacks on what the service says of itself: counts, descriptions, names and metrics."""

import httpx
from chaos.table import BODY, JSON, NDJSON, ask, attack, send_raw

REFUSED = httpx.codes.FORBIDDEN  # the service may forbid registering


@attack(200, 403, quick=True)
def an_id_that_is_registered_twice_at_once(url: str) -> set[int]:
    """An id counts once, whether a JSON body or a stream of lines repeats it."""
    twice = b'{"candidates":[{"id":"twice","text":"a"},{"id":"twice","text":"b"}]}'
    lines = b'{"id":"twice","text":"a"}\n{"id":"twice","text":"b"}\n'
    answers = [ask(url, "PUT", "/candidates", content=twice, headers=JSON)]
    answers.append(ask(url, "PUT", "/candidates", content=lines, headers=NDJSON))
    assert all(answer.status_code == REFUSED or answer.json()["registered"] == 1 for answer in answers)
    return {answer.status_code for answer in answers}


@attack(200, 405, quick=True)
def methods_that_are_described_otherwise(url: str) -> set[int]:
    """HEAD is answered where GET is, and a 405 lists every allowed method."""
    head, post, get = (
        ask(url, method, path) for method, path in (("HEAD", "/healthz"), ("POST", "/healthz"), ("GET", "/candidates"))
    )
    assert head.status_code == 200
    assert get.headers["allow"] == "DELETE, PUT"
    return {head.status_code, post.status_code, get.status_code}


@attack(200, quick=True)
def a_description_that_promises_too_much(url: str) -> set[int]:
    """The OpenAPI description says that metrics are plain text."""
    answer = ask(url, "GET", "/openapi.json")
    described = answer.json()
    assert list(described["paths"]["/metrics"]["get"]["responses"]["200"]["content"]) == ["text/plain"]
    return {answer.status_code}


@attack(404, quick=True)
def a_page_that_loads_scripts_from_elsewhere(url: str) -> set[int]:
    """There are no such pages, and no redirect to the host that a client names."""
    headers = {"host": "elsewhere.example"}
    return {ask(url, "GET", path, headers=headers).status_code for path in ("/docs", "/redoc", "/healthz/", "/rerank/")}


@attack(200, quick=True)
def an_answer_that_tells_where_the_model_is(url: str) -> set[int]:
    """An answer has the model's name, and not its path."""
    answer = ask(url, "POST", "/rerank", content=BODY, headers=JSON)
    assert "/" not in answer.json()["model"]
    return {answer.status_code}


@attack(200, 403, 415, quick=True)
def requests_that_no_metric_counts(url: str) -> set[int]:
    """Metrics count requests of every path, and refused ones as well."""
    answer = ask(url, "PUT", "/candidates", content=b"x", headers={"content-type": "text/plain"})
    counted = f'path="/candidates",status="{answer.status_code}"'
    assert counted in ask(url, "GET", "/metrics").text
    return {answer.status_code}


@attack(200, quick=True)
def metrics_in_an_encoding_of_the_clients(url: str) -> set[int]:
    return send_raw(url, b"GET /metrics HTTP/1.1\r\nHost: b\r\nAccept: */*;q=x,,\r\nAccept-Encoding: zstd;q=9\r\n\r\n")
