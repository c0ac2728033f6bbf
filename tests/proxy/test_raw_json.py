"""JSON that is read and moved without being serialised again."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bandrank.proxy.hits import Placed, SearchAnswer
from bandrank.proxy.raw_json import Edit, edited, find, read_document, read_elements, read_members, read_value, without

NUMBERS = st.sampled_from(["1.0e-7", "12345678901234567890", "-0.0", "1E400", "0", "1.10"])
TEXT = st.text(st.characters(codec="utf-8"), max_size=12)


def written(value: Any, draw: st.DrawFn) -> str:
    """The JSON of a value, with white space wherever it may stand. Numbers are drawn from NUMBERS."""
    space = draw(st.sampled_from(["", "", " ", "\n\t", "\r\n "]))
    if isinstance(value, dict):
        members = f",{space}".join(
            f"{space}{json.dumps(key)}{space}:{space}{written(each, draw)}" for key, each in value.items()
        )
        return f"{{{members}{space}}}"
    if isinstance(value, list):
        return f"[{space}{f'{space},'.join(written(each, draw) for each in value)}{space}]"
    return draw(NUMBERS) if value == 0 else json.dumps(value, ensure_ascii=draw(st.booleans()))


@st.composite
def json_texts(draw: st.DrawFn, values: st.SearchStrategy[Any]) -> str:
    return written(draw(values), draw)


VALUES = st.recursive(
    st.none() | st.just(0) | TEXT, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3)
)
OBJECTS = st.dictionaries(TEXT, VALUES, max_size=5)


@settings(max_examples=40)
@given(json_texts(OBJECTS), st.data())
def test_members_can_be_taken_out(text: str, data: st.DataObject) -> None:
    """What is left is JSON, and each of its values is as it was written."""
    members = read_document(text, read_members)
    keys = data.draw(st.sets(st.sampled_from([part.key for part in members]))) if members else set()
    left = edited(text, 0, len(text), without(members, keys))

    expected = [(part.key, text[part.value_start : part.end]) for part in members if part.key not in keys]
    assert [(part.key, left[part.value_start : part.end]) for part in read_document(left, read_members)] == expected
    assert json.loads(left).keys() == {key for key, _ in expected}
    if not keys:
        assert left == text


@settings(max_examples=40)
@given(json_texts(st.lists(OBJECTS, max_size=4)))
def test_elements_are_found_where_they_stand(text: str) -> None:
    elements = read_document(text, lambda text, at: read_elements(text, at, read_value))

    assert [json.loads(text[each.start : each.end]) for each in elements] == json.loads(text)


@pytest.mark.parametrize(
    "text",
    ["", " ", "{", "[1]", '{"a"}', '{"a":}', '{"a":1,}', '{"a":1 "b":2}', '{"a":1,"a":2}', "{a:1}", '{"a":NaN}', "{} x",
     '{"a":-Infinity}', '{"a":"\n"}', "{1:2}"],
)  # fmt: skip
def test_what_is_no_object_is_refused(text: str) -> None:
    """The error is a ValueError, wherever in the text the fault is."""
    with pytest.raises(ValueError, match=r"."):
        read_document(text, read_members)


def test_edits_are_made_from_left_to_right() -> None:
    assert edited("abcdef", 1, 6, [Edit(4, 5, "!"), Edit(1, 2, ""), Edit(3, 3, "-")]) == "c-d!f"


HITS = st.lists(st.fixed_dictionaries({"_id": TEXT, "_score": st.just(0), "_source": OBJECTS}), max_size=6)


@settings(max_examples=40)
@given(st.data(), HITS, OBJECTS)
def test_hits_are_moved_as_they_are(data: st.DataObject, hits: list[Any], beside: dict[str, Any]) -> None:
    """Any hits can be moved, in any order; what surrounds them stays, and the bytes stay if no hit moves."""
    around = {**beside, "hits": {"max_score": None, "hits": hits, "total": beside}}
    body = data.draw(json_texts(st.just(around))).encode()
    answer = SearchAnswer(body, len(hits))
    order = data.draw(st.permutations(range(len(hits))))[: data.draw(st.integers(0, len(hits)))]
    moved = answer.write([Placed(index) for index in order], added=set())

    if order or not hits:
        assert [raw(moved, part) for part in SearchAnswer(moved, len(hits)).hits] == [
            raw(body, answer.hits[index]) for index in order
        ]
    assert same_but_hits(moved) == same_but_hits(body)
    if list(order) == [*range(len(hits))] and hits:
        assert moved == body


def raw(body: bytes, part: Any) -> bytes:
    return body[part.start : part.end]


def same_but_hits(body: bytes) -> Any:
    content = json.loads(body)
    content["hits"]["hits"] = None
    return repr(content)


def test_scores_and_added_fields() -> None:
    """Only the score and the added fields of a hit change, however the hit is written."""
    hit = '{ "_score" : null, "fields":{"a":[1.0e-7], "title" : ["x"]} , "_id":"1" }'
    other = '{"fields" : {"title":["y"]}, "_score":1.50}'
    around = '{"took": 1, "hits": {"max_score" :1.50, "hits": [\n  %s,\n  %s\n]}}'
    answer = SearchAnswer((around % (hit, other)).encode(), 2)
    written = answer.write([Placed(1, 0.75), Placed(0, 1e-7)], added={"title"}, best=0.75).decode()

    assert answer.texts(["title", "missing"]) == ["x", "y"]
    assert written == (
        around % ('{"_score":0.75}', '{ "_score" : 1e-07, "fields":{"a":[1.0e-7]} , "_id":"1" }')
    ).replace("1.50", "0.75")


@pytest.mark.parametrize(
    ("source", "fields", "expected"),
    [
        ('{"title":"a","body":"b"}', ["title", "body"], "a b"),
        ('{"title":"a","body":"b"}', ["body", "title"], "b a"),
        ('{"a":{"b":"c"}}', ["a.b"], "c"),
        ('{"a.b":"c"}', ["a.b"], "c"),
        ('{"a":[{"b":"c"},{"b":["d",{"e":1}]},{}]}', ["a.b"], "c d"),
        ('{"n":1.10,"t":" "}', ["t", "n"], "1.10"),
        ('{"a":null,"b":true,"c":{}}', ["a", "b", "c", "d.e"], ""),
        ('{"a":"\\ud800x"}', ["a"], "\ufffdx"),
        ("[]", ["a"], ""),
        ('{"a.b":{"c":"d"}}', ["a.b.c"], "d"),
        ('{"漢":"ü \\u00fc 🐝","n":1.10,"\\u00e9":"e"}', ["漢", "n", "é"], "ü ü 🐝 1.10 e"),
    ],
)
def test_the_text_of_a_hit(source: str, fields: list[str], expected: str) -> None:
    """The text joins those of its fields that have any, in the order in which they are named."""
    assert SearchAnswer(f'{{"hits":{{"hits":[{{"_source":{source}}}]}}}}'.encode(), 1).texts(fields) == [expected]


@pytest.mark.parametrize(
    ("fields", "left"),
    [
        ('{"notes":[{"text":["x"]},{"text":["y"]}]}', None),
        ('{"notes":[{"text":["x"],"by":["z"]},{"text":["y"]}]}', '{"notes":[{"by":["z"]}]}'),
        ('{"notes":[{"text":["x"]}, {"by":[1.0e-7],"text":["y"]}]}', '{"notes":[{"by":[1.0e-7]}]}'),
        ('{"notes":[{"by":["z"]}],"a":[1]}', '{"notes":[{"by":["z"]}],"a":[1]}'),
        ('{"notes":[{"text":["x"]}],"a":[1]}', '{"a":[1]}'),
        ('{"notes.text":["x","y"]}', None),
        ('{"a.notes":[{"more.text":["x"],"n":[0]}],"b":[{"c":[{"d":["y"]}]}]}', '{"a.notes":[{"n":[0]}]}'),
    ],
)
def test_fields_of_nested_documents(fields: str, left: str | None) -> None:
    """Each engine's way to write such fields is read, and what the client did not ask for is taken out."""
    names = ["notes.text", "a.notes.more.text", "b.c.d"]
    around = '{"hits":{"hits":[{"_id":"1"%s}]}}'
    answer = SearchAnswer((around % f',"fields":{fields}').encode(), 1)
    written = answer.write([Placed(0)], added=names).decode()

    assert answer.texts(names) == [" ".join(letter for letter in "xy" if f'"{letter}"' in fields)]
    assert written == around % ("" if left is None else f',"fields":{left}')


def test_fields_with_names_beyond_ascii_are_taken_out() -> None:
    """The engine may escape the characters of a name, or not."""
    hit = '{"_id":"%s","fields":{"é":["ü"],"\\u00fc":["x"]}}'
    answer = SearchAnswer(('{"hits":{"hits":[' + hit % "漢" + "]}}").encode(), 1)

    assert answer.write([Placed(0)], added={"é", "ü"}).decode() == '{"hits":{"hits":[{"_id":"漢"}]}}'


def test_a_hit_that_is_no_utf8() -> None:
    """The text of such a hit cannot be read, so the hits cannot be ranked."""
    answer = SearchAnswer(b'{"hits":{"hits":[{"_source":{"a":"\xff"}}]}}', 1)
    with pytest.raises(ValueError, match="can't decode"):
        answer.texts(["a"])


def test_a_member_is_found_by_its_name() -> None:
    members = read_document('{"a": 1}', read_members)

    assert find(members, "a") is members[0]
    assert find(members, "b") is None


def test_the_scores_of_hits() -> None:
    """A score that is not a finite number is None."""
    scores = ["1.50", "-2e0", "3", "null", "1e999", '"4"', "true"]
    hits = ",".join([f'{{"_score":{score}}}' for score in scores] + ["{}"])

    assert SearchAnswer(f'{{"hits":{{"hits":[{hits}]}}}}'.encode(), 8).scores() == [1.5, -2.0, 3.0, *[None] * 5]
