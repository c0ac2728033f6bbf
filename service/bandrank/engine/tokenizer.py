"""Turns texts into token ids in a pool of threads: applies templates and counts truncation."""

from __future__ import annotations  # array[int] cannot be evaluated before Python 3.12

import asyncio
from array import array
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from bandrank.engine.cache.keys import digest
from bandrank.engine.cache.lru import LruCache
from bandrank.metrics import Metrics
from bandrank.models.texts import TextEncoder

# What an entry takes beside its ids: digest, array object, dictionary entry and links, measured with tracemalloc on
# CPython 3.11.
ENTRY_BYTES = 350


@dataclass(frozen=True)
class TokenizedRequest:
    """Token ids of a query and its candidates, and the number of word pieces cut from each."""

    query: list[int]
    candidates: list[list[int]]
    truncated_query_tokens: int
    truncated_candidate_tokens: list[int]


class RequestTokenizer:
    """Applies a scorer's templates to texts, in parallel threads, since the tokenizer releases the interpreter lock."""

    def __init__(self, encoder: TextEncoder, *, cache_bytes: int, num_threads: int, metrics: Metrics) -> None:
        self._encoder = encoder
        self._cache = LruCache(cache_bytes, _entry_bytes)  # texts repeat, and beside a GPU tokenising is slow
        self._metrics = metrics
        self._characters, self._tokens = 4.0, 1.0  # the ratio of English, until texts have been tokenised
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix="tokenize")

    @property
    def tokens_per_character(self) -> float:
        """The average number of token ids per character of recent texts."""
        return self._tokens / self._characters

    async def tokenize(self, query: str, candidates: Sequence[str]) -> TokenizedRequest:
        """Tokenises a request in the pool."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, self.tokenize_now, query, candidates)

    def tokenize_now(self, query: str, candidates: Sequence[str]) -> TokenizedRequest:
        """Tokenises a request in the calling thread."""
        query_ids, query_cut = self._encoder.query(query)
        applied = self._encoder.candidates(self._pieces(candidates), query_tokens=len(query_ids))
        return TokenizedRequest(
            query=query_ids,
            candidates=[ids for ids, _ in applied],
            truncated_query_tokens=query_cut,
            truncated_candidate_tokens=[cut for _, cut in applied],
        )

    def close(self) -> None:
        """Ends the pool's threads."""
        self._pool.shutdown()

    def _pieces(self, texts: Sequence[str]) -> list[array[int]]:
        keys = [digest(text) for text in texts]
        cached = self._cache.get_many(keys)
        missing = {key: text for key, text, ids in zip(keys, texts, cached, strict=True) if ids is None}
        encoded = dict(zip(missing, self._encoder.pieces(list(missing.values())), strict=True))
        self._cache.put_many(encoded)
        if missing:
            self._characters = 0.9 * self._characters + sum(map(len, missing.values()))
            self._tokens = 0.9 * self._tokens + sum(map(len, encoded.values()))
        hits = sum(ids is not None for ids in cached)
        self._metrics.token_cache_lookups.labels("hit").inc(hits)
        self._metrics.token_cache_lookups.labels("miss").inc(len(texts) - hits)
        self._metrics.token_cache_bytes.set(self._cache.num_bytes)
        return [encoded[key] if ids is None else ids for key, ids in zip(keys, cached, strict=True)]


def _entry_bytes(_: bytes, ids: array[int]) -> int:
    return ENTRY_BYTES + ids.itemsize * len(ids)
