"""Scorers in bfloat16 on a CPU, whose layers the CPU kernels compute; test_packed.py has the laws of their scores."""

import pytest
import torch
from support.deberta import tiny_deberta
from support.models import score_batch, tiny_cross_encoder
from support.native import needs_bfloat16
from support.native_scorers import CPU, NATIVE, packed, prepared, scores
from support.variants import random_texts

from bandrank.models import quantised
from bandrank.models.bfloat16 import why_not_bfloat16
from bandrank.models.layers.bfloat16_linear import BFloat16Linear
from bandrank.models.layers.linear import Linear
from bandrank.models.prepared import prepare
from bandrank.models.quantised import linear_layers
from bandrank_kernels.native.library import native

pytestmark = needs_bfloat16


def test_a_layer_keeps_its_weights_to_eight_bits() -> None:
    layer = Linear(32, 5)

    near = BFloat16Linear.of(layer)

    assert torch.equal(near.weight_rows(), layer.weight.detach().bfloat16().float())
    assert torch.equal(near.bias_rows(slice(1, 3)), layer.bias.detach()[1:3])
    assert torch.equal(BFloat16Linear.of(Linear(32, 5, bias=False)).bias_rows(), torch.zeros(5))


@pytest.mark.parametrize("name", NATIVE)
def test_scores_are_nearer_to_float32_than_those_of_int8(name: str) -> None:
    exact, near, int8 = (packed(name, dtype) for dtype in (torch.float32, torch.bfloat16, torch.int8))
    batch = score_batch(*random_texts(exact.scorer))
    right = scores(exact, batch)

    error, coarse = ((scores(each, batch) - right).square().mean().sqrt() for each in (near, int8))

    assert near.packed
    assert not exact.packed
    assert 0 < error < 0.7 * coarse


@pytest.mark.parametrize("name", ["decoder", "sparse", "mix_encoder"])
def test_weights_are_kept_beside_packed_ones_only_where_they_are_read(name: str) -> None:
    """Those of a decoder are never read again; a MixEncoder's are part of the fingerprint of its representations."""
    layers = [each for each in packed(name, torch.bfloat16).scorer.modules() if isinstance(each, BFloat16Linear)]

    assert layers
    assert {each.bits.is_meta for each in layers} == {name == "decoder"}


def test_the_precision_and_the_attention_are_named() -> None:
    scorer = packed("sparse", torch.bfloat16)

    assert scorer.precision == f"bfloat16 by CPU kernels, {native().variant}"
    assert scorer.attention == "CPU kernels"


def test_torch_computes_what_the_kernels_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is in bfloat16 then, the attention too."""
    odd = tiny_cross_encoder(num_heads=2)
    odd.encoder.layers[1].down = Linear(20, 32)
    assert why_not_bfloat16(odd) == "a layer has 20 inputs, which is not a multiple of 16"
    assert why_not_bfloat16(tiny_deberta()) == "the kernels do not compute disentangled attention"
    small = tiny_cross_encoder(num_heads=4)
    assert why_not_bfloat16(small) == "head_dim must be a multiple of 16 up to 512, got 8"
    scorer = prepared(small, torch.bfloat16)
    assert not scorer.packed
    assert scorer.precision == "bfloat16"
    assert {layer.weight.dtype for layer in linear_layers(scorer.scorer).values()} == {torch.bfloat16}

    whole = tiny_cross_encoder(num_heads=2)
    assert why_not_bfloat16(whole) is None
    monkeypatch.setattr(quantised, "why_no_native", lambda: "there is no compiler")
    assert why_not_bfloat16(whole) == "the CPU kernels cannot run: there is no compiler"
    assert not prepared(whole, torch.bfloat16).packed


def test_the_reference_stays_in_torch() -> None:
    scorer = tiny_cross_encoder(num_heads=2)
    assert not prepare(scorer, device=CPU, dtype=torch.bfloat16, backend="reference").packed
