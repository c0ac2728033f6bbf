"""Buckets for one query with stored candidates of k rows each, for scorers that encode the two before they meet.

A bucket takes queries of up to 16, 32, 64 .. tokens and up to 32, 64, 128 .. candidates. Rows that a query leaves
unused are a text of tokens 0, whose states are finite and weigh nothing. Unused representations are undefined, which
does no harm: each candidate is computed from its own rows alone.

In lines marked with @, tests plant mistakes (tests/emulation/README.md).
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import takewhile

import numpy as np
import torch
from torch import Tensor

from bandrank.models.batch import ScoreBatch
from bandrank.models.buckets import Fitted
from bandrank.models.encoders.protocol import Encoder
from bandrank.models.layers.lexical import Lexical
from bandrank.models.ragged import Ragged
from bandrank.models.words import Words
from bandrank_kernels import transfer
from bandrank_kernels.arrays import Ints, offsets
from bandrank_kernels.branches import Branch
from bandrank_kernels.windowed_attention import AttentionPattern, AttentionPlan, Capacity, PackedRows, power_of_two

MIN_TOKENS, MIN_CANDIDATES = 16, 32
USUAL_TOKENS = (32, 16)  # the largest queries of usual buckets
MAX_TOKENS = 512
MOST_LAYOUTS = 256  # kept of queries' lengths and buckets, each of some kilobytes
# Rows of candidates. An H200 took 0.46 ms for 1,000 rows of a model of mix-b's size, and its host 11 ms to launch them
# (2026-11-27).
MAX_ROWS = 4096


@dataclass(frozen=True)
class CachedInputs:
    """The inputs of a bucket on the device.

    numbers: (2, query_len) int64, ids and positions.  shares: (1, query_len) float32 weights of the rows in the mean of
    the query's rows.
    bias: (query_len + k,) as in `QueryView`.  words: the arguments of `Lexical.weigh_words`, for a scorer with lexical
    evidence; `query_len` pieces are asked for.
    representations: (k * n, hidden_size).  plan: the plan of the query's attention.  branches: for the query, and for
    candidates' summaries of it.
    """

    numbers: Tensor
    shares: Tensor
    bias: Tensor
    words: Sequence[Tensor]
    representations: Tensor
    plan: AttentionPlan
    branches: tuple[Branch, Branch]


@dataclass(frozen=True, eq=False)
class _Layout:
    """What all batches of a bucket with queries of a length have in common. positions: (query_len,) int64, 0 for each
    unused row.  tables: `shares`, `bias` and `plan` of `CachedInputs`.  rooms: shapes of words and
    representations.  compute, bucket: as in `Fitted`.
    """

    positions: Ints
    tables: Sequence[Tensor]
    rooms: Sequence[Tensor]
    compute: Callable[[Sequence[Tensor]], Tensor]
    bucket: Hashable

    def numbers(self, ids: Ints) -> Tensor:
        """The `numbers` of `CachedInputs`. ids: those of the query."""
        numbers = np.zeros((2, len(self.positions)), np.int64)
        numbers[0, : len(ids)], numbers[1] = ids, self.positions
        return torch.from_numpy(numbers)


class CachedBuckets:
    """Implements `Buckets`, for batches of one query."""

    def __init__(
        self,
        compute: Callable[[CachedInputs], Tensor],
        encoder: Encoder,
        num_embeddings: int,
        lexical: Lexical | None,
        *,
        max_rows: int = MAX_ROWS,
    ) -> None:
        """compute: computes a bucket's (n,) scores on the device.  encoder: encodes queries.  num_embeddings: k.
        lexical: the lexical evidence in the score.  max_rows: candidate rows of the largest bucket.
        """
        self._compute, self._encoder, self._lexical = compute, encoder, lexical
        self._num_embeddings, self._max_rows = num_embeddings, max_rows
        self._num_words = lexical.config.most_words if lexical is not None else 0
        self._branches = Branch(encoder.device), Branch(encoder.device)
        self._layout = lru_cache(MOST_LAYOUTS)(self._lay_out)

    @property
    def num_bytes(self) -> int:
        """Room for representations in float32, words, and less than a hundred bytes for each token of a query."""
        of_words = Words.num_bytes(self._num_words)
        return self._max_rows * (4 * self._encoder.config.hidden_size + of_words) + 100 * MAX_TOKENS

    def fit(self, batch: ScoreBatch) -> Fitted | None:
        values, ids = batch.candidates.values, batch.queries.values.numpy()
        count = power_of_two(len(batch.candidates), MIN_CANDIDATES)
        tokens = power_of_two(len(ids), MIN_TOKENS)
        if len(ids) == 0 or tokens > MAX_TOKENS or count * self._num_embeddings > self._max_rows:
            return None
        layout = self._layout(len(ids), tokens, count, values.dtype, values.shape[1])
        asked, kept = self._words(batch, tokens)
        fixed = [layout.numbers(ids), *layout.tables, *asked]
        shapes = [*fixed, *layout.rooms]
        if transfer.num_bytes(shapes) > self.num_bytes:
            return None
        return Fitted(layout.bucket, [*fixed, *kept, values], shapes, layout.compute, len(batch.candidates))

    def usual(self, max_rows: int) -> Iterator[Fitted]:
        counts = (MIN_CANDIDATES << step for step in range(32))
        max_rows = min(self._max_rows, power_of_two(max_rows, MIN_CANDIDATES))
        fitting = takewhile(lambda count: count * self._num_embeddings <= max_rows, counts)
        for count in reversed([*fitting]):
            for tokens in USUAL_TOKENS:
                fitted = self.fit(self._zeros(tokens, count))
                assert fitted is not None, "a usual batch that has no bucket. This is a bug."
                yield fitted

    def _lay_out(self, num_tokens: int, tokens: int, count: int, dtype: torch.dtype, width: int) -> _Layout:
        used = np.arange(tokens) < num_tokens
        positions = np.where(used, np.arange(tokens), 0)
        shares = torch.from_numpy(used[None].astype(np.float32) / np.float32(num_tokens))
        bias = torch.zeros(tokens + self._num_embeddings, dtype=self._encoder.dtype)
        bias[num_tokens:tokens] = -torch.inf  # @unused-rows
        packed = PackedRows.of_texts(offsets([num_tokens, tokens - num_tokens]))
        plan = self._encoder.plan(packed, AttentionPattern.apart(), Capacity(tokens, 2, tokens, 0))
        tables = [shares, bias, *plan.host_tables]

        def compute(inputs: Sequence[Tensor]) -> Tensor:
            numbers, shares, bias, *others, rows = inputs
            words = others[len(plan.host_tables) :]
            bound = plan.bind(others[: len(plan.host_tables)])  # with new scratch, as in all buckets
            return self._compute(CachedInputs(numbers, shares, bias, words, rows, bound, self._branches))

        room = partial(torch.empty, device="meta")
        stored = room((count * self._num_embeddings, width), dtype=dtype)  # @room
        words = [] if self._lexical is None else [torch.int16, torch.uint8]
        rooms = [*(room((count, self._num_words), dtype=each) for each in words), stored]
        bucket = tokens, count, dtype, plan.signature  # @cached-bucket
        return _Layout(positions, tables, rooms, compute, bucket)

    def _words(self, batch: ScoreBatch, tokens: int) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        """The first three and the last two `words` of `CachedInputs`, in host memory."""
        if self._lexical is None:
            return (), ()
        words = batch.candidates.words
        assert words is not None, "representations come with their words. This is a bug."
        asked = self._lexical.ask(batch.queries.values.numpy(), tokens)
        kept = np.ascontiguousarray(words.pieces).view(np.int16), np.ascontiguousarray(words.weights)
        return [*map(torch.from_numpy, asked)], [*map(torch.from_numpy, kept)]

    def _zeros(self, tokens: int, count: int) -> ScoreBatch:
        """A batch that fills its bucket."""
        rows = torch.zeros(count * self._num_embeddings, self._encoder.config.hidden_size)
        words = None
        if self._lexical is not None:
            size = count, self._num_words
            words = Words(np.zeros(size, np.uint16), np.zeros(size, np.uint8))
        candidates = Ragged(rows, self._num_embeddings * np.arange(count + 1), words)
        return ScoreBatch(Ragged.from_token_ids([[0] * tokens]), candidates, offsets([count]))
