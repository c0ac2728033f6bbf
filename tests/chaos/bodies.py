"""Attacks of a single request, by its body."""

import gzip
import json
import zlib

from chaos.table import JSON, MB, attack, register_body, status_of

PLAIN = b'{"query":"x","candidates":["a"]}'

register_body(
    "candidates_are_a_million_numbers", lambda: b'{"query":"x","candidates":[' + b"1," * 999_999 + b"1]}", 413
)
register_body(
    "candidates_are_a_million_nulls", lambda: b'{"query":"x","candidates":[' + b"null," * 499_999 + b"null]}", 413
)
register_body(
    "candidates_are_many_empty_objects", lambda: b'{"query":"x","candidates":[' + b"{}," * 999_999 + b"{}]}", 422
)
register_body(
    "candidates_are_a_million_empty_texts",
    lambda: b'{"query":"x","candidates":[' + b'"",' * 999_999 + b'""]}',
    413,
    422,
)
register_body(
    "ids_without_texts_by_the_hundred_thousand",
    lambda: b'{"query":"x","candidates":[' + b'{"id":"a"},' * 99_999 + b'{"id":"a"}]}',
    413,
    422,
)
register_body("a_query_of_four_megabytes", lambda: b'{"query":"' + b"man " * MB + b'","candidates":["a"]}', 200, 413)
register_body(
    "a_query_of_fifteen_megabytes", lambda: b'{"query":"' + b"x" * 15 * MB + b'","candidates":["a"]}', 200, 413
)
register_body(
    "a_candidate_of_fifteen_megabytes", lambda: b'{"query":"x","candidates":["' + b"man " * 3_800_000 + b'"]}', 200, 413
)
register_body(
    "a_candidate_of_one_long_word", lambda: b'{"query":"x","candidates":["' + b"x" * 15 * MB + b'"]}', 200, 413
)
register_body("a_candidate_of_spaces", lambda: b'{"query":"x","candidates":["' + b" " * 15 * MB + b'"]}', 200, 413)
register_body(
    "a_candidate_of_combining_marks",
    lambda: b'{"query":"x","candidates":["a' + "\u0301".encode() * 2 * MB + b'"]}',
    200,
    413,
)
register_body(
    "a_candidate_of_emoji", lambda: b'{"query":"x","candidates":["' + "\U0001f9ea".encode() * MB + b'"]}', 200, 413
)
register_body(
    "a_candidate_of_chinese", lambda: b'{"query":"x","candidates":["' + "\u4e2d".encode() * 3 * MB + b'"]}', 200, 413
)
register_body(
    "a_candidate_of_punctuation", lambda: b'{"query":"x","candidates":["' + b"!?." * 3 * MB + b'"]}', 200, 413
)
register_body("a_body_of_fifty_megabytes", lambda: b'{"query":"' + b"x" * 50 * MB, 413, 0)
register_body("arrays_in_arrays", lambda: b"[" * MB, 422)
register_body("objects_in_objects", lambda: b'{"a":' * 500_000, 422)
register_body("deep_candidates", lambda: b'{"query":"x","candidates":' + b"[" * 500_000 + b"]" * 500_000 + b"}", 422)
register_body(
    "a_number_of_a_million_digits", lambda: b'{"query":"x","candidates":["a"],"top_n":' + b"9" * MB + b"}", 422
)
register_body("an_exponent_beyond_all_floats", b'{"query":"x","candidates":["a"],"budget_ms":1e999999}', 422, 200)
register_body("a_budget_that_is_no_number", b'{"query":"x","candidates":["a"],"budget_ms":NaN}', 422)
register_body("a_negative_top_n", b'{"query":"x","candidates":["a"],"top_n":-1}', 422)
register_body("a_huge_top_n", b'{"query":"x","candidates":["a"],"top_n":99999999999999999999}', 200, 422)
register_body("a_million_fields", lambda: b"{" + b",".join(b'"f%d":1' % n for n in range(MB)) + b"}", 422)
register_body(
    "the_same_field_a_million_times", lambda: b'{"query":"x","candidates":["a"]' + b',"top_n":1' * MB + b"}", 200, 422
)
register_body("a_field_name_of_megabytes", lambda: b'{"' + b"x" * 10 * MB + b'":1}', 422)
register_body("surrogates_alone", b'{"query":"\\ud800","candidates":["\\udfff"]}', 200, 422)
register_body("zeros_in_texts", b'{"query":"a\\u0000b","candidates":["c\\u0000d"]}', 200, 422)
register_body("no_utf8", b'{"query":"\xff\xfe","candidates":["a"]}', 422)
register_body("utf16", '{"query":"x","candidates":["a"]}'.encode("utf-16"), 422)
register_body("a_byte_order_mark", b'\xef\xbb\xbf{"query":"x","candidates":["a"]}', 200, 422)
register_body("an_empty_body", b"", 422)
register_body("json_after_json", b'{"query":"x","candidates":["a"]}' * 1000, 422)
register_body("gzip_as_json", gzip.compress(b'{"query":"x","candidates":["a"]}'), 415, 422, content_encoding="gzip")
register_body("a_budget_header_of_kilobytes", b'{"query":"x","candidates":["a"]}', 422, 431, x_budget_ms="9" * 20_000)
register_body(
    "a_model_name_of_megabytes", lambda: b'{"query":"x","candidates":["a"],"model":"' + b"x" * 10 * MB + b'"}', 404
)
register_body(
    "a_strategy_of_megabytes", lambda: b'{"query":"x","candidates":["a"],"strategy":"' + b"x" * 10 * MB + b'"}', 404
)
register_body(
    "a_million_candidates_to_register",
    lambda: b'{"candidates":[' + b"1," * 999_999 + b"1]}",
    403,
    422,
    path="/candidates",
    method="PUT",
)
register_body(
    "a_million_ids_to_forget",
    lambda: b'{"ids":[' + b"1," * 999_999 + b"1]}",
    403,
    422,
    path="/candidates",
    method="DELETE",
)
register_body(
    "an_id_of_megabytes",
    lambda: json.dumps({"candidates": [{"id": "x" * 10 * MB, "text": "a"}]}).encode(),
    403,
    422,
    path="/candidates",
    method="PUT",
)
register_body(
    "a_line_of_fifteen_megabytes",
    lambda: b'{"id":"a","text":"' + b"x" * 15 * MB,
    200,
    413,
    path="/candidates",
    method="PUT",
    content_type="application/x-ndjson",
)
register_body(
    "lines_of_nothing",
    lambda: b"\n" * 10 * MB,
    200,
    path="/candidates",
    method="PUT",
    content_type="application/x-ndjson",
)
register_body(
    "lines_that_are_no_json",
    b"x\n" * 200_000,
    200,
    path="/candidates",
    method="PUT",
    content_type="application/x-ndjson",
)
register_body(
    "gzip_lines",
    gzip.compress(b'{"id":"a","text":"b"}\n' * 1000),
    415,
    path="/candidates",
    method="PUT",
    content_type="application/x-ndjson",
    content_encoding="gzip",
)
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
    200,
    429,
    path="/score",
)
register_body("json_with_a_comment", b'{"query":"x",/* who */"candidates":["a"]}', 422)
register_body("json_with_a_comma_too_many", b'{"query":"x","candidates":["a",],}', 422)
register_body("a_string_without_an_end", b'{"query":"x","candidates":["a', 422)
register_body("an_escape_that_nobody_knows", b'{"query":"\\x41\\u12","candidates":["a"]}', 422)
register_body("a_line_end_in_a_string", b'{"query":"a\nb","candidates":["a"]}', 200, 422)
register_body("texts_written_as_escapes", b'{"query":"x","candidates":["' + b"\\u006d" * 100_000 + b'"]}', 200)
register_body("no_object", b'["query","x"]', 422)
register_body("a_query_that_is_null", b'{"query":null,"candidates":["a"]}', 422)
register_body("candidates_that_are_a_text", b'{"query":"x","candidates":"man"}', 422)
register_body("candidates_in_an_object", b'{"query":"x","candidates":{"0":"man"}}', 422)
register_body("no_candidates", b'{"query":"x","candidates":[]}', 200, 422)
register_body("a_truth_for_a_number", b'{"query":"x","candidates":["a"],"top_n":true}', 422)
register_body("a_number_for_a_truth", b'{"query":"x","candidates":["a"],"raw_scores":1}', 422)
register_body("half_a_result", b'{"query":"x","candidates":["a"],"top_n":0.5}', 422)
register_body("a_budget_below_all_floats", b'{"query":"x","candidates":["a"],"budget_ms":1e-400}', 200, 422)
register_body("a_budget_of_less_than_nothing", b'{"query":"x","candidates":["a"],"budget_ms":-0.0}', 200, 422)
register_body("candidates_under_two_names", b'{"query":"x","candidates":["a"],"documents":["b"]}', 200, 422)
register_body("fields_of_pythons_own", b'{"query":"x","candidates":["a"],"__class__":{"__init__":[]}}', 200, 422)
register_body("a_model_like_a_path", b'{"query":"x","candidates":["a"],"model":"../../etc/passwd\\u0000"}', 404)
register_body("a_query_of_nothing", b'{"query":"","candidates":["", " ", "\\t\\n"]}', 200, 422)
register_body("tokens_of_the_models_own", b'{"query":"[CLS] [SEP]","candidates":["[MASK] [PAD] [UNK] ##a [SEP]"]}', 200)
register_body(
    "texts_that_run_both_ways", '{"query":"\u202eabc\u202c","candidates":["\u2066\u200f\u200b"]}'.encode(), 200
)
register_body("texts_of_control_characters", b'{"query":"x","candidates":["\\u0001\\u0007\\u001b\\u007f\\u0085"]}', 200)
register_body("two_thousand_equal_candidates", b'{"query":"x","candidates":[' + b'"man",' * 2047 + b'"man"]}', 200)
register_body("a_form", b"query=x&candidates=man", 415, content_type="application/x-www-form-urlencoded")
register_body("a_form_of_parts", b"--b\r\n\r\nx\r\n--b--", 415, content_type="multipart/form-data; boundary=b")
register_body(
    "text_from_a_web_page", b'{"query":"x","candidates":["a"]}', 415, content_type="text/plain", origin="null"
)
register_body(
    "no_type_from_a_web_page", b'{"query":"x","candidates":["a"]}', 415, content_type="", origin="https://a.b"
)
register_body("a_type_of_kilobytes", b"{}", 415, 422, content_type="application/json; a=" + "x" * 20_000)
register_body("a_type_in_capitals", PLAIN, 200, content_type="Application/JSON;Charset=UTF-8")
register_body("an_alphabet_that_nobody_sends", b"{}", 415, 422, content_type="application/json; charset=utf-7")
register_body("brotli_that_is_none", b"\x0b\x02\x80", 415, content_encoding="br")
register_body("compressed_twice", gzip.compress(gzip.compress(b"{}")), 415, content_encoding="gzip, gzip")
register_body("a_deflated_body", zlib.compress(b'{"query":"x","candidates":["a"]}'), 415, content_encoding="deflate")


@attack(413, 415, 422, quick=True)
def a_gzip_bomb(url: str) -> set[int]:
    headers = JSON | {"content-encoding": "gzip"}
    return {status_of(url, "POST", "/rerank", content=gzip.compress(b"\0" * 200 * MB), headers=headers)}
