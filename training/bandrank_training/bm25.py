"""BM25 (Robertson & Zaragoza 2009), which finds negatives and, as a teacher, knows which words are rare."""

import os
from collections.abc import Iterator, Sequence

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # bm25s runs it, which would take most of a GPU's memory
import bm25s
import numpy as np
import numpy.typing as npt
import Stemmer

from bandrank_training.candidates import best_of
from bandrank_training.errors import BadInput

# Han characters and hiragana are written without spaces, so each is a word, as in Lucene's standard analyzer.
UNSPACED = "\u3041-\u309f\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
WORD = rf"[{UNSPACED}]|[^\W{UNSPACED}]+"  # numbers of one digit are words too

Scores = npt.NDArray[np.float32]


class BM25:
    """An index for Lucene's variant of BM25, with English stop words and the Porter2 stemmer.

    Raises BadInput for texts without a word.
    """

    def __init__(self, texts: Sequence[str], *, k1: float = 0.9, b: float = 0.4) -> None:
        self._index = bm25s.BM25(method="lucene", k1=k1, b=b)
        self._size = len(texts)
        words = self._words(texts)
        if not any(words):
            raise BadInput(f"none of {len(texts)} documents has a word to search for; is their text in the key `text`?")
        self._index.index(words, show_progress=False)
        self._frequencies = np.diff(self._index.scores["indptr"])  # document frequencies by word id

    def search(self, queries: Sequence[str], depth: int) -> Iterator[tuple[npt.NDArray[np.int64], Scores]]:
        """Yields, for each query, the indices of the `depth` best texts, best first, and the (num_texts,) scores of
        all. Of equals, the first come first. Fewer are found if fewer share a word with the query.
        """
        for words in self._words(queries):
            scores = self._index.get_scores(words) if words else np.zeros(self._size, np.float32)
            best = best_of(scores, depth)
            yield best[scores[best] > 0], scores

    @staticmethod
    def _words(texts: Sequence[str]) -> list[list[str]]:
        words: list[list[str]] = bm25s.tokenize(
            list(texts),
            token_pattern=WORD,
            stopwords="en",
            stemmer=Stemmer.Stemmer("english"),
            return_ids=False,
            show_progress=False,
        )
        return words

    def most(self, query: str) -> float:
        """The upper bound of the query's BM25 scores, over all texts; 0 if none of its words is in the index."""
        known = [self._index.vocab_dict[word] for word in self._words([query])[0] if word in self._index.vocab_dict]
        frequencies = self._frequencies[known]
        return float(np.log1p((self._size - frequencies + 0.5) / (frequencies + 0.5)).sum())
