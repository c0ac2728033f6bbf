"""The client libraries, each way to rank with them, and what the caller of each may expect.

Each script in asking/ knows its ways by their names. A library raises one exception for each status, or the same for
all of them, or fails on an answer that it did not expect.
"""

from collections.abc import Collection
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Literal

from support.clients import Client

ErrorStatus = Literal[401, 422, 429]
Exceptions = dict[ErrorStatus, str]
STATUSES: tuple[ErrorStatus, ...] = (401, 422, 429)


@dataclass(frozen=True)
class Way:
    """A way of ranking.

    exceptions: what is raised, by the status of the answer.  silent: the statuses whose exception lacks the service's
    message.  retries: whether a 429 is retried.  waits: whether the retry waits as Retry-After says.  has_key: whether
    a key can be sent.  shows_texts: whether the results have the texts of the answer.  cuts: whether the caller can ask
    for fewer results.  raw: whether the scores are the scorer's own.  strays: other machines that the library tries to
    reach whatever its settings, and works without.
    """

    client: Client
    name: str
    exceptions: Exceptions
    silent: Collection[ErrorStatus] = field(default=(), kw_only=True)
    retries: bool = field(default=False, kw_only=True)
    waits: bool = field(default=False, kw_only=True)
    has_key: bool = field(default=True, kw_only=True)
    shows_texts: bool = field(default=False, kw_only=True)
    cuts: bool = field(default=True, kw_only=True)
    raw: bool = field(default=False, kw_only=True)
    strays: AbstractSet[str] = field(default=frozenset(), kw_only=True)

    def __str__(self) -> str:
        return f"{self.client} {self.name}"


def always(exception: str) -> Exceptions:
    return dict.fromkeys(STATUSES, exception)


COHERE_ERRORS: Exceptions = {
    401: "cohere.errors.unauthorized_error.UnauthorizedError",
    422: "cohere.errors.unprocessable_entity_error.UnprocessableEntityError",
}
LITELLM_ERRORS: Exceptions = {
    401: "litellm.exceptions.AuthenticationError",
    422: "litellm.exceptions.BadRequestError",
    429: "litellm.exceptions.RateLimitError",
}


def stainless_errors(package: str) -> Exceptions:
    """The exceptions of an SDK that Stainless generates."""
    return {401: f"{package}.AuthenticationError", 422: f"{package}.UnprocessableEntityError"}


def cohere(group: str) -> list[Way]:
    """The ways of the SDK in the version of a group; version 2 of the API never returns texts."""
    client = Client("cohere", group)
    return [
        Way(client, name, COHERE_ERRORS, retries=True, waits=True, shows_texts=name.startswith("v1"))
        for name in ("v1", "v2", "v1 async", "v2 async")
    ]


LITELLM = Client("litellm", "cohere-5")
LANGCHAIN = Client("langchain", "cohere-5")
LLAMA_INDEX = Client("llama_index", "cohere-5")
VOYAGEAI = Client("voyageai", "cohere-5")
VOYAGE_ERRORS: Exceptions = {401: "voyageai.error.AuthenticationError", 422: "voyageai.error.MalformedRequestError"}
DASHSCOPE = Client("dashscope", "cohere-7")
DASHSCOPE_ERRORS: Exceptions = {
    401: "dashscope.v2.errors.AuthenticationError",
    422: "dashscope.v2.errors.BadRequestError",
}
CONTEXTUAL = Client("contextual", "cohere-7")
HAYSTACK = Client("haystack", "cohere-7")
MIXEDBREAD = Client("mixedbread", "cohere-7")
ZEROENTROPY = Client("zeroentropy", "cohere-7")
XINFERENCE = Client("xinference", "cohere-7")
PINECONE = Client("pinecone", "cohere-7")
PINECONE_ERRORS: Exceptions = {
    401: "pinecone.errors.exceptions.UnauthorizedError",
    422: "pinecone.errors.exceptions.PineconeValueError",
}
TOGETHER = Client("together", "cohere-7")
RERANKERS = Client("rerankers", "cohere-7")
JAVASCRIPT = Client("javascript", "npm")
JAVASCRIPT_ERRORS: Exceptions = {401: "UnauthorizedError", 422: "UnprocessableEntityError"}
INFINITY = Client("infinity", "httpx-0.27")
UNEXPECTED = always("infinity_client.errors.UnexpectedStatus")

WAYS = [
    *cohere("cohere-5"),
    *[
        Way(LITELLM, name, LITELLM_ERRORS, shows_texts=True)
        for name in (
            *("azure_ai", "cohere", "cohere v1", "dashscope", "fireworks_ai", "hosted_vllm", "infinity"),
            *("jina_ai", "jina_ai async", "together_ai", "voyage"),
        )
    ],
    Way(LITELLM, "Router", LITELLM_ERRORS, retries=True, shows_texts=True),
    Way(
        LITELLM,
        "huggingface",
        LITELLM_ERRORS | {422: "litellm.exceptions.APIError"},
        shows_texts=True,
        cuts=False,
        strays={"huggingface.co"},  # looks up the price of the model
    ),
    # the library fills in the texts from the request
    Way(LITELLM, "nvidia_nim", LITELLM_ERRORS, shows_texts=True, raw=True),
    Way(LITELLM, "nvidia_nim ranking", LITELLM_ERRORS, shows_texts=True, raw=True),
    Way(LANGCHAIN, "CohereRerank", COHERE_ERRORS, retries=True, waits=True),
    Way(LANGCHAIN, "CohereRerank compressor", COHERE_ERRORS, retries=True, waits=True),
    Way(LANGCHAIN, "NVIDIARerank", always("builtins.Exception"), raw=True),
    Way(LANGCHAIN, "NVIDIARerank async", always("builtins.Exception"), raw=True),
    Way(LANGCHAIN, "NVIDIARerank default model", always("builtins.Exception"), raw=True),
    Way(LLAMA_INDEX, "CohereRerank", COHERE_ERRORS, retries=True, waits=True),
    Way(LLAMA_INDEX, "JinaRerank", always("builtins.RuntimeError")),
    Way(LLAMA_INDEX, "NVIDIARerank", always("httpx.HTTPStatusError"), silent=STATUSES, raw=True),
    Way(LLAMA_INDEX, "TextEmbeddingInference", always("builtins.AssertionError"), silent=STATUSES),
    Way(LLAMA_INDEX, "XinferenceRerank", always("builtins.Exception"), has_key=False),
    Way(VOYAGEAI, "sync", VOYAGE_ERRORS, retries=True),
    Way(VOYAGEAI, "async", VOYAGE_ERRORS, retries=True),
    *cohere("cohere-7"),
    Way(CONTEXTUAL, "sync", stainless_errors("contextual"), retries=True, waits=True),
    Way(CONTEXTUAL, "async", stainless_errors("contextual"), retries=True, waits=True),
    *[Way(DASHSCOPE, name, always("builtins.RuntimeError"), shows_texts=True) for name in ("sync", "async")],
    Way(DASHSCOPE, "client", DASHSCOPE_ERRORS, retries=True, waits=True, shows_texts=True),
    Way(DASHSCOPE, "async client", DASHSCOPE_ERRORS, retries=True, waits=True, shows_texts=True),
    Way(HAYSTACK, "CohereRanker", COHERE_ERRORS, retries=True, waits=True),
    Way(HAYSTACK, "JinaRanker", always("builtins.RuntimeError")),
    Way(HAYSTACK, "NvidiaRanker", always("builtins.ValueError"), raw=True),
    Way(HAYSTACK, "VLLMRanker", always("builtins.RuntimeError")),
    Way(HAYSTACK, "HuggingFaceTEIRanker", always("builtins.RuntimeError"), retries=True),
    Way(HAYSTACK, "HuggingFaceTEIRanker async", always("builtins.RuntimeError"), retries=True),
    Way(MIXEDBREAD, "sync", stainless_errors("mixedbread"), retries=True, waits=True, shows_texts=True),
    Way(MIXEDBREAD, "async", stainless_errors("mixedbread"), retries=True, waits=True, shows_texts=True),
    # the library itself refuses a blank query
    Way(PINECONE, "sync", PINECONE_ERRORS, silent={422}, retries=True, waits=True, shows_texts=True),
    Way(TOGETHER, "sync", stainless_errors("together"), retries=True, waits=True, shows_texts=True),
    Way(TOGETHER, "async", stainless_errors("together"), retries=True, waits=True, shows_texts=True),
    Way(ZEROENTROPY, "sync", stainless_errors("zeroentropy"), retries=True, waits=True),
    Way(ZEROENTROPY, "async", stainless_errors("zeroentropy"), retries=True, waits=True),
    Way(XINFERENCE, "sync", always("builtins.RuntimeError"), shows_texts=True),
    Way(XINFERENCE, "async", always("builtins.RuntimeError"), shows_texts=True),
    *[
        Way(RERANKERS, name, always("builtins.KeyError"), silent=STATUSES, cuts=False)
        for name in ("cohere", "jina", "mixedbread.ai", "voyage")
    ],
    Way(RERANKERS, "text-embeddings-inference", always("builtins.TypeError"), silent=STATUSES, cuts=False),
    Way(JAVASCRIPT, "cohere v1", JAVASCRIPT_ERRORS, retries=True, waits=True, shows_texts=True),
    Way(JAVASCRIPT, "cohere v2", JAVASCRIPT_ERRORS, retries=True, waits=True),
    *[
        Way(JAVASCRIPT, f"vercel {provider}", always("APICallError"), retries=True, waits=True)
        for provider in ("cohere", "togetherai", "voyage")
    ],
    *[
        # the library returns a 422 as if it were an answer
        Way(INFINITY, name, UNEXPECTED | {422: "__main__.Refused"}, shows_texts=True)
        for name in ("sync", "async")
    ],
]
