"""Attacks of a single request, by its body: large ones, and what programs send by mistake.

What each small body that is wrong is answered with is in tests/api.
"""

import gzip
import json

from chaos.table import JSON, MB, attack, register_body, status_of

CANDIDATES = {"path": "/candidates", "method": "PUT"}
LINES = CANDIDATES | {"content_type": "application/x-ndjson"}


def asked(candidates: bytes = b'["a"]', more: bytes = b"", query: bytes = b"x") -> bytes:
    """A request to rank an array of candidates. more: further fields, each after a comma."""
    return b'{"query":"' + query + b'","candidates":' + candidates + more + b"}"


def about(candidate: bytes) -> bytes:
    return asked(b'["' + candidate + b'"]')


register_body("candidates_are_a_million_numbers", lambda: asked(b"[" + b"1," * 999_999 + b"1]"), 413)
register_body("candidates_are_a_million_nulls", lambda: asked(b"[" + b"null," * 499_999 + b"null]"), 413)
register_body("candidates_are_many_empty_objects", lambda: asked(b"[" + b"{}," * 999_999 + b"{}]"), 422)
register_body("candidates_are_a_million_empty_texts", lambda: asked(b"[" + b'"",' * 999_999 + b'""]'), 413, 422)
register_body(
    "ids_without_texts_by_the_hundred_thousand",
    lambda: asked(b'[{"id":"a"}' + b',{"id":"a"}' * 99_999 + b"]"),
    413,
    422,
)
register_body("a_query_of_four_megabytes", lambda: asked(query=b"man " * MB), 200, 413)
register_body("a_query_of_fifteen_megabytes", lambda: asked(query=b"x" * 15 * MB), 200, 413)
register_body("a_candidate_of_fifteen_megabytes", lambda: about(b"man " * 3_800_000), 200, 413)
register_body("a_candidate_of_one_long_word", lambda: about(b"x" * 15 * MB), 200, 413)
register_body("a_candidate_of_spaces", lambda: about(b" " * 15 * MB), 200, 413)
register_body("a_candidate_of_combining_marks", lambda: about(b"a" + "\u0301".encode() * 2 * MB), 200, 413)
register_body("a_candidate_of_emoji", lambda: about("\U0001f9ea".encode() * MB), 200, 413)
register_body("a_candidate_of_chinese", lambda: about("\u4e2d".encode() * 3 * MB), 200, 413)
register_body("a_candidate_of_punctuation", lambda: about(b"!?." * 3 * MB), 200, 413)
register_body("texts_written_as_escapes", about(rb"\u006d" * 100_000), 200)
register_body("a_body_of_fifty_megabytes", lambda: b'{"query":"' + b"x" * 50 * MB, 413, 0)
register_body("arrays_in_arrays", lambda: b"[" * MB, 422)
register_body("objects_in_objects", lambda: b'{"a":' * 500_000, 422)
register_body("deep_candidates", lambda: asked(b"[" * 500_000 + b"]" * 500_000), 422)
register_body("a_number_of_a_million_digits", lambda: asked(more=b',"top_n":' + b"9" * MB), 422)
register_body("an_exponent_beyond_all_floats", asked(more=b',"budget_ms":1e999999'), 422, 200)
register_body("a_huge_top_n", asked(more=b',"top_n":99999999999999999999'), 200, 422)
register_body("a_million_fields", lambda: b"{" + b",".join(b'"f%d":1' % n for n in range(MB)) + b"}", 422)
register_body("the_same_field_a_million_times", lambda: asked(more=b',"top_n":1' * MB), 200, 422)
register_body(
    "half_a_million_fields_of_an_explanation",
    lambda: b'{"query":"x","candidate":"a"' + b"".join(b',"f%d":1' % n for n in range(500_000)) + b"}",
    422,
    path="/explain",
)
register_body("a_field_name_of_megabytes", lambda: b'{"' + b"x" * 10 * MB + b'":1}', 422)
register_body("fields_of_pythons_own", asked(more=b',"__class__":{"__init__":[]}'), 200, 422)
register_body("json_after_json", asked() * 1000, 422)
register_body("a_budget_header_of_kilobytes", asked(), 422, 431, x_budget_ms="9" * 20_000)
register_body("a_type_of_kilobytes", b"{}", 415, 422, content_type="application/json; a=" + "x" * 20_000)
register_body("a_model_like_a_path", asked(more=rb',"model":"../../etc/passwd\u0000"'), 404)
register_body("a_model_name_of_megabytes", lambda: asked(more=b',"model":"' + b"x" * 10 * MB + b'"'), 404)
register_body("a_strategy_of_megabytes", lambda: asked(more=b',"strategy":"' + b"x" * 10 * MB + b'"'), 404)
register_body(
    "a_million_candidates_to_register", lambda: b'{"candidates":[' + b"1," * 999_999 + b"1]}", 403, 422, **CANDIDATES
)
register_body(
    "a_million_ids_to_forget",
    lambda: b'{"ids":[' + b"1," * 999_999 + b"1]}",
    *(403, 422),
    path="/candidates",
    method="DELETE",
)
register_body(
    "an_id_of_megabytes",
    lambda: json.dumps({"candidates": [{"id": "x" * 10 * MB, "text": "a"}]}).encode(),
    *(403, 422),
    **CANDIDATES,
)
register_body("a_line_of_fifteen_megabytes", lambda: b'{"id":"a","text":"' + b"x" * 15 * MB, 200, 413, **LINES)
register_body("lines_of_nothing", lambda: b"\n" * 10 * MB, 200, **LINES)
register_body("lines_that_are_no_json", b"x\n" * 200_000, 200, **LINES)
register_body(
    "documents_are_many_empty_objects",
    b'{"query":"x","documents":[' + b"{}," * 199_999 + b"{}]}",
    413,
    path="/v1/rerank",
)
register_body("a_million_texts", lambda: b'{"query":"x","texts":[' + b'"",' * 999_999 + b'""]}', 413)
register_body(
    "fields_to_rank_by_the_thousand",
    json.dumps(
        {"query": "x", "documents": [{"a": "b"}] * 2000, "rank_fields": [str(n) for n in range(50_000)]}
    ).encode(),
    422,
    path="/v1/rerank",
)
register_body(
    "two_thousand_queries_at_once",
    json.dumps({"text_1": [f"who {n}" for n in range(2000)], "text_2": ["man"] * 2000}).encode(),
    *(200, 429),
    path="/score",
)


@attack(413, 415, 422, quick=True)
def a_gzip_bomb(url: str) -> set[int]:
    headers = JSON | {"content-encoding": "gzip"}
    return {status_of(url, "POST", "/rerank", content=gzip.compress(b"\0" * 200 * MB), headers=headers)}
