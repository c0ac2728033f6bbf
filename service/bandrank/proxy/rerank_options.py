"""How a client's header or an operator's rule asks to re-rank a search."""

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import unquote_to_bytes

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, ValidationError

from bandrank.engine.policy import AUTO
from bandrank.errors import BadSetting
from bandrank.model_settings import location, read_toml, refusal
from bandrank.proxy.outcomes import Skipped, SkipReason

HEADER, QUERY_HEADER = b"x-rerank", b"x-rerank-query"
OFF = "off"
NUMBER = re.compile(r"\d{1,9}(\.\d{1,9})?", re.ASCII)


def _without_wildcards(name: str) -> str:
    """Fields that the engine finds for a wildcard could not be told from those that the client asks for."""
    if "*" in name:
        raise ValueError("must be without wildcards")
    return name


FieldName = Annotated[str, Field(min_length=1, max_length=256), AfterValidator(_without_wildcards)]
FieldNames = Annotated[tuple[FieldName, ...], Field(min_length=1, max_length=16)]


class RerankOptions(BaseModel):
    """How the hits of a search are to be re-ranked.

    fields: those of `_source` with the text, in the order in which they are joined.  depth: hits to re-rank.
    model, strategy: as in a request to rank.  budget_ms: milliseconds after which re-ranking is given up.
    score: what `_score` holds afterwards: the relevance, or the engine's score.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    fields: FieldNames
    depth: PositiveInt
    model: str | None = None
    strategy: str = AUTO
    budget_ms: PositiveFloat
    score: Literal["relevance", "engine"] = "relevance"


class Rule(BaseModel):
    """Asks to re-rank the searches of some indices. index: a pattern of names, with * and ?.  The rest: as above."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    index: Annotated[str, Field(min_length=1)]
    fields: FieldNames
    depth: PositiveInt | None = None
    model: str | None = None
    strategy: str | None = None
    budget_ms: PositiveFloat | None = None
    score: Literal["relevance", "engine"] | None = None

    def covers(self, indices: Sequence[str]) -> bool:
        """Whether it is for a search in these indices: at least one is named, and all match the pattern."""
        return bool(indices) and all(fnmatchcase(name, self.index) for name in indices)


class _RulesFile(BaseModel, extra="forbid"):
    rules: tuple[Rule, ...] = Field(min_length=1)


def read_rules(path: Path, *, max_depth: int) -> tuple[Rule, ...]:
    """The tables [[rules]] of a TOML file; the first that covers a search applies. Raises BadSetting."""
    try:
        rules = _RulesFile.model_validate(read_toml(path)).rules
    except ValidationError as error:
        wrong = error.errors()[0]
        raise refusal(f"{path}: {location(wrong['loc'])}", wrong) from None
    for rule in rules:
        if rule.depth is not None and rule.depth > max_depth:
            raise BadSetting(f"{path}: {rule.index}", f"has a depth beyond {max_depth}")
    return rules


class RerankRules:
    """Finds the options of a search. rules: the operator's.  depth, budget_ms: the defaults."""

    def __init__(self, rules: Sequence[Rule], *, depth: int, budget_ms: float, max_depth: int) -> None:
        self._rules = rules
        self._defaults = {"depth": depth, "budget_ms": budget_ms}
        self._max_depth = max_depth

    def may_ask(self, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        """Whether the header or a rule may ask for re-ranking, depending on the indices."""
        return bool(self._rules) or any(name == HEADER for name, _ in headers)

    def options_for(self, headers: Iterable[tuple[bytes, bytes]], indices: Sequence[str]) -> RerankOptions | None:
        """How the hits of a search in these indices are to be re-ranked; None if nobody asks for it.

        The header takes precedence over the rule. Raises Skipped for a header that cannot be used, or that switches
        re-ranking off.
        """
        values = [value for name, value in headers if name == HEADER]
        rule = next((rule for rule in self._rules if rule.covers(indices)), None)
        if not values and rule is None:
            return None
        asked = _read_header(values)
        by_rule = rule.model_dump(exclude={"index"}, exclude_none=True) if rule is not None else {}
        try:
            options = RerankOptions.model_validate(self._defaults | by_rule | asked)
        except ValidationError:
            raise Skipped(SkipReason.BAD_HEADER) from None
        if options.depth > self._max_depth:
            raise Skipped(SkipReason.BAD_HEADER)
        return options


def query_of_header(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """The query in the header, percent-encoded UTF-8; None without the header. Raises Skipped."""
    values = [value for name, value in headers if name == QUERY_HEADER]
    if not values:
        return None
    try:
        text = unquote_to_bytes(values[0]).decode("utf-8")
    except UnicodeDecodeError:
        raise Skipped(SkipReason.BAD_HEADER) from None
    if len(values) > 1 or not text.strip():
        raise Skipped(SkipReason.BAD_HEADER)
    return text


def _read_header(values: Sequence[bytes]) -> dict[str, Any]:
    """The options in a header such as `title, body; depth=50; strategy=fast`. Raises Skipped."""
    if not values:
        return {}
    try:
        header = values[0].decode("utf-8")
    except UnicodeDecodeError:
        header = values[0].decode("latin-1")  # as headers were once meant to be, and as Python's clients write them
    names, *parameters = header.split(";")
    if "=" in names:  # there are no fields: a rule has them
        names, parameters = "", [names, *parameters]
    if names.strip() == OFF:
        raise Skipped(SkipReason.OFF)
    asked: dict[str, Any] = {}
    for parameter in parameters:
        name, equals, value = (part.strip() for part in parameter.partition("="))
        if not equals or name in asked or name == "fields" or not value:
            raise Skipped(SkipReason.BAD_HEADER)
        if name in {"depth", "budget_ms"} and not NUMBER.fullmatch(value):
            raise Skipped(SkipReason.BAD_HEADER)
        asked[name] = value
    if names.strip():
        asked["fields"] = tuple(name.strip() for name in names.split(","))
    if len(values) > 1:
        raise Skipped(SkipReason.BAD_HEADER)
    return asked
