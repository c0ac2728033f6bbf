"""The request and answer that every dialect translates to and from; knows no HTTP."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from bandrank.engine.clients import Client
from bandrank.engine.memory import Account
from bandrank.engine.mixing import mix
from bandrank.engine.options import DEFAULT, Options
from bandrank.engine.passages import Passage
from bandrank.engine.policy import AUTO
from bandrank.engine.ranking import Ranking, join
from bandrank.engine.registry import CallCandidate, CandidateRegistry, Unresolved
from bandrank.engine.served import Models, ServedModel
from bandrank.engine.submit import timeout


@dataclass(frozen=True)
class Call:
    """A request to rank candidates.

    top_n: the number of results; None or 0 for all.  model: its name; None for the default model.
    any_model: whether the default model stands in for one that is not served.
    strategy: None for that of the model's last stage, whatever the budget: only its scores compare across queries and
    calls.  budget_s: seconds within which the answer is due.  return_texts: whether results carry their texts.
    raw_scores: whether results carry the scorer's raw scores instead of their sigmoid.
    first_stage_weight: the weight, from 0 to 1, of the scores that candidates came with; None for the model's own.
    pooled: as in Options, whose own is not read; None for the model's own.
    options: how the texts are read and scored; the reports say whether an instruction was read.
    """

    query: str
    candidates: Sequence[CallCandidate]
    top_n: int | None = None
    model: str | None = None
    any_model: bool = False
    strategy: str | None = AUTO
    budget_s: float | None = None
    return_texts: bool = False
    raw_scores: bool = False
    first_stage_weight: float | None = None
    pooled: bool | None = None
    options: Options = DEFAULT


@dataclass(frozen=True)
class Answer:
    """A ranking whose indices are those of the call's candidates.

    model: the name of the model that ranked.  texts: by index in the call; None for an unresolved candidate.
    first_stage_weight: the weight with which scores of candidates were mixed in; 0 if none were.
    passages: if the options ask for them, the best passage of each of the top_n whose stage has passages, by index.
    """

    model: str
    ranking: Ranking
    texts: Sequence[str | None]
    unresolved: Sequence[Unresolved]
    first_stage_weight: float = 0.0
    passages: Mapping[int, Passage] = field(default_factory=dict)


async def answer(call: Call, models: Models, registry: CandidateRegistry, account: Account) -> Answer:
    """Ranks the candidates of a call.

    account: its client's.  Raises what `Models.find`, `CandidateRegistry.resolve` and `ServedModel.rank_each` raise.
    """
    model = models.find(call.model, or_default=call.any_model)
    start = model.engine.clock()
    texts, unresolved = await registry.resolve(call.candidates, account)
    by_query: dict[str, dict[int, str]] = {}
    scores: dict[int, float] = {}
    for index, (candidate, text) in enumerate(zip(call.candidates, texts, strict=True)):
        if text is not None:
            by_query.setdefault(call.query if candidate.query is None else candidate.query, {})[index] = text
            if candidate.score is not None:
                scores[index] = candidate.score
    weight = model.first_stage_weight if call.first_stage_weight is None else call.first_stage_weight
    mixed = weight if scores else 0.0
    # Without a strategy scores must not depend on the other texts.
    pooled = model.pooled and call.strategy is not None if call.pooled is None else call.pooled
    options = replace(call.options, pooled=pooled)
    budget_s = None if call.budget_s is None else start + call.budget_s - model.engine.clock()

    async def rank() -> Ranking:
        ranking = await rank_resolved(
            model, by_query, client=account.client, strategy=call.strategy, budget_s=budget_s, options=options
        )
        return mix(ranking, scores, mixed)

    if not call.options.best_passages:
        return Answer(model.name, await rank(), texts, unresolved, mixed)
    async with model.engine.admitted(), timeout(start + model.engine.request_timeout_s - model.engine.clock()):
        ranking = await rank()
        top = [candidate.index for candidate in ranking.candidates[: call.top_n or None]]
        best = {index: ranking.passages[index] for index in top if index in ranking.passages}
        ranked = {index: text for index, text in enumerate(texts) if text is not None}
        passages = await model.locate(best, ranked, client=account.client)
    return Answer(model.name, ranking, texts, unresolved, mixed, passages)


async def rank_resolved(
    model: ServedModel,
    by_query: Mapping[str, Mapping[int, str]],
    *,
    client: Client,
    strategy: str | None,
    budget_s: float | None = None,
    options: Options,
) -> Ranking:
    """Ranks texts, given by query and index, with a model. Raises what `ServedModel.rank_each` raises."""
    rankings = await model.rank_each(
        [(query, list(texts.values())) for query, texts in by_query.items()],
        client=client,
        strategy=strategy,
        budget_s=budget_s,
        options=options,
    )
    ranked = [_indexed(ranking, list(texts)) for ranking, texts in zip(rankings, by_query.values(), strict=True)]
    return ranked[0] if len(ranked) == 1 else join(ranked)


def _indexed(ranking: Ranking, indices: Sequence[int]) -> Ranking:
    """Replaces the indices of a ranking of some texts by their indices in the request."""
    for candidate in ranking.candidates:
        candidate.index = indices[candidate.index]
    if not ranking.passages:
        return ranking
    return replace(ranking, passages={indices[index]: passage for index, passage in ranking.passages.items()})
