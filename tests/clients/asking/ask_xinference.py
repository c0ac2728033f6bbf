"""The client of Xinference."""

import asyncio
from typing import Any

from answering import Question, Ranked, answer_questions
from xinference_client import AsyncRESTfulClient, RESTfulClient


def sync(question: Question) -> list[Ranked]:
    """`get_model` reads the service's description of the model."""
    model = RESTfulClient(question.url, api_key=question.key).get_model(question.model)
    return ranked(model.rerank(**arguments(question)))


def async_(question: Question) -> list[Ranked]:
    async def ask() -> Any:
        client = AsyncRESTfulClient(question.url, api_key=question.key)
        try:
            model = await client.get_model(question.model)
            return await model.rerank(**arguments(question))
        finally:
            await client.close()

    return ranked(asyncio.run(ask()))


def arguments(question: Question) -> dict[str, Any]:
    return {
        "documents": question.documents,
        "query": question.query,
        "top_n": question.top_n,
        "return_documents": True,
    }


def ranked(answer: Any) -> list[Ranked]:
    """The results in an answer, which is plain JSON."""
    return [
        Ranked(result["index"], result["relevance_score"], result["document"]["text"]) for result in answer["results"]
    ]


answer_questions({"sync": sync, "async": async_})
