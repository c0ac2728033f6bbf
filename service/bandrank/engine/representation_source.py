"""The source of candidates that are encoded before the query is known: their representations, cached or computed."""

import asyncio
from collections.abc import Callable, Sequence
from itertools import chain, islice

from bandrank.engine.cache.keys import cut_digest, digest
from bandrank.engine.cache.representations import RepresentationCache, Rescue
from bandrank.engine.clients import Client
from bandrank.engine.lanes import EncodeLane
from bandrank.engine.options import DEFAULT, Options
from bandrank.engine.reports import Recorder
from bandrank.engine.sources import Sourced
from bandrank.engine.submit import count_fitting, submit, timeout
from bandrank.engine.task_queue import STOPPING, TaskQueue
from bandrank.engine.tasks import Payload, Task
from bandrank.engine.tickets import Ticket
from bandrank.engine.tokenizer import RequestTokenizer
from bandrank.errors import NotReady, StoreFull
from bandrank.models.ids import NO_IDS, Ids, RaggedIds
from bandrank.models.ragged import Ragged
from bandrank.models.texts import WHOLE, Reach
from bandrank_kernels.grouping import runs_within

DECAY = 0.9  # the factor of older candidates at each request; about ten requests count
# How much is encoded ahead at a time: what is expected to take PART_OF_TIME of a request's time, and at most
# ROWS_AT_ONCE, which fill a GPU's batch twice.
PART_OF_TIME, ROWS_AT_ONCE = 0.25, 1 << 16
HASHED_AT_ONCE = 1 << 20  # characters, before the event loop gets a turn


class RepresentationSource:
    """Candidates as payloads of representations, from the cache or encoded, each text once."""

    def __init__(
        self,
        tokenizer: RequestTokenizer,
        queue: TaskQueue,
        *,
        cache: RepresentationCache,
        lane: EncodeLane,
        query_lane: EncodeLane | None = None,
    ) -> None:
        """query_lane: encodes queries; None if they have no encoder of their own."""
        self._tokenizer = tokenizer
        self._queue = queue
        self.cache = cache
        self._codec = cache.codec
        self._looked_up, self._missed = 1.0, 1.0
        self.encode_lane = lane
        self.query_lane = query_lane or lane

    @property
    def miss_rate(self) -> float:
        """The part of recent candidates that the cache lacked."""
        return self._missed / self._looked_up

    def to_ragged(self, parts: Sequence[list[Payload]]) -> Ragged:
        return self._codec.decode([*chain.from_iterable(parts)])

    async def fetch(
        self,
        query: str,
        texts: Sequence[str],
        *,
        ticket: Ticket,
        recorder: Recorder,
        options: Options = DEFAULT,
    ) -> Sourced[list[Payload]]:
        read = self._tokenizer.readable(texts)
        async with timeout(ticket.deadline - self._queue.clock()):
            with recorder.span("tokenize"):
                tokens = await self._tokenizer.tokenize(query, [], client=ticket.client, options=options)
                keys = await self._keys(read, options.reach, ticket) if options.keep else []
            if options.keep:
                payloads, misses = await self._payloads(keys, read, options, ticket, recorder)
            else:
                with recorder.span("encode"):
                    payloads, misses = await self._encode(read, options.reach, ticket), len(read)
        unread = self._tokenizer.unread_tokens(texts[: len(payloads)])
        return self._sourced(tokens.query, tokens.truncated_query_tokens, payloads, unread, misses)

    async def represent(self, texts: Sequence[str], *, ticket: Ticket) -> Sourced[list[Payload]]:
        """The representations of texts, which may repeat, without a query; those that the cache lacks are encoded.

        Raises what `fetch` raises.
        """
        self._queue.check_open()
        read = self._tokenizer.readable(texts)
        async with timeout(ticket.deadline - self._queue.clock()):
            keys = await self._keys(read, WHOLE, ticket)
            payloads, misses = await self._payloads(keys, read, DEFAULT, ticket, Recorder(self._queue.clock))
        return self._sourced(NO_IDS, 0, payloads, self._tokenizer.unread_tokens(texts), misses)

    async def encode_ahead(
        self,
        texts: Sequence[str],
        *,
        client: Client,
        timeout_s: float,
        stopping: Callable[[], bool] = lambda: False,
        on_encoded: Callable[[int], None] = lambda _: None,
    ) -> int:
        """Puts the representations of texts into the cache, part by part; returns how many it lacked.

        timeout_s: for each part, which is sized to take a fraction of it; a part is a single text until the scorer's
        speed is known. What was encoded before an error is kept, so that the next call gets further.
        stopping: asked before each part whether to stop.  on_encoded: called with the number of texts after each part.
        Raises NotReady if it is stopped, and what `fetch` raises.
        """
        self._queue.check_open()
        read = {digest(text): text for text in self._tokenizer.readable(texts)}
        cached = await self.cache.lookup(list(read))
        missing = [key for key, payload in zip(read, cached, strict=True) if payload is None]

        async def encode(unclaimed: Sequence[bytes], rescue: Rescue) -> list[Payload]:
            ticket = Ticket(client, self._queue.clock() + timeout_s)
            async with timeout(timeout_s):
                return await self._encode([read[key] for key in unclaimed], WHOLE, ticket, rescue)

        start = 0
        while start < len(missing):
            if stopping():
                raise NotReady(STOPPING)
            num_texts = self._num_together([read[key] for key in missing[start:]], PART_OF_TIME * timeout_s)
            part = missing[start : start + num_texts]
            await self.cache.compute_missing(part, encode, client, wait_for_room=True)
            start += num_texts
            on_encoded(len(part))
        return len(missing)

    async def represent_queries(self, queries: Sequence[str], *, ticket: Ticket) -> Sourced[list[Payload]]:
        """The representations of queries without candidates, in their own wording and by their own encoder; no cache is
        asked for them.

        Raises what `fetch` raises.
        """
        self._queue.check_open()
        async with timeout(ticket.deadline - self._queue.clock()):
            read, cut = await self._tokenizer.queries(queries, client=ticket.client)
            payloads = await self._encode_ids(read, cut, ticket, lane=self.query_lane)
        return self._sourced(NO_IDS, 0, payloads, [0] * len(payloads), len(payloads))

    async def stored(self) -> None:
        """Returns when every computed representation is in Redis.

        Raises StoreFull if Redis is full, and NotReady if it lacks some for another reason.
        """
        if await self.cache.drained():
            return
        if self.cache.redis_is_full:
            raise StoreFull(
                "Redis is full, and did not store all representations: delete some candidates, or give it more memory"
            )
        raise NotReady("Redis did not store all representations; send the candidates again")

    async def close(self) -> None:
        await self.cache.close()

    def _sourced(
        self, query: Ids, truncated_query_tokens: int, payloads: list[Payload], unread: Sequence[int], misses: int
    ) -> Sourced[list[Payload]]:
        """unread: the number of each text's tokens beyond what was read of it, which its payload does not count."""
        counts = self._codec.counts(payloads)
        return Sourced(
            query=query,
            candidates=payloads,
            lengths=self._codec.lengths(payloads),
            num_tokens=[num_tokens for num_tokens, _ in counts],
            truncated_tokens=[cut + beyond for (_, cut), beyond in zip(counts, unread, strict=True)],
            truncated_query_tokens=truncated_query_tokens,
            cache_hits=len(payloads) - misses,
            cache_misses=misses,
        )

    async def _keys(self, texts: Sequence[str], reach: Reach, ticket: Ticket) -> list[bytes]:
        """The cache keys of texts that are already limited to the characters that are read.

        A text that the reach cuts has a key for each length that is read. A text that is not cut has the key of the
        whole text, and so shares its representation with requests that read all of it.
        """
        limit = self._tokenizer.candidate_limit(0, reach)
        lengths = [0] * len(texts)
        if limit < self._tokenizer.candidate_limit(0):
            tokens = await self._tokenizer.tokenize("", texts, client=ticket.client)
            lengths = tokens.candidates.lengths.tolist()
        keys: list[bytes] = []
        for part in runs_within([*map(len, texts)], HASHED_AT_ONCE):
            pairs = zip(texts[part], lengths[part], strict=True)
            keys += [digest(text) if length <= limit else cut_digest(text, limit) for text, length in pairs]
            if part.stop < len(texts):
                await asyncio.sleep(0)
        return keys

    async def _payloads(
        self, keys: Sequence[bytes], texts: Sequence[str], options: Options, ticket: Ticket, recorder: Recorder
    ) -> tuple[list[Payload], int]:
        """The representation of each leading text that is cached or can be encoded in time, and how many the cache
        lacked.
        """
        with recorder.span("cache"):
            cached = await self.cache.lookup(keys)
        self._looked_up = DECAY * self._looked_up + len(keys)
        self._missed = DECAY * self._missed + cached.count(None)
        missing = {key: text for key, text, payload in zip(keys, texts, cached, strict=True) if payload is None}
        rows = self._tokenizer.estimate_tokens([*missing.values()], self._tokenizer.candidate_limit(0, options.reach))
        num_fitting = count_fitting(self._queue, self.encode_lane, rows, ticket, options.answer_by)
        if num_fitting < len(missing):
            keys = keys[: keys.index([*missing][num_fitting])]
            cached, missing = cached[: len(keys)], dict(islice(missing.items(), num_fitting))

        async def encode(unclaimed: Sequence[bytes], rescue: Rescue) -> list[Payload]:
            return await self._encode([missing[key] for key in unclaimed], options.reach, ticket, rescue)

        with recorder.span("encode"):
            computed = await self.cache.compute_missing(list(missing), encode, ticket.client) if missing else {}
        payloads = [computed[key] if payload is None else payload for key, payload in zip(keys, cached, strict=True)]
        return payloads, cached.count(None)

    def _num_together(self, texts: Sequence[str], seconds: float) -> int:
        """How many leading texts can be encoded in about `seconds`: at least one, and only one if no speed is known."""
        rows = self._tokenizer.estimate_tokens(texts, self._tokenizer.candidate_limit(0))
        whole_s = self._queue.throughput.seconds(self.encode_lane.name, sum(rows))
        most_rows = min(ROWS_AT_ONCE, self._queue.max_waiting_rows / 4)  # rows are estimated, and others have some
        max_rows = min(int(sum(rows) * seconds / whole_s), int(most_rows)) if whole_s else 0
        return len(rows[next(runs_within(rows, max_rows))])

    async def _encode(
        self, texts: Sequence[str], reach: Reach, ticket: Ticket, rescue: Rescue | None = None
    ) -> list[Payload]:
        """Encodes texts.  rescue: gets the leading payloads if the others are given up; if None, not even tokens are
        kept.
        """
        options = Options(reach, keep=rescue is not None)
        most = self._queue.max_waiting_rows  # which the queue would refuse
        tokens = await self._tokenizer.tokenize("", texts, client=ticket.client, options=options, most=most)
        return await self._encode_ids(tokens.candidates, tokens.truncated_candidate_tokens, ticket, rescue)

    async def _encode_ids(
        self,
        texts: RaggedIds,
        truncated: Sequence[int],
        ticket: Ticket,
        rescue: Rescue | None = None,
        *,
        lane: EncodeLane | None = None,
    ) -> list[Payload]:
        lengths: list[int] = texts.lengths.tolist()
        task = Task(lane or self.encode_lane, NO_IDS, texts, lengths, self._queue.clock(), ticket)
        try:
            payloads = await submit(self._queue, task)
        except BaseException:
            if rescue is not None and (done := list(task.done_so_far)):
                rescue(self._codec.with_counts(done, lengths[: len(done)], truncated[: len(done)]))
            raise
        return self._codec.with_counts(payloads, lengths, truncated)
