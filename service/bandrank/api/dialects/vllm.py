"""What vLLM's requests to rank and to score have in common, and what their answers warn of."""

from typing import Any

from pydantic import BaseModel, Field

from bandrank.api.dialects.dialect import Exchange
from bandrank.api.dialects.fields import AnyLimit, Flag, Instruction, Limit, Priority
from bandrank.engine.options import Options
from bandrank.models.texts import Reach

NO_LEFT_CUT = "truncate_prompt_tokens was not applied, because texts are never cut from the left"
QUERY_KEPT = "truncate_prompt_tokens cut documents alone; with the query, which is never cut, some have more tokens"
QUERY_WHOLE = "max_tokens_per_query was not applied; a query has more tokens, and is never cut"


class ChatTemplateKwargs(BaseModel):
    """Fields for a chat template. Those not named here are ignored."""

    instruction: Instruction = None


class VllmRequest(BaseModel):
    """How texts are read and scored. The first text of a pair is the query, the second the document."""

    use_activation: Flag = Field(default=True, description="false: scores are the scorer's own and not their sigmoid.")
    activation: Flag = Field(default=True, description="Another name for use_activation.")
    softmax: Flag = Field(default=True, description="Another name for use_activation.")
    max_tokens_per_doc: Limit = Field(
        default=None, description="How many tokens of each document are read, by the model's tokenizer. null or 0: all."
    )
    max_tokens_per_query: Limit = Field(
        default=None, description="Cuts nothing: if the query has more tokens, the answer has a warning."
    )
    truncate_prompt_tokens: AnyLimit = Field(
        default=None,
        description="How many tokens of a query and a document together are read, special tokens included; for models "
        "that encode them apart, of a document. null, 0 or -1: all. Only documents are cut: if more tokens are left, "
        "the answer has a warning.",
    )
    truncation_side: str | None = Field(
        default=None, description="left: truncate_prompt_tokens is not applied, and the answer has a warning."
    )
    priority: Priority = None
    instruction: Instruction = None
    instruct: Instruction = Field(default=None, description="Another name for instruction.")
    chat_template_kwargs: ChatTemplateKwargs | None = Field(
        default=None, description="If it has an instruction, that one counts."
    )

    @property
    def raw(self) -> bool:
        """Whether the scorer's raw scores are wanted."""
        return False in {self.use_activation, self.activation, self.softmax}

    @property
    def cuts_left(self) -> bool:
        """Whether pairs are to be cut at their beginning."""
        return self.truncate_prompt_tokens is not None and self.truncation_side == "left"

    def options(self, *, max_passages: int | None = None) -> Options:
        """The options of the request's call."""
        kwargs = self.chat_template_kwargs
        pair = None if self.cuts_left else self.truncate_prompt_tokens
        return Options(
            Reach(self.max_tokens_per_doc, max_passages, pair),
            (kwargs and kwargs.instruction) or self.instruction or self.instruct or "",
            priority=self.priority or 0,
            query_tokens=self.max_tokens_per_query,
        )


def warnings_of(exchange: Exchange[Any]) -> list[str]:
    """Warnings about what a VllmRequest asked for and did not get."""
    request: VllmRequest = exchange.request
    reports = exchange.answer.ranking.reports
    told = {
        NO_LEFT_CUT: request.cuts_left,
        QUERY_KEPT: any(report.pair_exceeded for report in reports),
        QUERY_WHOLE: any(report.query_exceeded for report in reports),
    }
    return [*exchange.warnings, *(warning for warning, holds in told.items() if holds)]
