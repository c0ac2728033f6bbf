"""The guard keeps what a calm machine measured, drops the rest, and asks for more where too little is left."""

from collections.abc import Callable, Sequence

from bandrank_bench.calibrate import CALM_TRIES, MAX_ROUNDS_FACTOR, Calibration, Sample, clean, clean_rounds, take_turns


class Machine:
    """A machine with its own clock: products take the times of `product_s` in turn, and then the last one for ever."""

    def __init__(self, product_s: list[float]) -> None:
        self.now = 0.0
        self.products = 0
        self._product_s = product_s

    def product(self) -> None:
        self.now += self._product_s[min(self.products, len(self._product_s) - 1)]
        self.products += 1

    def run(self, seconds: float) -> None:
        self.now += seconds

    def calibration(self) -> Calibration:
        """Returns a calibration by this machine's clock, after its first product."""
        return Calibration(self.product, clock=lambda: self.now, settle_s=0.0)


def sample(before_s: float, after_s: float) -> Sample:
    return Sample("W1", "system", 0, tokens=1000, seconds=1.0, before_s=before_s, after_s=after_s)


def samples_of(
    groups: Sequence[dict[str, Callable[[int], None]]], calibration: Calibration, *, rounds: int = 1
) -> list[Sample]:
    """The samples of systems that take turns, each group by itself."""
    return take_turns(
        groups, lambda number: number, workload="W1", rounds=rounds, calibration=calibration, tokens=lambda _: 10
    )


def test_a_sample_counts_only_if_both_calibrations_are_close_to_the_best() -> None:
    """1.2 times the best is close enough on each side; more on either side is not."""
    calm, slow_before, slow_after = sample(1.0, 1.2), sample(1.21, 1.0), sample(1.0, 1.21)

    assert clean([calm, slow_before, slow_after], calm_s=1.0) == [calm]


def test_a_better_calibration_later_spoils_earlier_samples() -> None:
    """What passed against the best of its time is judged again against the best of the run."""
    early = sample(1.5, 1.5)

    assert clean([early], calm_s=1.5) == [early]
    assert clean([early], calm_s=1.0) == []


def test_on_a_calm_machine_each_system_runs_once_a_round_on_the_same_requests() -> None:
    """Every system gets `rounds` samples, of the requests 0, 1, ..., with the time it took."""
    machine = Machine([1.0])
    systems = {"fast": lambda _: machine.run(2.0), "slow": lambda _: machine.run(5.0)}

    samples = samples_of([{name: run} for name, run in systems.items()], machine.calibration(), rounds=3)

    assert sorted((one.system, one.round_number, one.seconds) for one in samples) == [
        *(("fast", number, 2.0) for number in range(3)),
        *(("slow", number, 5.0) for number in range(3)),
    ]


def test_a_spoilt_sample_is_made_up_for_in_another_round() -> None:
    """A system whose sample was spoilt runs again on a new request; one that has its samples does not."""
    machine = Machine([1.0, 1.0, 9.0, 1.0])  # at start, before the first sample, after it
    calibration = machine.calibration()

    samples = samples_of([{"one": lambda _: machine.run(2.0)}, {"other": lambda _: machine.run(2.0)}], calibration)

    kept = clean(samples, calibration.calm_s)
    assert len(samples) == 3
    assert {one.system for one in kept} == {"one", "other"}
    assert len(kept) == 2


def test_a_group_runs_together_until_a_round_is_clean_for_all_of_it() -> None:
    """One spoilt sample costs both systems of the group another round: a pair needs one request and one moment."""
    machine = Machine([1.0, 1.0, 1.0, 1.0, 9.0, 1.0])  # after the second sample
    calibration = machine.calibration()

    samples = samples_of([{"direct": lambda _: machine.run(2.0), "served": lambda _: machine.run(2.0)}], calibration)

    assert [one.round_number for one in samples] == [0, 0, 1, 1]
    assert clean_rounds(clean(samples, calibration.calm_s), ["direct", "served"]) == {1}


def test_a_slow_phase_is_waited_out_before_a_sample() -> None:
    """Nothing is run between two products as long as they are slow, up to CALM_TRIES of them."""
    slow_for = CALM_TRIES - 1
    machine = Machine([1.0, 1.0, 1.0, *[3.0] * slow_for, 1.0])
    calibration = machine.calibration()
    calibration.time()
    calibration.time()

    samples = samples_of([{"one": lambda _: machine.run(2.0)}], calibration)

    assert [(one.before_s, one.after_s) for one in samples] == [(1.0, 1.0)]


def test_a_machine_that_never_calms_down_ends_the_run() -> None:
    """After MAX_ROUNDS_FACTOR times the rounds asked for, there are samples and none of them is clean."""
    machine = Machine([1.0 + number for number in range(1000)])
    calibration = machine.calibration()

    samples = samples_of([{"one": lambda _: machine.run(2.0)}], calibration, rounds=2)

    assert len(samples) == 2 * MAX_ROUNDS_FACTOR
    assert clean(samples, calibration.calm_s) == []
