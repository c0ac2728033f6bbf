"""Documents that are texts or objects with fields, of which some make the text."""

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, Field
from pydantic_core import to_json

from bandrank.errors import InvalidInput


def _distinct(names: list[str]) -> list[str]:
    if len(set(names)) < len(names):
        raise ValueError("no field may come twice")
    return names


# left_to_right: no value is both, and a text need not be tried as an object.
Document = Annotated[str | dict[str, Any], Field(union_mode="left_to_right")]
# Each of them is looked for in each document.
RankFields = Annotated[
    list[str], Field(max_length=64, json_schema_extra={"uniqueItems": True}), AfterValidator(_distinct)
]
Documents = Annotated[list[Document], Field(fail_fast=True, min_length=1)]  # a million faults would take gigabytes


def documents_schema(name: str) -> dict[str, Any]:
    """What a schema adds: that without `rank_fields` an object needs a text. name: that of the documents' field."""
    with_text = {"type": "object", "required": ["text"], "properties": {"text": {"type": "string"}}}
    no_fields = {"anyOf": [{"type": "null"}, {"type": "array", "maxItems": 0}]}
    texts = {"type": "array", "items": {"anyOf": [{"type": "string"}, with_text]}}
    return {
        "anyOf": [
            {"properties": {"rank_fields": no_fields, name: texts}},
            {"required": ["rank_fields"], "properties": {"rank_fields": {"type": "array", "minItems": 1}}},
        ]
    }


def text_of(document: str | dict[str, Any], rank_fields: Sequence[str] | None = None) -> str:
    """The text of a document: of an object `text`, or the values of the fields, a line each.

    A value that is no text counts as its JSON, and a field that is missing or null as nothing. Raises InvalidInput for
    an object without a text, where no fields are named.
    """
    if isinstance(document, str):
        return document
    if rank_fields:
        values = (document.get(name) for name in rank_fields)
        return "\n".join(
            value if isinstance(value, str) else to_json(value).decode() for value in values if value is not None
        )
    text = document.get("text")
    if not isinstance(text, str):
        raise InvalidInput("expected documents that are texts, or objects with `text` or with the `rank_fields`")
    return text


def given_back(document: str | dict[str, Any], text: str) -> dict[str, Any]:
    """A document as an object with a `text`: its own, else the one that was ranked."""
    if isinstance(document, str):
        return {"text": text}
    return document if isinstance(document.get("text"), str) else document | {"text": text}
