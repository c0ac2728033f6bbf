"""Documents that are texts, or objects some of whose fields make the text."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema
from pydantic_core import to_json

from bandrank.api.dialects.dialect import Exchange
from bandrank.api.dialects.fields import TEXT_OR_OBJECT, NonEmpty
from bandrank.api.dialects.parts import is_in_parts, joined
from bandrank.errors import InvalidInput

MAX_KEYS = 8  # in the path of a field; each is looked up in each document
SHOWN_FIELDS, SHOWN_CHARACTERS = 3, 40  # in a message


def _distinct(names: list[str]) -> list[str]:
    if len(set(names)) < len(names):
        raise ValueError("no field may come twice")
    return names


# left_to_right: no value fits both, and a text need not be tried as an object.
Document = Annotated[str | dict[str, Any], Field(union_mode="left_to_right")]
# Each field is looked up in each document.
RankFields = Annotated[
    list[str],
    Field(
        max_length=64,
        json_schema_extra={"uniqueItems": True},
        description="The fields of objects that are ranked, one to a line; dots lead into objects: `metadata.title`.",
    ),
    AfterValidator(_distinct),
]
Documents = NonEmpty[Document]
# As in vLLM; a single object is in parts.
DocumentsOrOne = Annotated[
    Documents,
    BeforeValidator(lambda value: [value] if isinstance(value, str) or is_in_parts(value) else value),
    Field(
        json_schema_extra={
            "type": ["array", "string", "object"],
            "required": ["content"],
            "properties": {"content": {"type": "array"}},
        }
    ),
]


def _texts_or_none(value: object) -> object:
    return value if isinstance(value, list) and all(isinstance(each, str) for each in value) else None


Metadata = Annotated[
    list[str] | None,
    BeforeValidator(_texts_or_none),
    WithJsonSchema({}),  # any value
    Field(description="A text for each document, ranked with it on a line behind it. Anything but texts is ignored."),
]


def documents_schema(name: str, *others: dict[str, Any]) -> dict[str, Any]:
    """What a schema adds: that without `rank_fields` an object needs a text.

    name: the field of the documents.  others: further forms of a document.
    """
    no_fields = {"anyOf": [{"type": "null"}, {"type": "array", "maxItems": 0}]}
    one = {"anyOf": [*TEXT_OR_OBJECT["anyOf"], *others]}
    texts = {"anyOf": [one, {"type": "array", "items": one}]}
    return {
        "anyOf": [
            {"properties": {"rank_fields": no_fields, name: texts}},
            {"required": ["rank_fields"], "properties": {"rank_fields": {"type": "array", "minItems": 1}}},
        ]
    }


def texts_of(
    documents: Sequence[str | dict[str, Any]],
    *,
    name: str,
    rank_fields: Sequence[str] | None = None,
    in_parts: bool = False,
) -> Iterator[str]:
    """The text of each document: an object's `text`, or the values of its `rank_fields`, a line each.

    A field is a key of the object, else the keys to a value inside nested objects, with dots between them. A value that
    is not a text counts as its JSON, and a missing or null field as nothing.
    name: the field of the documents.  in_parts: whether an object may have parts in place of a text.
    Raises InvalidInput with the index of an object that has no text, or none of the `rank_fields` if there are any.
    """
    paths = [(field, field.split(".", MAX_KEYS - 1)) for field in rank_fields or ()]
    for index, document in enumerate(documents):
        try:
            text = document if isinstance(document, str) else _text_of(document, paths, in_parts=in_parts)
        except ValueError as error:
            raise InvalidInput(f"{name}.{index}: {error}") from None
        yield text


def with_metadata(texts: Iterable[str], metadata: Sequence[str], num_documents: int) -> Iterator[str]:
    """Texts with their metadata, if any, on a line behind them. Raises InvalidInput for another number of these."""
    if len(metadata) != num_documents:
        raise InvalidInput(f"metadata: expected a text for each of {num_documents} documents, got {len(metadata)}")
    for text, more in zip(texts, metadata, strict=True):
        yield f"{text}\n{more}" if more.strip() else text


def as_sent(exchange: Exchange[Any], index: int) -> dict[str, Any] | None:
    """The document at an index, if asked for: an object as it was sent, or a text as the `text` of an object."""
    if exchange.text(index) is None:
        return None
    document: str | dict[str, Any] = exchange.request.documents[index]
    return {"text": document} if isinstance(document, str) else document


def with_text(exchange: Exchange[Any], index: int) -> dict[str, Any] | None:
    """Like `as_sent`, but an object without a `text` gets the text that was ranked."""
    document = as_sent(exchange, index)
    if document is None or document.get("text") is not None:
        return document
    return document | {"text": exchange.text(index)}


def _text_of(document: dict[str, Any], paths: Sequence[tuple[str, Sequence[str]]], *, in_parts: bool) -> str:
    """The text of an object. paths: the fields that make it, each with the keys of its path. Raises ValueError."""
    if paths:
        values = [value for field, keys in paths if (value := _value(document, field, keys)) is not None]
        if not values:
            raise ValueError(f"none of the rank_fields is there: {_shown([field for field, _ in paths])}")
        return "\n".join(value if isinstance(value, str) else to_json(value).decode() for value in values)
    text = document.get("text")
    if in_parts and not isinstance(text, str):
        text = joined(document)
    if isinstance(text, str):
        return text
    raise ValueError("expected a text, or an object with `text` or with the `rank_fields`")


def _value(document: dict[str, Any], field: str, keys: Sequence[str]) -> object:
    """The value of a field, or None.

    A path never ends at an object: nested fields, such as a.a and a.a.a, would make a text many times as large as the
    document.
    """
    value: object = document.get(field)
    if value is not None or len(keys) == 1:
        return value
    value = document
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return None if isinstance(value, dict) else value


def _shown(fields: Sequence[str]) -> str:
    """The first of some fields, shortened, for a message."""
    shown = [repr(field[:SHOWN_CHARACTERS]) for field in fields[:SHOWN_FIELDS]]
    return ", ".join([*shown, *([f"and {len(fields) - SHOWN_FIELDS} more"] if len(fields) > SHOWN_FIELDS else [])])
