"""The SDK of DashScope: its clients, and the older calls, which return an error as if it were an answer."""

import asyncio
from typing import Any

import dashscope
from answering import Question, Ranked, answer_questions


def sync(question: Question) -> list[Ranked]:
    return ranked(dashscope.TextReRank.call(**older(question)))


def async_(question: Question) -> list[Ranked]:
    return ranked(asyncio.run(dashscope.AioTextReRank.call(**older(question))))


def client(question: Question) -> list[Ranked]:
    client = dashscope.Client(**question.options("/api/v1"))
    return shown(client.rerank.create(**question.arguments(return_documents=True)).results)


def async_client(question: Question) -> list[Ranked]:
    async def ask() -> Any:
        async with dashscope.AsyncClient(**question.options("/api/v1")) as client:
            return await client.rerank.create(**question.arguments(return_documents=True))

    return shown(asyncio.run(ask()).results)


def older(question: Question) -> dict[str, Any]:
    """The options and arguments of an older call."""
    address = f"{question.url}/api/v1"
    return question.arguments(api_key=question.key, base_address=address, return_documents=True)


def ranked(response: Any) -> list[Ranked]:
    if response.status_code != 200:
        raise RuntimeError(f"{response.code}: {response.message}")
    return [Ranked(each.index, each.relevance_score, each["document"]["text"]) for each in response.output.results]


def shown(results: Any) -> list[Ranked]:
    return [Ranked(result.index, result.relevance_score, result.document.text) for result in results]


answer_questions({"sync": sync, "async": async_, "client": client, "async client": async_client})
