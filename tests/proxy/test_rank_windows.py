"""The rank windows of retrievers that combine others, in the deeper search."""

import pytest

from bandrank.proxy.rank_windows import widened
from bandrank.proxy.rerank_options import RerankOptions
from bandrank.proxy.search_request import read_search

OPTIONS = RerankOptions(fields=("title", "body"), depth=50, budget_ms=100)


@pytest.mark.parametrize(
    ("retriever", "sent"),
    [
        (' {"rrf": {"retrievers": []}}', ' {"rrf": {"rank_window_size": 50, "retrievers": []}}'),
        ('{"rrf":{"rank_window_size": 20,"retrievers":[]}}', '{"rrf":{"rank_window_size": 50,"retrievers":[]}}'),
        ('{"rrf":{"retrievers":[],"rank_window_size":51}}', None),
        ('{"linear":{}}', '{"linear":{"rank_window_size": 50}}'),
        (
            '{"linear":{"retrievers":[{"weight":1.0e0,"retriever":{"rrf":{}}},{"rrf":{}}],"rank_window_size":"60"}}',
            '{"linear":{"retrievers":[{"weight":1.0e0,"retriever":{"rrf":{"rank_window_size": 50}}},'
            '{"rrf":{"rank_window_size": 50}}],"rank_window_size":"60"}}',
        ),
        ('{"standard":{"query":{"match":{"a":"rrf"}}}}', None),
        ('{"rrf":{"retrievers":{}}}', None),
        ('{"rrf":{"rank_window_size":-1}}', None),
        ("[]", None),
    ],
)
def test_a_retriever_that_joins_others_has_a_window_for_the_deeper_search(retriever: str, sent: str | None) -> None:
    """The engine refuses to return more hits than the retriever's window has ranks, ten by default."""
    body = '{"retriever":%s,"size":3}'
    search = read_search(OPTIONS, b"", (body % retriever).encode(), "words")

    assert search.body.decode() == body % (retriever if sent is None else sent)


def test_retrievers_that_are_nested_deeply_keep_their_windows() -> None:
    """Reading so many levels exceeds the recursion limit, so the retriever is sent as it is."""
    assert widened('{"rrf":{"retrievers":[' * 9000 + "]}}" * 9000, 0, 50) == []


def test_a_wider_window_goes_with_fields_that_are_asked_for() -> None:
    body = b'{"retriever":{"rrf":{}},"_source":false,"fields":["a"]}'

    assert read_search(OPTIONS, b"", body, "words").body == (
        b'{"retriever":{"rrf":{"rank_window_size": 50}},"_source":false,"fields":["a", "title", "body"]}'
    )
