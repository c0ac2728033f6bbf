"""Operations are counted as one would count them pair by pair, and a floor mixes precisions as the systems do."""

import pytest
import torch

from bandrank_bench.cpu import floor
from bandrank_bench.cpu.agreement import visible
from bandrank_bench.cpu.floor import FFN, HIDDEN, LAYERS, Flops, full_flops, measure_ceilings, needed_flops
from bandrank_bench.systems import Precision
from bandrank_bench.workloads import QUERY_TOKENS, Request

# A layer's products: query, key, value, output; up and down.
WEIGHTS = 4 * HIDDEN * HIDDEN + 2 * HIDDEN * FFN


def request(pair_tokens: list[int]) -> Request:
    """A request of these lengths; its texts do not matter here."""
    return Request("query", ["passage"] * len(pair_tokens), pair_tokens)


def pair_types(pair_tokens: int) -> torch.Tensor:
    """Token types of a pair: [CLS], the query and its [SEP] are 0, the document and its [SEP] are 1."""
    first = 1 + QUERY_TOKENS + 1
    return torch.tensor([0] * first + [1] * (pair_tokens - first))


def test_full_attention_counts_all_tokens_of_all_layers() -> None:
    """100 pairs of 164 tokens take 348 G operations in linear layers and 25 G in attention (worked out by hand)."""
    flops = full_flops(request([164] * 100))

    assert flops.linear == pytest.approx(2 * LAYERS * WEIGHTS * 16400)
    assert flops.linear == pytest.approx(348e9, rel=0.01)
    assert flops.attention == pytest.approx(25e9, rel=0.01)


@pytest.mark.parametrize("pattern", ["full", "sparse"])
@pytest.mark.parametrize("window", [0, 1, 4, 1000])
def test_attention_needed_is_what_the_mask_shows(pattern: str, window: int) -> None:
    """Keys are counted in a dense mask: in the last layer those of [CLS], of a sparse query once for all pairs."""
    lengths = [13, 14, 40]
    masks = [visible(pair_types(length), window) for length in lengths]
    keys = sum(int(mask.sum()) for mask in masks)
    if pattern == "full":
        keys = sum(length**2 for length in lengths)
    else:
        keys -= (len(lengths) - 1) * (QUERY_TOKENS + 1) ** 2

    flops = needed_flops(request(lengths), "sparse" if pattern == "sparse" else "full", window)

    assert flops.attention == 4 * HIDDEN * ((LAYERS - 1) * keys + sum(lengths))


def test_the_last_layer_is_needed_for_cls_alone() -> None:
    """The last layer needs the keys and values of all tokens, and all else of [CLS] alone."""
    flops = needed_flops(request([100]), "full", 4)

    last = 2 * (2 * HIDDEN * HIDDEN * 100 + (WEIGHTS - 2 * HIDDEN * HIDDEN))
    assert flops.linear == 2 * (LAYERS - 1) * WEIGHTS * 100 + last


def test_int8_systems_attend_in_the_faster_float() -> None:
    """The floor of int8 has its linear layers in int8 and its attention at the best float ceiling."""
    ceilings = {"fp32": 2.0, "bf16": 4.0, "int8": 8.0}

    assert Flops(linear=8.0, attention=4.0).seconds("int8", ceilings) == 1.0 + 1.0
    assert Flops(linear=8.0, attention=4.0).seconds("fp32", ceilings) == 4.0 + 2.0


def test_the_sparse_mask_is_that_of_the_paper() -> None:
    """Drawn by hand for the pair [CLS] q [SEP] d1 d2 d3 [SEP] and a window of 1."""
    drawn = """
        1 1 1 1 1 1 1
        0 1 1 0 0 0 0
        0 1 1 0 0 0 0
        1 1 1 1 1 0 0
        1 1 1 1 1 1 0
        1 1 1 0 1 1 1
        1 1 1 0 0 1 1
    """
    expected = torch.tensor([[int(bit) for bit in line.split()] for line in drawn.strip().splitlines()])

    assert torch.equal(visible(torch.tensor([0, 0, 0, 1, 1, 1, 1]), 1), expected.bool())


def test_every_precision_has_a_ceiling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only precisions that are asked for are measured, also bfloat16 on a processor that emulates it."""
    monkeypatch.setattr(floor, "SHAPES", ((64, 64),))
    asked: list[Precision] = ["fp32", "bf16 emulated", "int8"]

    ceilings = measure_ceilings(asked)

    assert list(ceilings) == asked
    assert all(speed > 0 for speed in ceilings.values())
