"""infinity's client, which is generated from its description."""

import asyncio
from typing import Any

from answering import Question, Ranked, answer_questions
from infinity_client import AuthenticatedClient
from infinity_client.api.default import models, rerank
from infinity_client.models import RerankInput


class Refused(Exception):
    """A 422, which the client gives back like an answer."""


def sync(question: Question) -> list[Ranked]:
    """`rerank.sync`."""
    return ranked(rerank.sync(client=client(question), body=body(question)))


def async_(question: Question) -> list[Ranked]:
    """`rerank.asyncio`."""
    return ranked(asyncio.run(rerank.asyncio(client=client(question), body=body(question))))


def client(question: Question) -> AuthenticatedClient:
    """At the path where texts come back as infinity gives them."""
    return AuthenticatedClient(f"{question.url}/infinity", token=question.key, raise_on_unexpected_status=True)


def body(question: Question) -> RerankInput:
    """That of both calls."""
    optional = {} if question.top_n is None else {"top_n": question.top_n}
    return RerankInput(
        query=question.query, documents=question.documents, model=question.model, return_documents=True, **optional
    )


def ranked(answer: Any) -> list[Ranked]:
    """The results of an answer."""
    if not hasattr(answer, "results"):
        raise Refused(str(answer.to_dict()))
    return [Ranked(result.index, result.relevance_score, result.document) for result in answer.results]


def listed(question: Question) -> list[Ranked]:
    """`models.sync`: each served model by its place, with the part of its queue that is used, and its name."""
    answer = models.sync(client=client(question))
    return [Ranked(index, model.stats["queue_fraction"], model.id) for index, model in enumerate(answer.data)]


answer_questions({"sync": sync, "async": async_, "models": listed})
