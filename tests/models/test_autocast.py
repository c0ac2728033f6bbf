"""Under bfloat16 autocast, as in training on a GPU, every architecture scores and has gradients."""

import pytest
import torch
from support.models import score_batch
from support.variants import VARIANTS, random_texts

from bandrank.models.scorer import Scorer


@pytest.mark.filterwarnings("ignore:Mismatch dtype")  # of RMS norms, which torch then computes in parts
@pytest.mark.parametrize("name", VARIANTS)
def test_scores_are_float32_and_near_those_without(name: str) -> None:
    """The same weights have gradients as without autocast, and together these point in nearly the same direction."""
    scorer = VARIANTS[name]().train().requires_grad_(requires_grad=True)
    batch = score_batch(*random_texts(scorer))

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
