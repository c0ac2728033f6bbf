"""The encoder's sums and their norms take one launch each where a GPU infers, with the scores of plain torch."""

import pytest
import torch
from emulation.compiled import needs_compiler
from support.models import tiny_cross_encoder
from support.norms import run_kernels_here
from torch import Tensor, nn

from bandrank.models.layers import norm
from bandrank.models.layers.norm import LayerNorm, infers_on_gpu


def infers(_: Tensor) -> bool:
    """Stands in for `infers_on_gpu`, as if there were a GPU."""
    return not torch.is_grad_enabled()


def norms(module: nn.Module) -> list[LayerNorm]:
    """Returns all norms of a module."""
    return [part for part in module.modules() if isinstance(part, LayerNorm)]


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
