"""Hugging Face's Longformer attention, sliding chunks and global tokens. Its projections are a part of it and are timed
with it; its query and [CLS] see everything, which is another function than ours.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import LongformerConfig
from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

from bandrank_bench.gpu.baselines.system import System
from bandrank_bench.gpu.lab import Lab
from bandrank_bench.gpu.shape import Shape


def system(lab: Lab, shape: Shape) -> System:
    """Rows are padded to whole windows."""
    width = 2 * shape.window
    sequence = -(-shape.sequence // width) * width
    config = LongformerConfig(
        hidden_size=shape.hidden, num_attention_heads=shape.num_heads, attention_window=[width], num_hidden_layers=1
    )
    layer = LongformerSelfAttention(config, layer_id=0).to(lab.device, lab.dtype).eval()  # type: ignore[no-untyped-call]  # bare
    places = torch.arange(sequence, device=lab.device).expand(shape.num_candidates, -1)
    is_global, is_masked = places < shape.num_globals, places >= shape.sequence
    mask = torch.zeros(places.shape, device=lab.device, dtype=lab.dtype)
    mask.masked_fill_(is_global, 10000).masked_fill_(is_masked, -10000)

    def arrange(qkv: Tensor) -> Sequence[Tensor]:
        rows = shape.sequences(qkv)[:, :, 0].flatten(2)
        return [torch.nn.functional.pad(rows, (0, 0, 0, sequence - shape.sequence))]

    def attend(hidden: Tensor) -> Sequence[Tensor]:
        (out,) = layer(hidden, mask, is_index_masked=is_masked, is_index_global_attn=is_global, is_global_attn=True)
        return [out]

    return System("longformer", arrange, attend, capturable=False)
