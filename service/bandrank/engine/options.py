"""How a request wants its texts read and scored."""

import math
from dataclasses import dataclass

from bandrank.models.texts import WHOLE, Reach


@dataclass(frozen=True, slots=True)
class Options:
    """What a request asks for all its texts, in every stage that scores them.

    reach: how far candidates are read.  instruction: read beside the query by scorers that take one.  keep: False for
    texts that nobody will ask for again: they bypass the caches and count in no average.
    best_passages: whether to find the best passage of each candidate, if its scorer reads passages.
    pooled: whether shared words also count by how rare they are among the candidates that are scored together.
    answer_by: the time, in monotonic seconds, from which the leading texts scored so far are enough.
    query_tokens: the most word pieces that the query should have. It is not cut to them; the report says if it has
    more.
    priority: among the requests of the client, as in Ticket.
    """

    reach: Reach = WHOLE
    instruction: str = ""
    keep: bool = True
    best_passages: bool = False
    pooled: bool = False
    answer_by: float = math.inf
    priority: int = 0
    query_tokens: int | None = None


DEFAULT = Options()
