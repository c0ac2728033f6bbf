"""Plots goodput and latency over the offered load."""

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bandrank_bench.figures import save
from bandrank_bench.overload.experiments import Measured
from bandrank_bench.overload.summary import Percentiles


def plot(measured: Measured, path: Path) -> None:
    """Writes the plot: rates on the left, times on the right, both over multiples of the capacity."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    rates, times = figure.subplots(1, 2)
    multiples = [point.multiple for point in measured.points]
    rates.plot(multiples, [point.share for point in measured.points], "o-", label="goodput")
    rates.plot(multiples, [point.offered_share for point in measured.points], "k:", label="offered")
    rates.axhline(1.0, color="grey", linestyle="--", label="capacity, closed loop")
    rates.set_ylim(0, 2)
    rates.set_ylabel("times the capacity")
    _percentiles(times, multiples, [point.summary.admitted for point in measured.points], "admitted", "C0")
    _percentiles(times, multiples, [point.summary.refused for point in measured.points], "refused", "C3")
    times.set_yscale("log")
    times.set_ylabel("milliseconds until the answer")
    for axes in (rates, times):
        axes.set_xlabel("offered, times the capacity")
        axes.set_xlim(0, None)
        axes.legend()
    save(figure, path)


def _percentiles(axes: Axes, multiples: list[float], times: list[Percentiles | None], name: str, color: str) -> None:
    known = [(multiple, one) for multiple, one in zip(multiples, times, strict=True) if one is not None]
    if known:
        at = [multiple for multiple, _ in known]
        axes.plot(at, [one.p99 for _, one in known], "o-", color=color, label=f"{name}, p99")
        axes.plot(at, [one.p50 for _, one in known], "o:", color=color, label=f"{name}, p50")
