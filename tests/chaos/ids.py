"""Attacks with ids: registering, forgetting and asking for candidates under strange ids."""

import json
import threading
from functools import partial

from chaos.table import ATTACKS, JSON, NDJSON, Attack, attack, post, register_body, results_of, status_of, together

STORED = (200, 403)  # 403: the service may forbid registering

register_body(
    "ids_by_the_hundred_thousand_to_forget",
    json.dumps({"ids": [str(number) for number in range(100_000)]}).encode(),
    *STORED,
    path="/candidates",
    method="DELETE",
)
register_body(
    "two_thousand_ids_that_nobody_registered",
    json.dumps({"query": "x", "candidates": [{"id": f"nobody's {number}"} for number in range(2048)]}).encode(),
    404,
)


def register(url: str, texts: dict[str, str]) -> int:
    body = {"candidates": [{"id": name, "text": text} for name, text in texts.items()]}
    return status_of(url, "PUT", "/candidates", content=json.dumps(body).encode(), headers=JSON)


def forget(url: str, *ids: str) -> int:
    return status_of(url, "DELETE", "/candidates", content=json.dumps({"ids": ids}).encode(), headers=JSON)


def asked_for(url: str, ids: list[str]) -> int:
    return post(url, {"query": "who", "candidates": [{"id": name} for name in ids]})


def registered_and_found(url: str, names: list[str]) -> set[int]:
    """Registers ids, ranks by them, and forgets them: all 200, or one refusal to register."""
    put = register(url, dict.fromkeys(names, "man"))
    if put != 200:
        return {put}
    return {put, asked_for(url, names), *(asked_for(url, [name]) for name in names[:20]), forget(url, *names)}


ODD = {
    # An id must never be read as commands of Redis.
    "ids_of_control_characters": ["a\r\nFLUSHALL\r\n", "*3\r\n$3\r\nSET\r\n", "\0", "\x1b[2J", "\x7f", " "],
    "ids_like_paths": ["../../etc/passwd", "/", "%2e%2e%2f", "file:///etc/passwd", "C:\\", "~root", "."],
    # Braces in a Redis key decide the cluster's slot; braces in an id must not.
    "ids_with_tags_of_slots": ["{}", "}{", "{a}", "}", "{", "{{}}", "{00}:", "bandrank:candidate:{00}:x"],
    "ids_of_one_slot": [f"{{tag}}{number}" for number in range(2000)],
}
for name, names in ODD.items():
    ATTACKS[name] = Attack(partial(registered_and_found, names=names), frozenset(STORED), quick=True)


@attack(*STORED, 404, 422, quick=True)
def ids_like_patterns(url: str) -> set[int]:
    """Forgetting `*` must forget nothing else."""
    put = register(url, {"keep me": "man"})
    statuses = {put, forget(url, "*", "?", "[a-z]*", "bandrank:*", "keep*")}
    return statuses | ({asked_for(url, ["keep me"]), forget(url, "keep me")} if put == 200 else set())


@attack(*STORED, quick=True)
def ids_that_look_alike(url: str) -> set[int]:
    """A composed letter and its parts, letters of other alphabets and other cases all have texts of their own."""
    names = ["\u00e9", "e\u0301", "E\u0301", "a", "\u0430", "A", "a ", " a", "a\u200b", "ﬁ", "fi"]
    put = register(url, {name: f"man {number}" for number, name in enumerate(names)})
    if put != 200:
        return {put}
    body = {"query": "who", "candidates": [{"id": name} for name in names], "return_documents": True}
    found = results_of(url, body)
    assert {result["id"]: result["document"]["text"] for result in found} == {
        name: f"man {number}" for number, name in enumerate(names)
    }
    return {put, forget(url, *names)}


@attack(*STORED, 404, 422, quick=True)
def the_longest_ids(url: str) -> set[int]:
    """The longest id has 512 characters, here of four bytes each; one with 513 is refused."""
    return registered_and_found(url, ["\U0001f9ea" * 512]) | {register(url, {"\U0001f9ea" * 513: "man"})}


@attack(403, 404, 422, quick=True)
def one_id_that_is_wrong_among_thousands(url: str) -> set[int]:
    """A body with one wrong id registers nothing."""
    put = register(url, {**{f"half {number}": "man" for number in range(1000)}, "": "man"})
    return {put, asked_for(url, ["half 0"])}


@attack(200, 422, quick=True)
def one_id_with_two_thousand_texts(url: str) -> set[int]:
    """In a request to rank, candidates may share an id."""
    return {post(url, {"query": "x", "candidates": [{"id": "a", "text": f"man {number}"} for number in range(2000)]})}


@attack(*STORED, 404, 422, quick=True)
def ids_that_come_and_go_while_they_are_asked_for(url: str) -> set[int]:
    """A request for the id finds it or gets 404, and nothing else."""
    ended = threading.Event()

    def change() -> int:
        statuses = {status for _ in range(15) for status in (register(url, {"ghost": "man"}), forget(url, "ghost"))}
        ended.set()
        return max(statuses)

    def ask() -> int:
        statuses = {200}
        while not ended.wait(0.01):
            statuses.add(asked_for(url, ["ghost"]))
        return max(statuses)

    return together([change, ask, ask])


@attack(*STORED, quick=True)
def a_stream_of_one_id(url: str) -> set[int]:
    """Of five thousand lines with one id, the last counts."""
    lines = b"".join(b'{"id":"same","text":"man %d"}\n' % number for number in range(5000))
    put = status_of(url, "PUT", "/candidates", content=lines, headers=NDJSON)
    if put != 200:
        return {put}
    body = {"query": "who", "candidates": [{"id": "same"}], "return_documents": True}
    assert results_of(url, body)[0]["document"]["text"] == "man 4999"
    return {put, forget(url, "same")}
