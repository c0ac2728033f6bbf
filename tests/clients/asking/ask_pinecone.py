"""The SDK of Pinecone."""

from answering import Question, Ranked, answer_questions
from pinecone import Pinecone


def sync(question: Question) -> list[Ranked]:
    client = Pinecone(api_key=question.key, host=f"{question.url}/pinecone")
    ranking = client.inference.rerank(**question.arguments())
    return [Ranked(result.index, result.score, result.document["text"]) for result in ranking.data]


answer_questions({"sync": sync})
