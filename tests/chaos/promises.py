"""Attacks on what the service says of itself: counts, descriptions, names and metrics."""

import httpx
from chaos.table import BODY, JSON, NDJSON, ask, attack, send_raw

REFUSED = httpx.codes.FORBIDDEN  # registering may be forbidden here


@attack(200, 403, quick=True)
def an_id_that_is_registered_twice_at_once(url: str) -> set[int]:
    """It counts once, in a body and in lines."""
    twice = b'{"candidates":[{"id":"twice","text":"a"},{"id":"twice","text":"b"}]}'
    lines = b'{"id":"twice","text":"a"}\n{"id":"twice","text":"b"}\n'
    answers = [ask(url, "PUT", "/candidates", content=twice, headers=JSON)]
    answers.append(ask(url, "PUT", "/candidates", content=lines, headers=NDJSON))
    assert all(answer.status_code == REFUSED or answer.json()["registered"] == 1 for answer in answers)
    return {answer.status_code for answer in answers}


@attack(200, 405, quick=True)
def methods_that_are_described_otherwise(url: str) -> set[int]:
    """HEAD is answered where GET is, and a refusal names every method that there is."""
    head, post, get = (
        ask(url, method, path) for method, path in (("HEAD", "/healthz"), ("POST", "/healthz"), ("GET", "/candidates"))
    )
    assert head.status_code == 200
    assert get.headers["allow"] == "DELETE, PUT"
    return {head.status_code, post.status_code, get.status_code}


@attack(200, quick=True)
def a_description_that_promises_too_much(url: str) -> set[int]:
    """Metrics are text, and no bodies are taken that the description does not allow."""
    answer = ask(url, "GET", "/openapi.json")
    described = answer.json()
    assert list(described["paths"]["/metrics"]["get"]["responses"]["200"]["content"]) == ["text/plain"]
    return {answer.status_code}


@attack(404, quick=True)
def a_page_that_loads_scripts_from_elsewhere(url: str) -> set[int]:
    """There is none, and no redirect follows the name that a client gives."""
    headers = {"host": "elsewhere.example"}
    return {ask(url, "GET", path, headers=headers).status_code for path in ("/docs", "/redoc", "/healthz/", "/rerank/")}


@attack(200, quick=True)
def an_answer_that_tells_where_the_model_is(url: str) -> set[int]:
    """It has a name, and no path."""
    answer = ask(url, "POST", "/rerank", content=BODY, headers=JSON)
    assert "/" not in answer.json()["model"]
    return {answer.status_code}


@attack(200, 403, 415, quick=True)
def requests_that_no_metric_counts(url: str) -> set[int]:
    """Every path is counted, and so is what is refused there."""
    answer = ask(url, "PUT", "/candidates", content=b"x", headers={"content-type": "text/plain"})
    counted = f'path="/candidates",status="{answer.status_code}"'
    assert counted in ask(url, "GET", "/metrics").text
    return {answer.status_code}


@attack(200, quick=True)
def metrics_in_an_encoding_of_the_clients(url: str) -> set[int]:
    """Whatever it accepts."""
    return send_raw(url, b"GET /metrics HTTP/1.1\r\nHost: b\r\nAccept: */*;q=x,,\r\nAccept-Encoding: zstd;q=9\r\n\r\n")
