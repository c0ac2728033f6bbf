"""Compares the shipped scorers in half precision, as the service runs them on a GPU, with float32 on the host."""

from collections.abc import Iterator
from functools import partial
from itertools import pairwise

import numpy as np
import torch

from bandrank.models import checkpoint, shipped
from bandrank.models.batch import ScoreBatch
from bandrank.models.prepared import prepare
from bandrank.models.ragged import Ragged
from bandrank_bench.gpu.lab import Lab
from bandrank_bench.gpu.stages import Case, Facts
from bandrank_bench.gpu.whole_model import LENGTHS
from bandrank_kernels.arrays import offsets

QUERIES, CANDIDATES = 4, 50  # candidates per query
QUERY_TOKENS = (4, 12, 30, 90)
FIRST_WORD, PAST_WORDS = 1996, 30522  # of BERT's vocabulary
MOST = 0.05  # change of a raw score; rounding to float16 in six layers causes less


def cases(lab: Lab) -> Iterator[Case]:
    """A case for each shipped scorer and dtype."""
    for name in shipped.names():
        for dtype in (torch.float16, torch.bfloat16):
            yield Case(f"{name} in {dtype}".replace("torch.", ""), partial(compared, lab, name, dtype))


@torch.inference_mode()
def compared(lab: Lab, name: str, dtype: torch.dtype) -> Facts:
    """The largest and the mean difference of raw scores, and the number of neighbours in the ranking that swap. Raises
    AssertionError if float16 differs by more than rounding.
    """
    batch = requests(2 if lab.dry else CANDIDATES)
    folder = shipped.FOLDER / name
    exact = prepare(checkpoint.load(folder), device=torch.device("cpu"), dtype=torch.float32)(batch)
    on_device = prepare(
        checkpoint.load(folder), device=lab.device, dtype=lab.dtype if lab.dry else dtype, graphs=not lab.dry
    )
    rounded = on_device(batch).cpu()
    differences = (rounded - exact).abs()
    assert differences.isfinite().all(), "a score is no number"
    assert dtype != torch.float16 or differences.max() <= MOST, f"scores differ by up to {differences.max():.4f}"
    swapped = sum(
        int((rounded[begin:end][exact[begin:end].argsort()].diff() < 0).sum())
        for begin, end in pairwise(batch.cu_candidates.tolist())
    )
    return {
        "largest_difference": float(differences.max()),
        "mean_difference": float(differences.mean()),
        "spread": float(exact.std()),
        "pairs": len(exact),
        "neighbours_swapped": swapped,
        "why_no_kernels": on_device.why_no_kernels,
        "why_no_graphs": on_device.why_no_graphs(),
    }


def requests(num_candidates: int) -> ScoreBatch:
    """Queries and passages of random words, of realistic lengths."""
    rng = np.random.default_rng(0)
    lengths = np.resize(LENGTHS["passages"], num_candidates * QUERIES)
    texts = [rng.integers(FIRST_WORD, PAST_WORDS, length).tolist() for length in (*QUERY_TOKENS, *lengths)]
    return ScoreBatch(
        Ragged.from_token_ids(texts[:QUERIES]),
        Ragged.from_token_ids(texts[QUERIES:]),
        offsets([num_candidates] * QUERIES),
    )
