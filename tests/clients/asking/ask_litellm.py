"""litellm: each of its providers whose address can be set."""

import asyncio
import functools
from typing import Any

import litellm
from answering import Question, Ranked, answer_questions

litellm.suppress_debug_info = True


def ask(question: Question, *, provider: str, path: str = "") -> list[Ranked]:
    """`rerank` with a model of a provider, at a path of the service."""
    return ranked(litellm.rerank(**arguments(question, provider, path)))


def ask_async(question: Question) -> list[Ranked]:
    return ranked(asyncio.run(litellm.arerank(**arguments(question, "jina_ai"))))


def ask_router(question: Question) -> list[Ranked]:
    """`Router.arerank`, which litellm's proxy uses, and which retries."""
    address = {"model": f"cohere/{question.model}", "api_key": question.key, "api_base": question.url}
    router = litellm.Router(model_list=[{"model_name": "reranker", "litellm_params": address}], num_retries=2)
    return ranked(
        asyncio.run(
            router.arerank(
                "reranker",
                query=question.query,
                documents=question.documents,
                top_n=question.top_n,
                return_documents=True,
            )
        )
    )


def arguments(question: Question, provider: str, path: str = "") -> dict[str, Any]:
    """The arguments of `rerank` and `arerank`, which always ask for the documents."""
    return {
        "model": f"{provider}/{question.model}",
        "query": question.query,
        "documents": question.documents,
        "top_n": question.top_n,
        "return_documents": True,
        "api_key": question.key,
        "api_base": f"{question.url}{path}",
    }


def ranked(response: Any) -> list[Ranked]:
    """The results in an answer, which are dictionaries."""
    return [
        Ranked(result["index"], result["relevance_score"], result.get("document", {}).get("text"))
        for result in response.results
    ]


PROVIDERS: dict[str, dict[str, str]] = {
    "azure_ai": {},
    "cohere": {},
    "cohere v1": {"provider": "cohere", "path": "/v1/rerank"},
    "dashscope": {"path": "/v1"},
    "fireworks_ai": {"path": "/voyage/v1"},
    "hosted_vllm": {},
    "huggingface": {},
    "infinity": {"path": "/infinity"},
    "jina_ai": {},
    "nvidia_nim": {},
    "nvidia_nim ranking": {"provider": "nvidia_nim/ranking"},
    "together_ai": {"path": "/v1"},
    "voyage": {"path": "/voyage"},
}
WAYS = {name: functools.partial(ask, **{"provider": name} | how) for name, how in PROVIDERS.items()}
answer_questions(WAYS | {"jina_ai async": ask_async, "Router": ask_router})
