"""The endpoint that explains a score: one query and one candidate in, and what each stage made of them out."""

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from fastapi import Request, Response
from pydantic import BaseModel, ConfigDict, Field, model_validator

from bandrank.api.admission import REFUSALS, SECURED, RankingAccount
from bandrank.api.description import errors, new_router
from bandrank.api.dialects.costs import Usage
from bandrank.api.dialects.dialect import sigmoid
from bandrank.api.dialects.fields import NOT_BLANK, Instruction, not_blank
from bandrank.api.dialects.native import TextOrCandidate, is_nothing
from bandrank.api.disconnects import hung_up, unless_gone
from bandrank.api.parsing import read_json
from bandrank.api.responses import JsonInParts, json_of
from bandrank.api.schemas import body_schema
from bandrank.api.service import Service, ServiceOfApp
from bandrank.engine.explain import Explanation, StageExplanation, explain
from bandrank.engine.memory import Account
from bandrank.engine.policy import AUTO
from bandrank.engine.registry import CallCandidate
from bandrank.engine.reports import StageReport
from bandrank.models.readings import Reading

router = new_router()


class ExplainRequest(BaseModel):
    """A query and the candidate whose score is to be explained. Fields not named here are ignored."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"query": "how do bees find their way home?", "candidate": "Bees navigate by the sun."}]
        }
    )

    query: str = Field(description="The text of the query, not blank.", json_schema_extra={"pattern": NOT_BLANK})
    candidate: TextOrCandidate = Field(description="A text, or an object with a text, a registered id, or both.")
    model: str | None = Field(default=None, description="As in /rerank.")
    strategy: str | None = Field(default=AUTO, description="As in /rerank, for a request with this one candidate.")
    instruction: Instruction = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        not_blank(self.query)
        if is_nothing(self.candidate):
            raise ValueError("candidate has neither a text nor an id")
        return self


@dataclass(slots=True)
class TokenOut:
    """A token that a stage reads. piece: its text in the vocabulary.

    start, end: the characters that it stands for; absent for a token that is not from the text, such as [SEP].
    """

    id: int
    piece: str
    start: int | None = None
    end: int | None = None


@dataclass(slots=True)
class CutOut:
    """The part of a text that a stage does not read: the characters from `start` up to `end`.

    tokens: how many word pieces that is; estimated for characters beyond those that the service looks at.
    """

    start: int
    end: int
    tokens: int


class TextOut(BaseModel):
    """A text as a stage reads it. cut: the part that it does not read; absent if it reads all."""

    tokens: list[TokenOut]
    cut: CutOut | None = None


@dataclass(slots=True)
class ExcerptOut:
    """The part of a long candidate in which words were left out, and the raw score of that part alone."""

    start: int
    end: int
    raw_score: float


class StageOut(BaseModel):
    """What a stage read, and the score that it gave.

    raw_score: the stage's own score. weight: its factor in the overall raw_score; 0 for a stage that only chooses which
    candidates go on. cached: whether the candidate's representation was cached before this request; absent if the
    scorer does not precompute. excerpt: the part of a long candidate from whose score the stage's contributions are
    measured; absent if they are measured from raw_score.
    """

    stage: str
    raw_score: float
    weight: float
    cached: bool | None = None
    query: TextOut
    candidate: TextOut
    excerpt: ExcerptOut | None = None


@dataclass(slots=True)
class SpanOut:
    """One word of the candidate or several in a row, and how much they contribute to its score.

    start, end: the characters of the words. text: those characters. contribution: how much lower the raw score is
    without them; negative if it is higher. stages: the contribution to each stage's own raw score, by the stage's name,
    without stages whose weight is 0 and those that do not read these words or do not have them in their excerpt.
    """

    start: int
    end: int
    text: str
    contribution: float
    stages: dict[str, float]


class WordsOut(BaseModel):
    """Which words the score rests on.

    A stage's contribution is its raw_score minus the raw score that /rerank gives the same text without the characters
    of the span. If the text is cut, only the part that is read counts. A span's contribution is the sum of the stages'
    contributions times their weights. The contributions of all spans need not add up to the score, because words act
    together.

    Words are left out one at a time or, if there are many, in windows of several: at most 64 windows, or fewer if
    all these texts together would exceed some 16,000 tokens. If a candidate has more than some 2,000 tokens, a
    stage scores its parts, of about 450 tokens each, and words are left out of the part that scores highest, the
    stage's excerpt.
    """

    method: str = "occlusion"
    spans: list[SpanOut]


class ExplainTimingsMs(BaseModel):
    """Milliseconds that the steps took.

    score: scoring the candidate. words: scoring it without some of its words. total: the whole request.
    """

    score: float
    words: float
    total: float


class ExplainMeta(BaseModel):
    """What the answer cost.

    strategy: the one that was used. occluded: how many parts of a long candidate, and texts without some of their
    words, were scored over all stages.
    """

    timings_ms: ExplainTimingsMs
    strategy: str
    occluded: int


class ExplainResponse(BaseModel):
    """A candidate's score as /rerank gives it, and what it rests on. Each `start` and `end` counts Unicode code points.

    model: the name of the model that scored. raw_score: the sum of the stages' raw scores times their weights.
    relevance_score: the sigmoid of raw_score.
    """

    id: str
    model: str
    relevance_score: float
    raw_score: float
    stages: list[StageOut]
    words: WordsOut
    usage: Usage
    meta: ExplainMeta


@router.post(
    "/explain",
    response_model=ExplainResponse,
    responses=errors(*REFUSALS, 404, 413, 415, 422, 500, 503, 504),
    openapi_extra=body_schema(ExplainRequest) | SECURED,
)
async def explain_score(request: Request, service: ServiceOfApp, account: RankingAccount) -> Response:
    """Explains the score of a candidate for a query: what each stage read and gave, and which words the score rests on.

    It takes at most as much work as ranking the candidate 65 times, and for a long candidate as ranking it twice.
    Nothing is cached except the candidate itself.
    """
    start = time.monotonic()
    body = await read_json(request, ExplainRequest, service.max_body_bytes, account, service.pace)
    text, explained = await unless_gone(hung_up(request), _explain(body, service, account))
    answer = await service.pace.run(account.client, _write, body.query, text, explained, time.monotonic() - start)
    return JsonInParts(answer)


async def _explain(body: ExplainRequest, service: Service, account: Account) -> tuple[str, Explanation]:
    """The candidate's text, and the explanation of its score."""
    item = body.candidate
    candidate = CallCandidate(item) if isinstance(item, str) else CallCandidate(item.text, item.id)
    model = service.models.find(body.model)
    [text], _ = await service.registry.resolve([candidate], account)
    assert text is not None, "a candidate without a text is unknown. This is a bug."
    explained = await explain(
        model, body.query, text, strategy=body.strategy or AUTO, instruction=body.instruction or "", account=account
    )
    return text, explained


def _write(query: str, text: str, explained: Explanation, total_s: float) -> bytes:
    """The JSON of the ExplainResponse."""
    response = ExplainResponse(
        id=f"explain-{uuid.uuid4().hex}",
        model=explained.model,
        relevance_score=sigmoid(np.array([explained.score], np.float32)).item(),
        raw_score=np.float32(explained.score).item(),
        stages=[_stage(stage, query, text) for stage in explained.stages],
        words=WordsOut(
            spans=[
                SpanOut(each.start, each.end, text[each.start : each.end], each.score, dict(each.stages))
                for each in explained.contributions
            ]
        ),
        usage=Usage.of(explained.num_tokens),
        meta=ExplainMeta(
            timings_ms=ExplainTimingsMs(
                score=_ms([stage.report for stage in explained.stages]),
                words=_ms(explained.occlusion),
                total=round(total_s * 1000, 3),
            ),
            strategy=explained.strategy,
            occluded=explained.num_occluded,
        ),
    )
    return json_of(response)


def _stage(stage: StageExplanation, query: str, text: str) -> StageOut:
    part = stage.excerpt
    return StageOut(
        stage=stage.stage,
        raw_score=stage.score,
        weight=stage.weight,
        cached=stage.cached,
        query=_text(stage.query, query, stage.report.truncated_query_tokens),
        candidate=_text(stage.candidate, text, stage.report.truncated_candidate_tokens[0]),
        excerpt=None if part is None else ExcerptOut(part.start, part.end, part.score),
    )


def _text(reading: Reading, text: str, num_cut: int) -> TextOut:
    tokens = [TokenOut(token.id, token.piece, token.start, token.end) for token in reading.tokens]
    return TextOut(tokens=tokens, cut=CutOut(reading.read_to, len(text), num_cut) if num_cut else None)


def _ms(reports: Sequence[StageReport]) -> float:
    return round(sum(report.total_s for report in reports) * 1000, 3)
