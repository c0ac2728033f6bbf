"""Sources of the candidates that a scorer reads, and that of token ids; representation_source.py has the other one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol

from bandrank.engine.lanes import EncodeLane
from bandrank.engine.options import DEFAULT, Options
from bandrank.engine.reports import Recorder
from bandrank.engine.submit import timeout
from bandrank.engine.task_queue import TaskQueue
from bandrank.engine.tasks import Candidates
from bandrank.engine.tickets import Ticket
from bandrank.engine.tokenizer import RequestTokenizer
from bandrank.models.ids import Ids, RaggedIds
from bandrank.models.ragged import Ragged


@dataclass(frozen=True)
class Sourced(Generic[Candidates]):
    """A query and its candidates in the form that a scorer's lane takes, and what it cost to get them.

    lengths: the number of rows of each candidate's representation.  num_tokens, truncated_tokens: for each candidate,
    the number of its token ids and of the word pieces cut from it.  cache_hits, cache_misses: candidates looked up.
    """

    query: Ids
    candidates: Candidates
    lengths: Sequence[int]
    num_tokens: Sequence[int]
    truncated_tokens: Sequence[int]
    truncated_query_tokens: int
    cache_hits: int = 0
    cache_misses: int = 0


class CandidateSource(Protocol[Candidates]):
    """Turns the texts of a request into a scorer's input."""

    @property
    def encode_lane(self) -> EncodeLane | None:
        """The lane that encodes candidates; None if the scorer does not precompute."""

    @property
    def miss_rate(self) -> float:
        """The part of candidates that are expected to need encoding."""

    def to_ragged(self, parts: Sequence[Candidates]) -> Ragged:
        """Joins parts into the candidates of a batch."""

    async def fetch(
        self,
        query: str,
        texts: Sequence[str],
        *,
        ticket: Ticket,
        recorder: Recorder,
        options: Options = DEFAULT,
    ) -> Sourced[Candidates]:
        """The scorer's input for distinct texts, or for as many leading ones as can be encoded by `options.answer_by`.

        ticket: the request's.  recorder: gets the spans of the steps.
        Raises Overloaded, InputTooLarge, DeadlineExceeded, ScoringFailed and NotReady.
        """

    async def close(self) -> None:
        """Returns when what was computed is stored."""


class TokenIdSource:
    """Candidates as token ids, for a scorer that can compute nothing before the query is known."""

    encode_lane = None
    miss_rate = 0.0

    def __init__(self, tokenizer: RequestTokenizer, queue: TaskQueue) -> None:
        self._tokenizer = tokenizer
        self._queue = queue

    def to_ragged(self, parts: Sequence[RaggedIds]) -> Ragged:
        return Ragged.from_ids(parts)

    async def fetch(
        self,
        query: str,
        texts: Sequence[str],
        *,
        ticket: Ticket,
        recorder: Recorder,
        options: Options = DEFAULT,
    ) -> Sourced[RaggedIds]:
        async with timeout(ticket.deadline - self._queue.clock()):
            with recorder.span("tokenize"):
                tokens = await self._tokenizer.tokenize(query, texts, client=ticket.client, options=options)
        lengths: list[int] = tokens.candidates.lengths.tolist()
        return Sourced(
            query=tokens.query,
            candidates=tokens.candidates,
            lengths=lengths,
            num_tokens=lengths,
            truncated_tokens=tokens.truncated_candidate_tokens,
            truncated_query_tokens=tokens.truncated_query_tokens,
        )

    async def close(self) -> None:
        """Stores nothing, because nothing is computed ahead."""
