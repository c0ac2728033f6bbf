"""Scorers whose batches overlap on a GPU: nothing makes the host wait until the scores are asked for."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from support.deberta import tiny_deberta
from support.models import score_batch
from support.variants import VARIANTS, random_texts
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bandrank.models.layers import head
from bandrank.models.prepared import prepare
from bandrank.models.scorer import Scorer

DEVICE = torch.device("meta")  # has no numbers, so that reading one on the host is an error


class Transfers(TorchDispatchMode):
    """Counts copies to the device, and fails for any that `transfer.to_device`, which copies bytes, did not make."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        tensors = [leaf for leaf in tree_leaves((args, kwargs, out)) if isinstance(leaf, Tensor) and leaf.dim()]
        if len({tensor.device for tensor in tensors}) > 1:
            assert func is torch.ops.aten._to_copy.default, f"{func} reads host memory"
            assert kwargs.get("non_blocking"), "the host waits for a copy"
            assert args[0].dtype == torch.uint8, "the host waits for a copy of memory that is not pinned"
            self.count += 1
        return out


SCORERS: dict[str, Callable[[], Scorer]] = VARIANTS | {"cross_encoder deberta": lambda: tiny_deberta(max_tokens=64)}


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("cross_encoder full", 3),  # tokens, the plan, and which passages are whose
        ("cross_encoder sparse", 3),
        ("cross_encoder longformer", 2),
        ("cross_encoder lexical", 4),
        ("cross_encoder deberta", 4),
        ("sequence_cross_encoder cls", 5),  # plans of global and of local layers, and the rows that are pooled
        ("sequence_cross_encoder mean long", 4),
        ("decoder_reranker", 2),
        ("candidate_first_reranker", 2),
    ],
)
@torch.no_grad()
def test_a_batch_goes_over_in_few_transfers_that_are_not_waited_for(
    name: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batches are computed in plain torch, with several patterns of attention."""
    monkeypatch.setattr(head, "in_float32", lambda _: nullcontext())  # this device has no autocast
    scorer = SCORERS[name]()
    lexical = getattr(scorer, "lexical", None)
    weights = lexical.idf if lexical is not None else None
    prepared = prepare(scorer, device=DEVICE, dtype=torch.float32)
    if lexical is not None:
        lexical.idf = weights  # copied to host memory once, before
    batch = score_batch(*random_texts(scorer))
    with Transfers() as transfers:
        scores = prepared.begin(batch)()

    assert scores.shape == (len(batch.candidates),)
    assert transfers.count == count
