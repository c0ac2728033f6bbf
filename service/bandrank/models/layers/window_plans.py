"""Attention plans of encoders whose layers have different windows."""

from collections.abc import Callable, Hashable, Mapping, Sequence

from torch import Tensor

from bandrank_kernels.windowed_attention import AttentionPlan


class WindowPlans(AttentionPlan):
    """The plans of one batch by the window of the layers; each layer picks one with `plan_within`."""

    def __init__(self, plans: Mapping[int | None, AttentionPlan]) -> None:
        self.plans = plans
        self.host_tables = [table for plan in plans.values() for table in plan.host_tables]

    @property
    def signature(self) -> Hashable:
        return tuple((window, plan.signature) for window, plan in self.plans.items())

    def bind(self, tables: Sequence[Tensor]) -> "WindowPlans":
        rest = iter(tables)
        return WindowPlans(
            {window: plan.bind([next(rest) for _ in plan.host_tables]) for window, plan in self.plans.items()}
        )

    def attend(self, qkv: Tensor) -> Tensor:
        raise NotImplementedError("each layer picks the plan of its window")


def for_windows(windows: Sequence[int | None], plan_for: Callable[[int | None], AttentionPlan]) -> AttentionPlan:
    """The plans that layers of these windows need, from `plan_for`; a single one if none is local."""
    if list(windows) == [None]:
        return plan_for(None)
    return WindowPlans({window: plan_for(window) for window in windows})


def plan_within(plan: AttentionPlan, window: int | None) -> AttentionPlan:
    """The plan for a layer of this window; a plan that is not `WindowPlans` is for all layers."""
    return plan.plans[window] if isinstance(plan, WindowPlans) else plan
