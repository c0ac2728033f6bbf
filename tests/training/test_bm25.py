"""BM25: what a search finds, and what it scores."""

import os

import pytest

from bandrank_training.bm25 import BM25
from bandrank_training.errors import BadInput


def test_a_search_gives_the_best_and_the_scores_of_all() -> None:
    """Hits come best first; a text that shares no word with the query scores 0 and is not found."""
    index = BM25(["the castle river", "river river", "winter 7", "the of"])
    ((found, scores),) = index.search(["River 7"], 10)

    assert set(found.tolist()) == {0, 1, 2}
    assert found.tolist() == sorted(found.tolist(), key=lambda number: -scores[number])
    assert scores[3] == 0.0
    ((best, again),) = index.search(["River 7"], 1)
    assert (best.tolist(), again.tolist()) == (found[:1].tolist(), scores.tolist())
    for query in ("the of", "", "zeppelin"):
        ((found, scores),) = index.search([query], 10)
        assert (found.tolist(), scores.tolist()) == ([], [0.0] * 4)


def test_the_first_of_equals_are_found() -> None:
    """Which texts of equal scores numpy's argpartition takes depends on the processor."""
    index = BM25(["a lake", *["the river"] * 40, "river river"])

    ((found, _),) = index.search(["river"], 5)

    assert found.tolist() == [41, 1, 2, 3, 4]


def test_bm25_finds_what_is_written_without_spaces() -> None:
    """Split at spaces, a Chinese or Japanese sentence would be a single word."""
    index = BM25(["如何重置密码", "退货政策说明", "パスワードを忘れた", "reset the password"])

    assert [next(index.search([query], 1))[0].tolist() for query in ("密码重置", "退货", "パスワード", "Password")] == [
        [0],
        [1],
        [2],
        [3],
    ]


def test_documents_without_a_word_are_told() -> None:
    with pytest.raises(BadInput, match="none of 2 documents has a word to search for"):
        BM25(["", "the of"])


def test_no_memory_of_a_gpu_is_taken() -> None:
    """bm25s runs JAX as it is imported, if it is installed."""
    assert "JAX_PLATFORMS" in os.environ
