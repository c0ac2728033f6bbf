"""The SDK of Together, whose version 3 adds /v1 to the base URL."""

import asyncio
from typing import Any

import together
from answering import Question, Ranked, answer_questions


def sync(question: Question) -> list[Ranked]:
    client = together.Together(**question.options())
    return ranked(client.rerank.create(**question.arguments(return_documents=True)))


def async_(question: Question) -> list[Ranked]:
    client = together.AsyncTogether(**question.options())
    return ranked(asyncio.run(client.rerank.create(**question.arguments(return_documents=True))))


def ranked(response: Any) -> list[Ranked]:
    return [Ranked(result.index, result.relevance_score, result.document.text) for result in response.results]


answer_questions({"sync": sync, "async": async_})
