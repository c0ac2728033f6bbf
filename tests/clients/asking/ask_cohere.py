"""The SDK of Cohere: both versions of its API, synchronous and asynchronous."""

import asyncio
from typing import Any

import cohere
from answering import Question, Ranked, answer_questions


def v1(question: Question) -> list[Ranked]:
    """`Client.rerank`, which can ask for the documents."""
    client = cohere.Client(question.key, base_url=question.url)
    return ranked(client.rerank(**question.arguments(return_documents=True)))


def v2(question: Question) -> list[Ranked]:
    return ranked(cohere.ClientV2(question.key, base_url=question.url).rerank(**question.arguments()))


def v1_async(question: Question) -> list[Ranked]:
    client = cohere.AsyncClient(question.key, base_url=question.url)
    return ranked(asyncio.run(client.rerank(**question.arguments(return_documents=True))))


def v2_async(question: Question) -> list[Ranked]:
    client = cohere.AsyncClientV2(question.key, base_url=question.url)
    return ranked(asyncio.run(client.rerank(**question.arguments())))


def ranked(response: Any) -> list[Ranked]:
    documents = [getattr(result, "document", None) for result in response.results]
    return [
        Ranked(result.index, result.relevance_score, document.text if document else None)
        for result, document in zip(response.results, documents, strict=True)
    ]


answer_questions({"v1": v1, "v2": v2, "v1 async": v1_async, "v2 async": v2_async})
