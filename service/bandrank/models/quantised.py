"""Scorers whose encoder computes in int8, on a CPU."""

from torch import nn

from bandrank.models.layers.int8_linear import NOT_FINITE, Int8Linear, why_not_int8
from bandrank.models.layers.linear import Linear
from bandrank.models.scorer import Scorer
from bandrank_kernels.native.library import why_no_native


def quantise(scorer: Scorer) -> None:
    """Replaces the linear layers of the encoder's blocks; embeddings, norms and heads stay in float32.

    Raises ValueError as `why_not_quantised` says, for weights that are not finite after some layers were replaced.
    """
    refused = f"a {scorer.architecture} cannot compute in int8"
    if reason := _why_no_layers(scorer):
        raise ValueError(f"{refused}: {reason}")
    try:
        for block in _blocks(scorer):
            for parent in list(block.modules()):
                for name, layer in list(parent.named_children()):
                    if isinstance(layer, Linear):
                        setattr(parent, name, Int8Linear.of(layer))
    except ValueError as error:
        raise ValueError(f"{refused}: {error}") from error


def why_not_quantised(scorer: Scorer) -> str | None:
    """Why a scorer cannot compute in int8 here, as a clause; None if it can. Reads all weights."""
    finite = (bool(layer.weight.isfinite().all()) for layer in _layers(scorer))
    return _why_no_layers(scorer) or (None if all(finite) else NOT_FINITE)


def _why_no_layers(scorer: Scorer) -> str | None:
    """`why_not_quantised`, whatever the weights are."""
    if reason := why_no_native():
        return f"the CPU kernels cannot run: {reason}"
    layers = _layers(scorer)
    if not layers:
        return "it has no encoder with linear layers"
    return next((reason for layer in layers if (reason := why_not_int8(layer))), None)


def _layers(scorer: Scorer) -> list[Linear]:
    return [layer for block in _blocks(scorer) for layer in block.modules() if isinstance(layer, Linear)]


def _blocks(scorer: Scorer) -> list[nn.Module]:
    encoder = getattr(scorer, "encoder", None)
    return list(getattr(encoder, "layers", []))
