"""Times systems on a workload by turns."""

from collections.abc import Callable, Sequence

from bandrank_bench.calibrate import Calibration, Sample, take_turns
from bandrank_bench.output import say
from bandrank_bench.systems import System
from bandrank_bench.workloads import Request, Workload, Writer


def measure(
    workload: Workload,
    systems: Sequence[System],
    writer: Writer,
    *,
    rounds: int,
    warm_up: Request,
    calibration: Calibration,
) -> list[Sample]:
    """Takes samples of all systems on one workload, after a warm-up request that is not counted."""
    for system in systems:
        say(f"{workload.name} warm-up: {system.name}")
        system.score(warm_up.query, warm_up.passages)
    say(f"{workload.name}: {rounds} clean samples of each system")

    def caller(system: System) -> Callable[[Request], object]:
        return lambda request: system.score(request.query, request.passages)

    groups: dict[str, dict[str, Callable[[Request], object]]] = {}
    for system in systems:
        groups.setdefault(system.served or system.name, {})[system.name] = caller(system)
    return take_turns(
        list(groups.values()),
        lambda round_number: workload.request(writer, round_number),
        workload=workload.name,
        rounds=rounds,
        calibration=calibration,
        tokens=lambda request: request.total_tokens,
    )
