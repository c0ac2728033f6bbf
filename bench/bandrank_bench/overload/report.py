"""The section on overload: aims and measurements."""

from collections import Counter
from collections.abc import Mapping, Sequence

from bandrank_bench.aims import Aim, aims_table
from bandrank_bench.output import bullets, table
from bandrank_bench.overload.aims import aims, conditions
from bandrank_bench.overload.experiments import Company, Measured, Plan, Point
from bandrank_bench.overload.summary import Percentiles, Summary

BEGIN, END = "<!-- overload: written by `make overload` -->", "<!-- end of overload -->"


def put_section(page: str, section: str) -> str:
    """Puts the section into the page, in place of an earlier run's, else at the end.

    Raises ValueError if only one of the section's two marks is there.
    """
    if BEGIN not in page and END not in page:
        return f"{page.rstrip()}\n\n{BEGIN}\n{section}{END}\n"
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"expected {BEGIN!r} and then {END!r} in the page, or neither")
    return f"{before}{BEGIN}\n{section}{END}{after}"


def report(measured: Measured, plan: Plan, facts: Mapping[str, str], picture: str) -> str:
    """The section. facts: of the machine and the run.  picture: its address."""
    found, instrument, capacity = aims(measured), conditions(measured), measured.capacity
    blocks = [
        "## Overload",
        f"{_verdict(found, instrument)} Service and generator share the machine. Requests have {_counts(plan)} "
        f"candidates of {capacity.tokens:.0f} tokens on average, counted over all stages and with a share of the "
        + (f"query; they come again after {plan.repeat_after} requests. " if plan.repeat_after else "query. ")
        + ("" if plan.repeat_after else "No text comes twice. ")
        + f"Capacity is what a closed loop of {plan.connections} connections that are never idle gets answered: "
        f"**{capacity.goodput:.1f} requests, {capacity.goodput_candidates:.0f} candidates per second**. Loads are an "
        "open loop, as a Poisson process: each request is sent at its time, however late others are, and its latency "
        "counts from that time.",
        aims_table(found),
        aims_table(instrument, "condition under which the figures count", "met"),
        f"![Goodput and latency over the offered load]({picture})",
        f"Each load lasts {plan.seconds:g} s, after {plan.warm_up_s:g} s of warm-up that count in no rate or time. "
        f"Goodput is complete rankings within {plan.limit_s:g} s, and its share is of the capacity measured right "
        "before and after. Admitted and refused: milliseconds until the answer, p50 / p99. Other: neither answered in "
        "time nor refused.",
        table(
            ["load", "offered/s", "goodput/s", "of capacity", *COUNTS, "admitted", "refused", "Retry-After, s"],
            map(_point, measured.points),
        ),
        "How well the load was generated: capacity before and after, in requests per second; milliseconds by which the "
        "generator sent requests late; processors in use.",
        table(
            ["load", "capacity", "lateness p50", "p99", "most", "generator", "service", "others"],
            map(_instrument, measured.points),
        ),
    ]
    if measured.companies:
        blocks += [
            f"A polite client sends {plan.polite_share:.0%} of the capacity for {plan.polite_s:g} s: alone, and beside "
            "another client that floods the service. Each time it sends the same requests at the same times, with "
            "another number in each text to make it new. Times are milliseconds.",
            table(
                ["beside", "polite: sent", "answered", "p50", "p99", "p99 over alone", *FLOODING],
                [_company(company, measured.companies[0]) for company in measured.companies],
            ),
        ]
    return "\n\n".join([*blocks, bullets(facts)]) + "\n"


COUNTS = ("sent", "answered", "refused", "other")
FLOODING = ("flood: offered/s", "goodput/s", "refused")


def _verdict(found: Sequence[Aim], instrument: Sequence[Aim]) -> str:
    reached = f"{sum(aim.reached for aim in found)} of {len(found)} aims are reached."
    if all(condition.reached for condition in instrument):
        return reached
    return f"{reached} **The generator was late, or the machine was not calm: these figures do not count.**"


def _counts(plan: Plan) -> str:
    shares = sorted(Counter(plan.candidates).items())
    return " or ".join(f"{count} ({share / len(plan.candidates):.0%})" for count, share in shares)


def _point(point: Point) -> list[str]:
    seen = point.summary
    return [
        f"{point.multiple:g} x",
        f"{seen.offered:.1f}",
        f"{seen.goodput:.1f}",
        f"{point.share:.0%}",
        f"{seen.sent:,}",
        f"{seen.counts['answered']:,}",
        f"{seen.counts['refused']:,}",
        _others(seen),
        _pair(seen.admitted),
        _pair(seen.refused),
        _retry_after(seen.retry_after_s),
    ]


def _instrument(point: Point) -> list[str]:
    late, busy = point.summary.generator, point.summary.busy
    return [
        f"{point.multiple:g} x",
        f"{point.before.goodput:.1f}, {point.after.goodput:.1f}",
        *([f"{late.p50:.1f}", f"{late.p99:.1f}", f"{late.most:.0f}"] if late else ["-"] * 3),
        *(f"{share:.2f}" for share in (busy.generator, busy.service, busy.others)),
    ]


def _company(company: Company, alone: Company) -> list[str]:
    own, calm, flood = company.polite.admitted, alone.polite.admitted, company.flooding
    return [
        company.flood,
        f"{company.polite.sent:,}",
        f"{company.polite.counts['answered']:,}",
        *([f"{own.p50:.0f}", f"{own.p99:.0f}"] if own else ["-"] * 2),
        f"{own.p99 / calm.p99:.2f}" if own and calm else "-",
        *([f"{flood.offered:.1f}", f"{flood.goodput:.1f}", f"{flood.counts['refused']:,}"] if flood else ["-"] * 3),
    ]


def _others(summary: Summary) -> str:
    """Counts unexpected outcomes, by kind."""
    kinds = {kind: summary.counts[kind] for kind in ("late", "wrong", "lost")}
    named = {str(status): number for status, number in sorted(summary.statuses.items())} | kinds
    told = ", ".join(f"{number:,} {name}" for name, number in named.items() if number)
    return told or "0"


def _pair(times: Percentiles | None) -> str:
    return f"{times.p50:,.1f} / {times.p99:,.1f}" if times else "-"


def _retry_after(told: Counter[int]) -> str:
    if not told:
        return "-"
    return f"{min(told)}" if len(told) == 1 else f"{min(told)} to {max(told)}"
