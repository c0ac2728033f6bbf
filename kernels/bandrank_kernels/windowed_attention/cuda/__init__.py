"""The forward pass of one layer as CUDA source, and the plan of a launch; nothing here needs a GPU, torch or CuPy."""

from bandrank_kernels.windowed_attention.cuda.forward import ForwardLaunch, plan_forward, why_unsupported
from bandrank_kernels.windowed_attention.cuda.params import PARAMS
from bandrank_kernels.windowed_attention.cuda.tiles import plan_tiles
from bandrank_kernels.windowed_attention.cuda.variants import SHIPPED, Dtype, Variant, choose_variant

__all__ = [
    "PARAMS",
    "SHIPPED",
    "Dtype",
    "ForwardLaunch",
    "Variant",
    "choose_variant",
    "plan_forward",
    "plan_tiles",
    "why_unsupported",
]
