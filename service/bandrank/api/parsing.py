"""Reads and validates bodies; endpoints read them themselves, to bound their size."""

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from bandrank.errors import InputTooLarge, InvalidInput

Model = TypeVar("Model", bound=BaseModel)

REF = "#/components/schemas/{model}"
# A body that is too large is read on, and thrown away, up to this many times the limit, so that the client gets the
# answer instead of a broken pipe.
DRAIN_FACTOR = 8


async def read_body(request: Request, max_bytes: int) -> bytes:
    """The whole body. Raises InputTooLarge if it has more than `max_bytes`; no more than that is held in memory."""
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size <= max_bytes:
            chunks.append(chunk)
        else:
            chunks.clear()
            if size > DRAIN_FACTOR * max_bytes:
                break
    if size > max_bytes:
        raise InputTooLarge(f"the body is larger than {max_bytes} bytes; send fewer or shorter candidates per request")
    return b"".join(chunks)


def parse(kind: type[Model], body: bytes) -> Model:
    """The validated request. Raises InvalidInput, whose message lists the first three faults."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_input=False, include_context=False)
        sentences = [
            ": ".join(filter(None, (".".join(map(str, fault["loc"])), fault["msg"].removeprefix("Value error, "))))
            for fault in faults[:3]
        ]
        more = f" (and {len(faults) - 3} more)" if len(faults) > 3 else ""
        raise InvalidInput("; ".join(sentences) + more) from None


def body_schema(kind: type[BaseModel], *, also: Mapping[str, type[BaseModel]] | None = None) -> dict[str, Any]:
    """The OpenAPI description of a body that the endpoint reads itself. also: models by further media types."""
    kinds = {"application/json": kind, **(also or {})}
    content = {media: {"schema": _schema(model)} for media, model in kinds.items()}
    return {"requestBody": {"required": True, "content": content}}


def shared_schemas(*kinds: type[BaseModel]) -> dict[str, Any]:
    """The schemas to which those of `kinds` refer."""
    return {
        name: schema
        for kind in kinds
        for name, schema in kind.model_json_schema(ref_template=REF).get("$defs", {}).items()
    }


def _schema(kind: type[BaseModel]) -> dict[str, Any]:
    return {key: part for key, part in kind.model_json_schema(ref_template=REF).items() if key != "$defs"}
