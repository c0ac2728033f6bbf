"""One layer as CUDA source, and the plan of its launches; nothing here needs a GPU or CuPy."""

from bandrank_kernels.cuda import Dtype, dtype_name
from bandrank_kernels.windowed_attention.cuda.absorbed import ABSORBED, why_absorbed_unsupported
from bandrank_kernels.windowed_attention.cuda.forward import ForwardPlan, is_readable, plan_forward, why_unsupported
from bandrank_kernels.windowed_attention.cuda.params import PARAMS
from bandrank_kernels.windowed_attention.cuda.tiles import plan_tiles
from bandrank_kernels.windowed_attention.cuda.variants import SHIPPED, Variant, choose_variant

__all__ = [
    "ABSORBED",
    "PARAMS",
    "SHIPPED",
    "Dtype",
    "ForwardPlan",
    "Variant",
    "choose_variant",
    "dtype_name",
    "is_readable",
    "plan_forward",
    "plan_tiles",
    "why_absorbed_unsupported",
    "why_unsupported",
]
