"""The loop of a script that asks through a client library: it reads a question a line, and writes an outcome a line.

The Python of an environment that has the library runs it, so it imports nothing but the standard library.
"""

import json
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

LOOPBACK = {"127.0.0.1", "localhost", None}


@dataclass(frozen=True)
class Question:
    """What to ask of the service at `url`, with a key. top_n: None for all of the documents."""

    url: str
    key: str
    model: str
    query: str
    documents: list[str]
    top_n: int | None

    def options(self, path: str = "") -> dict[str, Any]:
        """The options of most clients. path: what the base URL ends with."""
        return {"api_key": self.key, "base_url": self.url + path}

    def arguments(self, **more: object) -> dict[str, Any]:
        """The arguments by the names that most libraries give them, and more; `top_n` only if it is wanted."""
        optional = {} if self.top_n is None else {"top_n": self.top_n}
        return {"model": self.model, "query": self.query, "documents": self.documents} | optional | more


@dataclass(frozen=True)
class Ranked:
    """A result as the library shows it. text: None unless the service sent it."""

    index: int
    score: float
    text: str | None = None


def ranked(response: Any) -> list[Ranked]:
    """The results in an answer that has no texts."""
    return [Ranked(result.index, result.relevance_score) for result in response.results]


Way = Callable[[Question], list[Ranked]]


def answer_questions(ways: Mapping[str, Way]) -> None:
    """Answers each line of standard input in the way that it names, until there are no more lines."""
    outcomes = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print goes to standard error, a log
    strays = stay_here()
    warnings.simplefilter("ignore")
    for line in sys.stdin:
        question = json.loads(line)
        way = ways[question.pop("way")]
        print(json.dumps({**ask(way, Question(**question)), "strays": strays}), file=outcomes, flush=True)
        strays.clear()


def ask(way: Way, question: Question) -> dict[str, Any]:
    """The results, or the exception that was raised, with the names of its classes."""
    try:
        return {"results": [asdict(result) for result in way(question)], "failure": None}
    except Exception as error:  # noqa: BLE001 - the test says which one it must be
        kinds = [f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__]
        return {"results": [], "failure": {"kinds": kinds, "message": str(error)}}


def stay_here() -> list[str]:
    """Refuses every name and address of another machine from now on; the list that it returns collects them."""
    strays: list[str] = []

    def refuse(event: str, arguments: tuple[Any, ...]) -> None:
        match event, arguments:
            case "socket.getaddrinfo", (host, *_):
                pass
            case "socket.connect", (_, (host, *_)):
                pass
            case _:
                return
        name = host.decode(errors="replace") if isinstance(host, bytes) else host
        if name not in LOOPBACK:
            strays.append(str(name))
            raise OSError(f"{name} is another machine")

    sys.addaudithook(refuse)
    return strays
