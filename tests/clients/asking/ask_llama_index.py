"""LlamaIndex: its node postprocessors."""

import functools
from collections.abc import Callable

from answering import Question, Ranked, answer_questions
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.postprocessor.cohere_rerank import CohereRerank
from llama_index.postprocessor.jinaai_rerank import JinaRerank
from llama_index.postprocessor.nvidia_rerank import NVIDIARerank
from llama_index.postprocessor.tei_rerank import TextEmbeddingInference
from llama_index.postprocessor.xinference_rerank import XinferenceRerank

MakePostprocessor = Callable[[Question, int], BaseNodePostprocessor]


def postprocess(make: MakePostprocessor, question: Question) -> list[Ranked]:
    """`postprocess_nodes`; the id of each node is its index."""
    nodes = [NodeWithScore(node=TextNode(text=text, id_=str(at))) for at, text in enumerate(question.documents)]
    postprocessor = make(question, question.top_n or len(nodes))
    ranked = postprocessor.postprocess_nodes(nodes, query_str=question.query)
    return [Ranked(int(each.node.node_id), each.score) for each in ranked]


def cohere(question: Question, top_n: int) -> BaseNodePostprocessor:
    """The postprocessor for version 2 of Cohere's API."""
    return CohereRerank(api_key=question.key, base_url=question.url, model=question.model, top_n=top_n)


def jina(question: Question, top_n: int) -> BaseNodePostprocessor:
    """The postprocessor for Jina's API, which keeps all results that come."""
    return JinaRerank(api_key=question.key, base_url=f"{question.url}/v1", model=question.model, top_n=top_n)


def nvidia(question: Question, top_n: int) -> BaseNodePostprocessor:
    return NVIDIARerank(api_key=question.key, base_url=f"{question.url}/v1", model=question.model, top_n=top_n)


def tei(question: Question, top_n: int) -> BaseNodePostprocessor:
    """The postprocessor for text-embeddings-inference, whose token is the whole header."""
    return TextEmbeddingInference(base_url=question.url, auth_token=f"Bearer {question.key}", top_n=top_n)


def xinference(question: Question, top_n: int) -> BaseNodePostprocessor:
    """The postprocessor for Xinference, which sends no key."""
    return XinferenceRerank(base_url=question.url, model=question.model, top_n=top_n)


MAKERS: dict[str, MakePostprocessor] = {
    "CohereRerank": cohere,
    "JinaRerank": jina,
    "NVIDIARerank": nvidia,
    "TextEmbeddingInference": tei,
    "XinferenceRerank": xinference,
}
answer_questions({name: functools.partial(postprocess, make) for name, make in MAKERS.items()})
