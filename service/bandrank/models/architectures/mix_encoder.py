"""MixEncoder: a candidate is read before the query is known, kept as k context embeddings, and joined to the query by
a light cross-attention (Yang et al. 2023, "Once is Enough", arXiv 2210.05261).

Where paper and code differ (what pools to the hint, cosine or dot product) both are options. Texts are cut by their
own length; the code's cut depends on the batch.
"""

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity

from bandrank.models.architectures.two_towers import TwoTowerConfig, TwoTowerScorer
from bandrank.models.batch import ScoreBatch
from bandrank.models.encoders import tower
from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.encoders.protocol import Encoder
from bandrank.models.layers.block import CPU_BLOCK_ROWS
from bandrank.models.layers.code_attention import attend_codes_apart
from bandrank.models.layers.interaction import Gate, Groups, InteractionLayer, QueryView
from bandrank.models.layers.pooling import pool
from bandrank.models.ragged import Ragged
from bandrank.models.scorer import CandidateSide
from bandrank_kernels.arrays import indices_within, offsets


@dataclass(frozen=True, kw_only=True)
class MixEncoderConfig(TwoTowerConfig):
    """What a MixEncoder is, saved beside its weights.

    interaction_layers: counted from 0, ascending; the encoder's later layers are not run for queries.
    num_embeddings: k, context embeddings of a candidate.
    strategy: "S" puts k learnt vectors in the place of the candidate's [CLS] and takes their last states; "C" lets k
    learnt codes attend to the last states of the candidate's tokens.
    pool: "mean" of the k embeddings is both hint and representation; with "last" the last one is the hint, and the mean
    of the others the representation. No difference if k is 1.
    similarity: "scaled_dot" divides the product by the root of hidden_size, which makes logits of it.
    bi_encoder_weight, bi_encoder_bias: add weight * cosine + bias, of E_0's mean and the mean of the query's last
    states, which is what a bi-encoder says. Not in the paper: with strategy C, codes of zero and "scaled_dot" a
    MixEncoder then starts near the bi-encoder that its encoder is from, and learns what that does not see.
    max_candidate_tokens: with strategy "S", the k vectors included.
    """

    interaction_layers: tuple[int, ...]
    num_embeddings: int = 1
    strategy: Literal["S", "C"] = "S"
    pool: Literal["mean", "last"] = "mean"
    similarity: Literal["dot", "scaled_dot", "cosine"] = "dot"
    bi_encoder_weight: float = 0.0
    bi_encoder_bias: float = 0.0
    max_query_tokens: int = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        layers = self.interaction_layers
        if not layers or list(layers) != sorted({*layers}) or layers[0] < 0 or layers[-1] >= self.encoder.num_layers:
            raise ValueError(f"interaction_layers must ascend within 0..{self.encoder.num_layers - 1}, got {layers}")
        if not 1 <= self.num_embeddings <= self.max_candidate_tokens - 1:
            raise ValueError(f"num_embeddings must be within 1..max_candidate_tokens - 1, got {self.num_embeddings}")

    @classmethod
    def of_paper(cls, name: Literal["a", "b", "c"], encoder: EncoderConfig, **more: Any) -> Self:
        """MixEncoder-a: interaction in the last layer; -b: in the last three; -c: so with two embeddings, of which the
        last is the hint. more: the other fields.
        """
        last = encoder.num_layers
        layers = tuple(range(last - 1 if name == "a" else max(0, last - 3), last))
        two: dict[str, Any] = {"num_embeddings": 2, "pool": "last"} if name == "c" else {}
        return cls(encoder=encoder, interaction_layers=layers, **two | more)


class MixEncoder(TwoTowerScorer):
    """Scores a candidate by the similarity of its representation, enriched by the query, with its summary of the
    query.
    """

    architecture: ClassVar[str] = "mix_encoder"
    config_class: ClassVar[type] = MixEncoderConfig
    config: MixEncoderConfig

    def __init__(self, config: MixEncoderConfig) -> None:
        super().__init__(config)
        hidden_size, num_embeddings = config.encoder.hidden_size, config.num_embeddings
        if config.strategy == "S":
            longest = config.max_candidate_tokens - num_embeddings
            self.candidate_template = replace(self.candidate_template, prefix=(), max_tokens=longest)
        self.context_codes = nn.Parameter(torch.empty(num_embeddings, hidden_size))
        init = nn.init.xavier_normal_ if config.strategy == "S" else nn.init.normal_
        init(self.context_codes)
        self.interactions = nn.ModuleList(InteractionLayer(config.encoder) for _ in config.interaction_layers)
        self.gate = Gate(hidden_size, has_old=len(config.interaction_layers) > 1)

    def initialise(self, encoder: Encoder) -> Self:
        """Each interaction layer starts as the encoder's layer of the same depth. Codes of strategy C start at zero,
        where they average a candidate's states; codes of S and the gate keep their random start.
        """
        super().initialise(encoder)
        if self.config.strategy == "C":
            nn.init.zeros_(self.context_codes)
        for index, interaction in zip(self.config.interaction_layers, self.interactions, strict=True):
            interaction.initialise(self.encoder.layer(index))  # type: ignore[operator]  # a ModuleList forgets
        return self

    def num_rows(self, query_tokens: int, candidate_rows: int) -> float:
        """The interaction layers' products, as a part of a row's through the encoder."""
        del query_tokens  # its keys and values are too few to count
        config = self.config.encoder
        layer = config.products_per_layer
        summary = layer + config.hidden_size**2  # compress_query and the gate's three blocks in the place of qkv
        return self.rows_worth(len(self.interactions) * (candidate_rows * layer + summary))

    def encode_candidates(self, tokens: Ragged) -> Ragged:
        """Each candidate's k context embeddings."""
        count = self.config.num_embeddings
        if self.config.strategy == "S":
            states = self._read_behind_codes(tokens)
            firsts = torch.from_numpy(states.cu_seqlens[:-1, None] + np.arange(count)).flatten()
            rows = states.values[firsts.to(states.values.device)].float()
        else:
            states = tower.read(self.encoder, tokens)
            rows = attend_codes_apart(self.context_codes, states).flatten(0, 1)
        return Ragged(rows, count * np.arange(len(tokens) + 1))

    def candidate_side(self) -> CandidateSide:
        return self._candidate_side(("encoder", "strategy", "num_embeddings"), ("encoder.", "context_codes"))

    def _read_behind_codes(self, tokens: Ragged) -> Ragged:
        """Last states of the texts, each behind the codes as the first input vectors."""
        count = self.config.num_embeddings
        lengths = tokens.lengths + count
        index = indices_within(lengths)
        # Rows of [codes ; words]: the first k of each text are the codes, the others its words.
        source = np.where(index < count, index, np.repeat(tokens.cu_seqlens[:-1], lengths) + index)
        words = self.encoder.word_vectors(tokens.values.to(self.encoder.device, non_blocking=True))
        inputs = torch.cat([self.context_codes.to(words.dtype), words])[torch.from_numpy(source).to(words.device)]
        positions = torch.from_numpy(index).to(words.device)
        hidden = self.encoder.embed_words(inputs, positions, torch.zeros_like(positions))
        cu_seqlens = offsets(lengths)
        return Ragged(self.encoder(hidden, positions, tower.plan_apart(self.encoder, cu_seqlens)), cu_seqlens)

    def score_some(self, batch: ScoreBatch) -> Tensor:
        num_candidates, count = len(batch.candidates), self.config.num_embeddings
        views, summaries = self._view_queries(batch)
        embeddings = batch.candidates.values.reshape(num_candidates, count, -1)
        # On a CPU all layers of a block of candidates run while its rows are in the cache.
        whole = self.encoder.device.type != "cpu" or torch.is_grad_enabled()
        block = num_candidates if whole else max(1, CPU_BLOCK_ROWS // (count + 1))
        scores = []
        for begin in range(0, num_candidates, block):
            end = min(begin + block, num_candidates)
            owners = [(query, slice(own.start - begin, own.stop - begin)) for query, own in batch.groups(begin, end)]
            groups: list[Groups] = [[(own, of_layer[query]) for query, own in owners] for of_layer in views]
            rows = embeddings[begin:end].to(self.encoder.device, self.encoder.dtype)
            scores.append(self._score_block(rows, groups))
            if summaries is not None:
                ours = rows.float().mean(1)
                cosines = torch.cat([cosine_similarity(ours[own], summaries[query][None]) for query, own in owners])
                scores[-1] = scores[-1] + self.config.bi_encoder_weight * cosines + self.config.bi_encoder_bias
        return torch.cat(scores)

    def _view_queries(self, batch: ScoreBatch) -> tuple[list[list[QueryView]], Tensor | None]:
        """Each query's view for each interaction layer, and the means of their last states if a bi-encoder's say is
        wanted. Without, the last interaction layer and what comes after it are not run for queries.
        """
        queries, hidden_size = batch.queries, self.config.encoder.hidden_size
        # Absorbing saves (hidden - heads * query_len) * hidden twice a candidate, and costs hidden^2 twice a query row.
        saved = hidden_size - self.config.encoder.num_heads * queries.max_seqlen
        absorb = len(batch.candidates) * saved > len(queries.values) * hidden_size
        hidden, positions = tower.embed(self.encoder, queries)
        plan = tower.plan_apart(self.encoder, queries.cu_seqlens)
        interactions = dict(zip(self.config.interaction_layers, self.interactions, strict=True))
        views: list[list[QueryView]] = []
        to_the_end = self.config.bi_encoder_weight != 0
        for index in range(self.config.encoder.num_layers if to_the_end else self.config.interaction_layers[-1] + 1):
            layer = self.encoder.layer(index)
            qkv = layer.project(hidden, positions)
            if index in interactions:
                key_values = [qkv[begin:end, 1:] for begin, end in pairwise(queries.cu_seqlens.tolist())]
                view = interactions[index].view
                views.append([view(key_value, absorb=absorb) for key_value in key_values])  # type: ignore[operator]
            if to_the_end or len(views) < len(interactions):
                hidden = layer.update(hidden, qkv, plan)
        return views, pool(Ragged(hidden, queries.cu_seqlens), "mean") if to_the_end else None

    def _score_block(self, embeddings: Tensor, groups: list[Groups]) -> Tensor:
        """embeddings: (n, k, hidden_size).  groups: of each interaction layer.  Returns (n,) float32."""
        summary: Tensor | None = None
        last_is_hint = self.config.pool == "last" or embeddings.shape[1] == 1
        for interaction, of_layer in zip(self.interactions, groups, strict=True):
            hint = embeddings[:, -1] if last_is_hint else embeddings.mean(1)
            embeddings, summary = interaction(embeddings, summary, hint, self.gate, of_layer)
        assert summary is not None, "there is an interaction layer. This is a bug."
        of_candidate = embeddings[:, :-1] if last_is_hint and embeddings.shape[1] > 1 else embeddings
        ours, theirs = of_candidate.float().mean(1), summary.float()
        if self.config.similarity == "cosine":
            return cosine_similarity(ours, theirs)
        product = (ours * theirs).sum(-1)
        return product * self.config.encoder.hidden_size**-0.5 if self.config.similarity == "scaled_dot" else product
