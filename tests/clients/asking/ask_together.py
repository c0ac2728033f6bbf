"""The SDK of Together, whose version 3 adds /v1 to the base URL."""

import asyncio
from typing import Any

import together
from answering import Question, Ranked, answer_questions


def sync(question: Question) -> list[Ranked]:
    return ranked(together.Together(**options(question)).rerank.create(**arguments(question)))


def async_(question: Question) -> list[Ranked]:
    return ranked(asyncio.run(together.AsyncTogether(**options(question)).rerank.create(**arguments(question))))


def options(question: Question) -> dict[str, Any]:
    return {"api_key": question.key, "base_url": question.url}


def arguments(question: Question) -> dict[str, Any]:
    return {
        "model": question.model,
        "query": question.query,
        "documents": question.documents,
        "return_documents": True,
        **({} if question.top_n is None else {"top_n": question.top_n}),
    }


def ranked(response: Any) -> list[Ranked]:
    return [Ranked(result.index, result.relevance_score, result.document.text) for result in response.results]


answer_questions({"sync": sync, "async": async_})
