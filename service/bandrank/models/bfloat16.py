"""Makes scorers compute in bfloat16 on a CPU, by the CPU kernels."""

from bandrank.models.layers.bfloat16_linear import BFloat16Linear
from bandrank.models.quantised import linear_layers, why_no_packed_layers
from bandrank.models.scorer import Scorer
from bandrank_kernels.native.checks import why_odd
from bandrank_kernels.native.library import native


def use_bfloat16(scorer: Scorer) -> None:
    """Replaces the linear layers of the scorer's `packed_parts` by layers in bfloat16; all else has to be float32.

    Raises ValueError, perhaps midway, unless `why_not_bfloat16` gives None.
    """
    for name in list(linear_layers(scorer)):  # only names, so that replaced layers are freed
        scorer.set_submodule(name, BFloat16Linear.of(scorer.get_submodule(name)))  # type: ignore[arg-type]  # a Linear


def why_not_bfloat16(scorer: Scorer) -> str | None:
    """Why the CPU kernels do not compute a scorer in bfloat16, as a clause; None if they do. A scorer whose attention
    they cannot compute is left to torch: attention in float32 would take longer than their products save.
    """
    if reason := why_no_packed_layers(scorer):
        return reason
    if not native().has_bfloat16:
        return "the CPU kernels multiply bfloat16 numbers with AMX, or on AMD's processors with AVX512-BF16"
    configs = [side.encoder.config for side in scorer.sides if side.encoder.config.num_layers]
    return next(filter(None, (each.why_no_cpu_kernels or why_odd(each.head_dim) for each in configs)), None)
