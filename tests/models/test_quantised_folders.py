"""Folders whose weights are codes, which mean nothing without the scales beside them."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.decoders import PUBLISHED, save_decoder, tiny_decoder
from support.models import change_weights, edit_json, save_cross_encoder
from support.refusals import assert_refused
from torch import Tensor
from transformers import Qwen3ForCausalLM

from bandrank.models.loading import load_model


def save_qwen(folder: Path) -> Path:
    """Saves a tiny decoder in the form of Qwen3-Reranker's folder."""
    return save_decoder(folder, tiny_decoder(Qwen3ForCausalLM, PUBLISHED["Qwen/Qwen3-Reranker-0.6B"]))


def in_float8(weight: Tensor) -> dict[str, Tensor]:
    """Returns a layer as compressed-tensors and transformers' own FP8 save it."""
    scale = weight.abs().max() / 448
    return {"weight": (weight / scale).to(torch.float8_e4m3fn), "weight_scale": scale[None]}


def in_int8(weight: Tensor) -> dict[str, Tensor]:
    """Returns a layer as bitsandbytes saves it in 8 bits."""
    scale = weight.abs().amax(1)
    return {"weight": (weight / scale[:, None] * 127).round().to(torch.int8), "SCB": scale}


def in_4_bits(weight: Tensor) -> dict[str, Tensor]:
    """Returns a layer as bitsandbytes saves it in 4 bits, two numbers to a byte."""
    return {"weight": torch.zeros(weight.numel() // 2, 1, dtype=torch.uint8), "weight.absmax": weight.abs().amax(1)}


def packed(name: str) -> Callable[[Tensor], dict[str, Tensor]]:
    """Returns what makes of a layer the codes of GPTQ, AWQ and compressed-tensors: eight numbers to an integer."""
    return lambda weight: {name: torch.zeros(weight.numel() // 8, dtype=torch.int32)}


@pytest.mark.parametrize("save", [save_cross_encoder, save_qwen])
@pytest.mark.parametrize("codes", [in_float8, in_int8, in_4_bits, packed("qweight"), packed("weight_packed")])
def test_quantised_weights_are_refused(
    tmp_path: Path, save: Callable[[Path], Path], codes: Callable[[Tensor], dict[str, Tensor]]
) -> None:
    """Some codes have the names and shapes of weights, and would be taken for them."""
    folder = save(tmp_path)

    def quantised(weights: dict[str, Tensor]) -> dict[str, Tensor]:
        layers = {name: weight for name, weight in weights.items() if name.endswith(("_proj.weight", "dense.weight"))}
        made = {
            name.removesuffix("weight") + part: each
            for name, weight in layers.items()
            for part, each in codes(weight).items()
        }
        return {name: weight for name, weight in weights.items() if name not in layers} | made

    change_weights(folder, quantised)
    assert_refused(
        folder, r"quantised weights \((float8_e4m3fn|u?int8|int32)", {"quantization_config": {"quant_method": "some"}}
    )


def test_weights_that_were_quantised_once_load(tmp_path: Path) -> None:
    """Merging an adapter leaves quantization_config behind, although the weights are plain numbers again."""
    folder = save_cross_encoder(tmp_path)
    edit_json(folder / "config.json", {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}})

    load_model(str(folder))
