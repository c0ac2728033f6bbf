"""The neutral request and answer into which every dialect translates; knows no HTTP."""

from collections.abc import Sequence
from dataclasses import dataclass

from bandrank.engine.clients import ITSELF, Client
from bandrank.engine.memory import Account
from bandrank.engine.policy import AUTO
from bandrank.engine.ranking import Ranking
from bandrank.engine.registry import CallCandidate, CandidateRegistry, Unresolved
from bandrank.engine.served import Models, ServedModel


@dataclass(frozen=True)
class Call:
    """A request to rank candidates.

    top_n: the number of results; None or 0 for all.  model: its name; None for the default model.
    budget_s: seconds within which the answer is due.  return_texts: whether results carry the candidates' texts.
    raw_scores: whether results carry the scorer's raw scores instead of their sigmoid.
    account: of the client who asks; None for the service itself.
    """

    query: str
    candidates: Sequence[CallCandidate]
    top_n: int | None = None
    model: str | None = None
    strategy: str = AUTO
    budget_s: float | None = None
    return_texts: bool = False
    raw_scores: bool = False
    account: Account | None = None


@dataclass(frozen=True)
class Answer:
    """A ranking, whose indices are those of the call's candidates.

    model: the name of the model that ranked.  texts: by index in the call; None for an unresolved candidate.
    """

    model: str
    ranking: Ranking
    texts: Sequence[str | None]
    unresolved: Sequence[Unresolved]


async def answer(call: Call, models: Models, registry: CandidateRegistry) -> Answer:
    """Ranks the candidates of a call. Raises what `Models.find`, `CandidateRegistry.resolve` and `ServedModel.rank`
    raise.
    """
    model = models.find(call.model)
    start = model.engine.clock()
    texts, unresolved = await registry.resolve(call.candidates, call.account)
    left_s = None if call.budget_s is None else call.budget_s - (model.engine.clock() - start)
    client = call.account.client if call.account is not None else ITSELF
    ranking = await rank_resolved(model, call.query, texts, client=client, strategy=call.strategy, budget_s=left_s)
    return Answer(model.name, ranking, texts, unresolved)


async def rank_resolved(
    model: ServedModel,
    query: str,
    texts: Sequence[str | None],
    *,
    client: Client,
    strategy: str,
    budget_s: float | None = None,
) -> Ranking:
    """A model's ranking of those of a call's candidates that have a text. Raises what `ServedModel.rank` raises."""
    ranked = {index: text for index, text in enumerate(texts) if text is not None}
    ranking = await model.rank(query, list(ranked.values()), client=client, strategy=strategy, budget_s=budget_s)
    indices = list(ranked)
    for candidate in ranking.candidates:
        candidate.index = indices[candidate.index]
    return ranking
