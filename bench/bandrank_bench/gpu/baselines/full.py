"""Full attention over padded pairs, by each of torch's backends."""

from collections.abc import Sequence
from functools import partial

from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from bandrank_bench.gpu.baselines.system import System
from bandrank_bench.gpu.shape import Shape

BACKENDS = {
    "full flash": SDPBackend.FLASH_ATTENTION,
    "full cudnn": SDPBackend.CUDNN_ATTENTION,
    "full efficient": SDPBackend.EFFICIENT_ATTENTION,
}
DRY_BACKENDS = {"full math": SDPBackend.MATH}


def heads(shape: Shape, qkv: Tensor) -> list[Tensor]:
    """Q, K and V of whole pairs, (num_candidates, num_heads, sequence, head_dim) each, rows as they are in memory."""
    return [rows.contiguous().transpose(1, 2) for rows in shape.sequences(qkv).unbind(2)]


def system(shape: Shape, name: str, backend: SDPBackend) -> System:
    """Another function than ours: every row sees every other."""

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Sequence[Tensor]:
        with sdpa_kernel(backend):
            return [scaled_dot_product_attention(query, key, value)]

    return System(name, partial(heads, shape), attend)
