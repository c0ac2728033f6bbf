"""Types of request fields, as strict as our own and as lenient as the clients of other services need them to be."""

from typing import Annotated, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, StrictBool, WithJsonSchema

T = TypeVar("T")

# A character that str.strip() leaves; readers of a pattern disagree on what \S is.
NOT_BLANK = r"[^\t-\r\u001c-\u0020\u0085\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]"
TEXT_OR_OBJECT = {
    "anyOf": [
        {"type": "string"},
        {"type": "object", "required": ["text"], "properties": {"text": {"type": "string"}}},
    ]
}
TRUTHS = {"true": True, "True": True, "false": False, "False": False}  # as some clients write them


def not_blank(query: str) -> str:
    """Returns the query, without a copy as it may have megabytes. Raises ValueError if it is only whitespace."""
    if not query or query.isspace():
        raise ValueError("query must not be empty")
    return query


def text_of(value: object) -> object:
    """The text of an object that has a `text`, as Jina's clients may send it; any other value as it is."""
    text = value.get("text") if isinstance(value, dict) else None
    return text if isinstance(text, str) else value


def _as_number(value: object) -> object:
    """Takes 2.0 and 1e30 for integers, as JSON does, but neither "2" nor true."""
    if isinstance(value, str | bool):
        raise ValueError("Input should be a valid integer")  # noqa: TRY004 - which pydantic turns into a fault
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _as_flag(value: object) -> object:
    return TRUTHS.get(value, value) if isinstance(value, str) else value


Query = Annotated[str, Field(json_schema_extra={"pattern": NOT_BLANK}), AfterValidator(not_blank)]
Count = Annotated[int, Field(ge=0), BeforeValidator(_as_number)]
Flag = Annotated[
    StrictBool | None,
    BeforeValidator(_as_flag),
    WithJsonSchema({"anyOf": [{"type": "boolean"}, {"enum": [*TRUTHS]}, {"type": "null"}]}),
]
Instruction = Annotated[
    str | None,
    Field(
        max_length=4096,
        description="What the query is for, as in 'find papers that refute the claim'. Models that take no instruction "
        "rank without it, which the answer's `meta.warnings` says, if its format has `meta`.",
    ),
]
# How many tokens, passages or dimensions; 0 stands for null, as in other services.
Limit = Annotated[Count | None, AfterValidator(lambda limit: limit or None)]
# Like Limit, mostly for results; in vLLM, and for clients written for it, -1 means all too.
AnyLimit = Annotated[
    Annotated[int, Field(ge=-1), BeforeValidator(_as_number)] | None,
    AfterValidator(lambda limit: limit if limit and limit > 0 else None),
    Field(description="How many results to return. null, 0, -1, or more than there are: all."),
]
# As in Cohere and, with a wider range, in vLLM; nothing is earlier than 0.
Priority = Annotated[
    Annotated[int, Field(ge=-(2**63), lt=2**63), BeforeValidator(_as_number)] | None,
    AfterValidator(lambda priority: max(0, priority or 0)),
    Field(
        description="0 or less goes first. The larger the number, the more of the client's other requests go before "
        "this one, and the sooner it is refused under load."
    ),
]
# fail_fast: a million faults would take gigabytes
NonEmpty = Annotated[list[T], Field(fail_fast=True, min_length=1)]
Texts = NonEmpty[str]
TextOrObject = Annotated[str, BeforeValidator(text_of), WithJsonSchema(TEXT_OR_OBJECT)]
TextsOrObjects = NonEmpty[TextOrObject]
