"""A served model and its shadow in this process, without HTTP."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from support.accounts import ACCOUNT
from support.serving import files_of
from support.tasks import until

from bandrank.engine.calls import Answer, Call, answer
from bandrank.engine.memory import Memory
from bandrank.engine.registry import CallCandidate
from bandrank.engine.shadow import Shadow
from bandrank.metrics import Metrics
from bandrank.models.scorer import Scorer
from bandrank.serving import Serving, assemble
from bandrank.settings import Settings


@dataclass(frozen=True)
class Shadowed:
    """The served model, its shadow, and the budget of memory for the shadow's samples."""

    serving: Serving
    shadow: Shadow
    memory: Memory

    @property
    def metrics(self) -> Metrics:
        """The metrics of both models."""
        return self.serving.models.default.engine.metrics

    async def ask(self, texts: Sequence[str], *, strategy: str = "auto") -> Answer:
        """Ranks texts, and offers the answer to the shadow."""
        call = Call("who", [CallCandidate(text) for text in texts], strategy=strategy)
        answered = await answer(call, self.serving.models, self.serving.registry, ACCOUNT)
        self.shadow.offer("request", call, answered)
        return answered

    async def done(self) -> None:
        """Returns when the shadow has nothing left to do."""
        await until(lambda: not self.value("shadow_pending"))

    def value(self, name: str, **labels: str) -> float:
        """The value of a metric; the labels that name the shadow are added to those that have them."""
        if name.startswith("shadow_") and name not in {"shadow_pending", "shadow_rows_total"}:
            labels = {"model": "tiny", "shadow": self.shadow.name, **labels}
        found = self.metrics.registry.get_sample_value(f"bandrank_{name}", labels)
        assert found is not None, (name, labels)
        return found

    def dropped(self) -> dict[str, float]:
        """How many samples were dropped, by the reason."""
        reasons = ("full", "memory", "too_large", "late", "stopping")
        counts = {reason: self.value("shadow_dropped_total", reason=reason) for reason in reasons}
        return {reason: count for reason, count in counts.items() if count}


@asynccontextmanager
async def shadowed(
    scorer: Scorer,
    shadow: Scorer,
    *,
    fast: Scorer | None = None,
    strategy: str = "",
    share: float = 1.0,
    memory_bytes: int = 256 << 20,
    settings: Settings | None = None,
    apart: bool = False,
) -> AsyncIterator[Shadowed]:
    """A model named "tiny" and its shadow. fast: its first stage.  apart: whether the shadow has its own thread."""
    settings = settings or Settings(device="cpu")
    served = files_of(scorer, fast=fast)
    beside = replace(files_of(shadow, name="shadow"), served=apart, shadow=True)
    serving = assemble([served] if apart else [served, beside], settings)
    other = assemble([beside], settings) if apart else serving
    assert other.shadow is not None
    metrics = serving.models.default.engine.metrics
    memory = Memory(memory_bytes, metrics)
    of_shadow = Shadow(other.shadow, strategy=strategy, share=share, answering=["tiny"], memory=memory, metrics=metrics)
    yield Shadowed(serving, of_shadow, memory)
    await of_shadow.close()
    await serving.models.close()
    if apart:
        await other.models.close()
