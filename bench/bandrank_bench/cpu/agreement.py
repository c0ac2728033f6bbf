"""Checks that all systems compute the same scores, before their speeds are compared."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import BertForSequenceClassification

from bandrank_bench.systems import WINDOW, Pattern, Scores, System
from bandrank_bench.workloads import Request, load_tokenizer

FLOAT32_TOLERANCE = 1e-4
# In units of the spread of the scores. A random head amplifies rounding (int8 peers show 0.3 - 0.6), so this catches
# only scores that have nothing to do with the model.
ROUNDED_TOLERANCE = 1.5


class Disagreement(RuntimeError):
    """A system's scores differ from the reference."""


@dataclass(frozen=True)
class Agreement:
    """The largest difference of a system's scores from the reference, and the spread of the scores."""

    system: str
    largest_difference: float
    spread: float


def reference_scores(checkpoints: Mapping[Pattern, Path], request: Request) -> dict[Pattern, Scores]:
    """Scores of `transformers` in float32, pair by pair, with each pattern as a dense mask."""
    return {pattern: _reference_scores(checkpoint, request, pattern) for pattern, checkpoint in checkpoints.items()}


def _reference_scores(checkpoint: Path, request: Request, pattern: Pattern) -> Scores:
    tokenizer = load_tokenizer(checkpoint)
    model = BertForSequenceClassification.from_pretrained(checkpoint, attn_implementation="eager")  # in eval mode
    scores = []
    for passage in request.passages:
        pair = tokenizer.encode(request.query, passage)
        types = torch.tensor(pair.type_ids)
        mask = None if pattern == "full" else visible(types, WINDOW).unsqueeze(0).unsqueeze(0)
        with torch.inference_mode():
            output = model(
                torch.tensor([pair.ids]),
                attention_mask=None if mask is None else torch.zeros(mask.shape).masked_fill(~mask, -torch.inf),
                token_type_ids=types.unsqueeze(0),
            )
        scores.append(float(output.logits))
    return np.array(scores, np.float32)


def visible(types: Tensor, window: int) -> Tensor:
    """The mask of the sparse pattern, (s, s) bool: whether row i sees column j.

    [CLS] sees everything. The query, with its [SEP], sees only itself. The document sees [CLS], the query and `window`
    positions on each side (Schlatt et al. 2024).
    """
    position = torch.arange(len(types))
    is_cls, is_document = position == 0, types == 1
    is_query = ~is_cls & ~is_document
    near = (position[:, None] - position[None, :]).abs() <= window
    of_query = is_query[:, None] & is_query[None, :]
    of_document = is_document[:, None] & (~is_document[None, :] | near)
    return is_cls[:, None] | of_query | of_document


def check(systems: Sequence[System], request: Request, references: dict[Pattern, Scores]) -> list[Agreement]:
    """Compares every system with its pattern's reference. Raises Disagreement if a difference is too large."""
    agreements = []
    for system in systems:
        reference = references[system.pattern]
        scores = system.score(request.query, request.passages)
        agreement = Agreement(system.name, float(np.abs(scores - reference).max()), float(reference.std()))
        tolerance = FLOAT32_TOLERANCE if system.precision == "fp32" else ROUNDED_TOLERANCE * agreement.spread
        if not agreement.largest_difference <= tolerance:  # in this form NaN disagrees
            raise Disagreement(
                f"{system.name}: expected scores within {tolerance:.2g} of the reference, "
                f"got a difference of {agreement.largest_difference:.2g} (the scores' spread is {agreement.spread:.2g})"
            )
        agreements.append(agreement)
    return agreements
