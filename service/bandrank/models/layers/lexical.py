"""Lexical evidence: which of a query's word pieces a candidate has, joined to a scorer's own score by a learnt gate.

BM25 over word pieces (Robertson & Zaragoza 2009), with document frequencies that come with the checkpoint: a
candidate's evidence does not depend on the other candidates, nor on any index.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from bandrank.models.batch import ScoreBatch
from bandrank_kernels.arrays import Ints

Floats = npt.NDArray[np.float32]
QUERY_FEATURES, EVIDENCE = 3, 3


@dataclass(frozen=True)
class LexicalConfig:
    """The settings of lexical evidence, saved within a scorer's config.json.

    average_tokens: of the texts that document frequencies were counted in.  k1, b: BM25's, by default Anserini's.
    Raises ValueError for an average that is not above 0, a k1 below 0, or a b outside 0..1.
    """

    average_tokens: float
    k1: float = 0.9
    b: float = 0.4

    def __post_init__(self) -> None:
        if not self.average_tokens > 0 or self.k1 < 0 or not 0 <= self.b <= 1:
            raise ValueError(
                f"average_tokens must be above 0, k1 at least 0, and b within 0..1, got {self.average_tokens}, "
                f"{self.k1} and {self.b}"
            )


class Lexical(nn.Module):
    """What a candidate's words add to its score: query features @ gate @ evidence.

    Evidence is BM25 as a share of the most that the query could get, the share of the query's pieces that are there,
    each weighed by its rarity, and 1. A query's features are 1, its length and the rarity of its pieces, so that a long
    request weighs words otherwise than a few keywords.

    idf: (vocab_size,) the weights of word pieces, 0 for special tokens.  gate: (3, 3), which starts at zero.
    """

    idf: Tensor

    def __init__(self, config: LexicalConfig, vocab_size: int) -> None:
        super().__init__()
        self.config = config
        self.register_buffer("idf", torch.zeros(vocab_size))
        self.gate = nn.Parameter(torch.zeros(QUERY_FEATURES, EVIDENCE))
        self._on_host: tuple[Tensor, Floats] | None = None

    def forward(self, batch: ScoreBatch) -> Tensor:
        """(C,) float32 what is added to each candidate's score. Candidates are token ids."""
        queries, evidence = self.evidence(batch)
        device = self.gate.device
        both = torch.from_numpy(np.stack([queries[batch.candidate_query], evidence])).to(device, non_blocking=True)
        # Products entry by entry, which autocast leaves in float32.
        return (both[0][:, :, None] * self.gate.float() * both[1][:, None, :]).sum((1, 2))

    def evidence(self, batch: ScoreBatch) -> tuple[Floats, Floats]:
        """(Q, 3) features of queries and (C, 3) evidence of candidates, float32. A query without a known piece, or a
        candidate without one of the query's, has no evidence but 1.
        """
        idf = self._host_idf()
        queries = np.zeros((len(batch.queries), QUERY_FEATURES), np.float32)
        evidence = np.zeros((len(batch.candidates), EVIDENCE), np.float32)
        queries[:, 0] = evidence[:, -1] = 1
        place = np.full(len(idf), -1)
        for query, group in batch.groups():
            pieces = np.unique(batch.queries[query].numpy())
            pieces = pieces[idf[pieces] > 0]
            if not len(pieces):
                continue
            rarity = idf[pieces]
            place[pieces] = np.arange(len(pieces))
            counts, lengths = self._counts(batch, group, place, len(pieces))
            place[pieces] = -1
            most = rarity.sum()
            norm = self.config.k1 * (1 - self.config.b + self.config.b * lengths / self.config.average_tokens)
            evidence[group, 0] = (counts / (counts + norm[:, None]).clip(1e-9)) @ rarity / most
            evidence[group, 1] = (counts > 0) @ rarity / most
            queries[query, 1:] = np.log(len(pieces)) / 3, most / len(pieces) / 8  # about 0 to 1
        return queries, evidence

    @staticmethod
    def _counts(batch: ScoreBatch, group: slice, place: Ints, size: int) -> tuple[Ints, Ints]:
        """(n, size) how often each candidate has each piece, by the piece's place, and (n,) candidates' lengths."""
        lengths = batch.candidates.lengths[group]
        begin, end = batch.candidates.cu_seqlens[[group.start, group.stop]]
        places = place[batch.candidates.values[begin:end].numpy()]
        found = places >= 0
        cell = np.repeat(np.arange(len(lengths)), lengths)[found] * size + places[found]
        return np.bincount(cell, minlength=len(lengths) * size).reshape(-1, size), lengths

    def _host_idf(self) -> Floats:
        """The weights in host memory, copied once."""
        if self._on_host is None or self._on_host[0] is not self.idf:
            self._on_host = self.idf, self.idf.float().cpu().numpy()
        return self._on_host[1]
