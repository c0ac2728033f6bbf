"""The runtimes to compare with, each set up for speed as its users would, all with the same checkpoint."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bandrank_bench.batches import sorted_batches
from bandrank_bench.families.checkpoints import Published
from bandrank_bench.families.pairs import pairs_of
from bandrank_bench.families.tokenizers import XLM_ROBERTA
from bandrank_bench.systems import Score, Scores, System, torch_precision
from bandrank_bench.workloads import load_tokenizer

DTYPES = (torch.float32, torch.bfloat16)


def load_peers(published: Published, checkpoint: Path) -> Iterator[System]:
    """Loads every peer in float32 and in bfloat16."""
    from bandrank_bench.sentence import sentence_transformers  # noqa: PLC0415  # the memory probe lacks it

    for dtype in DTYPES:
        yield sentence_transformers(checkpoint, dtype)
        precision = torch_precision(dtype)
        score = plain_transformers(published, checkpoint, dtype)
        yield System(f"transformers {precision}, sorted", precision, "full", "peer", score)


def plain_transformers(published: Published, checkpoint: Path, dtype: torch.dtype) -> Score:
    """Scores with `transformers` on padded batches of similar length, with torch's attention."""
    pairs = pairs_of(published, load_tokenizer(checkpoint))
    run = logits_of(published, checkpoint, dtype, attention="sdpa")

    def score(query: str, passages: Sequence[str]) -> Scores:
        every = pairs(query, passages)
        scores = np.empty(len(passages), np.float32)
        for indices in sorted_batches([len(ids) for ids in every]):
            scores[indices] = run(*_padded([every[index] for index in indices], left=published.prompted)).numpy()
        return scores

    return score


def logits_of(published: Published, checkpoint: Path, dtype: torch.dtype, *, attention: str) -> Any:
    """Returns a function from token ids, (n, longest), and their mask (None if unpadded) to float32 scores, (n,)."""
    tokenizer = load_tokenizer(checkpoint)
    model: Any = published.model.from_pretrained(checkpoint, dtype=dtype, attn_implementation=attention)
    yes, no = (tokenizer.token_to_id(answer) for answer in ("yes", "no"))

    def run(ids: Tensor, mask: Tensor | None) -> Tensor:
        with torch.inference_mode():
            if not published.prompted:
                logits: Tensor = model(ids, attention_mask=mask).logits
                return logits[:, 0].float()
            last: Tensor = model(ids, attention_mask=mask, logits_to_keep=1, use_cache=False).logits[:, -1].float()
        return last[:, yes] - last[:, no]

    return run


def _padded(pairs: Sequence[Sequence[int]], *, left: bool) -> tuple[Tensor, Tensor | None]:
    """Pads a batch; returns ids and mask. The <pad> is XLM-RoBERTa's, which needs it to count positions."""
    longest = max(map(len, pairs))
    ids = torch.full((len(pairs), longest), XLM_ROBERTA.index("<pad>"))
    mask = torch.zeros_like(ids)
    for row, pair in enumerate(pairs):
        where = slice(longest - len(pair), None) if left else slice(len(pair))
        ids[row, where] = torch.tensor(pair)
        mask[row, where] = 1
    return ids, None if bool(mask.all()) else mask
