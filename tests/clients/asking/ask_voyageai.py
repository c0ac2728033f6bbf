"""The SDK of Voyage, which takes the texts of results from the request."""

import asyncio
from typing import Any

import voyageai
from answering import Question, Ranked, answer_questions, ranked


def sync(question: Question) -> list[Ranked]:
    return ranked(voyageai.Client(**options(question)).rerank(**arguments(question)))


def async_(question: Question) -> list[Ranked]:
    return ranked(asyncio.run(voyageai.AsyncClient(**options(question)).rerank(**arguments(question))))


def options(question: Question) -> dict[str, Any]:
    """The library retries only if told to."""
    return question.options("/voyage/v1") | {"max_retries": 3}


def arguments(question: Question) -> dict[str, Any]:
    return {"query": question.query, "documents": question.documents, "model": question.model, "top_k": question.top_n}


answer_questions({"sync": sync, "async": async_})
