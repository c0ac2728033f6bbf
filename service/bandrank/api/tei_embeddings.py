"""Embeddings in the format of text-embeddings-inference: a served bi-encoder's vectors, or a SPLADE's terms."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, TypeVar

import numpy as np
from fastapi import Request, Response
from pydantic import BeforeValidator, Field, TypeAdapter

from bandrank.api.admission import REFUSALS, SECURED, RankingAccount
from bandrank.api.description import errors, new_router
from bandrank.api.dialects.costs import CUTS_IN_200
from bandrank.api.dialects.dialect import Float32s
from bandrank.api.dialects.fields import Flag, Limit, Texts
from bandrank.api.dialects.foreign import NamesModel
from bandrank.api.disconnects import hung_up, unless_gone
from bandrank.api.embeddings import QUERY_TYPES, cuts_as_headers, no_token_ids, read_texts, write_list
from bandrank.api.responses import JsonInParts
from bandrank.api.schemas import body_schema
from bandrank.api.service import Service, ServiceOfApp
from bandrank.engine.embedding import Embeddings, embed
from bandrank.engine.memory import Account
from bandrank.errors import NoEmbeddings
from bandrank.models.ragged import Ragged

router = new_router()
Vectors = list[list[float]]


class TermsRequest(NamesModel):
    """Texts to embed as weighted terms. Fields not named here are ignored, such as `truncate`.

    inputs: one text or several. prompt_name: `query` for queries, around which some models put words of their own, and
    anything else for documents.
    """

    inputs: Annotated[str | Texts, Field(union_mode="left_to_right"), BeforeValidator(no_token_ids)]
    prompt_name: str | None = None

    @property
    def texts(self) -> Sequence[str]:
        """The texts as a list, even if one came alone."""
        return [self.inputs] if isinstance(self.inputs, str) else self.inputs


class VectorsRequest(TermsRequest):
    """Texts to embed as vectors. normalize: false leaves the vectors as the model compares them; those that it compares
    by the cosine have unit length in any case. dimensions: only the model's own size. null or 0: that one.
    """

    normalize: Flag = True
    dimensions: Limit = None


@dataclass(slots=True)
class Term:
    """A term of a text. index: its id in the model's vocabulary. value: its weight, more than 0."""

    index: int
    value: float


Asked = TypeVar("Asked", bound=TermsRequest)
VECTORS, TERMS = TypeAdapter(Vectors), TypeAdapter(list[list[Term]])


def _described(kind: type[TermsRequest], response: Any) -> dict[str, Any]:
    return {
        "response_model": response,
        "responses": CUTS_IN_200 | errors(NoEmbeddings.status, *REFUSALS, 404, 413, 415, 422, 500, 503, 504),
        "openapi_extra": body_schema(kind) | SECURED,
    }


@router.post("/embed", **_described(VectorsRequest, Vectors))
async def embed_as_vectors(request: Request, service: ServiceOfApp, account: RankingAccount) -> Response:
    """Returns the vectors by which a served bi-encoder ranks these texts."""
    body, embedded = await _embedded(request, service, account, VectorsRequest)
    vectors = embedded.ragged.values.numpy()
    if body.normalize is not False:
        vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.finfo(np.float32).tiny)
    answer = await write_list(partial(_vectors, vectors), len(vectors), vectors.shape[1], service, account)
    return JsonInParts(memoryview(answer), cuts_as_headers(embedded))


@router.post("/embed_sparse", **_described(TermsRequest, list[list[Term]]))
async def embed_as_terms(request: Request, service: ServiceOfApp, account: RankingAccount) -> Response:
    """Returns the weighted terms by which a served SPLADE ranks these texts, in the order of their ids."""
    _, embedded = await _embedded(request, service, account, TermsRequest)
    ragged = embedded.ragged
    numbers = len(ragged.values) // len(ragged)
    answer = await write_list(partial(_terms, ragged), len(ragged), numbers, service, account)
    return JsonInParts(memoryview(answer), cuts_as_headers(embedded))


async def _embedded(
    request: Request, service: Service, account: Account, kind: type[Asked]
) -> tuple[Asked, Embeddings]:
    """The request, and the embeddings of its texts."""
    body = await read_texts(request, kind, service, account)
    embedding = embed(
        service.models,
        body.texts,
        as_queries=body.prompt_name in QUERY_TYPES,
        terms=not isinstance(body, VectorsRequest),
        model=body.model,
        any_model=service.any_model,
        size=body.dimensions if isinstance(body, VectorsRequest) else None,
        account=account,
    )
    return body, await unless_gone(hung_up(request), embedding)


def _vectors(vectors: Float32s, start: int, end: int) -> bytes:
    return VECTORS.dump_json(vectors[start:end].tolist())[1:-1]


def _terms(ragged: Ragged, start: int, end: int) -> bytes:
    texts = [[Term(int(term), weight) for term, weight in ragged[text].tolist()] for text in range(start, end)]
    return TERMS.dump_json(texts)[1:-1]
