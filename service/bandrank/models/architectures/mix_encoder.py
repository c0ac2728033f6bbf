"""MixEncoder: a candidate is encoded into k context embeddings before the query is known, and meets the query in light
interaction layers (Yang et al. 2023, "Once is Enough", arXiv 2210.05261, section 3).

Where paper and code differ (the pooling of the hint, cosine or dot product), both are options. Unlike in the paper's
code, the length at which a text is cut does not depend on its batch.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity

from bandrank.models.architectures.two_towers import TwoTowerConfig, TwoTowerScorer
from bandrank.models.batch import ScoreBatch
from bandrank.models.buckets import BucketsByType
from bandrank.models.cached_buckets import CachedBuckets, CachedInputs
from bandrank.models.encoders import tower
from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.encoders.protocol import ALL, Encoder
from bandrank.models.layers.block import CPU_BLOCK_ROWS
from bandrank.models.layers.code_attention import attend_codes_apart, attend_codes_by_owner
from bandrank.models.layers.interaction import Gate, Groups, InteractionLayer, QueryView
from bandrank.models.layers.lexical import Lexical, LexicalConfig
from bandrank.models.layers.pooling import pool
from bandrank.models.ragged import Ragged
from bandrank.models.scorer import CandidateSide
from bandrank.models.text_buckets import TextBuckets, TextInputs
from bandrank_kernels.arrays import indices_within, offsets
from bandrank_kernels.branches import IN_TURN, Branch
from bandrank_kernels.windowed_attention import AttentionPlan


@dataclass(frozen=True, kw_only=True)
class MixEncoderConfig(TwoTowerConfig):
    """The settings of a MixEncoder, saved in config.json.

    interaction_layers: depths of the interaction layers, from 0, ascending.
    num_embeddings: k, the number of context embeddings of a candidate.
    strategy: "S" replaces the candidate's [CLS] by k learnt vectors and takes their last states; "C" lets k learnt
    codes attend to the last states of the candidate's tokens.
    pool: with "mean", the mean of the k embeddings is both hint and representation; with "last", the last one is the
    hint and the mean of the others the representation. Both are the same if k is 1.
    similarity: "scaled_dot" is the dot product divided by sqrt(hidden_size).
    bi_encoder_weight, bi_encoder_bias: weight * cosine + bias is added to the score, where the cosine is a
    bi-encoder's: of the mean of the context embeddings and the mean of the query's last states. Not in the paper: with
    strategy "C", zero codes and "scaled_dot", training then starts near the bi-encoder that the encoder comes from.
    interaction_weight: the weight of the similarity in that sum. Below 1, a scorer that has learnt much of its training
    data keeps more of the bi-encoder's breadth.
    lexical: evidence of shared words that is added to the score, or None; not in the paper either. The rarest word
    pieces of a candidate are then kept beside its context embeddings.
    max_candidate_tokens: with strategy "S", it includes the k vectors.
    Raises ValueError for layers that do not ascend within the encoder, for an encoder whose heads together are not as
    wide as its states, or for a k that leaves no room for a text.
    """

    interaction_layers: tuple[int, ...]
    num_embeddings: int = 1
    strategy: Literal["S", "C"] = "S"
    pool: Literal["mean", "last"] = "mean"
    similarity: Literal["dot", "scaled_dot", "cosine"] = "dot"
    interaction_weight: float = 1.0
    bi_encoder_weight: float = 0.0
    bi_encoder_bias: float = 0.0
    lexical: LexicalConfig | None = None
    max_query_tokens: int = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        layers, width = self.interaction_layers, self.encoder.num_heads * self.encoder.head_dim
        if width != self.encoder.hidden_size:
            raise ValueError(
                f"interaction layers need heads that together are as wide as the encoder's states, "
                f"{self.encoder.hidden_size}, got {width}"
            )
        if not layers or list(layers) != sorted({*layers}) or layers[0] < 0 or layers[-1] >= self.encoder.num_layers:
            raise ValueError(f"interaction_layers must ascend within 0..{self.encoder.num_layers - 1}, got {layers}")
        if not 1 <= self.num_embeddings <= self.max_candidate_tokens - 1:
            raise ValueError(f"num_embeddings must be within 1..max_candidate_tokens - 1, got {self.num_embeddings}")

    @classmethod
    def of_paper(cls, name: Literal["a", "b", "c"], encoder: EncoderConfig, **more: Any) -> Self:
        """The paper's variants: "a" has one interaction layer, the last; "b" the last three; "c" also has two context
        embeddings, of which the last is the hint. more: other fields.
        """
        last = encoder.num_layers
        layers = tuple(range(last - 1 if name == "a" else max(0, last - 3), last))
        two: dict[str, Any] = {"num_embeddings": 2, "pool": "last"} if name == "c" else {}
        return cls(encoder=encoder, interaction_layers=layers, **two | more)


class MixEncoder(TwoTowerScorer):
    """Scores a candidate by the similarity of its context embeddings, updated by the query, and its summary of the
    query.
    """

    architecture: ClassVar[str] = "mix_encoder"
    config_class: ClassVar[type] = MixEncoderConfig
    packed_parts: ClassVar[tuple[str, ...]] = ("encoder.layers", "interactions", "gate")
    config: MixEncoderConfig

    def __init__(self, config: MixEncoderConfig) -> None:
        super().__init__(config)
        hidden_size, num_embeddings = config.encoder.hidden_size, config.num_embeddings
        if config.strategy == "S":
            longest = config.max_candidate_tokens - num_embeddings
            self.candidate_template = replace(self.candidate_template, prefix=(), max_tokens=longest)
        width = config.encoder.word_size if config.strategy == "S" else hidden_size  # "S": they stand among words
        self.context_codes = nn.Parameter(torch.empty(num_embeddings, width))
        init = nn.init.xavier_normal_ if config.strategy == "S" else nn.init.normal_
        init(self.context_codes)
        layers = nn.ModuleList(InteractionLayer(config.encoder) for _ in config.interaction_layers)
        self.interactions: Sequence[InteractionLayer] = layers  # type: ignore[assignment]  # it forgets their type
        self.gate = Gate(hidden_size, has_old=len(config.interaction_layers) > 1)
        self.lexical = Lexical(config.lexical, config.encoder.vocab_size) if config.lexical is not None else None
        self.num_words = config.lexical.most_words if config.lexical is not None else 0

    def initialise(self, encoder: Encoder) -> Self:
        """Copies the encoder, and its layer of the same depth into each interaction layer. Codes of strategy "C" start
        at zero, where they average a candidate's states; vectors of "S" and the gate keep their random values.
        """
        super().initialise(encoder)
        if self.config.strategy == "C":
            nn.init.zeros_(self.context_codes)
        for index, interaction in zip(self.config.interaction_layers, self.interactions, strict=True):
            interaction.initialise(self.encoder.layer(index))
        return self

    def num_rows(self, query_tokens: int, candidate_rows: int) -> float:
        """The products of the interaction layers, as a fraction of a row's products in the encoder."""
        del query_tokens  # products with its few keys and values are not counted
        config = self.config.encoder
        layer = config.products_per_layer
        summary = layer + config.hidden_size**2  # compress_query and the gate's three blocks instead of qkv
        return self.rows_worth(len(self.interactions) * (candidate_rows * layer + summary))

    def encode_candidates(self, tokens: Ragged) -> Ragged:
        """(k * n, hidden_size) the k context embeddings of each candidate."""
        return self.encode_packed(tokens, self.launch_texts)

    def encode_packed(self, tokens: Ragged, run: Callable[[Ragged], Tensor]) -> Ragged:
        """Like `encode_candidates`, with `run` computing the embeddings: `launch_texts`, or the replay of a graph."""
        count = self.config.num_embeddings
        rows = run(self._behind_codes(tokens) if self.config.strategy == "S" else tokens).flatten(0, 1)
        words = None if self.lexical is None else self.lexical.words(tokens)
        return Ragged(rows, count * np.arange(len(tokens) + 1), words)

    def launch_texts(self, tokens: Ragged) -> Tensor:
        """(n, k, hidden_size) context embeddings, launched kernel by kernel.

        tokens: token ids in host memory; with strategy "S", behind k zeros where the codes stand.
        """
        ids, positions = tower.ids_and_positions(self.encoder, tokens)
        plan = self.encoder.plan_texts(tokens.cu_seqlens)
        states = self.encoder(self._embed_texts(ids, positions), positions, plan)
        if self.config.strategy == "C":
            return attend_codes_apart(self.context_codes, Ragged(states, tokens.cu_seqlens))
        rows = torch.from_numpy(tokens.cu_seqlens[:-1, None] + np.arange(self.config.num_embeddings))
        return states[rows.to(states.device)].float()

    def compute_texts(self, inputs: TextInputs) -> Tensor:
        """(num_texts, k, hidden_size) `launch_texts` for a bucket; never makes the host wait."""
        ids, positions, owner = inputs.numbers
        count, num_texts = self.config.num_embeddings, inputs.num_texts + 1
        states = self.encoder(self._embed_texts(ids, positions), positions, inputs.plan)
        if self.config.strategy == "C":
            return attend_codes_by_owner(self.context_codes, states, owner, num_texts)[:-1]
        placed = states.new_empty(num_texts, count + 1, states.shape[1], dtype=torch.float32)
        placed[owner, positions.clamp(max=count)] = states.float()  # those behind the codes at one place, unread
        return placed[:-1, :-1]

    def _behind_codes(self, tokens: Ragged) -> Ragged:
        """The texts behind k zeros each, where the codes stand."""
        count = self.config.num_embeddings
        lengths = tokens.lengths + count
        ids = np.zeros(int(lengths.sum()), np.int64)
        ids[indices_within(lengths) >= count] = tokens.values.numpy()
        return Ragged(torch.from_numpy(ids), offsets(lengths))

    def _embed_texts(self, ids: Tensor, positions: Tensor) -> Tensor:
        """(total, hidden_size) inputs of the first layer. With strategy "S", the first k rows of a text are codes."""
        types = torch.zeros_like(ids)
        if self.config.strategy == "C":
            return self.encoder.embed(ids, positions, types)
        words, count = self.encoder.word_vectors(ids), self.config.num_embeddings
        codes = self.context_codes.to(words.dtype)[positions.clamp(max=count - 1)]
        return self.encoder.embed_words(torch.where((positions < count)[:, None], codes, words), positions, types)

    @property
    def lexical_evidence(self) -> Lexical | None:
        return self.lexical

    def candidate_side(self) -> CandidateSide:
        config, weights = ("encoder", "strategy", "num_embeddings"), ("encoder.", "context_codes")
        if self.lexical is None:
            return self._candidate_side(config, weights)
        return self._candidate_side((*config, "lexical"), (*weights, "lexical.idf"))

    def score_some(self, batch: ScoreBatch) -> Tensor:
        num_candidates, count = len(batch.candidates), self.config.num_embeddings
        views, means = self._view_queries(batch)
        embeddings = batch.candidates.values.reshape(num_candidates, count, -1)
        # On a CPU all layers of a block of candidates run while its rows are in the cache.
        whole = self.encoder.device.type != "cpu" or torch.is_grad_enabled()
        block = num_candidates if whole else max(1, CPU_BLOCK_ROWS // (count + 1))
        scores = []
        for begin in range(0, num_candidates, block):
            end = min(begin + block, num_candidates)
            parts = [(query, slice(each.start - begin, each.stop - begin)) for query, each in batch.groups(begin, end)]
            groups: list[Groups] = [[(part, of_layer[query]) for query, part in parts] for of_layer in views]
            rows = embeddings[begin:end].to(self.encoder.device, self.encoder.dtype)
            of_queries = [] if means is None else [(part, means[query][None]) for query, part in parts]
            scores.append(self._interact(rows, groups) + self._compare_means(rows, of_queries))
        if self.lexical is not None:
            assert batch.candidates.words is not None, "representations come with their words. This is a bug."
            scores = [torch.cat(scores) + self.lexical(batch)]
        return torch.cat(scores)

    def score_packed(self, batch: ScoreBatch, run: Callable[[ScoreBatch], Tensor]) -> Tensor:
        """Like `score`, with `run` computing the candidates of one query after the other: `launch`, or the replay of a
        CUDA graph. Representations that are already on the device are launched together.
        """
        if len(batch.candidates) == 0 or batch.candidates.values.device.type != "cpu":
            return self.score(batch)
        if len(batch.queries) == 1:
            return run(batch)
        return torch.cat([run(batch.of_query(query, group)) for query, group in batch.groups()])

    def launch(self, packed: ScoreBatch) -> Tensor:
        """(C,) scores of one query's candidates, launched kernel by kernel."""
        return self.score(packed)

    def buckets(self) -> BucketsByType:
        """The buckets of candidates to encode, and of one query with stored candidates, for CUDA graphs."""
        cached = CachedBuckets(self.compute, self.encoder, self.config.num_embeddings, self.lexical)
        return BucketsByType({Ragged: TextBuckets(self.compute_texts, self.encoder), ScoreBatch: cached})

    def compute(self, inputs: CachedInputs) -> Tensor:
        """(num_candidates,) scores of a bucket; only launches kernels, and never makes the host wait."""
        ids, positions = inputs.numbers
        rows, (of_query, of_summaries) = inputs.representations, inputs.branches
        embeddings = rows.view(-1, self.config.num_embeddings, rows.shape[1]).to(self.encoder.dtype)
        with of_query.fork():
            hidden = self.encoder.embed(ids, positions, torch.zeros_like(ids))
            read = [(each, of_query.mark()) for each in self._read_queries(hidden, positions, inputs.plan)]
            means = [(ALL, inputs.shares @ states.float()) for states, _ in read[len(self.interactions) :]]
            others = self._compare_means(embeddings, means)
            if self.lexical is not None:
                others = others + self.lexical.weigh_words(*inputs.words)
        wait_for_all = of_query.mark()

        def groups() -> Iterator[Groups]:
            for interaction, (key_value, wait) in zip(self.interactions, read, strict=False):
                wait()
                yield [(ALL, interaction.view(key_value, bias=inputs.bias))]

        scores = self._interact(embeddings, groups(), of_summaries)
        wait_for_all()
        return scores + others

    def _view_queries(self, batch: ScoreBatch) -> tuple[list[list[QueryView]], Tensor | None]:
        """Views by interaction layer and query, and the means of queries' last states if the bi-encoder's cosine is
        added.
        """
        queries, hidden_size = batch.queries, self.config.encoder.hidden_size
        # Absorbing saves 2 * (hidden - heads * query_len) * hidden per candidate and costs 2 * hidden^2 per query row.
        saved = hidden_size - self.config.encoder.num_heads * queries.max_seqlen
        absorb = len(batch.candidates) * saved > len(queries.values) * hidden_size
        hidden, positions = tower.embed(self.encoder, queries)
        read = [*self._read_queries(hidden, positions, self.encoder.plan_texts(queries.cu_seqlens))]
        bounds = [*pairwise(queries.cu_seqlens.tolist())]
        views = [
            [interaction.view(of_layer[begin:end], absorb=absorb) for begin, end in bounds]
            for interaction, of_layer in zip(self.interactions, read, strict=False)
        ]
        states = read[len(views) :]
        return views, pool(Ragged(states[0], queries.cu_seqlens), "mean") if states else None

    def _read_queries(self, hidden: Tensor, positions: Tensor, plan: AttentionPlan) -> Iterator[Tensor]:
        """Yields (total, 2, num_heads, head_dim) keys and values for each interaction layer, and the
        (total, hidden_size) last states if the bi-encoder's cosine is added; if not, later layers are not run.

        hidden: (total, hidden_size) embedded rows of queries.  positions: (total,).
        """
        config = self.config
        to_the_end = config.bi_encoder_weight != 0
        for index in range(config.encoder.num_layers if to_the_end else config.interaction_layers[-1] + 1):
            layer = self.encoder.layer(index)
            qkv = layer.project(hidden, positions)
            if index in config.interaction_layers:
                yield qkv[:, 1:]
            if to_the_end or index < config.interaction_layers[-1]:
                hidden = layer.update(hidden, qkv, positions, plan)
        if to_the_end:
            yield hidden

    def _compare_means(self, embeddings: Tensor, means: Sequence[tuple[slice, Tensor]]) -> Tensor | float:
        """(n,) float32 the bi-encoder's part of the score, or 0. embeddings: (n, k, hidden_size).

        means: slices of candidates, each with the (1, hidden_size) mean of its query's last states; none for 0.
        """
        if not means:
            return 0.0
        of_candidates = embeddings.mean(1, dtype=torch.float32)
        cosines = torch.cat([cosine_similarity(of_candidates[part], mean) for part, mean in means])
        return self.config.bi_encoder_weight * cosines + self.config.bi_encoder_bias

    def _interact(self, embeddings: Tensor, groups: Iterable[Groups], branch: Branch = IN_TURN) -> Tensor:
        """(n,) float32 weighted similarities of candidates and their summaries of the query, made in `branch`.

        embeddings: (n, k, hidden_size).  groups: for each interaction layer.
        """
        summary: Tensor | None = None
        last_is_hint = self.config.pool == "last" or embeddings.shape[1] == 1
        for interaction, of_layer in zip(self.interactions, groups, strict=True):
            hint = embeddings[:, -1] if last_is_hint else embeddings.mean(1)
            embeddings, summary = interaction(embeddings, summary, hint, self.gate, of_layer, branch=branch)
        assert summary is not None, "there is an interaction layer. This is a bug."
        of_candidate = embeddings[:, :-1] if last_is_hint and embeddings.shape[1] > 1 else embeddings
        representation, summary = of_candidate.mean(1, dtype=torch.float32), summary.float()
        weight = self.config.interaction_weight
        if self.config.similarity == "cosine":
            return weight * cosine_similarity(representation, summary)
        if self.config.similarity == "scaled_dot":
            weight *= self.config.encoder.hidden_size**-0.5
        return weight * (representation * summary).sum(-1)
