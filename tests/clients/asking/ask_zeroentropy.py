"""The SDK of ZeroEntropy."""

import asyncio
from typing import Any

import zeroentropy
from answering import Question, Ranked, answer_questions


def sync(question: Question) -> list[Ranked]:
    client = zeroentropy.ZeroEntropy(**options(question))
    return ranked(client.models.rerank(**arguments(question)))


def async_(question: Question) -> list[Ranked]:
    client = zeroentropy.AsyncZeroEntropy(**options(question))
    return ranked(asyncio.run(client.models.rerank(**arguments(question))))


def options(question: Question) -> dict[str, Any]:
    return {"api_key": question.key, "base_url": f"{question.url}/v1"}


def arguments(question: Question) -> dict[str, Any]:
    return {
        "model": question.model,
        "query": question.query,
        "documents": question.documents,
        "top_n": question.top_n,
    }


def ranked(response: Any) -> list[Ranked]:
    return [Ranked(result.index, result.relevance_score) for result in response.results]


answer_questions({"sync": sync, "async": async_})
