"""Scorers whose encoder computes in int8, on a CPU."""

from collections import defaultdict
from dataclasses import replace

import torch
from torch import Tensor, nn

from bandrank.models.layers.int8_linear import NOT_FINITE, Int8Linear, why_not_int8
from bandrank.models.layers.linear import Linear
from bandrank.models.sample import sample_request
from bandrank.models.scorer import Scorer
from bandrank_kernels.native.library import why_no_native

SAMPLES = 4  # candidates of the sample request: about three hundred rows


def quantise(scorer: Scorer) -> None:
    """Replaces the linear layers of the encoder's blocks; embeddings, norms and heads stay in float32.

    A sample request shows which inputs of a layer are much larger than the others, as some always are in most encoders
    (Dettmers et al. 2022, arXiv 2208.07339).

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
    for int8, rows in _inputs_of_layers(scorer).items():
        int8.adapt(rows)


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


def _inputs_of_layers(scorer: Scorer) -> dict[Int8Linear, Tensor]:
    """Some rows of the inputs of each layer, as it computes the sample request."""
    inputs: dict[nn.Module, list[Tensor]] = defaultdict(list)
    layers = [layer for block in _blocks(scorer) for layer in block.modules() if isinstance(layer, Int8Linear)]

    def keep(layer: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        inputs[layer].append(arguments[0].flatten(0, -2))

    hooks = [layer.register_forward_pre_hook(keep) for layer in layers]
    batch = sample_request(scorer, SAMPLES)
    try:
        with torch.inference_mode():
            scorer.score(replace(batch, candidates=scorer.encode_candidates(batch.candidates)))
    finally:
        for hook in hooks:
            hook.remove()
    return {layer: torch.cat(inputs[layer]) for layer in layers if layer in inputs}


def _layers(scorer: Scorer) -> list[Linear]:
    return [layer for block in _blocks(scorer) for layer in block.modules() if isinstance(layer, Linear)]


def _blocks(scorer: Scorer) -> list[nn.Module]:
    encoder = getattr(scorer, "encoder", None)
    return list(getattr(encoder, "layers", []))
