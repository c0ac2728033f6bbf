"""Makes scorers compute in int8 on a CPU."""

from collections import defaultdict
from collections.abc import Collection
from dataclasses import replace

import torch
from torch import Tensor, nn

from bandrank.models.layers.int8_linear import NOT_FINITE, Int8Linear
from bandrank.models.layers.linear import Linear
from bandrank.models.layers.packed_linear import why_not_packed
from bandrank.models.sample import sample_request
from bandrank.models.scorer import Scorer
from bandrank_kernels.native.library import why_no_native

SAMPLES = 4  # candidates of the sample request: about three hundred rows


def quantise(scorer: Scorer) -> None:
    """Replaces the linear layers of the scorer's `packed_parts`, except its `exact_layers`, by int8 ones. Layers in
    other dtypes are converted to float32 one at a time.

    Raises ValueError for the reasons of `why_not_quantised`; if a weight is not finite, only after some layers were
    replaced.
    """
    refused = f"a {scorer.architecture} cannot compute in int8"
    if reason := why_no_layers(scorer):
        raise ValueError(f"{refused}: {reason}")
    try:
        for name in list(_quantisable(scorer)):  # only names, so that replaced layers are freed
            scorer.set_submodule(name, Int8Linear.of(scorer.get_submodule(name)))  # type: ignore[arg-type]  # a Linear
    except ValueError as error:
        raise ValueError(f"{refused}: {error}") from error


def adapt(scorer: Scorer) -> None:
    """Fits the layers that `quantise` made to their inputs, once the other weights are in float32.

    A sample request shows which inputs of a layer are much larger than the others, as some are in most encoders
    (Dettmers et al. 2022, arXiv 2208.07339).
    """
    for int8, rows in _inputs_of_layers(scorer).items():
        int8.adapt(rows)


def why_not_quantised(scorer: Scorer) -> str | None:
    """Why a scorer cannot compute in int8 here, as a clause; None if it can. Reads all weights."""
    finite = (bool(layer.weight.isfinite().all()) for layer in _quantisable(scorer).values())
    return why_no_layers(scorer) or (None if all(finite) else NOT_FINITE)


def linear_layers(scorer: Scorer) -> dict[str, Linear]:
    """The linear layers of the scorer's `packed_parts` by name, such as "encoder.layers.0.qkv", including those that
    int8 leaves in float32.
    """
    parts = tuple(f"{part}." for part in scorer.packed_parts)
    layers = ((name, layer) for name, layer in scorer.named_modules() if f"{name}.".startswith(parts))
    return {name: layer for name, layer in layers if isinstance(layer, Linear)}


def _quantisable(scorer: Scorer) -> dict[str, Linear]:
    return {name: layer for name, layer in linear_layers(scorer).items() if name not in scorer.exact_layers}


def why_no_layers(scorer: Scorer) -> str | None:
    """Like `why_not_quantised`, but does not read the weights."""
    return why_no_packed_layers(scorer, scorer.exact_layers)


def why_no_packed_layers(scorer: Scorer, exact: Collection[str] = ()) -> str | None:
    """Why the CPU kernels cannot compute the linear layers but those named `exact`, as a clause; None if they can."""
    if reason := why_no_native():
        return f"the CPU kernels cannot run: {reason}"
    layers = linear_layers(scorer)
    if not layers:
        return "it has no encoder with linear layers"
    return next(filter(None, (why_not_packed(layer) for name, layer in layers.items() if name not in exact)), None)


def _inputs_of_layers(scorer: Scorer) -> dict[Int8Linear, Tensor]:
    """The input rows of each layer while it computes the sample request."""
    inputs: dict[nn.Module, list[Tensor]] = defaultdict(list)
    layers = [layer for layer in scorer.modules() if isinstance(layer, Int8Linear)]

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
