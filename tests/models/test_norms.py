"""The encoder's sums and their norms take one launch each where a GPU infers, with the scores of plain torch."""

import random

import pytest
import torch
from emulation.compiled import needs_compiler
from support.models import random_ids, score_batch, tiny_cross_encoder
from support.norms import run_kernels_here
from torch import Tensor, nn

from bandrank.models.layers import norm
from bandrank.models.layers.norm import LayerNorm, infers_on_gpu
from bandrank.models.layers.patterns import sparse


def infers(_: Tensor) -> bool:
    """Stands in for `infers_on_gpu`, as if there were a GPU."""
    return not torch.is_grad_enabled()


def norms(module: nn.Module) -> list[LayerNorm]:
    """Returns all norms of a module."""
    return [part for part in module.modules() if isinstance(part, LayerNorm)]


@needs_compiler
def test_the_encoder_launches_one_kernel_for_a_sum_and_its_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is one launch for the embeddings and two in each layer, but none where gradients are required."""
    rng = random.Random(0)
    batch = score_batch([random_ids(rng, 5)], [[random_ids(rng, length) for length in (1, 9, 30)]])
    scorer = tiny_cross_encoder(pattern=sparse(2))
    expected = scorer(batch)
    launches = run_kernels_here(monkeypatch)
    monkeypatch.setattr(norm, "infers_on_gpu", infers)
    with torch.inference_mode():
        scores = scorer(batch)

    assert len(launches) == 1 + 2 * scorer.config.encoder.num_layers
    torch.testing.assert_close(scores, expected, rtol=0, atol=1e-5)
    assert torch.equal(scorer(batch), expected)


@needs_compiler
def test_word_vectors_are_embedded_as_words_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Vectors from the table of words give what their token ids give, with the kernel and in plain torch."""
    ours = tiny_cross_encoder().encoder.embeddings
    ids, positions, types = torch.tensor([3, 1, 3]), torch.tensor([0, 1, 2]), torch.tensor([0, 1, 1])
    run_kernels_here(monkeypatch)
    monkeypatch.setattr(norm, "infers_on_gpu", infers)
    plain = ours(ids, positions, types)
    with torch.inference_mode():
        torch.testing.assert_close(ours(ids, positions, types), plain, rtol=0, atol=1e-5)
        torch.testing.assert_close(ours.of_words(ours.word(ids), positions, types), plain, rtol=0, atol=1e-5)


def test_plain_torch_runs_on_a_cpu() -> None:
    with torch.inference_mode():
        assert not infers_on_gpu(torch.zeros(1_000_000, 8))
