"""The endpoint that explains a score: one query and one candidate in, and what each stage made of them out."""

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Self

import numpy as np
from fastapi import Depends, Request, Response
from pydantic import BaseModel, ConfigDict, Field, model_validator

from bandrank.api.admission import REFUSALS, SECURED, account_for
from bandrank.api.description import errors, new_router
from bandrank.api.dialects.costs import Usage
from bandrank.api.dialects.dialect import sigmoid
from bandrank.api.dialects.fields import NOT_BLANK, Instruction, not_blank
from bandrank.api.dialects.native import TextOrCandidate, is_nothing
from bandrank.api.disconnects import hung_up, unless_gone
from bandrank.api.keys import Scope
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

    query: str = Field(json_schema_extra={"pattern": NOT_BLANK})
    candidate: TextOrCandidate = Field(description="A text, or an object with a text, a registered id, or both.")
    model: str | None = Field(default=None, description="As for /rerank.")
    strategy: str | None = Field(default=AUTO, description="As for /rerank, for this candidate alone.")
    instruction: Instruction = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        not_blank(self.query)
        if is_nothing(self.candidate):
            raise ValueError("candidate has neither a text nor an id")
        return self


@dataclass(slots=True)
class TokenOut:
    """A token id, its piece of the vocabulary, and the characters that it stands for; one that was added has none."""

    id: int
    piece: str
    start: int | None = None
    end: int | None = None


@dataclass(slots=True)
class CutOut:
    """What is not read: the characters from `start` up to `end`, which are `tokens` word pieces.

    Of what lies beyond the characters that are looked at, the word pieces are estimated.
    """

    start: int
    end: int
    tokens: int


class TextOut(BaseModel):
    """A text as a stage reads it. cut: what it does not read of the text, if it does not read all."""

    tokens: list[TokenOut]
    cut: CutOut | None = None


@dataclass(slots=True)
class ExcerptOut:
    """The part of a long candidate in which words were left out, and its raw score by itself."""

    start: int
    end: int
    raw_score: float


class StageOut(BaseModel):
    """What a stage gave and read.

    raw_score: its own. weight: its factor in the result, 0 for a stage that only chooses who goes on. cached: whether
    the candidate's representation was there before this request; absent for a scorer that does not precompute.
    excerpt: the part of a long candidate to whose score the stage's contributions are; absent where they are to
    raw_score.
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
    """Words of the candidate, and how much lower the raw score is without them; negative where it is higher.

    stages: the same for each stage that counts, by itself; absent where these words are not in what it reads, or not
    in its excerpt.
    """

    start: int
    end: int
    text: str
    contribution: float
    stages: dict[str, float]


class WordsOut(BaseModel):
    """Which words the score rests on.

    A contribution is a stage's raw_score less the raw score of the same text without the characters of the span, as
    /rerank gives it; of a text that is cut, of its part that is read. The stages' contributions times their weights add
    up to it. The contributions of all spans need not add up to the score: words act together.

    Words are left out one by one or, where they are many, in windows of several: at most 64, and so few that all these
    texts together have some 16,000 tokens. Of a candidate that takes more than some 2,000, a stage scores the parts,
    each of about 450 tokens, and words are left out of the one that scores highest: its excerpt.
    """

    method: str = "occlusion"
    spans: list[SpanOut]


class ExplainTimingsMs(BaseModel):
    """Milliseconds of the score itself, of scoring the texts without some of their words, and of the whole request."""

    score: float
    words: float
    total: float


class ExplainMeta(BaseModel):
    """What the answer cost. occluded: how many excerpts and texts without some of their words were scored, over all
    stages.
    """

    timings_ms: ExplainTimingsMs
    strategy: str
    occluded: int


class ExplainResponse(BaseModel):
    """A candidate's score as /rerank shows it, and where it comes from. All places are Unicode code points.

    relevance_score is the sigmoid of raw_score, which is the sum of the stages' raw scores times their weights.
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
async def explain_score(
    request: Request, service: ServiceOfApp, account: Annotated[Account, Depends(account_for(Scope.RANK))]
) -> Response:
    """Explains the score of a candidate for a query: what each stage read and gave, and which words the score rests on.

    It takes as much work as ranking the candidate up to 65 times, and a long one twice. What is computed for texts
    without some of their words is kept in no cache.
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
    return json_of(response, exclude_none=True)


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
