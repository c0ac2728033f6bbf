"""The goals of the kernels, mostly ratios of times of one run on one card."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bandrank_bench.gpu.shape import Shape, floor_us
from bandrank_bench.gpu.stages import Record
from bandrank_bench.gpu.system import FULL_BACKENDS

Measured = float | None  # None: not measured


class Measurements:
    """Measured values, and ratios of them."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.records = [record for record in records if record.status == "ok"]
        self.wrong = [record for record in records if record.stage == "tests" and record.status in {"failed", "cut"}]

    def operation(self, system: str, shape: Shape) -> Measured:
        """Microseconds of one call from a cold cache."""
        of = {"system": system, "tokens": shape.tokens, "window": shape.window, "head_dim": shape.head_dim}
        return self._fact(("operation", "baselines"), "cold_us", of)

    def request(self, system: str, lengths: str, fact: str = "graph_ms") -> Measured:
        """Milliseconds of a request to a model in a graph, or another fact about it."""
        return self._fact(("model", "peers"), fact, {"system": system, "lengths": lengths})

    def copy_share(self, shape: Shape, num_bytes: float | None = None) -> Measured:
        """The time in which a copy at the measured bandwidth moves `num_bytes`, divided by the time of our operation.

        num_bytes: by default those that our operation moves.
        """
        bandwidth = self._fact(("machine",), "bytes_per_s", {})
        fewest = shape.fused_bytes if num_bytes is None else num_bytes
        return ratio(bandwidth and floor_us(fewest, bandwidth), self.operation("ours", shape))

    def over(self, other: str, shape: Shape) -> Measured:
        """How many times as long as ours another system takes for the operation."""
        return ratio(self.operation(other, shape), self.operation("ours", shape))

    def over_best_full(self, shape: Shape) -> Measured:
        """How many times as long as ours torch's fastest full attention takes."""
        return min((times for name in FULL_BACKENDS if (times := self.over(name, shape)) is not None), default=None)

    def over_two_kernels(self, shape: Shape) -> Measured:
        """How many times as long as ours separate kernels for scores, softmax and sums would take at copy speed."""
        return self.copy_share(shape, shape.two_kernel_bytes)

    def times(
        self, other: str, lengths: str, over_ours: str = "", ours: str = "ours sparse", fact: str = "graph_ms"
    ) -> Measured:
        """How many times as long as ours another system takes. over_ours: our lengths, if the other's are padded."""
        return ratio(self.request(other, lengths, fact), self.request(ours, over_ours or lengths))

    def cached(self, fact: str) -> Measured:
        """A fact about a request with stored candidates, in milliseconds."""
        return self._fact(("cached",), fact, {})

    def gain(self, lengths: str, before: str, after: str) -> Measured:
        """The fact `before` of our requests, divided by the fact `after`."""
        return ratio(self.request("ours sparse", lengths, before), self.request("ours sparse", lengths, after))

    def end_to_end(self, other: str) -> Measured:
        """How many times as long as our service another system takes for passages, from ids in host memory."""
        return ratio(self.request(other, "passages", "eager_ms"), self.request("ours sparse", "passages", "served_ms"))

    def megabytes(self, lengths: str) -> Measured:
        """Megabytes per candidate, at the peak of a request with 100."""
        return ratio(self.request("ours sparse", lengths, "peak_bytes"), 100 * 1e6)

    def exact(self) -> Measured:
        """1 if all GPU tests pass, of correctness and of bitwise repeatability; 0 if not."""
        return float(not self.wrong) if self.wrong or any(record.stage == "tests" for record in self.records) else None

    def _fact(self, stages: Sequence[str], fact: str, of: dict[str, object]) -> Measured:
        for record in self.records:
            if record.stage in stages and record.facts.get(fact) is not None and of.items() <= record.facts.items():
                return float(record.facts[fact])
        return None


def ratio(numerator: Measured, denominator: Measured) -> Measured:
    """Divides; None if one of them was not measured."""
    return None if numerator is None or not denominator else numerator / denominator


@dataclass(frozen=True)
class Goal:
    """A target for a value. unit: "x" for a ratio, which should be at least `target`; times and sizes at most that."""

    text: str
    target: float
    value: Callable[[Measurements], Measured]
    unit: str = "x"

    @property
    def at_most(self) -> bool:
        return self.unit != "x"

    def reached(self, value: float) -> bool:
        """Whether a measured value reaches the target."""
        return value <= self.target if self.at_most else value >= self.target


SHORT, LONG = Shape(164, 4, 32), Shape(4086, 4, 32)
WIDE = Shape(164, 64, 32)
WHOLE = ", whole last layer"
FULL, SPARSE = f"ours full{WHOLE}", f"ours sparse{WHOLE}"
PASSAGES = "request: passages (mean 77, longest 163)"
CACHED = "request: 1,000 cached candidates of a MixEncoder"
DOCUMENTS = "request: documents (mean 1,370, longest 4086)"


def _of_shape(tokens: int, window: int, dim: int, share: float, most_us: float | None) -> list[Goal]:
    shape = Shape(tokens, window, dim)
    goals = [Goal(f"share of copy bandwidth, {shape}", share, lambda f: f.copy_share(shape))]
    if most_us is not None:
        goals.append(Goal(f"attention of a layer, {shape}", most_us, lambda f: f.operation("ours", shape), "us"))
    return goals


GOALS = [
    *_of_shape(164, 4, 32, 0.8, 21),
    *_of_shape(4086, 4, 32, 0.8, 525),
    *_of_shape(164, 4, 64, 0.8, 43),
    *_of_shape(4086, 4, 64, 0.8, 1050),
    *_of_shape(164, 64, 32, 0.6, None),
    *_of_shape(4086, 64, 32, 0.6, None),
    *_of_shape(164, 64, 64, 0.75, None),
    *_of_shape(4086, 64, 64, 0.75, None),
    Goal(f"over the best full attention, {SHORT}", 2, lambda f: f.over_best_full(SHORT)),
    Goal(f"over the best full attention, {LONG}", 15, lambda f: f.over_best_full(LONG)),
    Goal(f"over FlexAttention with the same mask, {SHORT}", 3, lambda f: f.over("flex", SHORT)),
    Goal(f"over FlexAttention with the same mask, {LONG}", 3, lambda f: f.over("flex", LONG)),
    Goal(f"over varlen attention, merged, {SHORT}", 2.5, lambda f: f.over("varlen", SHORT)),
    Goal(f"over varlen attention, merged, {LONG}", 2.5, lambda f: f.over("varlen", LONG)),
    Goal(f"over perfect separate kernels, {SHORT}", 2.5, lambda f: f.over_two_kernels(SHORT)),
    Goal(f"over perfect separate kernels, {WIDE}", 5, lambda f: f.over_two_kernels(WIDE)),
    Goal(f"over the paper's passes as written, {SHORT}", 8, lambda f: f.over("paper as written", SHORT)),
    Goal("all results right, bits repeat (1: yes)", 1, lambda f: f.exact()),
    Goal("request: 164 tokens", 1.0, lambda f: f.request("ours sparse", "164"), "ms"),
    Goal(f"request: 164 tokens, over {FULL}", 1.3, lambda f: f.times(FULL, "164")),
    Goal(f"request: 164 tokens{WHOLE}, over {FULL}", 1.1, lambda f: f.times(FULL, "164", ours=SPARSE)),
    Goal("request: 164 tokens, over transformers, eager", 3, lambda f: f.times("transformers", "164", fact="eager_ms")),
    Goal("request: 164 tokens, over the paper's form", 3, lambda f: f.times("paper", "164")),
    Goal("request: 164 tokens, memory of a passage", 1, lambda f: f.megabytes("164"), "MB"),
    Goal(PASSAGES, 0.55, lambda f: f.request("ours sparse", "passages"), "ms"),
    Goal(f"{PASSAGES}, over the same padded", 2, lambda f: f.times("ours sparse", "163", "passages")),
    Goal(f"{PASSAGES}, over the paper's form, padded", 6, lambda f: f.times("paper", "163", "passages")),
    Goal(
        f"{PASSAGES}, host's time launched over replayed", 2, lambda f: f.gain("passages", "host_ms", "served_host_ms")
    ),
    Goal(
        f"{PASSAGES}, back to back: awaited over overlapped",
        1.2,
        lambda f: f.gain("passages", "awaited_ms", "overlapped_ms"),
    ),
    Goal(f"{PASSAGES}, over our full attention", 2, lambda f: f.times("ours full", "passages")),
    Goal(f"{PASSAGES}, end to end, over full attention, launched", 2, lambda f: f.end_to_end("ours full")),
    Goal(f"{PASSAGES}, end to end, over transformers", 3, lambda f: f.end_to_end("transformers")),
    Goal("request: 4086 tokens", 23, lambda f: f.request("ours sparse", "4086"), "ms"),
    Goal("request: 4086 tokens, over our full attention", 3.5, lambda f: f.times("ours full", "4086")),
    Goal("request: 4086 tokens, over the paper's form", 2.5, lambda f: f.times("paper", "4086")),
    Goal("request: 4086 tokens, memory of a document", 20, lambda f: f.megabytes("4086"), "MB"),
    Goal(DOCUMENTS, 9, lambda f: f.request("ours sparse", "documents"), "ms"),
    Goal(f"{DOCUMENTS}, over the paper's form, padded", 8, lambda f: f.times("paper", "4086", "documents")),
    Goal(CACHED, 0.5, lambda f: f.cached("graph_ms"), "ms"),
    Goal(
        f"{CACHED}, host's time launched over replayed",
        1.5,
        lambda f: ratio(f.cached("host_ms"), f.cached("served_host_ms")),
    ),
]
