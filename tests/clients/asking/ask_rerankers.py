"""rerankers: its ranker for APIs, which always asks for all documents."""

import functools

from answering import Question, Ranked, answer_questions
from rerankers import Reranker


def ask(provider: str, path: str, question: Question) -> list[Ranked]:
    """`Reranker(…).rank` with the wire format of a provider, at a path of the service."""
    ranker = Reranker(
        question.model,
        model_type="APIRanker",
        api_provider=provider,
        api_key=question.key,
        url=f"{question.url}{path}",
        verbose=0,
    )
    results = ranker.rank(question.query, question.documents)
    return [Ranked(result.document.doc_id, result.score) for result in results]


PATHS = {
    "cohere": "/v1/rerank",
    "jina": "/v1/rerank",
    "mixedbread.ai": "/v1/reranking",
    "text-embeddings-inference": "/rerank",
    "voyage": "/v1/rerank",
}
answer_questions({provider: functools.partial(ask, provider, path) for provider, path in PATHS.items()})
