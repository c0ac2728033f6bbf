"""The dtype that a model is served in."""

import logging
from collections.abc import Mapping
from typing import Any

import torch

from bandrank.errors import BadSetting
from bandrank.model_settings import Dtype
from bandrank.models.bfloat16 import why_not_bfloat16
from bandrank.models.encoders.static import StaticTable
from bandrank.models.loading import LoadedModel
from bandrank.models.placement import DTYPES, name_of
from bandrank.models.quantised import why_no_layers, why_not_quantised
from bandrank.models.timing import seconds_by_dtype
from bandrank.settings import variable

log = logging.getLogger(__name__)

# An x86 processor multiplies a dtype in hardware if it has one of these features of torch.cpu.get_capabilities().
IN_HARDWARE = {torch.bfloat16: ("avx512_bf16", "amx_bf16"), torch.float16: ("avx512_fp16", "amx_fp16")}


def choose_dtype(name: Dtype, device: torch.device, model: LoadedModel) -> torch.dtype:
    """The named dtype. On a GPU, "auto" is float16, or bfloat16 for a scorer that overflows it.

    On a CPU, it is bfloat16 where the CPU kernels compute it, which round only what they multiply, and else float32; or
    a dtype that the checkpoint is marked fit for, if that is faster, as timed now. For static embeddings, which have no
    layers, int8 is float32.

    Raises BadSetting for int8 where it cannot be computed.
    """
    scorer = model.scorer
    if name == "int8" and isinstance(scorer.encoder, StaticTable):
        return torch.float32
    if name == "int8" and (reason := why_no_int8(device, model)):
        raise BadSetting("dtype", f"cannot be int8 for {model.name}: {reason}")
    if name != "auto":
        dtype = DTYPES[name]
        if device.type == "cpu" and _emulated(dtype, torch.cpu.get_capabilities()):
            log.warning(
                "%s computes in %s, as asked for; this processor only emulates it, and float32 is faster",
                model.name,
                name,
            )
    elif device.type == "cpu":
        dtype = _fastest(device, model)
    elif scorer.overflows_float16:
        dtype = torch.bfloat16
        log.info("%s computes in bfloat16, because it may overflow float16", model.name)
    else:
        dtype = torch.float16
    if scorer.overflows_float16 and dtype == torch.float16:
        log.warning("%s computes in float16, as asked for, and may overflow; bfloat16 does not", model.name)
    return dtype


def _emulated(dtype: torch.dtype, capabilities: Mapping[str, Any]) -> bool:
    needed = IN_HARDWARE.get(dtype, ())
    return bool(needed) and capabilities.get("architecture") == "x86_64" and not any(map(capabilities.get, needed))


def why_no_int8(device: torch.device, model: LoadedModel) -> str | None:
    """Why a model cannot be served in int8, as a clause; None if it can."""
    return "int8 is for a CPU" if device.type != "cpu" else why_not_quantised(model.scorer)


def _fastest(device: torch.device, model: LoadedModel) -> torch.dtype:
    usual = torch.float32 if why_not_bfloat16(model.scorer) else torch.bfloat16
    fit = [dtype for name in model.fit if (dtype := DTYPES[name]) != usual]
    if torch.int8 in fit and (reason := why_no_int8(device, model)):
        log.warning("%s does not compute in int8, which would be faster: %s", model.name, reason)
        fit.remove(torch.int8)
    elif not fit and why_no_layers(model.scorer) is None:
        log.info(
            "%s computes in %s; %s=int8 is %s times as fast on most CPUs, but what it does to this model's rankings "
            "has not been measured (docs/models.md#int8-on-a-cpu)",
            model.name,
            name_of(usual),
            variable("dtype"),
            "two to three" if usual == torch.float32 else "1.3 to 1.8",
        )
    if not fit:
        return usual
    seconds = seconds_by_dtype(model.scorer, device, [usual, *fit])
    fastest = min(seconds, key=seconds.__getitem__)
    times = ", ".join(f"{1e3 * each:.1f} ms in {name_of(dtype)}" for dtype, each in seconds.items())
    log.info("%s computes in %s: a small request takes %s", model.name, name_of(fastest), times)
    return fastest
