"""The memory that the states of a batch take while a scorer computes them."""

from dataclasses import replace
from typing import Any
from weakref import ref

import pytest
import torch
from support.models import random_scorer, score_batch, tiny_encoder_config
from support.tokenizer import CLS_ID, SEP_ID
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bandrank.models.architectures import CrossEncoder
from bandrank.models.architectures.cross_encoder import CrossEncoderConfig
from bandrank.models.layers import block
from bandrank.models.layers.patterns import sparse


class Peak(TorchDispatchMode):
    """Measures the most bytes that the results of operations take at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.num_bytes = 0
        self._alive: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self._alive += [ref(leaf) for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        alive = [tensor for each in self._alive if (tensor := each()) is not None]
        storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in alive}
        self.num_bytes = max(self.num_bytes, sum(storages.values()))
        return out


@torch.no_grad()
def test_only_what_is_needed_is_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, where a layer runs for all rows at once: in its second sublayer there are its input and
    its two wide intermediates, but neither the layer's input nor what the attention gave.
    """
    monkeypatch.setattr(block, "CPU_BLOCK_ROWS", 10**9)
    encoder = replace(tiny_encoder_config(), num_layers=3, intermediate_size=16 * tiny_encoder_config().hidden_size)
    config = CrossEncoderConfig(encoder=encoder, cls_id=CLS_ID, sep_id=SEP_ID, pattern=sparse(4), max_tokens=512)
    scorer = random_scorer(CrossEncoder(config), seed=0)
    batch = score_batch([[7] * 10], [[[9] * 50] * 20])
    packed = scorer._packed(batch)
    with Peak() as peak:
        scorer.launch(packed)

    states = peak.num_bytes / (packed.rows.num_rows * encoder.hidden_size * 4)
    assert states < 1 + 2 * 16 + 2.5  # with the tables of plain torch's attention, which take two
