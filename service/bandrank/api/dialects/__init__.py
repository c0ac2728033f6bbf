"""The dialects that each path speaks."""

from typing import Any

from bandrank.api.dialects.cohere import COHERE_V1, COHERE_V2, TOGETHER
from bandrank.api.dialects.dashscope import DASHSCOPE
from bandrank.api.dialects.dialect import Dialect
from bandrank.api.dialects.infinity import INFINITY
from bandrank.api.dialects.metarank import METARANK
from bandrank.api.dialects.mixedbread import MIXEDBREAD
from bandrank.api.dialects.native import NATIVE
from bandrank.api.dialects.nim import NIM
from bandrank.api.dialects.pair_scores import PAIR_SCORES
from bandrank.api.dialects.pinecone import PINECONE
from bandrank.api.dialects.sglang import SGLANG
from bandrank.api.dialects.tei import TEI
from bandrank.api.dialects.voyage import VOYAGE
from bandrank.api.dialects.weaviate import WEAVIATE
from bandrank.api.dialects.zeroentropy import ZEROENTROPY
from bandrank.errors import InvalidInput

# A body is in the first dialect of its path that claims it, else in the last.
DIALECTS: dict[str, tuple[Dialect[Any], ...]] = {
    "/rerank": (NATIVE, TEI, WEAVIATE, NIM, VOYAGE, COHERE_V2, NATIVE),
    "/v1/rerank": (TEI, NIM, VOYAGE, COHERE_V1),
    "/v2/rerank": (COHERE_V2,),
    "/v1/reranks": (COHERE_V2,),
    "/compatible-api/v1/reranks": (COHERE_V2,),
    "/api/v1/services/rerank/text-rerank/text-rerank": (DASHSCOPE,),
    "/reranking": (TEI, MIXEDBREAD, COHERE_V2),
    "/v1/reranking": (TEI, MIXEDBREAD, COHERE_V2),
    "/score": (PAIR_SCORES,),
    "/v1/score": (PAIR_SCORES,),
    "/models/rerank": (ZEROENTROPY,),
    "/v1/models/rerank": (ZEROENTROPY,),
    "/ranking": (NIM,),
    "/v1/ranking": (NIM,),
    "/v1/retrieval/{model:path}/reranking": (NIM,),
    "/inference/cross/{model:path}": (METARANK,),
    "/infinity/rerank": (INFINITY,),
    "/pinecone/rerank": (PINECONE,),
    "/sglang/v1/rerank": (SGLANG,),
    "/together/v1/rerank": (TOGETHER,),
    "/voyage/v1/rerank": (VOYAGE,),
}

RANKED = ("candidates", "documents", "input", "passages", "texts")  # the names that dialects give to the candidates


def dialect_of(body: object, dialects: tuple[Dialect[Any], ...]) -> Dialect[Any]:
    """The dialect of a body, among those of its path.

    Raises InvalidInput for a body with the lists of several dialects, unless they are equal: some clients send the same
    list under each name.
    """
    if isinstance(body, dict) and len(dialects) > 1:
        _check_ranked_once(body, dialects)
    return next((dialect for dialect in dialects if dialect.claims(body)), dialects[-1])


def _check_ranked_once(body: dict[str, Any], dialects: tuple[Dialect[Any], ...]) -> None:
    known = {name for dialect in dialects for name in dialect.request.model_fields}
    lists = [name for name in RANKED if name in known and isinstance(body.get(name), list)]
    if any(body[name] != body[lists[0]] for name in lists[1:]):
        raise InvalidInput(f"the body has {' and '.join(lists)}, which differ: give what is to be ranked once")
