"""Poly-encoders against the equations of Humeau et al. 2020, for one candidate at a time on `transformers`' BERT."""

import math
import random
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from support.dense_scorers import assert_scores_are, bert_of, states_of, weights_of
from support.models import HIDDEN_SIZE, NUM_HEADS, as_served, random_ids, score_batch
from support.precomputing import tiny_poly_encoder
from support.tokenizer import CLS_ID
from torch import Tensor
from transformers import BertModel

from bandrank.models.architectures import PolyEncoder

# float32 in another order of summation: 1e-5 of the product of two vectors that are 3 to 6 long.
CLOSE = 1e-4

VARIANTS: dict[str, dict[str, Any]] = {
    "learnt": {},
    "learnt, cls": {"reduction": "cls"},
    "learnt, max": {"reduction": "max"},
    "learnt, scaled": {"scaled": True},
    "learnt, 360": {"num_codes": 360},
    "first": {"codes": "first"},
    "first, 64": {"codes": "first", "num_codes": 64},
    "first, scaled": {"codes": "first", "scaled": True},
    "one": {"num_codes": 1},
    "ParlAI": {"separate_towers": True, "output_scaling": 0.06},
    "two towers, first": {"separate_towers": True, "output_scaling": 0.3, "codes": "first"},
}
every_variant = pytest.mark.parametrize("variant", VARIANTS)


def towers(scorer: PolyEncoder) -> tuple[BertModel, BertModel]:
    """The query's and the candidate's encoder."""
    query = weights_of(scorer, "encoder.")
    return bert_of(query, num_heads=NUM_HEADS), bert_of(
        weights_of(scorer, "candidate_encoder.") or query, num_heads=NUM_HEADS
    )


def dense_score(scorer: PolyEncoder, query: list[int], candidate: list[int]) -> float:
    """The score of one candidate, with loops over codes."""
    config = scorer.config
    query_tower, candidate_tower = towers(scorer)
    states = config.output_scaling * states_of(query_tower, query)[-1]
    others = config.output_scaling * states_of(candidate_tower, candidate)[-1]
    vector = {"mean": others.mean(0), "cls": others[0], "max": others.max(0).values}[config.reduction]
    divisor = math.sqrt(HIDDEN_SIZE) if config.scaled else 1.0

    def look(eye: Tensor, rows: Tensor) -> Tensor:
        return torch.softmax(torch.stack([eye @ row for row in rows]) / divisor, 0) @ rows

    if config.codes == "learnt":
        vectors = torch.stack([look(code, states) for code in scorer.state_dict()["query_codes"]])
    else:
        vectors = states[: min(config.num_codes, len(query))]
    return float(look(vector, vectors) @ vector)


@every_variant
@pytest.mark.parametrize("prepared", [False, True], ids=["as trained", "as served"])
def test_scores_are_the_equations(variant: str, prepared: bool) -> None:
    """Queries have 2 to 14 tokens, and one has no candidates; there are 5 codes unless the variant says otherwise."""
    scorer = tiny_poly_encoder(**VARIANTS[variant])
    score, pieces = partial(dense_score, scorer), [[0, 1, 9, 70], [], [12], [40, 2], [3]]
    assert_scores_are(score, scorer, [12, 3, 0, 2, 3], pieces, prepared=prepared, close=CLOSE)


def test_codes_stay_in_float32() -> None:
    """Unscaled products reach the hundreds, so that softmax and codes keep float32 in any dtype."""
    scorer = as_served(tiny_poly_encoder(), torch.bfloat16)

    assert scorer.query_codes is not None
    assert scorer.query_codes.dtype == torch.float32


def test_more_candidates_than_a_block() -> None:
    """Blocks of 4,096 candidates are put together in order."""
    scorer = as_served(tiny_poly_encoder(num_layers=1))
    rng = random.Random(0)
    query, some = [CLS_ID, *random_ids(rng, 5)], [[CLS_ID, *random_ids(rng, n)] for n in (3, 9, 1)]
    batch = score_batch([query], [some])
    with torch.inference_mode():
        stored = scorer.encode_candidates(batch.candidates)
        repeated = replace(
            batch,
            candidates=replace(
                stored, values=stored.values.repeat(1400, 1), cu_seqlens=torch.arange(3 * 1400 + 1).numpy()
            ),
            cu_candidates=batch.cu_candidates * 1400,
        )

        scores = scorer.score(repeated).view(1400, 3)

        torch.testing.assert_close(scores, scorer(batch).expand(1400, 3), rtol=0, atol=CLOSE)
