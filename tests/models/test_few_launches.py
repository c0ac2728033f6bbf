"""How many operations a request launches on a GPU, counted in a CUDA graph of the encoder, with the same scores."""

from copy import deepcopy
from dataclasses import replace
from functools import partial

import pytest
import torch
from emulation.compiled import needs_compiler
from emulation.graphs import RecordingDevice
from support.cached import cached, mix_encoder
from support.graph_lab import ALIKE, scorer, serve_from
from support.layouts import CPU
from support.models import random_scorer, score_batch
from support.norms import run_kernels_here
from support.pooled import run_heads_here
from support.recorded import QUERIES, demo_texts

from bandrank.models.architectures import CrossEncoder
from bandrank.models.graphs import GraphRunner
from bandrank.models.layers import cls_attention, norm
from bandrank.models.layers.cls_attention import FoldedProjections, folds
from bandrank.models.layers.linear import Linear
from bandrank.models.loading import load_model
from bandrank.models.prepared import prepare
from bandrank_kernels.row_norms import cuda


@needs_compiler
@pytest.mark.parametrize(
    ("dtype", "most_numbers", "nodes", "rounding"),
    [
        (torch.float16, cls_attention.MAX_NUMBERS, 44, 0.02),
        (torch.bfloat16, cls_attention.MAX_NUMBERS, 44, 0.1),
        (torch.float16, 0, 50, 0.02),  # not folded
    ],
)
def test_operations_of_a_request(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, most_numbers: int, nodes: int, rounding: float
) -> None:
    """Six layers in half precision, as in a MiniLM, have float32's scores up to rounding."""
    config = replace(scorer().config, encoder=replace(scorer().config.encoder, num_layers=6))
    models = [random_scorer(CrossEncoder(config), seed=0) for _ in range(2)]
    device = RecordingDevice()
    run_kernels_here(monkeypatch)
    serve_from(device, monkeypatch)
    monkeypatch.setattr(cuda, "launch", device.launch)
    run_heads_here(monkeypatch, device.launch)
    monkeypatch.setattr(norm, "infers_on_gpu", lambda _: True)
    monkeypatch.setattr(cls_attention, "MAX_NUMBERS", most_numbers)
    half, exact = (
        prepare(model, device=CPU, dtype=dtype, graphs=device).replay
        for model, dtype in zip(models, (dtype, torch.float32), strict=True)
    )
    assert isinstance(exact, GraphRunner)
    assert isinstance(half, GraphRunner)
    expected, scores = exact.compute(ALIKE[0]), half.compute(ALIKE[0])

    assert device.nodes == nodes
    torch.testing.assert_close(scores, expected, rtol=0, atol=rounding)


@pytest.mark.parametrize("bias", [True, False])
def test_folded_projections_are_the_four(bias: bool) -> None:
    """Outputs are the same, and scores of keys differ by one number in each row, which the softmax ignores."""
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
    """The layers of a MiniLM are folded, those of a BERT-base are not."""
    with torch.device("meta"):
        assert folds(Linear(hidden_size, 3 * hidden_size), num_heads) is small


def test_tanh_changes_scores_by_less_than_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the shipped cross-encoder in float32, GELU's tanh form moves scores by less than a third of what bfloat16
    does, and by less than four times what float16 does.
    """
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)  # oneDNN would fuse the exact form
    monkeypatch.setattr("bandrank.models.prepared.why_not_bfloat16", lambda _: "all is in bfloat16, as on a GPU")
    loaded = load_model("sparse-w4")
    scorer, tokenizer = loaded.scorer, loaded.tokenizer
    query, *candidates = (
        template.apply(tokenizer.encode(text, add_special_tokens=False).ids)[0]
        for template, text in [
            (scorer.query_template, QUERIES[0]),
            *((scorer.candidate_template, text) for text in demo_texts()[:30]),
        ]
    )
    batch = score_batch([query], [candidates])

    def scores(dtype: torch.dtype) -> torch.Tensor:
        with torch.inference_mode():
            return prepare(deepcopy(scorer), device=CPU, dtype=dtype, backend="vectorized")(batch)

    exact = scores(torch.float32)
    by_rounding = {dtype: float((scores(dtype) - exact).abs().mean()) for dtype in (torch.float16, torch.bfloat16)}
    monkeypatch.setattr(torch.nn.functional, "gelu", partial(torch.nn.functional.gelu, approximate="tanh"))
    by_tanh = float((scores(torch.float32) - exact).abs().mean())

    assert by_tanh < by_rounding[torch.bfloat16] / 3
    assert by_tanh < 4 * by_rounding[torch.float16]


@needs_compiler
@torch.inference_mode()
def test_operations_of_stored_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scorer like mix-b in half precision has one graph of fewer operations than its launches, with scores that
    differ by float16's rounding.
    """
    device, launches = RecordingDevice(), RecordingDevice()
    run_kernels_here(monkeypatch)
    serve_from(device, monkeypatch)
    monkeypatch.setattr(cuda, "launch", device.launch)
    scorer = mix_encoder("b", num_layers=6)
    batch = cached(scorer, [10], [60])
    exact = scorer.score(batch)
    half = prepare(deepcopy(scorer), device=CPU, dtype=torch.float16)
    serve_from(launches, monkeypatch)
    launched = launches.capture(lambda: half.scorer.score(batch)).output
    serve_from(device, monkeypatch)
    monkeypatch.setattr(norm, "infers_on_gpu", lambda _: True)
    scores = prepare(deepcopy(scorer), device=CPU, dtype=torch.float16, graphs=device).score(batch)

    assert (launches.nodes, device.nodes) == (202, 171)
    assert launched.shape == scores.shape
    torch.testing.assert_close(scores, exact, rtol=0, atol=0.05)
