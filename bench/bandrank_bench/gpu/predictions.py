"""Predicts the goals by the model of time in kernels/README.md, as records like those of a run on a card.

Wide windows and cached candidates were corrected after the first run on a GPU. The rest was fixed before it, and is
tested by it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil

from bandrank_bench.gpu.shape import HALF, Shape, floor_us
from bandrank_bench.gpu.stages import Record
from bandrank_bench.gpu.system import FULL_BACKENDS
from bandrank_bench.gpu.whole_model import LENGTHS, NUM_CANDIDATES, QUERY_TOKENS, SIZE, WINDOW

SCHEDULER_HZ = 132 * 4 * 1.755e9  # instructions per second issued by all schedulers
PRODUCTS = 450e12  # operations per second of cuBLAS, float16, for products of MiniLM's size
FLASH, EXPONENTIALS = 500e12, 3.7e12  # per second in flash attention, with tiles of 128 x 128
TILE = 128
NODE_US, ENDS_US, SMALL_US = 1.2, 2.5, 2.0  # per gap between nodes; a kernel's start and last wave; work on [CLS]
# The nodes of a request with stored candidates that follow each other; of these, the query's and the score's.
CACHED_NODES, CACHED_SMALL = 88, 27 + 6
CACHED_CANDIDATES, INTERACTIONS, INTERACTION_PASSES = 1024, 3, 55  # in the bucket; layers; passes over rows in each
LAYER_NODES, TAIL_NODES = 7, 11  # with GELU in a product; the last layer for [CLS], and the head
# Instructions of a warp by head_dim, in code for sm_90: for 15 rows in narrow.cuh, for 31 rows by 32 keys in wide.cuh
# and for its 31 rows beside. Blocks of wide.cuh wait for memory and for products, so that schedulers issue in a share
# of the cycles. On an H200 its second form issued in 0.59 and 0.43 of them at 4,086 tokens.
NARROW, WIDE, WIDE_BESIDE = {32: 438, 64: 529}, {32: 256, 64: 312}, {32: 720, 64: 1120}
WIDE_ISSUED = {32: 0.65, 64: 0.5}
WRITTEN_PASSES = 43  # reads and writes of the scores in the paper's forward


@dataclass(frozen=True)
class Card:
    """A card. copied: bytes that a copy reads and writes per second, nine tenths of the data sheet's bandwidth."""

    name: str
    copied: float

    def records(self) -> list[Record]:
        """The records that the goals read, as far as the model can predict them."""
        facts: list[tuple[str, dict[str, object]]] = [("machine", {"bytes_per_s": self.copied})]
        shapes = [Shape(tokens, window, dim) for tokens in (164, 4086) for window in (4, 64) for dim in (32, 64)]
        for shape in shapes:
            of = {"tokens": shape.tokens, "window": shape.window, "head_dim": shape.head_dim}
            facts += [("operation", {"system": name, **of, "cold_us": us}) for name, us in self._operations(shape)]
        facts += [("model", {"system": name, "lengths": of, **times}) for name, of, times in self._requests()]
        facts.append(("cached", {"graph_ms": self._cached_ms()}))
        return [Record(stage, "predicted", "ok", 0.0, values) for stage, values in facts]

    def attention_us(self, num_rows: int, shape: Shape) -> float:
        """The attention of one layer: the longer of memory and schedulers, plus a quarter of the shorter, which is not
        hidden.
        """
        memory = self._moved(num_rows * 4 * shape.hidden)
        if shape.window <= 16:
            instructions = num_rows / 15 * NARROW[shape.head_dim]
        else:
            outside = shape.window**2 / shape.candidate_rows  # keys of a window beyond a candidate's ends, on average
            chunks = (31 + 2 * shape.window - outside) / 32
            instructions = chunks * WIDE[shape.head_dim] + WIDE_BESIDE[shape.head_dim]
            instructions *= num_rows / 31 / WIDE_ISSUED[shape.head_dim]
        issue = instructions * shape.num_heads / SCHEDULER_HZ * 1e6
        return max(memory, issue) + min(memory, issue) / 4 + ENDS_US

    def _operations(self, shape: Shape) -> Iterator[tuple[str, float]]:
        """Yields systems with the microseconds of one call."""
        yield "ours", self.attention_us(shape.rows().num_rows, shape)
        rows, padded = shape.num_candidates * shape.sequence, ceil(shape.sequence / TILE) * TILE
        yield from ((name, self._full_us(shape)) for name in FULL_BACKENDS)
        yield "flex", 1.5 * _flash_us(shape, padded, min(padded, 4 * TILE))
        near, far = _flash_us(shape, padded, min(padded, 3 * TILE)), _flash_us(shape, padded, TILE)
        yield "varlen", near + far + self._moved(rows * 5 * shape.hidden)  # keys of [CLS], and three of the merge
        scores = shape.num_candidates * shape.candidate_rows * (2 * shape.window + 1 + shape.num_globals)
        written = self._moved(shape.two_kernel_bytes / HALF + WRITTEN_PASSES * scores * shape.num_heads)
        yield "paper as written", written + WRITTEN_PASSES / 2 * NODE_US

    def _requests(self) -> Iterator[tuple[str, str, dict[str, float]]]:
        """Yields systems, lengths of candidates, and the milliseconds of a request."""
        for name, lengths in LENGTHS.items():
            rows = sum(lengths) + 2 * NUM_CANDIDATES + QUERY_TOKENS + 1
            shape = Shape(max(lengths), WINDOW, SIZE.head_dim)
            fused = self._layer_us(rows, self.attention_us(rows, shape))
            yield "ours sparse", name, {"graph_ms": self._whole_ms(rows, fused, cls_only=True)}
            yield "ours sparse, whole last layer", name, {"graph_ms": self._whole_ms(rows, fused, cls_only=False)}
            # Our encoder in plain torch gathers rows into sequences and back.
            attended = sum(self._full_us(replace(shape, tokens=length, num_candidates=1)) for length in lengths)
            full = self._layer_us(rows, attended + self._moved(8 * rows * shape.hidden) + 6 * NODE_US)
            yield "ours full", name, {"graph_ms": self._whole_ms(rows, full, cls_only=True)}
            yield "ours full, whole last layer", name, {"graph_ms": self._whole_ms(rows, full, cls_only=False)}
            if len(set(lengths)) > 1:
                continue
            apart = self._moved(shape.two_kernel_bytes / HALF + 16 * rows * shape.hidden) + 20 * NODE_US
            yield "paper", name, {"graph_ms": self._whole_ms(rows, self._layer_us(rows, apart), cls_only=False)}
            padded = NUM_CANDIDATES * shape.sequence
            # A sum and a norm are two kernels, GELU is one of its own, and so on.
            sums = self._moved(padded * (4 * shape.hidden + 2 * SIZE.intermediate_size)) + 18 * NODE_US
            other = self._layer_us(padded, self._full_us(shape) + sums)
            yield "transformers", name, {"eager_ms": self._whole_ms(padded, other, cls_only=False)}

    def _whole_ms(self, num_rows: int, layer_us: float, *, cls_only: bool) -> float:
        hidden = SIZE.hidden_size
        last = self._moved(1.2 * num_rows * hidden) if cls_only else layer_us  # two tenths for partial results
        tail = TAIL_NODES * (NODE_US + SMALL_US)
        embedded = self._moved(2 * num_rows * hidden) + NODE_US
        return (embedded + (SIZE.num_layers - 1) * layer_us + last + tail) / 1e3

    def _layer_us(self, num_rows: int, attention_us: float) -> float:
        """A layer: four products, one with GELU, two norms of sums, and attention."""
        hidden, inner = SIZE.hidden_size, SIZE.intermediate_size
        sizes = [(hidden, 3 * hidden), (hidden, hidden), (hidden, inner), (inner, hidden)]
        products = sum(
            max(2e6 * num_rows * i * o / PRODUCTS, self._moved(num_rows * (i + o) + i * o)) for i, o in sizes
        )
        passes = self._moved(num_rows * 2 * 3 * hidden)
        return products + passes + attention_us + LAYER_NODES * NODE_US

    def _cached_ms(self) -> float:
        """A query with stored candidates. In an interaction layer, a candidate's row is multiplied by 12 matrices of
        hidden x hidden numbers, and its summary of the query by 13. Other passes over both count as memory traffic,
        although the level 2 cache may hold them.
        """
        numbers = INTERACTIONS * CACHED_CANDIDATES * SIZE.hidden_size
        products = 2e6 * numbers * SIZE.hidden_size * (12 + 13) / PRODUCTS
        passes = self._moved(INTERACTION_PASSES * numbers)
        return (products + passes + CACHED_NODES * NODE_US + CACHED_SMALL * SMALL_US) / 1e3

    def _full_us(self, shape: Shape) -> float:
        padded = ceil(shape.sequence / TILE) * TILE
        moved = self._moved(4 * shape.num_candidates * shape.sequence * shape.hidden)
        return max(moved, _flash_us(shape, padded, padded))

    def _moved(self, numbers: float) -> float:
        """Microseconds in which memory moves this many 16-bit numbers."""
        return floor_us(HALF * numbers, self.copied)


CARDS: Sequence[Card] = (Card("H100", 3.0e12), Card("H200", 4.3e12))


def _flash_us(shape: Shape, rows: int, keys: int) -> float:
    pairs = shape.num_candidates * shape.num_heads * rows * keys
    return pairs * (4 * shape.head_dim / FLASH + 1 / EXPONENTIALS) * 1e6
