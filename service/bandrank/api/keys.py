"""API keys: a file with the hash of each key, and what its holder may do.

A key is 32 random bytes, so one SHA-256 of it is as good as a slow hash. Slow hashes protect passwords, which can be
guessed, but nobody guesses one of 2**256 keys. The file does not give the keys away, and checking a request takes
microseconds.
"""

import hashlib
import re
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from bandrank.api.followed_files import FollowedFiles
from bandrank.api.rate import TokenBucket
from bandrank.engine.clients import Client
from bandrank.errors import BadSetting

NAME = r"[A-Za-z0-9_-]{1,32}"  # shorter than a key, so that a key in a name's place is never repeated

NO_KEYS = "the file of keys is empty, so nobody is admitted"


class Scope(StrEnum):
    """What a client may be allowed to do.

    RANK: to rank, and to list the models.  REGISTER: to register and delete candidates.  ADMIN: to read the metrics.
    """

    RANK = "rank"
    REGISTER = "register"
    ADMIN = "admin"


class KeyTable(BaseModel):
    """The table of a key in the file. sha256: the key's hash, in hexadecimal.  share: its client's."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    sha256: Annotated[str, Field(pattern=r"^[0-9A-Fa-f]{64}$")]
    scopes: Annotated[list[Scope], Field(min_length=1)]
    requests_per_s: PositiveFloat | None = None
    share: Annotated[float, Field(gt=0, lt=1)] = 0.5


@dataclass(frozen=True)
class Key:
    """A key in use. bucket: bounds its rate; None if nothing does."""

    name: str
    table: KeyTable
    bucket: TokenBucket | None

    @property
    def client(self) -> Client:
        """The holder of the key, under a name that no address has."""
        return Client(f"key:{self.name}", self.table.share)


class KeyFile:
    """The keys of a file, which is read again when it changes. Used from the event loop."""

    def __init__(self, path: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises BadSetting, which names the file, the table and the fault, and never repeats a value."""
        self._path, self._clock = Path(path), clock
        self._by_digest: dict[bytes, Key] = {}
        self._file = FollowedFiles([path], self._read, kept="the keys that were read before stay in use", clock=clock)

    @property
    def names(self) -> Sequence[str]:
        """The names of the keys, in the order of the file."""
        return [key.name for key in self._by_digest.values()]

    def find(self, presented: bytes) -> Key | None:
        """The key that was presented; None if there is no such key.

        The time that this takes says nothing about a key: an attacker cannot choose the hashes of guesses.
        """
        self._file.look()
        return self._by_digest.get(hashlib.sha256(presented).digest())

    def _read(self) -> str:
        before = {key.name: key for key in self._by_digest.values()}
        self._by_digest = self._in_use(read_keys(self._path), before)
        return f"the keys {', '.join(self.names)}" if self.names else NO_KEYS

    def _in_use(self, tables: Mapping[str, KeyTable], before: Mapping[str, Key]) -> dict[bytes, Key]:
        """The keys of tables by their hashes. An unchanged key stays, with what is left of its rate."""
        keys = {}
        for name, table in tables.items():
            key, rate = before.get(name), table.requests_per_s
            if key is None or key.table != table:
                key = Key(name, table, None if rate is None else TokenBucket(rate, self._clock))
            keys[bytes.fromhex(table.sha256)] = key
        return keys


def read_keys(path: Path) -> dict[str, KeyTable]:
    """The tables of a file of keys, by the keys' names. Raises BadSetting, which never repeats a value."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadSetting(str(path), f"cannot be read: {error.strerror}") from None
    except ValueError as error:
        found = re.search(r"at (line \d+, column \d+|end of document)", str(error))
        twice = "the name of a key comes twice, " if "twice" in str(error) else ""
        where = found[0] if found else "it is not in UTF-8"
        raise BadSetting(str(path), f"is not valid TOML: {twice}{where}") from None
    try:
        tables = TABLES.validate_python(content)
    except ValidationError as error:
        raise _refusal(path, error.errors(include_input=False, include_url=False)[0], content) from None
    names: dict[str, str] = {}
    for name, table in tables.items():
        digest = table.sha256.lower()
        if digest in names:
            raise BadSetting(f"{path}: {name}.sha256", f"must differ from that of {names[digest]}")
        names[digest] = name
    return tables


TABLES = TypeAdapter(dict[Annotated[str, Field(pattern=f"^{NAME}$")], KeyTable])


def _refusal(path: Path, error: ErrorDetails, content: Mapping[str, Any]) -> BadSetting:
    name, *field = map(str, error["loc"][:2])
    if field == ["[key]"]:
        number = list(content).index(name) + 1
        return BadSetting(f"{path}: table {number}", "has a name that is not 1 to 32 letters, digits, - and _")
    where = ".".join((f"{path}: {name}", *field))
    match error["type"]:
        case "missing":
            return BadSetting(where, "is missing")
        case "extra_forbidden":  # perhaps a key, in the place of its field
            return BadSetting(f"{path}: {name}", f"has a field that is not one of {', '.join(KeyTable.model_fields)}")
        case "string_pattern_mismatch":
            return BadSetting(where, "must be 64 hexadecimal digits, the SHA-256 of the key")
        case "model_type":
            return BadSetting(where, "must be a table")
    return BadSetting(where, re.sub(r"^\w+ should", "must", error["msg"]).partition(" after validation")[0])
