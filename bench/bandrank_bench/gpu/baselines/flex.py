"""FlexAttention with the same mask, over whole pairs: torch compiles a kernel for it."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from bandrank_bench.gpu.baselines.full import heads
from bandrank_bench.gpu.baselines.system import System
from bandrank_bench.gpu.lab import Lab
from bandrank_bench.gpu.shape import Shape


def system(lab: Lab, shape: Shape) -> System:
    """Compiled here, at its first call; a dry run does without."""
    seen, window = shape.num_globals, shape.window

    def visible(batch: Tensor, head: Tensor, row: Tensor, key: Tensor) -> Tensor:
        del batch, head
        near = (key - row).abs() <= window
        of_candidate = (row >= seen) & ((key < seen) | near)
        of_query = (row > 0) & (row < seen) & (key > 0) & (key < seen)
        return (row == 0) | of_query | of_candidate

    mask = create_block_mask(visible, None, None, shape.sequence, shape.sequence, device=str(lab.device))
    run = flex_attention if lab.dry else torch.compile(flex_attention, dynamic=False)

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Sequence[Tensor]:
        return [run(query, key, value, block_mask=mask)]

    def pack(results: Sequence[Tensor]) -> Tensor:
        rows = results[0].transpose(1, 2)  # (num_candidates, sequence, num_heads, head_dim)
        return torch.cat([rows[:, 0], rows[0, 1:seen], rows[:, seen:].flatten(0, 1)])

    return System("flex", partial(heads, shape), attend, pack)
