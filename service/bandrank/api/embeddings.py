"""The endpoint for embeddings, in OpenAI's format: texts in, the vectors of a served bi-encoder out."""

from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal, TypeVar

from fastapi import Request, Response
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import to_json

from bandrank.api.admission import REFUSALS, SECURED, RankingAccount
from bandrank.api.description import errors, new_router
from bandrank.api.dialects.costs import CUTS_IN_200, Usage, cut_headers
from bandrank.api.dialects.dialect import Float32s, check_lengths
from bandrank.api.dialects.fields import Limit, TextOrObject, TextsOrObjects
from bandrank.api.dialects.foreign import NamesModel
from bandrank.api.disconnects import hung_up, unless_gone
from bandrank.api.error_bodies import AnyErrorBody, FaultsBody, OpenAIErrorBody
from bandrank.api.parsing import load, read_body, validated
from bandrank.api.responses import ANSWER_BYTES, JsonInParts
from bandrank.api.schemas import body_schema
from bandrank.api.service import Service, ServiceOfApp
from bandrank.engine.embedding import Embeddings, embed
from bandrank.engine.memory import Account
from bandrank.errors import InputTooLarge, InvalidInput, NoEmbeddings

router = new_router()

PATH = "/v1/embeddings"
# Clients of Together, Voyage and infinity have one base URL for everything; /embeddings is infinity's own path.
INFINITY_PATH = "/infinity/embeddings"
OTHER_PATHS = (f"/together{PATH}", f"/voyage{PATH}", INFINITY_PATH, "/embeddings")
Kind = TypeVar("Kind", bound=BaseModel)
PART_NUMBERS = 16_384  # written at once, in a millisecond or two
Encoding = Literal["float", "base64"]
QUERY_TYPES = {"query", "search_query", "retrieval.query"}  # what Voyage, Cohere and Jina call them
OTHER_TYPES = {"classification", "clustering", "separation", "text-matching"}  # of Cohere and Jina, not for search


def no_token_ids(value: object) -> object:
    """Returns the value. Raises ValueError for token ids, which some clients send in place of texts."""
    items = value if isinstance(value, list) else [value]
    if items and isinstance(items[0], int | list):
        raise ValueError(
            "send texts: token ids belong to another model's vocabulary (LangChain's OpenAIEmbeddings sends texts if "
            "you set check_embedding_ctx_length=False)"
        )
    return value


class EmbeddingsRequest(NamesModel):
    """Texts to embed. input: one text or several, or objects with a `text`, as in Jina. Fields not named here are
    ignored, such as `user`.
    """

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"input": ["Bees navigate by the sun.", "Honey is sweet."]}]}
    )

    input: Annotated[TextOrObject | TextsOrObjects, Field(union_mode="left_to_right"), BeforeValidator(no_token_ids)]
    encoding_format: Encoding | None = Field(
        default=None, description="float: numbers. base64: little-endian float32, in base64. null: float."
    )
    input_type: str | None = Field(
        default=None,
        description="query, search_query or retrieval.query: the texts are queries, around which some models put words "
        "of their own, or have another encoder. null or anything else: the texts are documents; a model with two "
        "encoders refuses classification, clustering, separation and text-matching.",
    )
    task: str | None = Field(default=None, description="Jina's name for input_type.")
    embedding_type: Encoding | None = Field(default=None, description="Jina's name for encoding_format.")
    dimensions: Limit = Field(default=None, description="Only the model's own size. null or 0: that one.")
    output_dimension: Limit = Field(default=None, description="Voyage's name for dimensions.")
    output_dtype: Literal["float"] | None = Field(default=None, description="Voyage's type of numbers, always float.")

    @property
    def texts(self) -> Sequence[str]:
        """The texts as a list, even if one came alone."""
        return [self.input] if isinstance(self.input, str) else self.input

    @property
    def encoding(self) -> Encoding:
        """How numbers are written."""
        return self.encoding_format or self.embedding_type or "float"

    @property
    def as_queries(self) -> bool:
        """Whether the texts are queries."""
        return not QUERY_TYPES.isdisjoint({self.input_type, self.task})

    @property
    def other_task(self) -> str:
        """What the texts are for, if they are neither side of a search; else empty."""
        return next((each for each in (self.input_type, self.task) if each and each in OTHER_TYPES), "")


@dataclass(slots=True)
class EmbeddingOut:
    """The embedding of a text, as numbers or in base64. index: the text's index in the request."""

    embedding: list[float] | str
    index: int
    object: str = "embedding"


class EmbeddingsMeta(BaseModel):
    """How much was cut from texts that are longer than the model takes, and how many embeddings were cached.

    truncated_texts: how many texts were cut. truncated_tokens: word pieces cut from all texts together.
    cache_hits, cache_misses: how many embeddings were cached, and how many were not.
    """

    truncated_texts: int
    truncated_tokens: int
    cache_hits: int
    cache_misses: int


class EmbeddingsResponse(BaseModel):
    """Embeddings in the order of the request, of unit length if the model compares by the cosine.

    model: the name of the model that embedded.
    """

    object: str = "list"
    data: list[EmbeddingOut]
    model: str
    usage: Usage
    meta: EmbeddingsMeta


RESPONSES = CUTS_IN_200 | errors(NoEmbeddings.status, *REFUSALS, 404, 413, 415, 500, 503, 504, body=OpenAIErrorBody)
DESCRIBED: dict[str, Any] = {
    "response_model": EmbeddingsResponse,
    "openapi_extra": body_schema(EmbeddingsRequest) | SECURED,
}


async def embed_texts(request: Request, service: ServiceOfApp, account: RankingAccount) -> Response:
    """Returns the vectors by which a served bi-encoder ranks these texts, from the same queue and cache."""
    body = await read_texts(request, EmbeddingsRequest, service, account)
    embedding = embed(
        service.models,
        body.texts,
        as_queries=body.as_queries,
        other_task=body.other_task,
        model=body.model,
        any_model=service.any_model,
        size=body.dimensions or body.output_dimension,
        account=account,
    )
    embedded = await unless_gone(hung_up(request), embedding)
    return JsonInParts(await _write(embedded, body.encoding, service, account), cuts_as_headers(embedded))


def error_of(path: str, status: int) -> type[AnyErrorBody]:
    """The body of an error at one of the paths. infinity's client reads that of a 422 alone, as a list of faults."""
    return FaultsBody if (path, status) == (INFINITY_PATH, InvalidInput.status) else OpenAIErrorBody


for path in (PATH, *OTHER_PATHS):
    router.post(path, responses=RESPONSES | errors(422, body=error_of(path, 422)), **DESCRIBED)(embed_texts)


async def read_texts(request: Request, kind: type[Kind], service: Service, account: Account) -> Kind:
    """The validated request to embed texts.

    Raises what `read_body` raises, InvalidInput, and InputTooLarge for too many texts before looking at any.
    """
    raw = await read_body(request, service.max_body_bytes, account)
    content = await service.pace.run(account.client, load, raw)
    check_lengths(content, kind, service.max_candidates, "texts")
    return await service.pace.run(account.client, validated, kind, content)


def cuts_as_headers(embedded: Embeddings) -> dict[str, str]:
    """How many tokens were cut, and from how many texts; empty if none were."""
    cut = embedded.truncated_tokens
    return cut_headers({"truncated_tokens": sum(cut), "truncated_candidates": sum(tokens > 0 for tokens in cut)})


async def write_list(
    write: Callable[[int, int], bytes],
    count: int,
    numbers: int,
    service: Service,
    account: Account,
    *,
    before: bytes = b"",
    also: str = "",
) -> bytearray:
    """The JSON of a list in parts, between which others get a turn.

    write(start, end): the JSON of items start .. end - 1, without brackets; `numbers` in each.  before: what stands
    before the list.  also: what else than sending fewer texts makes the answer smaller.
    Raises InputTooLarge if it gets larger than an answer may be, and what `Account.hold` raises.
    """
    step = max(1, PART_NUMBERS // max(1, numbers))
    answer = bytearray(before + b"[")
    for start in range(0, count, step):
        part = await service.pace.run(account.client, write, start, min(start + step, count))
        account.hold(ANSWER_BYTES * len(part))
        answer += (b"," if start else b"") + part
        if len(answer) > service.max_answer_bytes:
            raise InputTooLarge(
                f"the embeddings take more than {service.max_answer_bytes} bytes; send fewer texts{also}"
            )
    answer += b"]"
    return answer


async def _write(embedded: Embeddings, encoding: Encoding, service: Service, account: Account) -> memoryview:
    """Writes the JSON of the EmbeddingsResponse. Raises what `write_list` raises."""
    vectors = embedded.ragged.values.numpy()
    answer = await write_list(
        partial(_part, vectors, encoding),
        len(vectors),
        vectors.shape[1],
        service,
        account,
        before=b'{"object":"list","data":',
        also=", or ask for encoding_format base64",
    )
    cut = embedded.truncated_tokens
    rest = {
        "model": embedded.model,
        "usage": Usage.of(embedded.num_tokens),
        "meta": EmbeddingsMeta(
            truncated_texts=sum(tokens > 0 for tokens in cut),
            truncated_tokens=sum(cut),
            cache_hits=embedded.cache_hits,
            cache_misses=embedded.cache_misses,
        ),
    }
    answer += b"," + to_json(rest)[1:]
    return memoryview(answer)


def _part(vectors: Float32s, encoding: Encoding, start: int, end: int) -> bytes:
    """The embeddings of texts start .. end - 1, without the brackets around them."""
    some = vectors[start:end]
    if encoding == "base64":
        texts = [b64encode(vector.tobytes()).decode("ascii") for vector in some.astype("<f4")]
        return to_json([EmbeddingOut(text, index) for index, text in enumerate(texts, start)])[1:-1]
    return to_json([EmbeddingOut(vector, index) for index, vector in enumerate(some.tolist(), start)])[1:-1]
