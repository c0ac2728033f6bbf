"""The SDK of Contextual AI, with an instruction and metadata, which are texts behind the documents."""

import asyncio
from typing import Any

import contextual
from answering import Question, Ranked, answer_questions


def sync(question: Question) -> list[Ranked]:
    client = contextual.ContextualAI(**options(question))
    return ranked(client.rerank.create(**arguments(question)))


def async_(question: Question) -> list[Ranked]:
    client = contextual.AsyncContextualAI(**options(question))
    return ranked(asyncio.run(client.rerank.create(**arguments(question))))


def options(question: Question) -> dict[str, Any]:
    return {"api_key": question.key, "base_url": f"{question.url}/v1"}


def arguments(question: Question) -> dict[str, Any]:
    optional = {} if question.top_n is None else {"top_n": question.top_n}
    return {
        "model": question.model,
        "query": question.query,
        "documents": question.documents,
        "instruction": "Prefer short ones.",
        "metadata": [""] * len(question.documents),
        **optional,
    }


def ranked(response: Any) -> list[Ranked]:
    return [Ranked(result.index, result.relevance_score) for result in response.results]


answer_questions({"sync": sync, "async": async_})
