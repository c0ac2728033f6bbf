"""Which stages of a model a request runs, and over how many candidates each."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bandrank.errors import InvalidInput

AUTO, CASCADE = "auto", "cascade"  # strategies that every model knows, beside the names of its stages

PredictSeconds = Callable[[int], float]


@dataclass(frozen=True)
class Role:
    """A stage as a plan sees it.

    name: what requests call it.  depth: how many candidates a cascade leaves to it; None for all.
    weight: of the scores of the stage before, which are added to its own; None if its scores stand alone.
    """

    name: str
    depth: int | None = None
    weight: float | None = None


@dataclass(frozen=True)
class Step:
    """A stage, by its index, that scores the best `depth` candidates of the step before."""

    stage: int
    depth: int


@dataclass(frozen=True)
class Plan:
    """Steps in the order in which they run.

    strategy: the name that the answer tells.  bounded: whether the request's budget and the service's load may cut the
    steps after the first short; the first one always scores every candidate, for nothing could stand in its place.
    """

    strategy: str
    steps: tuple[Step, ...]
    bounded: bool


def make_plan(
    roles: Sequence[Role], strategy: str, *, num_candidates: int, budget_s: float | None, predict_s: PredictSeconds
) -> Plan:
    """The plan for a request.

    roles: the model's stages, the cheapest first.  budget_s: within which the answer is due, or None.
    predict_s: seconds until the stage of an index would have scored all candidates, with the work queued now before it.
    "auto" runs the last stage over all candidates where a cascade would leave them all to it and the budget allows,
    and else the cascade.
    Raises InvalidInput for a strategy that the model does not have.
    """
    names = [role.name for role in roles]
    last = len(roles) - 1
    cascade = tuple(
        Step(index, num_candidates if role.depth is None else min(role.depth, num_candidates))
        for index, role in enumerate(roles)
    )

    def is_late(index: int) -> bool:
        return budget_s is not None and predict_s(index) > budget_s

    def over_all(index: int, *, behind_another: bool) -> tuple[Step, ...]:
        """The stage over every candidate, behind the stages whose scores its own are added to."""
        behind_another = index > 0 and (behind_another or roles[index].weight is not None)
        before = over_all(index - 1, behind_another=False) if behind_another else ()
        return (*before, Step(index, num_candidates))

    if strategy == AUTO:
        in_time = last == 0 or (cascade[last].depth == num_candidates and not is_late(last))
        strategy = names[last] if in_time else CASCADE
    if strategy == CASCADE and last > 0:
        return Plan(CASCADE, cascade, bounded=True)
    if strategy not in names:
        raise InvalidInput(f"strategy {strategy[:40]!r} is not served here; there are {', '.join(strategies(roles))}")
    index = names.index(strategy)
    # A stage that would be late runs behind a cheaper one, which answers for the candidates that it does not reach.
    steps = over_all(index, behind_another=is_late(index))
    return Plan(strategy, steps, bounded=budget_s is not None and len(steps) > 1)


def strategies(roles: Sequence[Role]) -> list[str]:
    """The strategies that a model of these stages knows."""
    return [AUTO, *(role.name for role in roles), *([CASCADE] if len(roles) > 1 else [])]
