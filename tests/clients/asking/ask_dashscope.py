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
    return shown(dashscope.Client(**options(question)).rerank.create(**arguments(question)).results)


def async_client(question: Question) -> list[Ranked]:
    async def ask() -> Any:
        async with dashscope.AsyncClient(**options(question)) as client:
            return await client.rerank.create(**arguments(question))

    return shown(asyncio.run(ask()).results)


def options(question: Question) -> dict[str, Any]:
    return {"api_key": question.key, "base_url": f"{question.url}/api/v1"}


def older(question: Question) -> dict[str, Any]:
    """The options and arguments of an older call."""
    return {"api_key": question.key, "base_address": f"{question.url}/api/v1", **arguments(question)}


def arguments(question: Question) -> dict[str, Any]:
    return {
        "model": question.model,
        "query": question.query,
        "documents": question.documents,
        "top_n": question.top_n,
        "return_documents": True,
    }


def ranked(response: Any) -> list[Ranked]:
    if response.status_code != 200:
        raise RuntimeError(f"{response.code}: {response.message}")
    return [Ranked(each.index, each.relevance_score, each["document"]["text"]) for each in response.output.results]


def shown(results: Any) -> list[Ranked]:
    return [Ranked(result.index, result.relevance_score, result.document.text) for result in results]


answer_questions({"sync": sync, "async": async_, "client": client, "async client": async_client})
