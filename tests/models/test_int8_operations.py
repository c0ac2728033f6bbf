"""What of layers with RMSNorm is left to torch in int8 on a CPU."""

import copy
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.decoders import tiny_decoder_reranker
from support.grouped import tiny_gemma3_bi_encoder, tiny_llama_reranker
from support.models import score_batch
from support.native import needs_native
from support.variants import random_texts
from torch.utils._python_dispatch import TorchDispatchMode

from bandrank.models.prepared import prepare
from bandrank.models.scorer import Scorer


class Operations(TorchDispatchMode):
    """Counts what torch computes, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # as torch types it
        self.counts[func.overloadpacket.__name__] += 1
        return func(*args, **kwargs or {})


def operations(scorer: Scorer, dtype: torch.dtype) -> Counter[str]:
    """Those of two batches of one scorer: the second is counted."""
    ready = prepare(copy.deepcopy(scorer), device=torch.device("cpu"), dtype=dtype).scorer
    batch = score_batch(*random_texts(scorer))
    with torch.inference_mode(), Operations() as found:
        ready.encode_candidates(batch.candidates) if scorer.precomputes else ready.score(batch)
    return found.counts


@needs_native
@pytest.mark.parametrize(
    ("build", "gate", "outside"),
    [(tiny_decoder_reranker, "silu", 1), (tiny_llama_reranker, "silu", 0), (tiny_gemma3_bi_encoder, "gelu", 0)],
)
def test_layers_have_no_norm_gate_or_attention_of_torch(build: Callable[[], Scorer], gate: str, outside: int) -> None:
    """In int8 but for the last norm of a decoder, which is outside its layers; in float32 torch computes all."""
    exact, int8 = (operations(build(), dtype) for dtype in (torch.float32, torch.int8))

    assert int8["rms_norm"] == outside
    assert exact["rms_norm"] > outside
    for name in (gate, "scaled_dot_product_attention"):
        assert exact[name] > 0
        assert int8[name] == 0
