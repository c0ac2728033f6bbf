"""BM25: what a search finds, and what it scores."""

import numpy as np
import pytest

from bandrank_training.bm25 import BM25
from bandrank_training.errors import BadInput


def test_bm25_of_a_pool_is_that_of_a_search() -> None:
    """Best first, 0 where no word is shared, also of a query whose words no text has."""
    index = BM25(["the castle river", "river river", "winter 7", "the of"])
    ((found, scores),) = index.search(["River 7"], 10)

    assert set(found.tolist()) == {0, 1, 2}
    assert scores == sorted(scores, reverse=True)
    assert index.scores("River 7", found) == pytest.approx(scores)
    assert index.scores("River 7", np.array([3, 2])) == pytest.approx([0.0, scores[found.tolist().index(2)]])
    for query in ("the of", "", "zeppelin"):
        ((found, scores),) = index.search([query], 10)
        assert (found.tolist(), scores) == ([], [])
        assert index.scores(query, np.array([0, 1])) == [0.0, 0.0]


def test_bm25_finds_what_is_written_without_spaces() -> None:
    """Chinese and Japanese, whose sentences would be one word each."""
    index = BM25(["如何重置密码", "退货政策说明", "パスワードを忘れた", "reset the password"])

    assert [next(index.search([query], 1))[0].tolist() for query in ("密码重置", "退货", "パスワード", "Password")] == [
        [0],
        [1],
        [2],
        [3],
    ]


def test_documents_without_a_word_are_told() -> None:
    """As if their texts stood under another key."""
    with pytest.raises(BadInput, match="none of 2 documents has a word to search for"):
        BM25(["", "the of"])
