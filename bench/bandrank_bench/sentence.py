"""sentence-transformers as its users call it, in its default batches of 32."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from sentence_transformers import CrossEncoder
from torch import nn

from bandrank_bench.systems import Scores, System, torch_precision


def sentence_transformers(checkpoint: Path, dtype: torch.dtype) -> System:
    """A cross-encoder, or a decoder behind its chat template, in `dtype`."""
    model = CrossEncoder(str(checkpoint), device="cpu", model_kwargs={"dtype": dtype})
    raw = nn.Identity()

    def score(query: str, passages: Sequence[str]) -> Scores:
        pairs = [(query, passage) for passage in passages]
        scores = model.predict(pairs, batch_size=32, activation_fn=raw, show_progress_bar=False, convert_to_tensor=True)
        return np.asarray(scores.float())

    precision = torch_precision(dtype)
    return System(f"sentence-transformers {precision}", precision, "full", "peer", score)
