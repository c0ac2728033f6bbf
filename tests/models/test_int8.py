"""Scorers in int8 on a CPU, and refused where int8 cannot be computed; test_packed.py has the laws of their scores."""

import weakref

import pytest
import torch
from support.deberta import tiny_deberta
from support.models import score_batch, tiny_cross_encoder
from support.native import needs_native
from support.native_scorers import CPU, NATIVE, prepared, scores
from support.scorers import LookupScorer
from support.variants import random_texts
from torch.autograd.profiler import profile

from bandrank.models import quantised
from bandrank.models.layers.int8_linear import Int8Linear
from bandrank.models.layers.linear import Linear
from bandrank.models.layers.patterns import sparse
from bandrank.models.layers.splitting import split_for
from bandrank.models.loading import load_model
from bandrank.models.prepared import prepare
from bandrank.models.quantised import linear_layers, why_not_quantised
from bandrank.models.scorer import Scorer
from bandrank.models.shipped import FAST
from bandrank.settings import Settings
from bandrank_kernels.native.library import native

pytestmark = needs_native


def test_a_layer_keeps_what_was_stored_as_int8() -> None:
    """Rows that are whole multiples of their scale are kept exactly, and a row of zeros does no harm."""
    layer = Linear(32, 5)
    rows = torch.randint(-127, 128, (5, 32), dtype=torch.int8)
    rows[:, 0], rows[4] = 127, 0
    scale = torch.rand(5) + 0.1
    layer.weight.data = rows * scale[:, None]

    int8 = Int8Linear.of(layer)

    assert torch.equal(int8.rows, rows)
    torch.testing.assert_close(int8.weight_rows(), layer.weight.detach(), rtol=1e-6, atol=0)
    assert torch.equal(int8.bias_rows(slice(1, 3)), layer.bias.detach()[1:3])
    assert torch.equal(Int8Linear.of(Linear(32, 5, bias=False)).bias_rows(), torch.zeros(5))


def test_inputs_are_split_where_some_are_much_larger() -> None:
    """A large input is split into several bytes, more for a larger one; rows without large inputs are not split."""
    rows = torch.randn(100, 64, generator=torch.Generator().manual_seed(0))
    assert split_for(rows) is None
    rows[:, 5] += 30
    rows[:, 9] -= 60

    split = split_for(rows)

    assert split is not None
    assert set(split.sources.tolist()) == {5, 9}
    assert split.sources.tolist().count(9) > split.sources.tolist().count(5)


def test_layers_are_adapted_to_what_they_are_given() -> None:
    """If a scorer's norms make one input large, the layers behind them split it, the last layer too."""
    plain, large = tiny_cross_encoder(), tiny_cross_encoder()
    for block in large.encoder.layers:
        block.attention_norm.bias.data[7] += 50
        block.out_norm.bias.data[7] += 50

    def copies(scorer: Scorer) -> list[int]:
        blocks = prepared(scorer, torch.int8).scorer.encoder.layers
        splits = [layer.packed.split for layer in (*(each.up for each in blocks), *(each.qkv for each in blocks[1:]))]
        return [0 if split is None else split.sources.tolist().count(7) for split in splits]

    assert max(copies(plain)) <= 2
    assert min(copies(large)) >= 6


def test_a_scorer_has_as_many_parameters_as_before() -> None:
    """An int8 layer counts the parameters that it replaces, and a scale for each row."""
    scorer = tiny_cross_encoder()
    count = sum(each.numel() for each in scorer.parameters())
    int8 = prepared(scorer, torch.int8).scorer

    linear = [layer for layer in int8.encoder.modules() if isinstance(layer, Int8Linear)]
    assert sum(each.numel() for each in int8.parameters()) == count + sum(len(layer.scales) for layer in linear)
    assert not any(isinstance(layer, Linear) for block in int8.encoder.layers for layer in block.modules())


def test_exact_layers_stay_in_float32() -> None:
    """A checkpoint may name layers that are not computed in int8, which changes its scores."""
    scorer = tiny_cross_encoder(num_heads=2, pattern=sparse(4))
    batch = score_batch(*random_texts(scorer))
    whole = scores(prepared(scorer, torch.int8), batch)
    scorer.exact_layers = frozenset(["encoder.layers.0.qkv", "encoder.layers.1.down"])
    mixed = prepared(scorer, torch.int8)

    assert linear_layers(mixed.scorer).keys() == scorer.exact_layers
    assert sum(isinstance(each, Int8Linear) for each in mixed.scorer.modules()) == 6
    assert not torch.equal(scores(mixed, batch), whole)
    assert "encoder.layers.0.qkv, encoder.layers.1.down in float32" in mixed.precision
    scorer.exact_layers = frozenset(linear_layers(scorer))
    all_exact, right = (scores(prepared(scorer, dtype), batch) for dtype in (torch.int8, torch.float32))
    torch.testing.assert_close(all_exact, right, rtol=0, atol=0.01 if native().has_bfloat16 else 1e-5)


def test_what_cannot_be_quantised_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    odd = tiny_cross_encoder()
    odd.encoder.layers[1].down = Linear(20, 32)
    assert why_not_quantised(odd) == "a layer has 20 inputs, which is not a multiple of 16"
    bad = tiny_cross_encoder()
    bad.encoder.layers[0].up.weight.data[3, 3] = torch.nan
    assert why_not_quantised(bad) == "a weight is not finite"
    bad.encoder.layers[0].up.weight.data[3, 3] = torch.inf
    with pytest.raises(ValueError, match="cross_encoder cannot compute in int8: a weight is not finite"):
        prepared(bad, torch.int8)
    assert why_not_quantised(LookupScorer({})) == "it has no encoder with linear layers"
    monkeypatch.setattr(quantised, "why_no_native", lambda: "there is no compiler")
    with pytest.raises(ValueError, match=r"cross_encoder cannot compute in int8: .* there is no compiler"):
        prepared(tiny_cross_encoder(), torch.int8)


@pytest.mark.parametrize("name", [FAST, Settings().model])
def test_shipped_scorers_keep_their_order(name: str) -> None:
    """The texts are random, so their scores are close; int8 still ranks them nearly the same."""
    scorer = load_model(name).scorer
    chance = torch.Generator().manual_seed(0)
    texts = [torch.randint(1000, 20000, (20,), generator=chance).tolist() for _ in range(60)]
    batch = score_batch([[*texts[0][:5], 102]], [[[*text, 102] for text in texts]])
    exact, near = (scores(prepared(scorer, dtype), batch) for dtype in (torch.float32, torch.int8))

    assert torch.corrcoef(torch.stack([near, exact]))[0, 1] > 0.99


@pytest.mark.parametrize(
    ("name", "attention"),
    [
        ("sparse", "CPU kernels"),
        ("decoder", "CPU kernels"),
        ("odd heads", "plain torch: head_dim must be a multiple of 16 up to 512, got 8"),
        ("deberta", "plain torch: the kernels do not compute disentangled attention"),
    ],
)
def test_the_precision_and_the_attention_are_named(name: str, attention: str) -> None:
    """The linear layers are computed by the CPU kernels, and the attention by those or by torch."""
    others = {"odd heads": lambda: tiny_cross_encoder(num_heads=4), "deberta": tiny_deberta}
    scorer = prepared((NATIVE | others)[name](), torch.int8)

    assert scorer.attention == attention
    assert scorer.precision.startswith(f"int8 by CPU kernels, {native().variant}")


@pytest.mark.parametrize(("name", "gate"), [("decoder", "silu"), ("llama", "silu"), ("gemma3", "gelu")])
def test_layers_with_rms_norms_have_nothing_of_torch(name: str, gate: str) -> None:
    """In int8, torch computes no gate, no attention, and no norm but a decoder's last one; in float32 it computes all
    of them.
    """
    counts = []
    for dtype in (torch.float32, torch.int8):
        scorer = prepared(NATIVE[name](), dtype).scorer
        batch = score_batch(*random_texts(scorer))
        with torch.inference_mode(), profile() as seen:
            scorer.encode_candidates(batch.candidates) if scorer.precomputes else scorer.score(batch)
        found = {event.key: event.count for event in seen.key_averages()}
        counts.append([found.get(f"aten::{each}", 0) for each in ("rms_norm", gate, "scaled_dot_product_attention")])

    assert min(counts[0]) > 1
    assert counts[1] == [int(name == "decoder"), 0, 0]


def test_int8_is_for_a_cpu() -> None:
    with pytest.raises(ValueError, match="int8 is for a CPU, not for meta"):
        prepare(tiny_cross_encoder(), device=torch.device("meta"), dtype=torch.int8)


def test_layers_are_in_float32_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each layer is quantised from the half precision it was saved in, after the layers before it have been freed."""
    scorer = tiny_cross_encoder()
    scorer.encoder.half()
    count, converted = len(linear_layers(scorer)), Int8Linear.of
    seen: list[weakref.ref[Linear]] = []

    def watched(layer: Linear) -> Int8Linear:
        assert layer.weight.dtype == torch.float16
        assert not any(each() for each in seen)
        seen.append(weakref.ref(layer))
        return converted(layer)

    monkeypatch.setattr(Int8Linear, "of", watched)
    prepare(scorer, device=CPU, dtype=torch.int8)

    assert len(seen) == count
