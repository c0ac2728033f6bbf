"""What is registered, and what an answer says about it."""

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from bandrank.engine.registry import titled


def _with_either_id(schema: dict[str, Any]) -> None:
    """Adds to a schema with `id` that `_id` may take its place."""
    schema["required"].remove("id")
    schema["anyOf"] = [
        {"required": ["id"]},
        {"required": ["_id"], "properties": {"_id": schema["properties"]["id"] | {"title": "Id"}}},
    ]


@dataclass(slots=True)
class RegisteredCandidate:
    """A candidate that later requests may name by its id.

    id: may also be called `_id`, as in BEIR's corpora. title: goes before the text.
    """

    __pydantic_config__ = ConfigDict(json_schema_extra=_with_either_id)

    id: Annotated[str, Field(min_length=1, max_length=512, validation_alias=AliasChoices("id", "_id"))]
    text: str
    title: str | None = None

    @property
    def whole(self) -> str:
        """The text with the title."""
        return titled(self.title, self.text)


class LineError(BaseModel):
    """A line of an NDJSON upload that could not be read. line: its number, from 1. error: the reason."""

    line: int
    error: str


class RegisterResponse(BaseModel):
    """What was registered.

    registered: how many ids; one that a stream of lines repeats far apart counts again. encoded: how many
    representations were computed for their texts; the others were cached. num_errors: how many lines could not be read.
    errors: the first of them.
    """

    registered: int
    encoded: int
    num_errors: int = 0
    errors: list[LineError] = []
