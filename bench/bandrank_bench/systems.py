"""The systems to compare. Each scores passages for a query, from texts to scores, tokenising included."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from bandrank.dtypes import DtypeName
from bandrank_kernels.native.library import why_no_native

Scores = npt.NDArray[np.float32]
Score = Callable[[str, Sequence[str]], Scores]  # in the order of the passages, raw, higher is better
Precision = Literal["fp32", "bf16", "bf16 emulated", "int8"]
Pattern = Literal["full", "sparse"]

NUM_THREADS = torch.get_num_threads()  # one per physical core; every system gets as many
WINDOW = 4  # of the sparse pattern


@dataclass(frozen=True)
class System:
    """A way to score.

    precision: in which its matrix products really run, whatever was requested.  served: for a system behind HTTP, the
    name of the same engine in process.
    """

    name: str
    precision: Precision
    pattern: Pattern
    kind: Literal["peer", "in process", "HTTP"]
    score: Score
    served: str | None = None


def scores_in_order(results: Iterable[Mapping[str, Any]], count: int, name: str = "relevance_score") -> Scores:
    """Sorts the scores of an answer's results into the order of the passages, by their indices."""
    scores = np.full(count, np.nan, np.float32)
    for result in results:
        scores[result["index"]] = result[name]
    return scores


def dtypes() -> tuple[DtypeName, ...]:
    """Those that bandrank computes in on this CPU, from the slowest to the fastest."""
    return ("float32", "bfloat16", *(() if why_no_native() else ("int8",)))


def torch_precision(dtype: torch.dtype) -> Precision:
    """The precision of matrix products of `dtype` tensors on this CPU, by torch, or for int8 by our kernels."""
    if dtype == torch.int8:
        return "int8"
    if dtype == torch.float32:
        return "fp32"
    return "bf16" if has_native_bf16() else "bf16 emulated"


def has_native_bf16() -> bool:
    """Whether the CPU multiplies bfloat16 natively (AVX512_BF16 or AMX); otherwise libraries convert to float32."""
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16") or capabilities.get("arm_bf16"))
