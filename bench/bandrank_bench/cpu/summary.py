"""From samples to medians, ratios to the peers, and shares of the floor."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median, quantiles

from bandrank_bench.aims import Aim
from bandrank_bench.calibrate import Sample, clean
from bandrank_bench.systems import Pattern, System

Floor = Callable[
    [Sample, System], tuple[float, float]
]  # seconds: for full attention, and for the pattern of the system

HTTP_AIM = 1.05  # times the in-process time
# Speed-ups over the best peer: for floats of the same precision, for int8 of any.
AIMS: dict[tuple[Pattern, bool], dict[str, float]] = {  # by pattern, int8 or not, and workload
    ("sparse", False): {"W1": 1.15, "W2": 1.0, "W3": 3.0},
    ("sparse", True): {"W0": 1.5, "W1": 2.0, "W2": 1.6, "W3": 8.0},
    ("full", True): {"W1": 1.4},
}


@dataclass(frozen=True)
class Timing:
    """A system's clean samples of one workload.

    us: quartiles of microseconds per token.  floor_shares: floor divided by measured time, for the floors of full
    attention over all tokens and of the system's pattern; None if no floor is known.
    """

    ms: float
    us: tuple[float, float, float]
    floor_shares: tuple[float, float] | None


@dataclass(frozen=True)
class Row:
    """A system on one workload. timing: None if no sample is clean.

    over_in_process: for a system behind HTTP, the median over requests of its time divided by that of the same engine
    in process, measured back to back.
    """

    system: System
    taken: int
    clean: int
    timing: Timing | None
    over_in_process: float | None = None


def summarise(
    samples: Sequence[Sample], systems: Sequence[System], calm_s: float, floor: Floor | None = None
) -> list[Row]:
    """One row per system that has samples, in the order of `systems`."""
    rows = []
    for system in systems:
        taken = [sample for sample in samples if sample.system == system.name]
        if taken:
            kept = clean(taken, calm_s)
            direct = clean([sample for sample in samples if sample.system == system.served], calm_s)
            timing = _timing(kept, system, floor) if kept else None
            rows.append(Row(system, len(taken), len(kept), timing, _paired_ratio(kept, direct)))
    return rows


def us_per_token(row: Row | None) -> float | None:
    """The median time, from which all ratios are computed."""
    return row.timing.us[1] if row and row.timing else None


def best_peer(rows: Sequence[Row], precision: str | None) -> Row | None:
    """The fastest peer that really ran in `precision` (None: any)."""
    peers = [
        row for row in rows if row.system.kind == "peer" and precision in {None, row.system.precision} and row.timing
    ]
    return min(peers, key=lambda row: us_per_token(row) or 0.0, default=None)


def speed_up(row: Row, other: Row | None) -> float | None:
    """How many times as fast `row` is as `other`."""
    ours, theirs = us_per_token(row), us_per_token(other)
    return theirs / ours if ours and theirs else None


def judge(tables: Mapping[str, Sequence[Row]]) -> list[Aim]:
    """Returns the aims of every measured workload."""
    aims = []
    for workload, rows in tables.items():
        for row in rows:
            least = AIMS.get((row.system.pattern, row.system.precision == "int8"), {}).get(workload)
            if row.system.kind == "in process" and least is not None:
                aims.append(over_peers(workload, row, rows, least))
            if row.system.kind == "HTTP":
                aims.append(Aim(f"{workload}: {row.system.name}, time over in process", HTTP_AIM, row.over_in_process))
    return aims


def over_peers(where: str, row: Row, rows: Sequence[Row], least: float) -> Aim:
    """The aim of a system's speed over that of the best peer: of its precision, or for int8 of any."""
    in_int8 = row.system.precision == "int8"
    peer = best_peer(rows, None if in_int8 else row.system.precision)
    over = f"{'' if in_int8 else 'of its precision '}({peer.system.name if peer else 'none was measured'})"
    return Aim(f"{where}: {row.system.name} over the best peer {over}", least, speed_up(row, peer), at_least=True)


def _paired_ratio(kept: Sequence[Sample], direct: Sequence[Sample]) -> float | None:
    direct_s = {sample.round_number: sample.seconds for sample in direct}
    ratios = [sample.seconds / direct_s[sample.round_number] for sample in kept if sample.round_number in direct_s]
    return median(ratios) if ratios else None


def _timing(kept: Sequence[Sample], system: System, floor: Floor | None) -> Timing:
    per_token = [sample.us_per_token for sample in kept]
    first, middle, last = quantiles(per_token, n=4, method="inclusive") if len(kept) > 1 else per_token * 3
    ms = median(sample.seconds for sample in kept) * 1e3
    if floor is None:
        return Timing(ms, (first, middle, last), None)
    shares = [[least / sample.seconds for least in floor(sample, system)] for sample in kept]
    full, own = map(median, zip(*shares, strict=True))
    return Timing(ms, (first, middle, last), (full, own))
