"""Disentangled attention on packed rows (He et al. 2021, "DeBERTa", arXiv 2006.03654, section 3.1), with the
logarithmic buckets and shared projections of DeBERTa-v2 and -v3.

The score of query row i and key row j is (Q_i K_j + Q_i P_b + K_j R_b) / sqrt(terms * head_dim): content to content,
content to position, position to content. b is the bucket of the distance i - j; P and R are projections of the table of
buckets to keys and to queries. Either of the last two terms may be left out; `terms` is the number of terms.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.layers.block import PostNormBlock
from bandrank.models.layers.chunked_attention import Chunk, ChunkedBlock, ChunkedPlan, attend_in_chunks, reach
from bandrank.models.layers.linear import Linear
from bandrank.models.layers.norm import LayerNorm
from bandrank_kernels.transfer import to_device
from bandrank_kernels.windowed_attention import AttentionPattern, Layout, PackedRows, lay_out


@dataclass(frozen=True)
class Distances:
    """Maps distances to the rows of a table of relative positions.

    farthest: distances are cut to less than this on either side.  buckets: the table's rows for either sign, of which
    the nearer half stand for one distance each, and the others for ranges that grow exponentially; None: `farthest`
    rows, one for each distance.
    """

    farthest: int
    buckets: int | None = None

    @property
    def span(self) -> int:
        """Half the rows of the table; distance 0 has this row."""
        return self.farthest if self.buckets is None else self.buckets

    def rows(self, reach: int) -> Tensor:
        """(2 * reach + 1,) int64 row of the table for each distance from -reach to reach."""
        distance = torch.arange(-reach, reach + 1)
        if self.buckets is not None:
            near = self.buckets // 2
            far = distance.abs().clamp(min=near) / near  # float32, as in the models' training
            grown = torch.ceil(far.log() / torch.tensor((self.farthest - 1) / near).log() * (near - 1)) + near
            distance = torch.where(distance.abs() <= near, distance, (grown * distance.sign()).long())
        return (distance + self.span).clamp(0, 2 * self.span - 1)


@dataclass(frozen=True)
class DisentangledPlan(ChunkedPlan):
    """The plan of a batch, for blocks that score by their own projections.

    rows: (2 * reach + 1,) row of `table` for each distance.
    table: (num_rows, hidden_size) the embeddings that the batch needs, normed.
    """

    rows: Tensor
    table: Tensor


class RelativePositions(nn.Module):
    """The table of relative positions that all blocks of an encoder share."""

    def __init__(self, config: EncoderConfig, distances: Distances, *, norm: bool) -> None:
        """norm: whether a LayerNorm follows the table."""
        super().__init__()
        self.distances = distances
        self.table = nn.Embedding(2 * distances.span, config.hidden_size)
        self.norm = LayerNorm(config.hidden_size, eps=config.layer_norm_eps) if norm else None

    def plan(self, rows: PackedRows, pattern: AttentionPattern) -> DisentangledPlan:
        """The plan of a batch. Raises the errors of `lay_out`."""
        device = self.table.weight.device
        layouts = lay_out(rows, pattern, device=device)
        farthest = reach(rows)
        needed = self.distances.rows(farthest)
        first, last = int(needed.min()), int(needed.max())
        (of_distance,) = to_device([needed - first], device)
        table = self.table.weight[first : last + 1]
        return DisentangledPlan(layouts, farthest, of_distance, table if self.norm is None else self.norm(table))


@dataclass(frozen=True)
class Terms:
    """The terms that are added to the product of contents, at least one.

    shared: whether a block projects positions with the weights for contents, and not with separate ones.
    """

    content_to_position: bool = True
    position_to_content: bool = True
    shared: bool = True


class DisentangledBlock(ChunkedBlock[DisentangledPlan], PostNormBlock):
    """BERT's block with disentangled attention."""

    def __init__(self, config: EncoderConfig, terms: Terms) -> None:
        super().__init__(config)
        self.terms = terms
        size = config.hidden_size
        self.scale = ((1 + terms.content_to_position + terms.position_to_content) * config.head_dim) ** -0.5
        self.position_key = Linear(size, size) if terms.content_to_position and not terms.shared else None
        self.position_query = Linear(size, size) if terms.position_to_content and not terms.shared else None

    def attend_layouts(
        self, layouts: Sequence[Layout], qkv: Tensor, positions: Tensor, plan: DisentangledPlan
    ) -> Tensor:
        attend = partial(self._attend_chunk, qkv, self._project_table(plan.table), positions, plan)
        return attend_in_chunks(layouts, attend, qkv, table_rows=len(plan.table))

    def _project_table(self, table: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """The table as keys and as queries, both (num_heads, num_rows, head_dim), for the terms that there are."""
        query_rows, key_rows, _ = self.qkv.thirds

        def project(own: Linear | None, shared: slice) -> Tensor:
            projected = self.qkv.project(table, shared) if own is None else own(table)
            return projected.view(len(table), self.num_heads, -1).transpose(0, 1)

        return (
            project(self.position_key, key_rows) if self.terms.content_to_position else None,
            project(self.position_query, query_rows) if self.terms.position_to_content else None,
        )

    def _attend_chunk(
        self,
        qkv: Tensor,
        tables: tuple[Tensor | None, Tensor | None],
        positions: Tensor,
        plan: DisentangledPlan,
        chunk: Chunk,
    ) -> Tensor:
        """(n * num_rows, hidden_size) attended values of a chunk's rows, in the dtype of `qkv`."""
        query, key, value = chunk.gather(qkv)
        row = plan.rows[chunk.distances(positions) + plan.reach][:, None].expand(-1, self.num_heads, -1, -1)
        query = query * self.scale
        scores = (query @ key.transpose(-1, -2)).float()  # (n, num_heads, num_rows, num_keys)
        position_keys, position_queries = tables
        if position_keys is not None:
            scores = scores + (query @ position_keys.transpose(-1, -2)).gather(-1, row)
        if position_queries is not None:
            of_keys = key @ (position_queries * self.scale).transpose(-1, -2)  # (n, num_heads, num_keys, table rows)
            scores = scores + of_keys.gather(-1, row.transpose(-1, -2)).transpose(-1, -2)
        return chunk.average(scores, value).to(qkv.dtype)
