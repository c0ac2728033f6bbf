"""The SDK of Pinecone."""

from answering import Question, Ranked, answer_questions
from pinecone import Pinecone


def sync(question: Question) -> list[Ranked]:
    optional = {} if question.top_n is None else {"top_n": question.top_n}
    ranking = Pinecone(api_key=question.key, host=f"{question.url}/pinecone").inference.rerank(
        model=question.model, query=question.query, documents=question.documents, **optional
    )
    return [Ranked(result.index, result.score, result.document["text"]) for result in ranking.data]


answer_questions({"sync": sync})
