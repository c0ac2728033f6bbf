"""BM25 with Lucene's default parameters, by bm25s, over words as search engines split them."""

import re
from collections.abc import Callable, Mapping

import bm25s
import numpy as np
import Stemmer

# Lucene's EnglishAnalyzer.ENGLISH_STOP_WORDS_SET.
STOP_WORDS = set(
    """a an and are as at be but by for if in into is it no not of on or such that the their then there these they this
    to was will with""".split()  # noqa: SIM905 -- a list of words reads as one
)
STEMMER = Stemmer.Stemmer("porter")


def words(text: str) -> list[str]:
    """Lower-case words without stop words, like Weaviate's tokenization `word`."""
    return [word for word in re.findall(r"\w+", text.lower()) if word not in STOP_WORDS]


def english(text: str) -> list[str]:
    """Lower-case words without possessives and stop words, stemmed by Porter's first algorithm."""
    found = (re.sub(r"'s$", "", word) for word in re.findall(r"\w+(?:['.]\w+)*", text.lower()))
    return [STEMMER.stemWord(word) for word in found if word not in STOP_WORDS]


def search(
    texts: Mapping[str, str], question: str, *, analyze: Callable[[str], list[str]] = english
) -> list[tuple[str, float]]:
    """The ids and scores of the texts that share a word with the question, best first; ties keep their order."""
    index = bm25s.BM25(method="lucene", k1=1.2, b=0.75)
    index.index([analyze(text) for text in texts.values()], show_progress=False)
    scores = index.get_scores(analyze(question))
    order = np.argsort(-scores, kind="stable")
    names = list(texts)
    return [(names[i], float(scores[i])) for i in order if scores[i] > 0]
