"""Turns texts into token ids in a pool of threads: applies templates and counts truncation."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

from bandrank.engine.cache.keys import digest
from bandrank.engine.cache.lru import LruCache
from bandrank.engine.clients import Client
from bandrank.engine.fair_pool import FairPool
from bandrank.engine.options import DEFAULT, Options
from bandrank.engine.task_queue import ADVICE, SURE
from bandrank.errors import InputTooLarge
from bandrank.metrics import Metrics
from bandrank.models.ids import ID_BYTES, Ids, PackedIds, RaggedIds
from bandrank.models.places import Span, places
from bandrank.models.readings import Reading, read_pair
from bandrank.models.texts import WHOLE, Reach, TextEncoder
from bandrank_kernels.grouping import runs_within

# What an entry takes besides its ids: two objects, the dictionary's entry and links (198 just after the dictionary has
# grown, the most that tracemalloc showed on CPython 3.11), and the rounding of the objects' sizes.
ENTRY_BYTES = 220

# Texts are tokenised in slices of this many characters, which take 0.1 s if they are slow (Chinese); a longer text is a
# slice of its own.
SLICE_CHARACTERS = 128 << 10


@dataclass(frozen=True)
class TextLimits:
    """The most characters to read of a query and of a candidate, and to have waiting for the tokenizer in all.

    The default of `candidate` is 16 characters for each of the 16,384 tokens of the longest candidate that a shipped
    scorer reads.
    """

    query: int = 64 << 10
    candidate: int = 256 << 10
    in_flight: int = 64 << 20


@dataclass(frozen=True)
class TokenizedRequest:
    """Token ids of a query and its candidates, and the number of word pieces cut from each."""

    query: Ids
    candidates: RaggedIds
    truncated_query_tokens: int
    truncated_candidate_tokens: list[int]


class RequestTokenizer:
    """Applies a scorer's templates to texts, in parallel threads, since the tokenizer releases the interpreter lock."""

    def __init__(
        self,
        encoder: TextEncoder,
        *,
        cache_bytes: int,
        num_threads: int,
        metrics: Metrics,
        limits: TextLimits = TextLimits(),  # it is frozen
        others: Sequence["RequestTokenizer"] = (),
    ) -> None:
        """others: those of other scorers; what one of them keeps of recent texts is shared if it reads texts alike."""
        self._encoder = encoder
        self._reading = digest(repr(encoder.reading))
        alike = [other._cache for other in others if other._reading == self._reading]
        # Texts repeat, within a cascade too, and compared to a GPU tokenising is slow.
        self._cache: LruCache[PackedIds] = alike[0] if alike else LruCache(cache_bytes, _entry_bytes)
        self._metrics = metrics
        self._limits = limits
        self._characters, self._tokens = 4.0, 1.0  # the ratio of English, until texts have been tokenised
        self._pool = FairPool(num_threads, max_size=limits.in_flight, name="tokenize")

    @property
    def takes_instructions(self) -> bool:
        """Whether the scorer reads an instruction beside the query."""
        return self._encoder.takes_instructions

    def facts(self) -> dict[str, str]:
        """What the scorer is and reads, by name."""
        encoder = self._encoder
        return encoder.scorer.facts(encoder.of_queries.text_of, encoder.text_of)

    async def tokenize(
        self,
        query: str,
        candidates: Sequence[str],
        *,
        client: Client,
        options: Options = DEFAULT,
        most: float = math.inf,
    ) -> TokenizedRequest:
        """Tokenises a request in the pool, slice by slice, so that small requests pass it.

        Cancelling the call stops it after the slice under way.  most: token ids of candidates. Raises InputTooLarge as
        soon as it is sure that they have more, and what `FairPool.admit` raises.
        """
        query_size = min(len(query), self._limits.query) + len(options.instruction)
        sizes = [min(len(text), self._limits.candidate) for text in candidates]
        with self._pool.admit(client, query_size + sum(sizes)) as turn:
            first, *rest = [*runs_within(sizes, SLICE_CHARACTERS)] or [slice(0)]
            work = partial(self.tokenize_now, query, candidates[first], options)
            request = await self._pool.run(client, turn, query_size + sum(sizes[first]), work)
            applied = [(request.candidates, request.truncated_candidate_tokens)]
            limit = self.candidate_limit(len(request.query), options.reach)
            for part in rest:
                read = sum(len(ids.values) for ids, _ in applied)
                if most < math.inf and read + SURE * sum(self.estimate_tokens(candidates[part.start :], limit)) > most:
                    raise InputTooLarge(f"scoring this request would take more than {most:.0f} rows: {ADVICE}")
                apply = partial(self._apply, candidates[part], len(request.query), options)
                applied.append(await self._pool.run(client, turn, sum(sizes[part]), apply))
            return replace(
                request,
                candidates=RaggedIds.joined([ids for ids, _ in applied]),
                truncated_candidate_tokens=[*chain.from_iterable(cut for _, cut in applied)],
            )

    async def queries(self, queries: Sequence[str], *, client: Client) -> tuple[RaggedIds, list[int]]:
        """The token ids of queries without candidates, and the number of word pieces cut from each.

        They are found in the pool, slice by slice. Raises what `FairPool.admit` raises.
        """
        sizes = [min(len(query), self._limits.query) for query in queries]
        read: list[tuple[Ids, int]] = []
        with self._pool.admit(client, sum(sizes)) as turn:
            for part in runs_within(sizes, SLICE_CHARACTERS):
                read += await self._pool.run(client, turn, sum(sizes[part]), partial(self._queries, queries[part]))
        return RaggedIds.of([ids for ids, _ in read]), [cut for _, cut in read]

    async def places(self, candidates: Sequence[str], tokens: Sequence[Span], *, client: Client) -> list[Span]:
        """The characters, in code points, of a span of each candidate's token ids, as from `models.places.places`.

        They are found in the pool, slice by slice. Raises what `FairPool.admit` raises.
        """
        read = self.readable(candidates)
        sizes = [len(text) for text in read]
        found: list[Span] = []
        with self._pool.admit(client, sum(sizes)) as turn:
            for part in runs_within(sizes, SLICE_CHARACTERS):
                work = partial(places, self._encoder, read[part], tokens[part])
                found += await self._pool.run(client, turn, sum(sizes[part]), work)
        return found

    async def read(
        self, query: str, candidate: str, *, client: Client, instruction: str = ""
    ) -> tuple[Reading, Reading]:
        """The tokens of a query and a candidate with their places in the texts. Raises what `FairPool.admit` raises."""
        query, candidate = query[: self._limits.query], candidate[: self._limits.candidate]
        size = len(query) + len(instruction) + len(candidate)
        work = partial(read_pair, self._encoder, query, candidate, instruction=instruction)
        with self._pool.admit(client, size) as turn:
            return await self._pool.run(client, turn, size, work)

    async def num_query_pieces(self, query: str, *, client: Client) -> int:
        """The number of word pieces of a query, without the words around it. Raises what `FairPool.admit` raises.

        They are counted in the pool; beyond the limit of characters they are estimated, as in `unread_tokens`.
        """
        limit = self._limits.query
        read = query[:limit]
        with self._pool.admit(client, len(read)) as turn:
            count = await self._pool.run(client, turn, len(read), partial(self._encoder.num_query_pieces, read))
        return count + self._estimate_cut(len(query) - limit)

    def tokenize_now(self, query: str, candidates: Sequence[str], options: Options = DEFAULT) -> TokenizedRequest:
        """Tokenises a request in the calling thread.

        Texts beyond the limits are cut first, and the tokens lost are estimated, as in `unread_tokens`.
        """
        [(query_ids, query_cut)] = self._queries([query], options.instruction)
        ids, cut = self._apply(candidates, len(query_ids), options)
        return TokenizedRequest(query_ids, ids, query_cut, cut)

    def readable(self, candidates: Sequence[str]) -> list[str]:
        """The part of each candidate that is read: its first characters, up to the limit."""
        return [text[: self._limits.candidate] for text in candidates]

    def estimate_tokens(self, texts: Sequence[str], most: int) -> list[int]:
        """Estimates each text's token ids, at most `most`, from its length and the recent tokens per character."""
        per_character = self._tokens_per_character
        return [min(int(len(text) * per_character) + 1, most) for text in texts]

    def unread_tokens(self, candidates: Sequence[str]) -> list[int]:
        """Estimates the tokens of each text beyond the limit of characters, from the recent tokens per character."""
        return [self._estimate_cut(len(text) - self._limits.candidate) for text in candidates]

    def candidate_limit(self, query_tokens: int, reach: Reach = WHOLE) -> int:
        """The most token ids of a candidate beside a query of `query_tokens`."""
        return self._encoder.candidate_limit(query_tokens, reach)

    def close(self) -> None:
        """Ends the pool's threads."""
        self._pool.close()

    def _queries(self, queries: Sequence[str], instruction: str = "") -> list[tuple[Ids, int]]:
        """The token ids of each query, and the number of its word pieces that were cut."""
        limit = self._limits.query
        read = [self._encoder.query(query[:limit], instruction) for query in queries]
        unread = [self._estimate_cut(len(query) - limit) for query in queries]
        return [(ids, cut + beyond) for (ids, cut), beyond in zip(read, unread, strict=True)]

    def _apply(self, texts: Sequence[str], query_tokens: int, options: Options) -> tuple[RaggedIds, list[int]]:
        """The token ids of candidates, and the number of word pieces cut from each."""
        read = self.readable(texts)
        pieces = self._pieces(read) if options.keep else self._encoder.pieces(read)
        ids, cut = self._encoder.candidates(pieces, query_tokens=query_tokens, reach=options.reach)
        return ids, [lost + unread for lost, unread in zip(cut, self.unread_tokens(texts), strict=True)]

    @property
    def _tokens_per_character(self) -> float:
        return self._tokens / self._characters

    def _estimate_cut(self, characters: int) -> int:
        return max(1, math.ceil(characters * self._tokens_per_character)) if characters > 0 else 0

    def _pieces(self, texts: Sequence[str]) -> list[PackedIds]:
        keys = [digest(text) for text in texts]
        cached = self._cache.get_many(keys)
        missing = {key: text for key, text, ids in zip(keys, texts, cached, strict=True) if ids is None}
        encoded = dict(zip(missing, self._encoder.pieces(list(missing.values())), strict=True))
        self._metrics.token_cache_bytes.inc(self._cache.put_many(encoded))  # the caches of all scorers share the gauge
        hits = sum(ids is not None for ids in cached)
        self._metrics.token_cache_lookups.labels("hit").inc(hits)
        self._metrics.token_cache_lookups.labels("miss").inc(len(texts) - hits)
        pieces = [encoded[key] if ids is None else ids for key, ids in zip(keys, cached, strict=True)]
        if pieces:
            self._characters = 0.9 * self._characters + sum(map(len, texts))
            self._tokens = 0.9 * self._tokens + sum(map(len, pieces)) / ID_BYTES
        return pieces


def _entry_bytes(_: bytes, ids: PackedIds) -> int:
    return ENTRY_BYTES + len(ids)
