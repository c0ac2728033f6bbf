"""The SDK of Voyage."""

import asyncio
from typing import Any

import voyageai
from answering import Question, Ranked, answer_questions


def sync(question: Question) -> list[Ranked]:
    return ranked(voyageai.Client(**options(question)).rerank(**arguments(question)))


def async_(question: Question) -> list[Ranked]:
    return ranked(asyncio.run(voyageai.AsyncClient(**options(question)).rerank(**arguments(question))))


def options(question: Question) -> dict[str, Any]:
    """The library retries only if told to."""
    return {"api_key": question.key, "base_url": f"{question.url}/voyage/v1", "max_retries": 3}


def arguments(question: Question) -> dict[str, Any]:
    return {
        "query": question.query,
        "documents": question.documents,
        "model": question.model,
        "top_k": question.top_n,
    }


def ranked(reranking: Any) -> list[Ranked]:
    """The results in an answer; the library takes their texts from the request."""
    return [Ranked(result.index, result.relevance_score) for result in reranking.results]


answer_questions({"sync": sync, "async": async_})
