"""Lexical evidence: which of a query's word pieces a candidate has, joined to a scorer's own score by a learnt gate.

BM25 over word pieces (Robertson & Zaragoza 2009), with document frequencies that come with the checkpoint: a
candidate's evidence does not depend on the other candidates, nor on any index. Only its pooled form does: there, a
piece's weight is also multiplied by its rarity among the candidates at hand.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from bandrank.models.batch import ScoreBatch
from bandrank.models.ids import Ids
from bandrank.models.ragged import Ragged
from bandrank.models.words import MAX_WEIGHT, PIECES, Words
from bandrank_kernels.arrays import Ints, indices_within, offsets
from bandrank_kernels.transfer import to_device

Floats = npt.NDArray[np.float32]
QUERY_FEATURES, EVIDENCE = 3, 3


@dataclass(frozen=True)
class LexicalConfig:
    """The settings of lexical evidence, saved within a scorer's config.json.

    average_tokens: the mean length of the texts in which document frequencies were counted.  k1, b: BM25's, by default
    Anserini's.  most_words: the most word pieces, the rarest ones, that are kept beside a candidate's representation.
    Raises ValueError for an average that is not above 0, a k1 below 0, a b outside 0..1, or a most_words below 1.
    """

    average_tokens: float
    k1: float = 0.9
    b: float = 0.4
    most_words: int = 128

    def __post_init__(self) -> None:
        if not self.average_tokens > 0 or self.k1 < 0 or not 0 <= self.b <= 1:
            raise ValueError(
                f"average_tokens must be above 0, k1 at least 0, and b within 0..1, got {self.average_tokens}, "
                f"{self.k1} and {self.b}"
            )
        if self.most_words < 1:
            raise ValueError(f"most_words must be at least 1, got {self.most_words}")


class Lexical(nn.Module):
    """What a candidate's words add to its score: query features @ gate @ evidence.

    Evidence is BM25 as a share of the most that any text could get, the share of the query's pieces that the candidate
    has, weighted by rarity, and 1. A query's features are 1, its length and the rarity of its pieces, so that words can
    count differently in a long request than in a few keywords.

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
        """(C,) float32 additions to the candidates' scores. Candidates are token ids, or have words."""
        queries, evidence = self.evidence(batch)
        host = [torch.from_numpy(each) for each in (queries[batch.candidate_query], evidence)]
        return self.weigh(*to_device(host, self.gate.device))

    def weigh(self, queries: Tensor, evidence: Tensor) -> Tensor:
        """(C,) float32 additions for this evidence, on the gate's device.

        queries: (C, 3) features of each candidate's query, or (1, 3) if all have one query.  evidence: (C, 3).
        """
        # Products entry by entry, which autocast leaves in float32.
        return (queries[:, :, None] * self.gate.float() * evidence[:, None, :]).sum((1, 2))

    def weigh_words(self, query: Tensor, asked: Tensor, rarity: Tensor, pieces: Tensor, weights: Tensor) -> Tensor:
        """(C,) float32 additions, on the gate's device, for the words of a query's candidates.

        query, asked, rarity: as from `ask`.  pieces, weights: (C, size), those of `Words`, the pieces read as int16.
        """
        table = rarity.new_zeros(PIECES).scatter_(0, asked, rarity)
        # Negative pieces count from the end of the table. Sums in float64 do not depend on their order once rounded.
        there = torch.stack([weights, weights.clamp(max=1) * MAX_WEIGHT], 1)
        sums = (table[pieces.long()][:, None] * there).sum(2)
        return self.weigh(query, nn.functional.pad(sums.float(), (0, 1), value=1.0))

    def ask(self, ids: Ints, size: int) -> tuple[Floats, Ints, npt.NDArray[np.float64]]:
        """(1, 3) features of a query, (size,) its pieces modulo `PIECES`, the first of them also in unused places, and
        (size,) their shares of the query's rarity, in 255ths. ids: of the query, at most `size`.
        """
        pieces, rarity, features = self._known(ids)
        # Of pieces that two bytes do not tell apart the last counts, as in `_sums`.
        shares = dict(zip((pieces % PIECES).tolist(), rarity.tolist(), strict=True)) or {0: 0.0}
        asked = [*shares, *[*shares][:1] * (size - len(shares))]
        of_each = np.array([shares[piece] for piece in asked])
        return features[None], np.array(asked), of_each / max(MAX_WEIGHT * rarity.sum(), 1e-9)

    def _known(self, ids: Ints) -> tuple[Ints, Floats, Floats]:
        """A query's pieces that have a weight, ascending, the weights, and its (3,) features."""
        idf = self._host_idf()
        pieces = np.array(sorted({*ids.tolist()}), np.int64)
        rarity = idf[pieces]
        pieces, rarity = pieces[rarity > 0], rarity[rarity > 0]
        features = np.array([1, 0, 0], np.float32)
        if len(pieces):
            features[1:] = math.log(len(pieces)) / 3, rarity.sum() / len(pieces) / 8  # about 0 to 1
        return pieces, rarity, features

    def pooled_change(self, query: Ids, candidates: Ragged) -> Floats:
        """(C,) what the pooled form adds to the scores of one query's candidates, all of which count as the pool.

        query: token ids.  candidates: in host memory, token ids or with words.
        """
        batch = ScoreBatch(Ragged.from_token_ids([query]), candidates, offsets([len(candidates)]))
        [features], plain = self.evidence(batch)
        _, pooled = self.evidence(batch, pooled=True)
        gate = self.gate.detach().float().cpu().numpy()
        return np.asarray((features[:, None] * gate * (pooled - plain)[:, None]).sum((1, 2)), np.float32)

    def evidence(self, batch: ScoreBatch, *, pooled: bool = False) -> tuple[Floats, Floats]:
        """(Q, 3) features of queries and (C, 3) evidence of candidates, float32. A query without a known piece, or a
        candidate without one of the query's, has no evidence but 1.

        pooled: whether the pool of a query's candidates in the batch changes the weights of pieces.
        """
        idf = self._host_idf()
        queries = np.zeros((len(batch.queries), QUERY_FEATURES), np.float32)
        evidence = np.zeros((len(batch.candidates), EVIDENCE), np.float32)
        queries[:, 0] = evidence[:, -1] = 1
        words = batch.candidates.words
        place = np.full(len(idf), -1) if words is None else None
        for query, group in batch.groups():
            pieces, rarity, queries[query] = self._known(batch.queries[query].numpy())
            if not len(pieces):
                continue
            if place is not None:
                place[pieces] = np.arange(len(pieces))
                counts, lengths = self._counts(batch, group, place, len(pieces))
                place[pieces] = -1
                if pooled:
                    rarity = rarity * _rarity_among(len(counts), (counts > 0).sum(0))
                most = rarity.sum()
                # Row by row: the rounding of a matrix-vector product depends on all rows.
                evidence[group, 0] = (self._saturation(counts, lengths[:, None]) * rarity).sum(1) / most
                evidence[group, 1] = ((counts > 0) * rarity).sum(1) / most
            elif words is not None:
                of_group = words.part(group)
                if pooled:
                    having = np.bincount(of_group.pieces[of_group.weights > 0], minlength=PIECES)
                    rarity = rarity * _rarity_among(len(of_group), having[pieces % PIECES])
                most = rarity.sum()
                weighted, there = self._sums(of_group, pieces % PIECES, rarity)
                evidence[group, 0], evidence[group, 1] = weighted / (MAX_WEIGHT * most), there / most
        return queries, evidence

    def words(self, texts: Ragged) -> Words:
        """The rarest word pieces of each text, at most `most_words`, each with BM25's weight for its count.

        texts: token ids in host memory.
        """
        idf, ids, size = self._host_idf(), texts.values.numpy(), self.config.most_words
        owner, known = np.repeat(np.arange(len(texts)), texts.lengths), idf[ids] > 0
        pairs, counts = np.unique(owner[known] * len(idf) + ids[known], return_counts=True)
        owner, pieces = np.divmod(pairs, len(idf))
        rarest = np.lexsort((-idf[pieces], owner))
        place = indices_within(np.bincount(owner, minlength=len(texts)))
        rarest, place = rarest[place < size], place[place < size]
        owner, counts, pieces = owner[rarest], counts[rarest], pieces[rarest]
        words = Words(np.zeros((len(texts), size), np.uint16), np.zeros((len(texts), size), np.uint8))
        words.pieces[owner, place] = pieces % PIECES
        weights = self._saturation(counts, texts.lengths[owner])
        words.weights[owner, place] = np.rint(MAX_WEIGHT * weights).clip(1)
        return words

    def _saturation(self, counts: Ints, lengths: Ints) -> Floats:
        """BM25's weight, from 0 to 1, of a piece, by its count in a text and the length of the text."""
        config = self.config
        norm = config.k1 * (1 - config.b + config.b * lengths / config.average_tokens)
        return (counts / (counts + norm).clip(1e-9)).astype(np.float32)  # type: ignore[no-any-return]

    @staticmethod
    def _counts(batch: ScoreBatch, group: slice, place: Ints, size: int) -> tuple[Ints, Ints]:
        """(n, size) how often each candidate has each piece, by the piece's place, and (n,) candidates' lengths."""
        lengths = batch.candidates.lengths[group]
        begin, end = batch.candidates.cu_seqlens[[group.start, group.stop]]
        places = place[batch.candidates.values[begin:end].numpy()]
        found = places >= 0
        cell = np.repeat(np.arange(len(lengths)), lengths)[found] * size + places[found]
        return np.bincount(cell, minlength=len(lengths) * size).reshape(-1, size), lengths

    @staticmethod
    def _sums(words: Words, pieces: Ints, rarity: Floats) -> tuple[Floats, Floats]:
        """(n,) the rarity of those of the pieces that each text has, summed by their weights, and without them.

        pieces: (p,) modulo `PIECES`.  rarity: (p,).
        """
        known, rarity_of = np.zeros(PIECES, np.bool_), np.zeros(PIECES, np.float32)
        known[pieces], rarity_of[pieces] = True, rarity
        # Few words are the query's: to look all up in the narrowest table, and to sum those alone, is twice as fast.
        found = np.flatnonzero(known.take(words.pieces.ravel()))
        owner = found // words.pieces.shape[1]
        weights, rare = words.weights.ravel()[found], rarity_of[words.pieces.ravel()[found]]
        sums = (np.bincount(owner, values, len(words)) for values in (rare * weights, rare * (weights > 0)))
        weighted, there = (each.astype(np.float32) for each in sums)
        return weighted, there

    def _host_idf(self) -> Floats:
        """The weights in host memory, copied once."""
        if self._on_host is None or self._on_host[0] is not self.idf:
            self._on_host = self.idf, self.idf.float().cpu().numpy()
        return self._on_host[1]


def _rarity_among(num_texts: int, having: Ints) -> Floats:
    """Lucene's inverse document frequency of pieces, by how many of the texts have each."""
    return np.log1p((num_texts - having + 0.5) / (having + 0.5)).astype(np.float32)
