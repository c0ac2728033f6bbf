"""The OpenAPI descriptions of bodies that endpoints read themselves."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from bandrank.api.dialects.dialect import Dialect
from bandrank.api.parsing import JSON

REF = "#/components/schemas/{model}"

Schema = dict[str, Any]


def body_schema(kind: type[BaseModel], *, also: Mapping[str, Schema] | None = None) -> Schema:
    """The description of a body of one kind. also: the schemas of further media types."""
    return _body({JSON: _schema(kind)} | dict(also or {}))


def bodies_schema(dialects: Sequence[Dialect[Any]]) -> Schema:
    """The description of the bodies of a path. A body is in the first dialect that claims it."""
    earlier: dict[str, Schema] = {}
    schemas = []
    for dialect in dict.fromkeys(dialects):
        schema = _schema(dialect.request)
        if dialect is not dialects[-1] and not {*dialect.fields} & {*schema["required"]}:
            schema |= {"allOf": [_one_of(dialect.fields)]}
        schemas.append(schema | {"properties": earlier | schema["properties"]})
        earlier |= {name: {"type": "null"} for name in dialect.fields}
    return _body({JSON: schemas[0] if len(schemas) == 1 else {"anyOf": schemas}})


def shared_schemas(*kinds: type[BaseModel]) -> Schema:
    """The schemas to which the schemas of `kinds` refer."""
    return {
        name: schema
        for kind in kinds
        for name, schema in kind.model_json_schema(ref_template=REF).get("$defs", {}).items()
    }


def _body(schemas: Mapping[str, Schema]) -> Schema:
    content = {media: {"schema": schema} for media, schema in schemas.items()}
    return {"requestBody": {"required": True, "content": content}}


def _one_of(names: Sequence[str]) -> Schema:
    """The schema of an object in which at least one of these fields is present and not null."""
    return {"anyOf": [{"required": [name], "properties": {name: {"not": {"type": "null"}}}} for name in names]}


def _schema(kind: type[BaseModel]) -> Schema:
    return {key: part for key, part in kind.model_json_schema(ref_template=REF).items() if key != "$defs"}
