"""Under bfloat16 autocast, as in training on a GPU, every architecture scores and has gradients."""

import random
from collections.abc import Callable

import pytest
import torch
from support.models import random_ids, score_batch, tiny_bi_encoder, tiny_cross_encoder
from support.precomputing import tiny_colbert, tiny_deformer, tiny_mix_encoder, tiny_poly_encoder, tiny_virt

from bandrank.models.layers.patterns import sparse
from bandrank.models.scorer import Scorer

SCORERS: dict[str, Callable[[], Scorer]] = {
    "full cross-encoder": tiny_cross_encoder,
    "sparse cross-encoder": lambda: tiny_cross_encoder(pattern=sparse(2)),
    "bi-encoder": tiny_bi_encoder,
    "MixEncoder-b": lambda: tiny_mix_encoder(paper="b"),
    "MixEncoder-c": lambda: tiny_mix_encoder(paper="c"),
    "MixEncoder, C": lambda: tiny_mix_encoder(strategy="C", interaction_layers=(0, 1)),
    "poly-encoder": tiny_poly_encoder,
    "ColBERT": tiny_colbert,
    "Deformer": tiny_deformer,
    "VIRT": tiny_virt,
}


@pytest.mark.parametrize("name", SCORERS)
def test_scores_are_float32_and_near_those_without(name: str) -> None:
    """The same weights have gradients as without autocast, and together these point in nearly the same direction."""
    rng = random.Random(0)
    scorer = SCORERS[name]().train().requires_grad_(requires_grad=True)
    batch = score_batch(
        [random_ids(rng, 5), random_ids(rng, 3)], [[random_ids(rng, n) for n in (1, 9, 30)], [random_ids(rng, 7)]]
    )

    exact = scorer(batch)
    expected = _gradients(scorer, exact)
    with torch.autocast("cpu", torch.bfloat16):
        scores = scorer(batch)
    gradients = _gradients(scorer, scores)

    assert scores.dtype == torch.float32
    spread = max(1.0, float(exact.detach().abs().max()))
    torch.testing.assert_close(scores, exact, rtol=0, atol=0.1 * spread)
    assert gradients.keys() == expected.keys()
    cosine = torch.nn.functional.cosine_similarity(_flat(gradients), _flat(expected), dim=0)
    assert cosine > 0.9


def _gradients(scorer: Scorer, scores: torch.Tensor) -> dict[str, torch.Tensor]:
    scorer.zero_grad()
    scores.square().sum().backward()
    return {name: weight.grad.clone() for name, weight in scorer.named_parameters() if weight.grad is not None}


def _flat(gradients: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([gradient.flatten() for gradient in gradients.values()])
