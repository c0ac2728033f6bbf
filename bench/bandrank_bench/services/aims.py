"""The aims of the comparison of services."""

from collections.abc import Iterator, Sequence

from bandrank_bench.aims import Aim
from bandrank_bench.services.contenders import Contender
from bandrank_bench.services.runs import Run, spread, together

MANY_CLIENTS = 64
BUSY = 0.8  # of the capacity
LEAST_RATIO = 1.8  # of goodputs
MOST_SPREAD = 2.0  # the 99th percentile over the median


def goodput(runs: Sequence[Run], contender: Contender) -> float | None:
    """Answers in time per second with many clients; None if not measured."""
    found = together(runs, contender.name, lambda run: run.clients == MANY_CLIENTS)
    return found.goodput if found else None


def best(runs: Sequence[Run], contenders: Sequence[Contender]) -> Contender | None:
    """The contender with the highest goodput with many clients; None if none has any."""
    found = {one: goodput(runs, one) or 0.0 for one in contenders}
    leader = max(found, key=lambda one: found[one], default=None)
    return leader if leader is not None and found[leader] else None


def aims(runs: Sequence[Run], contenders: Sequence[Contender]) -> Iterator[Aim]:
    """Yields aims for goodput relative to infinity's with the same function, so not sparse, and for latencies."""
    full = [one for one in contenders if one.maker == "bandrank" and one.pattern == "full"]
    others = [one for one in contenders if one.maker == "infinity"]
    yield _ratio(f"goodput with {MANY_CLIENTS} clients, the best", runs, full, others)
    for precision in ("fp32", "bf16", "int8"):
        own, theirs = ([one for one in group if one.precision == precision] for group in (full, others))
        if own and theirs:
            yield _ratio(f"the same, {precision} alone", runs, own, theirs)
    for one in contenders:
        if one.maker == "bandrank":
            yield _spread(f"{one.name}: p99 over p50 at {BUSY:.0%}, equal intervals", runs, one, steady=True)
            yield _spread(f"{one.name}: p99 over p50 at {BUSY:.0%}, a Poisson process", runs, one, steady=False)


def _spread(text: str, runs: Sequence[Run], contender: Contender, *, steady: bool) -> Aim:
    found = together(runs, contender.name, lambda run: (run.load, run.steady) == (BUSY, steady))
    return Aim(text, MOST_SPREAD, spread(found.latency) if found else None)


def _ratio(text: str, runs: Sequence[Run], own: Sequence[Contender], theirs: Sequence[Contender]) -> Aim:
    first, second = best(runs, own), best(runs, theirs)
    if first is None or second is None:
        return Aim(text, LEAST_RATIO, None, at_least=True)
    ratio = (goodput(runs, first) or 0.0) / (goodput(runs, second) or 1.0)
    return Aim(f"{text}: {first.name} over {second.name}", LEAST_RATIO, ratio, at_least=True)
