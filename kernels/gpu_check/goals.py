"""What the kernels are to reach, as ratios of times of one run on one card."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from gpu_check.baselines.full import BACKENDS
from gpu_check.records import Record
from gpu_check.shape import Shape, floor_us

GATES = ("exactness", "streams")
MEGABYTE = 1e6


class Found:
    """Measured values by what they are of; None for what was not measured."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.records = [record for record in records if record.status == "ok"]
        self.failures = [record for record in records if record.stage in GATES and record.status in {"failed", "cut"}]

    def copy_bytes_per_s(self) -> float | None:
        """Of a large copy on this card, read and written."""
        return self._fact("machine", "bytes_per_s", {})

    def cold_us(self, system: str, shape: Shape) -> float | None:
        """Of one call from a cold cache."""
        of = {"system": system, "tokens": shape.tokens, "window": shape.window, "head_dim": shape.head_dim}
        return self._fact("operation", "cold_us", of)

    def model(self, system: str, lengths: str, fact: str = "graph_ms") -> float | None:
        """Of one request."""
        return self._fact("model", fact, {"system": system, "lengths": lengths})

    def _fact(self, stage: str, fact: str, of: dict[str, object]) -> float | None:
        for record in self.records:
            if record.stage == stage and record.facts.get(fact) is not None and of.items() <= record.facts.items():
                return float(record.facts[fact])
        return None


@dataclass(frozen=True)
class Goal:
    """text ends in what is measured; a goal is reached from `wanted` on, or up to it."""

    text: str
    wanted: float
    value: Callable[[Found], float | None]
    at_most: bool = False
    unit: str = "x"

    def reached(self, value: float) -> bool:
        """Whether a measured value is enough."""
        return value <= self.wanted if self.at_most else value >= self.wanted


def ratio(numerator: float | None, denominator: float | None) -> float | None:
    """None if one of them was not measured."""
    return None if numerator is None or not denominator else numerator / denominator


def copy_share(shape: Shape, found: Found) -> float | None:
    """Of the measured copy bandwidth, by the fewest bytes that the operation can move."""
    bandwidth = found.copy_bytes_per_s()
    return ratio(bandwidth and floor_us(shape.fused_bytes, bandwidth), found.cold_us("ours", shape))


def speedup(over: str, shape: Shape, found: Found) -> float | None:
    """How many times as long another system takes."""
    return ratio(found.cold_us(over, shape), found.cold_us("ours", shape))


def over_best_full(shape: Shape, found: Found) -> float | None:
    """Over the fastest of torch's backends of full attention."""
    times = [time for name in BACKENDS if (time := found.cold_us(name, shape)) is not None]
    return ratio(min(times, default=None), found.cold_us("ours", shape))


def over_two_kernels(shape: Shape, found: Found) -> float | None:
    """Over kernels of their own for scores, softmax and sums that move their bytes as fast as a copy."""
    bandwidth = found.copy_bytes_per_s()
    return ratio(bandwidth and floor_us(shape.two_kernel_bytes, bandwidth), found.cold_us("ours", shape))


def exact(found: Found) -> float | None:
    """1 if all cases against float64, and all on streams, were right with repeating bits; 0 if one was not."""
    done = {record.stage for record in found.records}
    return float(not found.failures) if done >= set(GATES) else None


def times(
    over: str, lengths: str, found: Found, *, ours: str = "ours sparse", over_lengths: str = "", fact: str = "graph_ms"
) -> float | None:
    """How many times as long another system takes for a request."""
    return ratio(found.model(over, over_lengths or lengths, fact), found.model(ours, lengths))


def megabytes(lengths: str, found: Found) -> float | None:
    """Of a candidate, at the peak of a request of 100."""
    return ratio(found.model("ours sparse", lengths, "peak_bytes"), 100 * MEGABYTE)


def _goals() -> list[Goal]:
    short, long = (Shape(length, 4, 32) for length in (164, 4086))
    wide = [Shape(length, window, dim) for dim in (32, 64) for length in (164, 4086) for window in (4, 64)]
    shares = {(4, 32): 0.8, (4, 64): 0.8, (64, 32): 0.6, (64, 64): 0.75}
    most_us = {(164, 32): 21, (4086, 32): 525, (164, 64): 43, (4086, 64): 1050}
    narrow = [shape for shape in wide if shape.window == 4]
    passages, documents = "passages of mean 77 pieces, longest 163", "documents of mean 1,370 pieces"
    return [
        *(
            Goal(f"share of copy bandwidth, {shape}", shares[shape.window, shape.head_dim], partial(copy_share, shape))
            for shape in wide
        ),
        *(
            Goal(
                f"time of a layer's attention, {shape}",
                most_us[shape.tokens, shape.head_dim],
                lambda found, shape=shape: found.cold_us("ours", shape),  # type: ignore[misc]  # a default binds it
                at_most=True,
                unit="us",
            )
            for shape in narrow
        ),
        Goal(f"over the best full attention, {short}", 2, partial(over_best_full, short)),
        Goal(f"over the best full attention, {long}", 15, partial(over_best_full, long)),
        *(
            Goal(f"over FlexAttention with the same mask, {at}", 3, partial(speedup, "flex", at))
            for at in (short, long)
        ),
        *(Goal(f"over varlen attention, merged, {at}", 2.5, partial(speedup, "varlen", at)) for at in (short, long)),
        Goal(f"over perfect separate kernels, {short}", 2.5, partial(over_two_kernels, short)),
        Goal("over perfect separate kernels, n=164 w=64 12x32", 5, partial(over_two_kernels, Shape(164, 64, 32))),
        Goal(f"over the paper's passes as written, {short}", 8, partial(speedup, "paper as written", short)),
        Goal("results are right and bits repeat", 1, exact, unit=""),
        Goal(
            "request of 164 tokens each", 1.0, lambda found: found.model("ours sparse", "164"), at_most=True, unit="ms"
        ),
        Goal(
            "164 tokens: over our full attention, whole last layer",
            1.3,
            partial(times, "ours full, whole last layer", "164"),
        ),
        Goal(
            "164 tokens, whole last layer on both sides: over our full attention",
            1.1,
            partial(times, "ours full, whole last layer", "164", ours="ours sparse, whole last layer"),
        ),
        Goal("164 tokens: over transformers, eager", 3, partial(times, "transformers", "164", fact="eager_ms")),
        Goal(
            f"request of {passages}",
            0.55,
            lambda found: found.model("ours sparse", "passages"),
            at_most=True,
            unit="ms",
        ),
        Goal(f"{passages}: over the same padded", 2, partial(times, "ours sparse", "passages", over_lengths="163")),
        Goal(
            "request of 4086 tokens each", 23, lambda found: found.model("ours sparse", "4086"), at_most=True, unit="ms"
        ),
        Goal("4086 tokens: over our full attention", 3.5, partial(times, "ours full", "4086")),
        Goal(
            f"request of {documents}", 9, lambda found: found.model("ours sparse", "documents"), at_most=True, unit="ms"
        ),
        Goal("memory of a passage of 164 tokens", 1, partial(megabytes, "164"), at_most=True, unit="MB"),
        Goal("memory of a document of 4086 tokens", 20, partial(megabytes, "4086"), at_most=True, unit="MB"),
        Goal("164 tokens: over the paper's form", 3, partial(times, "paper", "164")),
        Goal(f"{passages}: over the paper's form, padded", 6, partial(times, "paper", "passages", over_lengths="163")),
        Goal("4086 tokens: over the paper's form", 2.5, partial(times, "paper", "4086")),
        Goal(
            f"{documents}: over the paper's form, padded", 8, partial(times, "paper", "documents", over_lengths="4086")
        ),
    ]


GOALS = _goals()
