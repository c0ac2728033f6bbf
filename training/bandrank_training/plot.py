"""Plots a run: its loss and its dev nDCG@10 over steps."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from bandrank.models.checkpoint import whole

SMOOTHED = 50  # steps averaged for a point of the loss


def plot_log(log: Sequence[Mapping[str, float]], path: Path) -> None:
    """Plots the log as an SVG file."""
    steps = [entry for entry in log if "loss" in entry]
    measured = [entry for entry in log if "dev" in entry]
    figure = Figure(figsize=(8, 4), layout="constrained")
    loss = figure.subplots()
    parts = [steps[begin : begin + SMOOTHED] for begin in range(0, len(steps), SMOOTHED)]
    means = [sum(entry["loss"] for entry in part) / len(part) for part in parts]
    loss.plot([part[-1]["step"] for part in parts], means, color="tab:blue", label=f"loss, mean of {SMOOTHED} steps")
    loss.set_xlabel("step")
    loss.set_ylabel("loss")
    lines = loss.get_lines()
    if measured:
        dev = loss.twinx()
        dev.plot(
            [entry["step"] for entry in measured],
            [entry["dev"] for entry in measured],
            "o-",
            color="tab:orange",
            label="nDCG@10 on dev",
        )
        dev.set_ylabel("nDCG@10")
        lines = [*lines, *dev.get_lines()]
    loss.legend(handles=lines, loc="center right")
    with whole(path) as partial:
        figure.savefig(partial, format="svg")
