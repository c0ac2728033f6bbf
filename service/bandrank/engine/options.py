"""How a request wants its texts read and scored."""

import math
from dataclasses import dataclass

from bandrank.models.texts import WHOLE, Reach


@dataclass(frozen=True, slots=True)
class Options:
    """What holds for all texts of a request, in every stage that scores them.

    reach: how far candidates are read.  instruction: beside the query, for scorers that take one.  keep: False for
    texts that nobody will ask for again: no cache is asked for them or gets them, and no average counts them.
    best_passages: whether the best passage of each candidate is asked for, where its scorer reads passages.
    answer_by: monotonic seconds, at which the leading texts that are scored by then are enough.
    query_tokens: the word pieces that the query should have at most. It is not cut to them; the report says if it has
    more.
    priority: among the requests of the client, as in Ticket.
    """

    reach: Reach = WHOLE
    instruction: str = ""
    keep: bool = True
    best_passages: bool = False
    answer_by: float = math.inf
    priority: int = 0
    query_tokens: int | None = None


DEFAULT = Options()
