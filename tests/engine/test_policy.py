"""Plans are a pure function of the model's stages, the strategy, the budget, the load and the number of candidates."""

import pytest

from bandrank.engine.policy import Plan, Role, Step, make_plan, strategies
from bandrank.errors import UnknownStrategy

FAST, ACCURATE = Role("fast"), Role("accurate", depth=50)
FUSED = Role("accurate", depth=50, weight=0.5)
DEEP = Role("deep", depth=10)
Told = tuple[str, list[tuple[str, int]], bool]
LATE, IN_TIME = 2.0, 0.5  # predicted seconds; the budget is 1 s


def plan_of(
    roles: list[Role], strategy: str, *, count: int = 100, budget_s: float | None = None, predicted_s: float = LATE
) -> Told:
    """The plan's strategy, its stages by name with their depths, and whether they may be cut short."""
    plan = make_plan(roles, strategy, num_candidates=count, budget_s=budget_s, predict_s=lambda _: predicted_s)
    return plan.strategy, [(roles[step.stage].name, step.depth) for step in plan.steps], plan.bounded


@pytest.mark.parametrize(
    "case",
    [
        # a single stage scores every candidate, whatever the strategy: nothing could take its place
        ([FAST], "auto", 100, None, LATE, ("fast", [("fast", 100)], False)),
        ([FAST], "fast", 100, 1.0, LATE, ("fast", [("fast", 100)], False)),
        ([ACCURATE], "auto", 100, 1.0, LATE, ("accurate", [("accurate", 100)], False)),
        # two stages, each by its name
        ([FAST, ACCURATE], "fast", 100, 1.0, LATE, ("fast", [("fast", 100)], False)),
        ([FAST, ACCURATE], "accurate", 100, None, LATE, ("accurate", [("accurate", 100)], False)),
        ([FAST, ACCURATE], "accurate", 100, 1.0, IN_TIME, ("accurate", [("accurate", 100)], False)),
        ([FAST, ACCURATE], "accurate", 100, 1.0, LATE, ("accurate", [("fast", 100), ("accurate", 100)], True)),
        # scores that are added to those of the stage before need that stage
        ([FAST, FUSED], "accurate", 100, None, LATE, ("accurate", [("fast", 100), ("accurate", 100)], False)),
        ([FAST, FUSED], "accurate", 100, 1.0, IN_TIME, ("accurate", [("fast", 100), ("accurate", 100)], True)),
        # the cascade
        ([FAST, ACCURATE], "cascade", 100, None, LATE, ("cascade", [("fast", 100), ("accurate", 50)], True)),
        ([FAST, ACCURATE], "cascade", 20, None, LATE, ("cascade", [("fast", 20), ("accurate", 20)], True)),
        # auto: the last stage alone where a cascade would drop no candidate and the budget allows
        ([FAST, ACCURATE], "auto", 50, None, LATE, ("accurate", [("accurate", 50)], False)),
        ([FAST, ACCURATE], "auto", 51, None, IN_TIME, ("cascade", [("fast", 51), ("accurate", 50)], True)),
        ([FAST, ACCURATE], "auto", 50, 1.0, IN_TIME, ("accurate", [("accurate", 50)], False)),
        ([FAST, ACCURATE], "auto", 50, 1.0, LATE, ("cascade", [("fast", 50), ("accurate", 50)], True)),
        ([FAST, FUSED], "auto", 50, None, LATE, ("accurate", [("fast", 50), ("accurate", 50)], False)),
        # three stages
        (
            [FAST, ACCURATE, DEEP],
            "cascade",
            100,
            None,
            LATE,
            ("cascade", [("fast", 100), ("accurate", 50), ("deep", 10)], True),
        ),
        ([FAST, ACCURATE, DEEP], "auto", 10, None, LATE, ("deep", [("deep", 10)], False)),
        ([FAST, ACCURATE, DEEP], "deep", 30, 1.0, LATE, ("deep", [("accurate", 30), ("deep", 30)], True)),
    ],
)
def test_plans_worked_out_by_hand(
    case: tuple[list[Role], str, int, float | None, float, tuple[str, list[tuple[str, int]], bool]],
) -> None:
    """Each row has stages, strategy, number of candidates, budget, predicted seconds, and the expected plan."""
    roles, strategy, count, budget_s, predicted_s, expected = case

    assert plan_of(roles, strategy, count=count, budget_s=budget_s, predicted_s=predicted_s) == expected


def test_a_prediction_is_made_only_where_it_matters() -> None:
    def predict_s(_: int) -> float:
        raise AssertionError

    for strategy in ("auto", "fast", "accurate", "cascade"):
        make_plan([FAST, ACCURATE], strategy, num_candidates=20, budget_s=None, predict_s=predict_s)


@pytest.mark.parametrize(("roles", "strategy"), [([FAST], "accurate"), ([ACCURATE], "cascade"), ([FAST, FUSED], "")])
def test_an_unknown_strategy_is_refused_with_the_served_ones(roles: list[Role], strategy: str) -> None:
    """A model of one stage has no cascade strategy."""
    with pytest.raises(UnknownStrategy, match=", ".join(strategies(roles))):
        plan_of(roles, strategy)


def test_a_plan_for_no_candidates() -> None:
    plan = make_plan([FAST, ACCURATE], "cascade", num_candidates=0, budget_s=None, predict_s=lambda _: 0.0)

    assert plan == Plan("cascade", (Step(0, 0), Step(1, 0)), bounded=True)
