"""The SDK of Mixedbread."""

import asyncio
from typing import Any

import mixedbread
from answering import Question, Ranked, answer_questions


def sync(question: Question) -> list[Ranked]:
    client = mixedbread.Mixedbread(**question.options())
    return ranked(client.rerank(**arguments(question)))


def async_(question: Question) -> list[Ranked]:
    client = mixedbread.AsyncMixedbread(**question.options())
    return ranked(asyncio.run(client.rerank(**arguments(question))))


def arguments(question: Question) -> dict[str, Any]:
    optional = {} if question.top_n is None else {"top_k": question.top_n}
    return {
        "model": question.model,
        "query": question.query,
        "input": question.documents,
        "return_input": True,
        **optional,
    }


def ranked(response: Any) -> list[Ranked]:
    return [Ranked(result.index, result.score, result.input) for result in response.data]


answer_questions({"sync": sync, "async": async_})
