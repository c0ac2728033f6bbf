"""The forms in which people ask: keywords and long requests of several sentences, made from questions and documents."""

import random
import re
from collections.abc import Sequence

from bandrank_training.bm25 import UNSPACED

# Words that a person who types keywords leaves out.
FUNCTION_WORDS = frozenset(
    """a an and are as at be been but by can could did do does for from had has have how i if in into is it its me my
    of on or our so than that the their them then there these they this to was we were what when where which who whom
    whose why will with would you your""".split()  # noqa: SIM905 - a list of 80 quoted words reads worse
)
QUESTION_WORDS = frozenset("are can could did do does how is was were what when where which who whom whose why".split())  # noqa: SIM905
SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z0-9\"'(])")
WORD = re.compile(rf"\s*(?:[{UNSPACED}]|[^\s{UNSPACED}]+)")
OPENING_WORDS, REST_WORDS = (20, 90), 20


def words(text: str) -> list[str]:
    """Splits a text before the spaces between words; a character of a script without spaces is a word."""
    return WORD.findall(text)


def keywords(query: str) -> str:
    """The query without its function words; the query itself if it has no others."""
    words = [word for word in re.findall(r"[\w'-]+", query) if word.lower() not in FUNCTION_WORDS]
    return " ".join(words) or query


def asked_for(query: str) -> str:
    """A key that is equal for queries that differ only in function words, punctuation or case."""
    return keywords(query).casefold()


def request(questions: Sequence[str]) -> str:
    """Joins questions into one text, a sentence each."""
    return " ".join(map(_sentence, questions))


def split_opening(text: str, chance: random.Random) -> tuple[str, str] | None:
    """Splits a text into its first sentences, of 20 to 90 words, and the rest, which answers them: an inverse cloze
    task (Lee et al. 2019, arXiv 1906.00300). Returns None if the text cannot be split so.
    """
    sentences = SENTENCE_END.split(text.strip())
    lengths = [len(sentence.split()) for sentence in sentences]
    least, most = OPENING_WORDS
    fitting = [
        count
        for count in range(1, len(sentences))
        if least <= sum(lengths[:count]) <= most and sum(lengths[count:]) >= REST_WORDS
    ]
    if not fitting:
        return None
    count = chance.choice(fitting)
    return " ".join(sentences[:count]), " ".join(sentences[count:])


def _sentence(question: str) -> str:
    question = question.strip()
    if question[-1:] not in ".!?":
        question = f"{question}{'?' if question.split()[0].lower() in QUESTION_WORDS else '.'}"
    return question[:1].upper() + question[1:]
