"""Packed weights, which unpack to what they were up to the stated rounding."""

from pathlib import Path

import pytest
import torch
from support.models import TOKENIZER_FILE, some_scores, tiny_cross_encoder
from torch.profiler import ProfilerActivity, profile

from bandrank.models import checkpoint, compact


def test_int8_rows_are_off_by_half_a_step_of_their_row() -> None:
    """The step is a row's largest value divided by 127, and a row of zeros stays zeros."""
    weight = torch.randn(7, 33) * torch.logspace(-6, 3, 7)[:, None]
    weight[3] = 0
    packed = compact.pack({"a.weight": weight}, int8=("a.",))

    found = compact.unpack(packed)["a.weight"]

    step = weight.abs().amax(1, keepdim=True) / 127
    assert packed["a.weight"].dtype == torch.int8
    assert ((found - weight).abs() <= step * 0.501).all()
    assert (found[3] == 0).all()


def test_no_matrix_is_copied_while_it_unpacks() -> None:
    packed = compact.pack({"a": torch.randn(99, 64)}, int8=("a",))
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        matrix = compact.unpack(packed)["a"]

    allocated = sum(max(event.self_cpu_memory_usage, 0) for event in profiled.key_averages())
    assert matrix.nbytes <= allocated < 1.1 * matrix.nbytes


def test_other_weights_are_halved() -> None:
    """Vectors, and matrices that are not named, are packed as float16 and unpacked as float32."""
    weights = {"a.bias": torch.randn(5), "b.weight": torch.randn(3, 4)}

    packed = compact.pack(weights, int8=("a.",))

    assert {tensor.dtype for tensor in packed.values()} == {torch.float16}
    for name, found in compact.unpack(packed).items():
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, weights[name], rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(
    ("number", "int8"), [(1e6, ()), (torch.inf, ()), (torch.nan, ()), (torch.inf, ("a",)), (torch.nan, ("a",))]
)
def test_a_weight_that_cannot_be_packed_is_named(number: float, int8: tuple[str, ...]) -> None:
    """It must not become infinite or NaN silently, with its row if that is int8."""
    with pytest.raises(ValueError, match=r"a\.weight: not finite, or too large"):
        compact.pack({"a.weight": torch.tensor([[1.0], [number]])}, int8=int8)


def test_a_packed_checkpoint_loads_and_scores_nearly_the_same(tmp_path: Path) -> None:
    """The matrices that are named take a quarter of the bytes."""
    scorer = tiny_cross_encoder()
    checkpoint.save(scorer, tmp_path / "whole", tokenizer=TOKENIZER_FILE)
    checkpoint.save(scorer, tmp_path / "packed", tokenizer=TOKENIZER_FILE, int8=("word", "qkv"))

    loaded = checkpoint.load(tmp_path / "packed")

    assert {parameter.dtype for parameter in loaded.parameters()} == {torch.float32}
    assert some_scores(loaded) == pytest.approx(some_scores(scorer), rel=0.05, abs=0.02)
    sizes = [(tmp_path / name / "model.safetensors").stat().st_size for name in ("packed", "whole")]
    assert sizes[0] < 0.6 * sizes[1]
