"""The SDK of ZeroEntropy."""

import asyncio

import zeroentropy
from answering import Question, Ranked, answer_questions, ranked


def sync(question: Question) -> list[Ranked]:
    client = zeroentropy.ZeroEntropy(**question.options("/v1"))
    return ranked(client.models.rerank(**question.arguments()))


def async_(question: Question) -> list[Ranked]:
    client = zeroentropy.AsyncZeroEntropy(**question.options("/v1"))
    return ranked(asyncio.run(client.models.rerank(**question.arguments())))


answer_questions({"sync": sync, "async": async_})
