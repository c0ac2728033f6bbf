"""The stages of a plan by what they add to the result."""

from collections.abc import Sequence
from dataclasses import dataclass

from bandrank.engine.options import Options
from bandrank.engine.ranking import Stage
from bandrank.engine.reports import StageReport
from bandrank.engine.tasks import AnyLane
from bandrank.engine.tickets import Ticket


@dataclass(frozen=True)
class WeighedStage:
    """A stage, the factor of its score in the result, and the instruction for scorers that take one."""

    stage: Stage
    weight: float
    instruction: str = ""

    @property
    def name(self) -> str:
        return self.stage.role.name

    async def score(
        self, query: str, texts: Sequence[str], ticket: Ticket, *, keep: bool
    ) -> tuple[list[float], StageReport]:
        """`TextScorer.score`."""
        options = Options(instruction=self.instruction, keep=keep)
        return await self.stage.scorer.score(self.name, query, texts, ticket=ticket, options=options)

    def expected(self, query: str, text: str, *, keep: bool) -> dict[AnyLane, float]:
        """Rows by lane of one text, as far as its length tells."""
        return self.stage.scorer.expected(query, [text], Options(keep=keep))


def weigh(stages: Sequence[Stage], instruction: str = "") -> list[WeighedStage]:
    """The stages of a plan, the last of which gives the result, with what it adds of those before."""
    weight = 1.0
    weighed = []
    for stage in reversed(stages):
        weighed.append(WeighedStage(stage, weight, instruction))
        weight *= stage.role.weight or 0.0
    return weighed[::-1]
