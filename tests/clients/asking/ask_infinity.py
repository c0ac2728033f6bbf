"""infinity's client, which is generated from its OpenAPI description."""

import asyncio
from typing import Any

from answering import Question, Ranked, answer_questions
from infinity_client import AuthenticatedClient
from infinity_client.api.default import models, rerank
from infinity_client.models import RerankInput


class Refused(Exception):
    """A 422, which the client returns as if it were an answer."""


def sync(question: Question) -> list[Ranked]:
    return ranked(rerank.sync(client=client(question), body=body(question)))


def async_(question: Question) -> list[Ranked]:
    return ranked(asyncio.run(rerank.asyncio(client=client(question), body=body(question))))


def client(question: Question) -> AuthenticatedClient:
    """A client for the path where texts are returned as infinity returns them."""
    return AuthenticatedClient(f"{question.url}/infinity", token=question.key, raise_on_unexpected_status=True)


def body(question: Question) -> RerankInput:
    return RerankInput(**question.arguments(return_documents=True))


def ranked(answer: Any) -> list[Ranked]:
    if not hasattr(answer, "results"):
        raise Refused(str(answer.to_dict()))
    return [Ranked(result.index, result.relevance_score, result.document) for result in answer.results]


def listed(question: Question) -> list[Ranked]:
    """`models.sync`: each served model by its position, with the used fraction of its queue, and its name."""
    answer = models.sync(client=client(question))
    return [Ranked(index, model.stats["queue_fraction"], model.id) for index, model in enumerate(answer.data)]


answer_questions({"sync": sync, "async": async_, "models": listed})
