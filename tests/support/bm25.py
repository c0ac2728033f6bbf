"""BM25 as Lucene's analyzer `english` and its default parameters make it, with bm25s."""

import re
from collections.abc import Mapping

import bm25s
import numpy as np
import Stemmer

# Lucene's EnglishAnalyzer.ENGLISH_STOP_WORDS_SET.
STOP_WORDS = set(
    """a an and are as at be but by for if in into is it no not of on or such that the their then there these they this
    to was will with""".split()  # noqa: SIM905 -- a list of words reads as one
)
STEMMER = Stemmer.Stemmer("porter")


def english(text: str) -> list[str]:
    """Lower case, without possessives and stop words, stemmed by Porter's first algorithm."""
    words = (re.sub(r"'s$", "", word) for word in re.findall(r"\w+(?:['.]\w+)*", text.lower()))
    return [STEMMER.stemWord(word) for word in words if word not in STOP_WORDS]


def search(texts: Mapping[str, str], question: str) -> list[tuple[str, float]]:
    """The ids and scores of the texts that share a word with the question, best first, ties in their order."""
    index = bm25s.BM25(method="lucene", k1=1.2, b=0.75)
    index.index([english(text) for text in texts.values()], show_progress=False)
    scores = index.get_scores(english(question))
    order = np.argsort(-scores, kind="stable")
    names = list(texts)
    return [(names[i], float(scores[i])) for i in order if scores[i] > 0]
