"""BM25 (Robertson & Zaragoza 2009), which finds negatives and, as a teacher, knows which words are rare."""

from collections.abc import Iterator, Sequence

import bm25s
import numpy as np
import numpy.typing as npt
import Stemmer

from bandrank_training.errors import BadInput

# Han characters and hiragana, which no spaces divide into words, are each a word, as to Lucene's standard analyzer.
UNSPACED = "\u3041-\u309f\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
WORD = rf"[{UNSPACED}]|[^\W{UNSPACED}]+"  # numbers of one digit are words too
CHUNK = 1024  # queries that are searched at once


class BM25:
    """An index of texts by Lucene's variant of BM25, with English stop words and Porter's second stemmer.

    Raises BadInput for texts without a word.
    """

    def __init__(self, texts: Sequence[str], *, k1: float = 0.9, b: float = 0.4) -> None:
        self._index = bm25s.BM25(method="lucene", k1=k1, b=b)
        self._size = len(texts)
        words = self._words(texts)
        if not any(words):
            raise BadInput(f"none of {len(texts)} documents has a word to search for; is their text in the key `text`?")
        self._index.index(words, show_progress=False)
        self._frequencies = np.diff(self._index.scores["indptr"])  # the texts that have a word, by its id

    def search(self, queries: Sequence[str], depth: int) -> Iterator[tuple[npt.NDArray[np.int64], list[float]]]:
        """Yields, for each query, the numbers of the `depth` best texts and their scores, best first; fewer where fewer
        share a word with the query.
        """
        for begin in range(0, len(queries), CHUNK):
            numbers, scores = self._index.retrieve(
                self._words(queries[begin : begin + CHUNK]), k=min(depth, self._size), show_progress=False
            )
            for best, best_scores in zip(numbers, scores, strict=True):
                hits = best_scores > 0
                yield best[hits].astype(np.int64), best_scores[hits].tolist()

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

    def scores(self, query: str, texts: npt.NDArray[np.int64]) -> list[float]:
        """BM25 scores of the texts with these numbers; 0 for one that shares no word with the query."""
        words = self._words([query])[0]
        if not words:
            return [0.0] * len(texts)
        return self._index.get_scores(words)[texts].tolist()  # type: ignore[no-any-return]

    def most(self, query: str) -> float:
        """What BM25 of the query stays below, however often its words occur in a text; 0 if no text has any of them."""
        known = [self._index.vocab_dict[word] for word in self._words([query])[0] if word in self._index.vocab_dict]
        frequencies = self._frequencies[known]
        return float(np.log1p((self._size - frequencies + 0.5) / (frequencies + 0.5)).sum())
