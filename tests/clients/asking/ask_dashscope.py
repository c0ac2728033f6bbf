"""The SDK of DashScope, which returns an error as if it were an answer."""

import asyncio
from typing import Any

import dashscope
from answering import Question, Ranked, answer_questions


def sync(question: Question) -> list[Ranked]:
    return ranked(dashscope.TextReRank.call(**arguments(question)))


def async_(question: Question) -> list[Ranked]:
    return ranked(asyncio.run(dashscope.AioTextReRank.call(**arguments(question))))


def arguments(question: Question) -> dict[str, Any]:
    return {
        "base_address": f"{question.url}/api/v1",
        "api_key": question.key,
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


answer_questions({"sync": sync, "async": async_})
