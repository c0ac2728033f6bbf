"""The aims: ratios to the best peer, and memory that grows no faster than the tokens."""

from collections.abc import Mapping, Sequence

from bandrank_bench.aims import Aim
from bandrank_bench.cpu.summary import Row, over_peers
from bandrank_bench.families.memory import OURS, Growth

# Speed-ups over the best peer of the same precision, by family and workload; int8 has no peer and no aim.
FASTER = {("XLM-R-base", "W1"): 1.2, ("ModernBERT-base", "W1"): 1.2, ("Qwen3-0.6B", "W1"): 1.5}
PRECISIONS = ("fp32", "bf16")
MOST_GROWTH = 1.25  # memory per token: the longest request's over that of one a quarter as long


def judge_speed(family: str, tables: Mapping[str, Sequence[Row]]) -> list[Aim]:
    """Returns the aims of a family. tables: by workload."""
    aims = []
    for workload, rows in tables.items():
        least = FASTER.get((family, workload))
        for row in rows:
            system = row.system
            if least is not None and system.kind == "in process" and system.precision in PRECISIONS:
                aims.append(over_peers(f"{family}, {workload}", row, rows, least))
    return aims


def judge_memory(growths: Sequence[Growth]) -> list[Aim]:
    """Returns the memory aims of our process."""
    return [
        Aim(
            f"{growth.family}, {growth.kind}: memory per token, the longest over one of a quarter of its length",
            MOST_GROWTH,
            growth.of_quarter,
        )
        for growth in growths
        if growth.system == OURS
    ]
