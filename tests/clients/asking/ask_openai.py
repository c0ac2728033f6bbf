"""The SDK of OpenAI, which embeds the query and the documents; this script ranks them by their dot products."""

import asyncio
from typing import Any

from answering import Question, Ranked, answer_questions
from openai import AsyncOpenAI, OpenAI


def sync(question: Question) -> list[Ranked]:
    """`embeddings.create`, which asks for base64 by default."""
    return ranked(OpenAI(**question.options("/v1")).embeddings.create(**arguments(question)))


def floats(question: Question) -> list[Ranked]:
    """`embeddings.create` with numbers in the place of base64, and with the number of dimensions."""
    wanted = arguments(question) | {"encoding_format": "float", "dimensions": 32}
    return ranked(OpenAI(**question.options("/v1")).embeddings.create(**wanted))


def async_(question: Question) -> list[Ranked]:
    async def embed() -> Any:
        async with AsyncOpenAI(**question.options("/v1")) as client:
            return await client.embeddings.create(**arguments(question))

    return ranked(asyncio.run(embed()))


def token_ids(question: Question) -> list[Ranked]:
    """Some callers send token ids in the place of texts."""
    return ranked(OpenAI(**question.options("/v1")).embeddings.create(model=question.model, input=[[3, 5], [8]]))


def arguments(question: Question) -> dict[str, Any]:
    return {"model": question.model, "input": [question.query, *question.documents]}


def ranked(answer: Any) -> list[Ranked]:
    query, *documents = [item.embedding for item in sorted(answer.data, key=lambda item: item.index)]
    scores = [sum(a * b for a, b in zip(query, document, strict=True)) for document in documents]
    order = sorted(range(len(scores)), key=lambda index: -scores[index])
    return [Ranked(index, scores[index]) for index in order]


answer_questions({"sync": sync, "floats": floats, "async": async_, "token ids": token_ids})
