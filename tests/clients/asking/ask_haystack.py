"""Haystack: its rankers for Cohere, Jina, NIM, text-embeddings-inference and vLLM."""

import asyncio
from typing import Any

from answering import Question, Ranked, answer_questions
from haystack import Document
from haystack.utils import Secret
from haystack_integrations.components.rankers.cohere import CohereRanker
from haystack_integrations.components.rankers.huggingface_api import HuggingFaceTEIRanker
from haystack_integrations.components.rankers.jina import JinaRanker
from haystack_integrations.components.rankers.nvidia import NvidiaRanker
from haystack_integrations.components.rankers.vllm import VLLMRanker


def cohere(question: Question) -> list[Ranked]:
    return run(CohereRanker(api_key=key(question), api_base_url=question.url, model=question.model), question)


def jina(question: Question) -> list[Ranked]:
    return run(JinaRanker(api_key=key(question), base_url=f"{question.url}/v1/rerank", model=question.model), question)


def nvidia(question: Question) -> list[Ranked]:
    """The library cuts the results itself, by default to five."""
    top_k = question.top_n or len(question.documents)
    ranker = NvidiaRanker(api_url=f"{question.url}/v1", api_key=key(question), model=question.model, top_k=top_k)
    return run(ranker, question)


def vllm(question: Question) -> list[Ranked]:
    ranker = VLLMRanker(api_base_url=f"{question.url}/v1", api_key=key(question), model=question.model)
    return run(ranker, question)


def tei(question: Question) -> list[Ranked]:
    return run(HuggingFaceTEIRanker(url=question.url, token=key(question)), question)


def tei_async(question: Question) -> list[Ranked]:
    ranker = HuggingFaceTEIRanker(url=question.url, token=key(question))
    return ranked(asyncio.run(ranker.run_async(**arguments(question))))


def run(ranker: Any, question: Question) -> list[Ranked]:
    return ranked(ranker.run(**arguments(question)))


def arguments(question: Question) -> dict[str, Any]:
    documents = [Document(content=text, meta={"index": at}) for at, text in enumerate(question.documents)]
    return {"query": question.query, "documents": documents, "top_k": question.top_n}


def ranked(output: dict[str, Any]) -> list[Ranked]:
    return [Ranked(document.meta["index"], document.score) for document in output["documents"]]


def key(question: Question) -> Secret:
    return Secret.from_token(question.key)


answer_questions(
    {
        "CohereRanker": cohere,
        "JinaRanker": jina,
        "NvidiaRanker": nvidia,
        "VLLMRanker": vllm,
        "HuggingFaceTEIRanker": tei,
        "HuggingFaceTEIRanker async": tei_async,
    }
)
