"""MaxSim: the best match of each query row among a candidate's rows (Khattab & Zaharia 2020, equation 3)."""

import torch
from torch import Tensor

from bandrank.models.layers.precision import in_float32
from bandrank.models.ragged import Ragged
from bandrank_kernels.grouping import runs_within

BLOCK_ROWS = 8192  # candidate rows matched at once: 4 MB of 128 dimensions stay in a CPU's cache


def maxsim(query: Tensor, candidates: Ragged) -> Tensor:
    """(n, query_len) float32, the largest dot product of each query row with a row of each candidate.

    query: (query_len, dim) float32.  candidates: (total, dim) of any dtype, on any device.
    A candidate without rows gives -inf.
    """
    parts = [query.new_empty(0, len(query))]
    for run in runs_within(candidates.lengths.tolist(), BLOCK_ROWS):
        part = candidates.part(run)
        with in_float32(query.device):
            similarities = part.values.to(query) @ query.T
        lengths = torch.from_numpy(part.lengths).to(query.device)
        owner = torch.repeat_interleave(lengths, output_size=len(similarities))
        best = query.new_full((len(lengths), len(query)), -torch.inf)
        # On a CPU three times as fast as segment_reduce, which runs on one thread.
        parts.append(best.scatter_reduce(0, owner[:, None].expand_as(similarities), similarities, "amax"))
    return torch.cat(parts)
