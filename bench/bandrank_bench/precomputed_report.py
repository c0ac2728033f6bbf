"""The page on scorers that precompute: ratios, shares, sizes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median, quantiles

from bandrank_bench.aims import Aim, aims_table
from bandrank_bench.machine import with_instructions
from bandrank_bench.output import bullets, table

NUM_CANDIDATES = 1000
MANY = 100_000
MANY_BYTES = 2 * 2**30  # limit of representations; ColBERT's would take ten times as much
REPEATS = 100  # of one warm system alone, for the percentiles
CROSS_ENCODER = "sparse cross-encoder"
INT8 = ", int8"  # ends the name of a system that computes in int8; the others compute in float32
AIMS = {"MixEncoder-a": 100.0, "MixEncoder-b": 60.0}
HTTP_AIM = 40.0
STEPS = ("tokenize", "cache", "encode", "queue", "score")


@dataclass
class Latency:
    """Milliseconds of single requests, and of their steps as the service reports them."""

    total_ms: list[float] = field(default_factory=list)
    steps_ms: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in (*STEPS, "total")})

    def percentile(self, percent: int) -> float:
        """A percentile of the totals."""
        return quantiles(self.total_ms, n=100, method="inclusive")[percent - 1]


@dataclass(frozen=True)
class Cached:
    """The cache of one scorer: bytes per cached candidate, and milliseconds to score MANY of them."""

    payload_bytes: float
    sealed_bytes: float
    memory_bytes: float
    many_ms: list[float]


def report(
    facts: Mapping[str, str],
    seconds: Mapping[str, list[float]],
    latencies: Mapping[str, Latency],
    cached: Mapping[str, Cached],
    hash_ms: float,
) -> str:
    """The page."""
    slow = {kind: median(seconds[CROSS_ENCODER + kind]) for kind in ("", INT8) if seconds.get(CROSS_ENCODER + kind)}
    kinds = {name: INT8 if name.endswith(INT8) else "" for name in seconds}
    ratios = {name: slow[kinds[name]] / median(taken) for name, taken in seconds.items() if taken}
    aims = [Aim(f"{name}, engine", target, ratios.get(name), at_least=True) for name, target in AIMS.items()]
    aims += [Aim(name, HTTP_AIM, ratios.get(name), at_least=True) for name in latencies]
    blocks = [
        with_instructions("# Benchmarks of scorers that precompute", facts),
        f"How fast scorers that precompute rank {NUM_CANDIDATES} candidates of mixed length (W1 of "
        "[benchmarks.md](benchmarks.md)) that are all cached, with a new query each time: text in, ranking out. All "
        "have one encoder (6 layers, hidden 384). Interactions have random weights: this compares cost, not quality. "
        "Systems compute in float32 unless they say int8, and are compared with the cross-encoder of their precision. "
        "Compare the ratios; the times hold for this machine only.\n\n"
        "Written by `python -m bandrank_bench precomputed --out FILE`.",
        bullets(facts),
        "## Aims",
        aims_table(aims, "times as fast as the sparse cross-encoder"),
        f"## {NUM_CANDIDATES} candidates, systems in turns",
        table(
            ["system", "clean samples", "ms", "x sparse cross-encoder"],
            [
                [name, str(len(taken)), f"{median(taken) * 1e3:,.1f}" if taken else "-", f"{ratios.get(name, 0):.1f}"]
                for name, taken in seconds.items()
            ],
        ),
        f"## One client, {REPEATS} requests",
        f"Milliseconds. Hashing {NUM_CANDIDATES} texts takes {hash_ms:.2f} ms of the cache's time. The rest of that "
        "is the lookup: in memory, or one round trip to Redis and a check of every value. HTTP and JSON is the "
        "client's time minus the steps that the service reports: parsing and writing at both ends, and validation.",
        table(
            ["system", "p50", "p99", "HTTP and JSON", "hashing", "lookup", "tokenising", "queue", "compute"],
            [_shares(name, latency, hash_ms) for name, latency in latencies.items()],
        ),
        "## Size",
        "Bytes of a candidate: its payload in float16 with its counts, the payload sealed for Redis, and the payload "
        f"in memory with its entry. Then the milliseconds to rank {MANY:,} cached candidates in one request, from text "
        f"to order: copies of {NUM_CANDIDATES} representations under separate keys. "
        f'"-" if they take more than {MANY_BYTES / 2**30:.0f} GiB.',
        table(
            ["scorer", "payload", "sealed", "in memory", f"{MANY:,} candidates, ms"],
            [
                [
                    name,
                    f"{one.payload_bytes:,.0f}",
                    f"{one.sealed_bytes:,.0f}",
                    f"{one.memory_bytes:,.0f}",
                    f"{median(one.many_ms):,.0f}" if one.many_ms else "-",
                ]
                for name, one in cached.items()
            ],
        ),
    ]
    return "\n\n".join(blocks) + "\n"


def _shares(name: str, latency: Latency, hash_ms: float) -> list[str]:
    step = {key: median(values) for key, values in latency.steps_ms.items()}
    middle = latency.percentile(50)
    http_and_json = middle - sum(step[key] for key in STEPS)
    shares = [http_and_json, hash_ms, step["cache"] - hash_ms, step["tokenize"], step["queue"], step["score"]]
    return [
        name,
        f"{middle:.1f}",
        f"{latency.percentile(99):.1f}",
        *(f"{share:.1f} ({share / middle:.0%})" for share in shares),
    ]
