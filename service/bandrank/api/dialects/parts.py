"""Texts in parts, as vLLM's clients may send them: `{"content": [{"type": "text", "text": "…"}, …]}`; and queries that
are objects with a text, as in Jina.
"""

from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, WithJsonSchema

from bandrank.api.dialects.fields import NOT_BLANK, not_blank, text_of

Schema = dict[str, Any]

SHOWN_CHARACTERS = 40  # of a type, in a message
PARTS: Schema = {
    "type": "array",
    "minItems": 1,
    "items": {
        "type": "object",
        "required": ["type", "text"],
        "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    },
}
IN_PARTS: Schema = {"type": "object", "required": ["content"], "properties": {"content": PARTS}}
A_TEXT: Schema = {"anyOf": [{"type": "string"}, IN_PARTS]}
SAYS_SOMETHING: Schema = {"contains": {"properties": {"text": {"pattern": NOT_BLANK}}}}
A_QUERY: Schema = {
    "anyOf": [
        {"type": "string", "pattern": NOT_BLANK},
        IN_PARTS | {"properties": {"content": PARTS | SAYS_SOMETHING}},
    ]
}


WITH_TEXT: Schema = {
    "type": "object",
    "required": ["text"],
    "properties": {"text": {"type": "string", "pattern": NOT_BLANK}, "content": {"not": {"type": "array"}}},
}


def is_in_parts(value: object) -> bool:
    """Whether a value is an object with a list of parts."""
    return isinstance(value, dict) and isinstance(value.get("content"), list)


def joined(value: Any) -> Any:
    """The texts of an object with parts, one to a line, as vLLM joins them; any other value as it is.

    Raises ValueError for parts that are not texts, and for an object without parts.
    """
    if not is_in_parts(value):
        return value
    if not value["content"]:
        raise ValueError("content must have parts")
    return "\n".join(map(_text_of, value["content"]))


def each_joined(value: Any) -> Any:
    """`joined` applied to each item of a list, or to a value that is not a list. Raises ValueError."""
    return [joined(each) for each in value] if isinstance(value, list) else joined(value)


def _text_of(part: object) -> str:
    """The text of a part. Raises ValueError, naming the type of a part that is not a text."""
    kind, text = (part.get("type"), part.get("text")) if isinstance(part, dict) else (None, None)
    if kind == "text" and isinstance(text, str):
        return text
    if isinstance(kind, str) and kind != "text":
        raise ValueError(f"a part of type {kind[:SHOWN_CHARACTERS]!r} cannot be ranked, only those of type 'text'")
    raise ValueError("each part of content must have the type 'text', and a text")


# A query that may be an object, with a text or in parts, and is a text once it has been read.
TextOfQuery = Annotated[
    str,
    BeforeValidator(lambda value: text_of(joined(value))),
    AfterValidator(not_blank),
    WithJsonSchema({"anyOf": [*A_QUERY["anyOf"], WITH_TEXT]}),
]
