"""The aims of the service beyond its capacity, and the conditions under which the measurements are credible."""

from collections.abc import Iterator

from bandrank_bench.aims import Aim
from bandrank_bench.overload.experiments import Measured
from bandrank_bench.overload.summary import Percentiles, Summary

GOODPUT_AT = (3.0, 5.0)  # times the capacity
BUSY = 0.9  # of the capacity: the load with which latency under overload is compared
LEAST_GOODPUT = 0.9  # of the capacity
MOST_ADMITTED = 2.0  # times the p99 at BUSY
MOST_REFUSAL_MS = 20.0
MOST_POLITE = 1.5  # times the p99 alone
MOST_LATENESS_MS = 10.0  # at the 99th percentile: half of a refusal's limit
MOST_OTHERS = 0.1  # processors
MOST_CHANGE = 0.1  # of the capacity; reveals a host that slows the machine down


def aims(measured: Measured) -> list[Aim]:
    """Returns the aims of the service."""
    return [*_of_points(measured), *_of_companies(measured), *_of_answers(measured)]


def conditions(measured: Measured) -> list[Aim]:
    """Returns the conditions on the generator and the machine."""
    summaries = [point.summary for point in measured.points]
    summaries += [company.polite for company in measured.companies]
    lateness = _worst(one.generator for one in summaries)
    others = max((one.busy.others for one in summaries), default=None)
    return [
        Aim("p99 of the generator's lateness", MOST_LATENESS_MS, lateness, "ms"),
        Aim("processors that others on the machine used", MOST_OTHERS, others),
        Aim(
            "change of the capacity during a load",
            MOST_CHANGE,
            max((one.change for one in measured.points), default=None),
        ),
    ]


def runs(measured: Measured) -> list[Summary]:
    """All runs: closed loops, points, polite and flooding clients."""
    points = [summary for point in measured.points for summary in (point.summary, point.after)]
    companies = [one for company in measured.companies for one in (company.polite, company.flooding) if one is not None]
    return [measured.capacity, *points, *companies]


def _of_points(measured: Measured) -> Iterator[Aim]:
    at = {point.multiple: point for point in measured.points}
    for multiple in GOODPUT_AT:
        share = at[multiple].share if multiple in at else None
        text = f"goodput at {multiple:g} x capacity, over the capacity"
        yield Aim(text, LEAST_GOODPUT, share, at_least=True)
    beyond = [point.summary for point in measured.points if point.multiple > 1]
    admitted = _worst(one.admitted for one in beyond)
    busy = at[BUSY].summary.admitted if BUSY in at else None
    text = f"p99 of what is admitted beyond capacity, over that at {BUSY:g} x capacity"
    yield Aim(text, MOST_ADMITTED, admitted / busy.p99 if admitted and busy else None)
    yield Aim("p99 of refusals", MOST_REFUSAL_MS, _worst(one.refused for one in beyond), "ms")


def _of_companies(measured: Measured) -> Iterator[Aim]:
    if not measured.companies:
        return
    alone, *beside = measured.companies
    for company in beside:
        own, calm = company.polite.admitted, alone.polite.admitted
        ratio = own.p99 / calm.p99 if own and calm else None
        yield Aim(f"p99 of a polite client over that alone, beside {company.flood}", MOST_POLITE, ratio)
        yield Aim(f"its requests without an answer in time, beside {company.flood}", 0, _unanswered(company.polite))


def _of_answers(measured: Measured) -> Iterator[Aim]:
    kinds = ("wrong", "lost", "failed", "late")
    yield Aim(f"answers that are {', '.join(kinds)}", 0, sum(one.unexpected for one in runs(measured)))


def _worst(percentiles: Iterator[Percentiles | None]) -> float | None:
    return max((one.p99 for one in percentiles if one is not None), default=None)


def _unanswered(summary: Summary) -> int:
    return summary.sent - summary.counts["answered"]
