"""LangChain: the document compressors of its packages for Cohere and NVIDIA."""

import asyncio

from answering import Question, Ranked, answer_questions
from langchain_cohere import CohereRerank
from langchain_core.documents import Document
from langchain_nvidia_ai_endpoints import NVIDIARerank


def cohere(question: Question) -> list[Ranked]:
    reranker = cohere_reranker(question)
    results = reranker.rerank(question.documents, question.query, top_n=question.top_n)
    return [Ranked(result["index"], result["relevance_score"]) for result in results]


def cohere_compressor(question: Question) -> list[Ranked]:
    return ranked(cohere_reranker(question).compress_documents(documents(question), question.query))


def nvidia(question: Question) -> list[Ranked]:
    return ranked(nvidia_reranker(question).compress_documents(documents(question), question.query))


def nvidia_async(question: Question) -> list[Ranked]:
    return ranked(asyncio.run(nvidia_reranker(question).acompress_documents(documents(question), question.query)))


def nvidia_default_model(question: Question) -> list[Ranked]:
    """Without a model, the library takes the one that the service lists first."""
    return ranked(nvidia_reranker(question, model=None).compress_documents(documents(question), question.query))


def cohere_reranker(question: Question) -> CohereRerank:
    """By default the library asks for three results, and with `top_n=None` for all."""
    return CohereRerank(cohere_api_key=question.key, base_url=question.url, model=question.model, top_n=question.top_n)


def nvidia_reranker(question: Question, **options: None) -> NVIDIARerank:
    """The library cuts the results itself."""
    options = {"model": question.model} | options
    top_n = question.top_n or len(question.documents)
    return NVIDIARerank(base_url=f"{question.url}/v1", api_key=question.key, top_n=top_n, **options)


def documents(question: Question) -> list[Document]:
    return [Document(text, metadata={"index": index}) for index, text in enumerate(question.documents)]


def ranked(compressed: list[Document]) -> list[Ranked]:
    return [Ranked(document.metadata["index"], document.metadata["relevance_score"]) for document in compressed]


answer_questions(
    {
        "CohereRerank": cohere,
        "CohereRerank compressor": cohere_compressor,
        "NVIDIARerank": nvidia,
        "NVIDIARerank async": nvidia_async,
        "NVIDIARerank default model": nvidia_default_model,
    }
)
