"""Decides which stages of a model a request runs, and over how many candidates each."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bandrank.errors import UnknownStrategy

AUTO, CASCADE = "auto", "cascade"  # the strategies besides the names of a model's stages

PredictSeconds = Callable[[int], float]


@dataclass(frozen=True)
class Role:
    """The role of a stage in the plans of its model.

    name: the name that requests use.  depth: how many candidates a cascade leaves to it; None for all.
    weight: the factor of the previous stage's scores, which are added to this stage's; None if nothing is added.
    """

    name: str
    depth: int | None = None
    weight: float | None = None


@dataclass(frozen=True)
class Step:
    """Runs the stage at an index over the best `depth` candidates of the previous step."""

    stage: int
    depth: int


@dataclass(frozen=True)
class Plan:
    """Steps in the order in which they run.

    strategy: the name that the answer reports.  bounded: whether the request's budget and the service's load may cut
    the steps after the first short. The first step always scores every candidate, as no other scores could replace it.
    """

    strategy: str
    steps: tuple[Step, ...]
    bounded: bool


def make_plan(
    roles: Sequence[Role],
    strategy: str | None,
    *,
    num_candidates: int,
    budget_s: float | None,
    predict_s: PredictSeconds,
) -> Plan:
    """The plan for a request.

    roles: the model's stages, the cheapest first.  strategy: None for that of the last stage, whatever the budget.
    budget_s: seconds within which the answer is due, or None.
    predict_s: seconds until the stage at an index would have scored all candidates, after the work queued now.
    "auto" runs the last stage over all candidates if a cascade would leave them all to it and the budget allows that,
    and otherwise the cascade.
    Raises UnknownStrategy for a strategy that the model does not have.
    """
    names = [role.name for role in roles]
    last = len(roles) - 1
    cascade = tuple(
        Step(index, num_candidates if role.depth is None else min(role.depth, num_candidates))
        for index, role in enumerate(roles)
    )

    def is_late(index: int) -> bool:
        return budget_s is not None and predict_s(index) > budget_s

    def over_all(index: int, *, after_another: bool) -> tuple[Step, ...]:
        """The stage over every candidate, after the stages whose scores are added to its scores."""
        after_another = index > 0 and (after_another or roles[index].weight is not None)
        before = over_all(index - 1, after_another=False) if after_another else ()
        return (*before, Step(index, num_candidates))

    if strategy is None:
        return Plan(names[last], over_all(last, after_another=False), bounded=False)
    if strategy == AUTO:
        in_time = last == 0 or (cascade[last].depth == num_candidates and not is_late(last))
        strategy = names[last] if in_time else CASCADE
    if strategy == CASCADE and last > 0:
        return Plan(CASCADE, cascade, bounded=True)
    if strategy not in names:
        raise UnknownStrategy(f"the model has no strategy {strategy[:40]!r}; there are {', '.join(strategies(roles))}")
    index = names.index(strategy)
    # A stage that would be late runs after a cheaper one, whose scores stand for the candidates that it does not reach.
    steps = over_all(index, after_another=is_late(index))
    return Plan(strategy, steps, bounded=budget_s is not None and len(steps) > 1)


def strategies(roles: Sequence[Role]) -> list[str]:
    """The strategies of a model with these stages."""
    return [AUTO, *(role.name for role in roles), *([CASCADE] if len(roles) > 1 else [])]
