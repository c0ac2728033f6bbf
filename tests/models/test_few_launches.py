"""What a request launches: counted in a graph of the encoder that the service runs on a GPU, and the same scores."""

from dataclasses import replace

import pytest
import torch
from emulation.compiled import needs_compiler
from emulation.graphs import RecordingDevice
from support.graph_lab import ALIKE, scorer, serve_from
from support.layouts import CPU
from support.models import random_scorer
from support.norms import run_kernels_here

from bandrank.models.architectures import CrossEncoder
from bandrank.models.graphs import GraphRunner
from bandrank.models.layers import cls_attention, norm
from bandrank.models.layers.cls_attention import FoldedProjections, folds
from bandrank.models.layers.linear import Linear
from bandrank.models.prepared import prepare
from bandrank_kernels.row_norms import cuda


@needs_compiler
@pytest.mark.parametrize(("most_numbers", "nodes"), [(cls_attention.MOST_NUMBERS, 53), (0, 59)])
def test_operations_of_a_request(monkeypatch: pytest.MonkeyPatch, most_numbers: int, nodes: int) -> None:
    """Six layers in half precision, as a MiniLM has, folded and not, whose scores are those of float32 to rounding."""
    config = replace(scorer().config, encoder=replace(scorer().config.encoder, num_layers=6))
    models = [random_scorer(CrossEncoder(config), seed=0) for _ in range(2)]
    device = RecordingDevice()
    run_kernels_here(monkeypatch)
    serve_from(device, monkeypatch)
    monkeypatch.setattr(cuda, "launch", device.launch)
    monkeypatch.setattr(norm, "infers_on_gpu", lambda _: True)
    monkeypatch.setattr(cls_attention, "MOST_NUMBERS", most_numbers)
    half, exact = (
        prepare(model, device=CPU, dtype=dtype, graphs=device).replay
        for model, dtype in zip(models, (torch.float16, torch.float32), strict=True)
    )
    assert isinstance(exact, GraphRunner)
    assert isinstance(half, GraphRunner)
    expected, scores = exact.score(ALIKE[0]), half.score(ALIKE[0])

    assert device.nodes == nodes
    torch.testing.assert_close(scores, expected, rtol=0, atol=0.02)


@pytest.mark.parametrize("bias", [True, False])
def test_folded_projections_are_the_four(bias: bool) -> None:
    """For three heads, with and without biases: scores of keys but for one number a row, and outputs."""
    torch.manual_seed(0)
    qkv, out = Linear(12, 36, bias=bias), Linear(12, 12, bias=bias)
    folded = FoldedProjections(qkv, out, num_heads=3)
    cls, averaged, rows = torch.randn(5, 12), torch.randn(5, 3, 12), torch.randn(7, 12)
    with torch.no_grad():
        query, key, _ = qkv(torch.cat([cls, rows])).view(12, 3, 3, 4).unbind(1)
        logits = torch.einsum("nhd,mhd->nhm", query[:5], key[5:])
        scores = torch.einsum("nhi,mi->nhm", folded.queries(cls), rows)
        value = qkv.project_heads(averaged.transpose(0, 1), qkv.thirds[2])
        outputs = out(value.transpose(0, 1).flatten(1))

    torch.testing.assert_close(scores - scores[..., :1], logits - logits[..., :1], rtol=0, atol=1e-5)
    torch.testing.assert_close(folded.outputs(averaged), outputs, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("hidden_size", "num_heads", "small"), [(384, 12, True), (512, 8, True), (768, 12, False)])
def test_only_small_layers_are_folded(hidden_size: int, num_heads: int, small: bool) -> None:
    """A MiniLM's, not a BERT-base's."""
    with torch.device("meta"):
        assert folds(Linear(hidden_size, 3 * hidden_size), num_heads) is small
