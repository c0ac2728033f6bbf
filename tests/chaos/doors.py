"""Attacks on the other endpoints: explanations, embeddings, pairs of texts, and the wire formats of other services."""

import contextlib
import json
import time
from typing import Any

from chaos.table import MB, VECTORS, ask, attack, connection_to, register_body, reset, status_of, together, words

EXPLAIN, EMBED, PAIRS = "/explain", "/v1/embeddings", "/v1/score"
DOORS = (
    *(EXPLAIN, EMBED, PAIRS, "/v1/rerank", "/v2/rerank", "/v1/reranking", "/v1/models/rerank", "/v1/ranking"),
    *("/inference/cross/x", "/infinity/rerank", "/sglang/v1/rerank", "/voyage/v1/rerank"),
    "/api/v1/services/rerank/text-rerank/text-rerank",
)
MILLION = 999_999  # bodies add one more at the end
LONG = words(12_000)


def post_to(url: str, path: str, body: Any) -> int:
    return status_of(url, "POST", path, json=body)


def raw_post(path: str, body: bytes) -> bytes:
    """The bytes of a POST with a JSON body."""
    head = f"POST {path} HTTP/1.1\r\nHost: b\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def explained(candidate: bytes, query: bytes = b"x") -> bytes:
    return b'{"query":"' + query + b'","candidate":"' + candidate + b'"}'


def embedded(texts: bytes) -> bytes:
    return b'{"model":"' + VECTORS.encode() + b'","input":' + texts + b"}"


register_body("explain_fifteen_megabytes", lambda: explained(b"man " * 3_700_000), 200, 413, 429, path=EXPLAIN)
register_body("explain_one_long_word", lambda: explained(b"x" * 15 * MB), 200, 413, 429, path=EXPLAIN)
register_body("explain_words_of_one_letter", lambda: explained(b"a " * 7 * MB), 200, 413, 429, path=EXPLAIN)
register_body("explain_spaces", lambda: explained(b" " * 15 * MB), 200, 413, 429, path=EXPLAIN)
register_body("explain_chinese", lambda: explained("\u4e2d".encode() * 3 * MB), 200, 413, 429, path=EXPLAIN)
register_body("explain_punctuation", lambda: explained(b"!?." * 3 * MB), 200, 413, 429, path=EXPLAIN)
register_body("explain_emoji", lambda: explained("\U0001f9ea".encode() * MB), 200, 413, 429, path=EXPLAIN)
register_body("explain_a_query_of_fifteen_megabytes", lambda: explained(b"man", b"x" * 15 * MB), 200, 413, path=EXPLAIN)
register_body("explain_a_long_query_and_a_long_text", explained(b"man " * 5_000, b"who " * 5_000), 200, path=EXPLAIN)
register_body(
    "explain_a_million_candidates",
    lambda: b'{"query":"x","candidate":[' + b'"",' * MILLION + b'""]}',
    422,
    path=EXPLAIN,
)
register_body("explain_a_deep_candidate", b'{"query":"x","candidate":' + b"[" * 400_000, 422, path=EXPLAIN)
register_body(
    "explain_an_id_of_megabytes",
    lambda: b'{"query":"x","candidate":{"id":"' + b"x" * 5 * MB + b'"}}',
    404,
    path=EXPLAIN,
)
register_body("explain_zeros", explained(b"man\\u0000 \\u0000she"), 200, path=EXPLAIN)
register_body("explain_half_a_pair", explained(b"man \\ud800"), 422, path=EXPLAIN)

register_body("embed_a_million_token_ids", lambda: embedded(b"[" + b"1," * MILLION + b"1]"), 413, path=EMBED)
register_body(
    "embed_a_million_lists_of_token_ids", lambda: embedded(b"[" + b"[1]," * 300_000 + b"[1]]"), 422, path=EMBED
)
register_body("embed_a_million_empty_texts", lambda: embedded(b"[" + b'"",' * MILLION + b'""]'), 413, path=EMBED)
register_body(
    "embed_a_million_faults_behind_a_text", lambda: embedded(b'["",' + b"1," * MILLION + b"1]"), 413, path=EMBED
)
register_body("embed_fifteen_megabytes", lambda: embedded(b'"' + b"x" * 15 * MB + b'"'), 200, 413, path=EMBED)
register_body("embed_punctuation", lambda: embedded(b'["' + b"!?." * 3 * MB + b'"]'), 200, 413, path=EMBED)
register_body("embed_two_thousand_equal_texts", embedded(b"[" + b'"man",' * 2047 + b'"man"]'), 200, path=EMBED)
register_body("embed_a_text_too_many", embedded(b"[" + b'"man",' * 2048 + b'"man"]'), 413, path=EMBED)
register_body("embed_deep_lists", embedded(b"[" * 400_000), 422, path=EMBED)
register_body("embed_into_a_huge_space", b'{"input":"man","dimensions":' + b"9" * 5000 + b"}", 400, 422, path=EMBED)
register_body(
    "embed_in_an_unknown_encoding", lambda: b'{"input":"man","encoding_format":"' + b"x" * MB + b'"}', 422, path=EMBED
)
register_body(
    "embed_by_a_model_of_megabytes", lambda: b'{"input":"man","model":"' + b"x" * 5 * MB + b'"}', 400, path=EMBED
)
register_body("embed_half_a_pair", embedded(b'"\\udfff"'), 422, path=EMBED)

register_body(
    "pairs_by_the_million",
    lambda: b'{"text_1":[' + b'"",' * 400_000 + b'""],"text_2":[' + b'"",' * 400_000 + b'""]}',
    *(413, 422),
    path=PAIRS,
)
register_body("pairs_of_numbers", lambda: b'{"text_1":"x","text_2":[' + b"1," * MILLION + b"1]}", 413, path=PAIRS)
register_body(
    "pairs_with_queries_of_kilobytes",
    lambda: json.dumps(
        {"text_1": [f"{number} {'who ' * 1500}" for number in range(2000)], "text_2": ["man"] * 2000}
    ).encode(),
    *(200, 413, 429),
    path=PAIRS,
)
register_body(
    "pairs_under_eight_names", json.dumps(dict.fromkeys(
        ("queries", "documents", "items", "data_1", "data_2", "text_1", "text_2"), ["man"] * 500
    )).encode(), 200, path=PAIRS,
)  # fmt: skip
register_body("pairs_that_do_not_fit", b'{"text_1":["a","b"],"text_2":["a","b","c"]}', 422, path=PAIRS)

register_body(
    "nim_passages_without_a_text",
    b'{"query":{"text":"x"},"passages":[' + b"{}," * 300_000 + b"{}]}",
    422,
    path="/v1/ranking",
)
register_body("metarank_pairs_of_nothing", b'{"input":[' + b"{}," * 300_000 + b"{}]}", 422, path="/inference/cross/x")
register_body(
    "metarank_queries_by_the_hundred",
    json.dumps({"input": [{"query": f"who {number}", "text": "man"} for number in range(400)]}).encode(),
    *(200, 429),
    path="/inference/cross/x",
)
register_body(
    "cohere_documents_of_many_fields",
    lambda: json.dumps(
        {"query": "x", "documents": [{f"f{n}": n for n in range(10_000)}] * 20, "rank_fields": ["f1"]}
    ).encode(),
    *(200, 422),
    path="/v1/rerank",
)
register_body(
    "cohere_fields_of_megabytes_to_rank",
    lambda: json.dumps(
        {"query": "x", "documents": [{"a": [["b" * 100] * 10] * 10}] * 1000, "rank_fields": ["a"]}
    ).encode(),
    *(200, 413, 422, 429),
    path="/v1/rerank",
)
register_body(
    "mixedbread_inputs_given_back",
    lambda: json.dumps(
        {"query": "x", "input": [{"text": "a", "more": "b" * 7000}] * 2000, "return_input": True}
    ).encode(),
    *(200, 413, 429),
    path="/v1/reranking",
)
register_body(
    "infinity_faults_by_the_million",
    lambda: b'{"query":"x","documents":[' + b"1," * MILLION + b"1]}",
    413,
    path="/infinity/rerank",
)
register_body("zeroentropy_of_nothing", b'{"query":"x","documents":[]}', 422, path="/v1/models/rerank")
register_body(
    "weaviate_property_of_megabytes",
    lambda: b'{"query":"x","documents":["a"],"property":"' + b"x" * 5 * MB + b'"}',
    200,
)


@attack(200, 413, 429)
def long_explanations_at_once(url: str) -> set[int]:
    return together([lambda: post_to(url, EXPLAIN, {"query": "who", "candidate": LONG})] * 8)


@attack(200, 429)
def explanations_that_hang_up(url: str) -> set[int]:
    """Forty clients ask for long explanations and reset their connections; then a short one is explained."""
    body = json.dumps({"query": "who", "candidate": LONG}).encode()
    for number in range(40):
        with connection_to(url) as connection:
            connection.sendall(raw_post(EXPLAIN, body))
            time.sleep(0.005 * (number % 8))
            reset(connection)
    return {post_to(url, EXPLAIN, {"query": "who", "candidate": "the man"})}


@attack(200, 413, 429)
def texts_to_embed_by_the_thousand(url: str) -> set[int]:
    """Four requests have two thousand texts of about a kilobyte each, all of them different."""

    def ask(caller: int) -> int:
        texts = [f"{caller} {number} {words(200)}" for number in range(2048)]
        return post_to(url, EMBED, {"model": VECTORS, "input": texts})

    return together([lambda caller=caller: ask(caller) for caller in range(4)])  # type: ignore[misc]


@attack(200)
def embeddings_that_nobody_reads(url: str) -> set[int]:
    """Ten answers with embeddings and ten explanations have more than a megabyte each."""
    texts = [f"{number} man" for number in range(2048)]
    asked = [
        raw_post(EMBED, json.dumps({"model": VECTORS, "input": texts}).encode()),
        raw_post(EXPLAIN, json.dumps({"query": "who", "candidate": LONG}).encode()),
    ]
    with contextlib.ExitStack() as stack:
        for request in asked * 10:
            connection = stack.enter_context(connection_to(url))
            with contextlib.suppress(OSError):
                connection.sendall(request)
        time.sleep(2)
        return {status_of(url, "GET", "/healthz")}


@attack(200, quick=True)
def bodies_that_stop_at_every_door(url: str) -> set[int]:
    with contextlib.ExitStack() as stack:
        for path in DOORS * 5:
            connection = stack.enter_context(connection_to(url))
            connection.sendall(raw_post(path, b'{"query":"who","input":"man"}')[:-15])
        time.sleep(0.2)
        return {status_of(url, "GET", "/healthz")}


@attack(200, 400, 422, 429, quick=True)
def small_requests_at_every_door(url: str) -> set[int]:
    body = {
        "query": "who", "candidate": "man", "documents": ["man", "she"], "input": ["man"], "model": VECTORS,
        "text_1": "who", "text_2": ["man"],
    }  # fmt: skip
    return together([lambda path=path: post_to(url, path, body) for path in DOORS * 4])  # type: ignore[misc]


@attack(200, quick=True)
def an_answer_that_tells_where_the_model_is(url: str) -> set[int]:
    """An answer has the model's name, and not its path."""
    answer = ask(url, "POST", "/rerank", json={"query": "who", "documents": ["man"]})
    assert "/" not in answer.json()["model"]
    return {answer.status_code}
