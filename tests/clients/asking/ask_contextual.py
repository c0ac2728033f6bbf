"""The SDK of Contextual AI, with an instruction and metadata, which are texts behind the documents."""

import asyncio
from typing import Any

import contextual
from answering import Question, Ranked, answer_questions, ranked


def sync(question: Question) -> list[Ranked]:
    client = contextual.ContextualAI(**question.options("/v1"))
    return ranked(client.rerank.create(**arguments(question)))


def async_(question: Question) -> list[Ranked]:
    client = contextual.AsyncContextualAI(**question.options("/v1"))
    return ranked(asyncio.run(client.rerank.create(**arguments(question))))


def arguments(question: Question) -> dict[str, Any]:
    return question.arguments(instruction="Prefer short ones.", metadata=[""] * len(question.documents))


answer_questions({"sync": sync, "async": async_})
