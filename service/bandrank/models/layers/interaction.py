"""MixEncoder's interaction layer, in which the context embeddings of candidates meet an encoded query (Yang et al.
2023, arXiv 2210.05261, section 3.1.1).

As in the paper's code, the dense, residual, LayerNorm and feed-forward parts of a BERT layer surround the paper's
equations, and the gate also reads the hint.

E: a candidate's context embeddings.  H: its summary of the query, zeros before the first of these layers.
g: its hint, one vector pooled from E before this layer updates it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.layers.block import Block, PostNormBlock
from bandrank.models.layers.execution import Execution
from bandrank.models.layers.linear import Linear
from bandrank_kernels.branches import Branch
from bandrank_kernels.native.shared_query import attend_shared


@dataclass(frozen=True)
class AbsorbedQuery:
    """A query's keys with `compress_query` absorbed, and its values with the dense layer behind the attention absorbed.

    keys, values: (num_heads * query_len, hidden_size).  biases: (num_heads * query_len,).
    """

    keys: Tensor
    biases: Tensor
    values: Tensor


@dataclass(frozen=True)
class QueryView:
    """One query's keys and values in one layer.

    keys, values: (num_heads, query_len, head_dim).  absorbed: their form for the summary H, or None where it does not
    pay.  bias: (query_len + k,) added to the scores of the query's rows and of a candidate's k: -inf for a row that is
    not used, 0 for the others; None stands for zeros.
    """

    keys: Tensor
    values: Tensor
    absorbed: AbsorbedQuery | None = None
    bias: Tensor | None = None


Groups = Sequence[tuple[slice, QueryView]]  # consecutive slices that cover all candidates, with their query's view


class Gate(nn.Module):
    """z * new + (1 - z) * old, with z = sigmoid(W [hint ; new ; old] + b), and W stored as three blocks of columns.

    has_old: False if the old state is always zeros, so that its block is not needed.
    With the CPU kernels, a row of the result is the same bits in any batch.
    """

    _native = False

    def __init__(self, hidden_size: int, *, has_old: bool) -> None:
        super().__init__()
        self.hint = Linear(hidden_size, hidden_size)
        self.new = Linear(hidden_size, hidden_size, bias=False)
        self.old = Linear(hidden_size, hidden_size, bias=False) if has_old else None

    def prepare_for(self, execution: Execution) -> None:
        self._native = execution.backend == "native"

    def forward(self, hint: Tensor, new: Tensor, old: Tensor | None) -> Tensor:
        """(n, hidden_size), as are hint, new and old; None stands for zeros."""
        logits = self.hint(hint) + self.new(new)
        if old is None:
            return self._sigmoid(logits) * new
        assert self.old is not None, "a second interaction without its weights. This is a bug."
        return torch.lerp(old, new.to(old), self._sigmoid(logits + self.old(old)).to(old))

    def _sigmoid(self, logits: Tensor) -> Tensor:
        # torch's own rounds the end of a tensor differently if it does not fill a register, as its tanh does not.
        return torch.tanh(logits / 2) / 2 + 0.5 if self._native else torch.sigmoid(logits)


class InteractionLayer(nn.Module):
    """Updates E and H of candidates.

    chunk: a BERT layer, whose qkv are candidate_query, candidate_key and candidate_value of the paper's code; E and H
    share the rest.  compress_query: projects the hint to a query.
    With the CPU kernels, a candidate's E and H are the same bits in any batch.
    """

    _native = False

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.chunk = PostNormBlock(config)
        self.compress_query = Linear(config.hidden_size, config.hidden_size)
        self.scale = config.head_dim**-0.5

    def prepare_for(self, execution: Execution) -> None:
        self._native = execution.backend == "native"

    def initialise(self, layer: Block) -> None:
        """Copies an encoder's layer, and its query projection into compress_query."""
        self.chunk.load_state_dict(layer.state_dict())
        self.compress_query.copy_rows(layer.qkv, layer.qkv.thirds[0])

    def view(self, key_value: Tensor, *, absorb: bool = False, bias: Tensor | None = None) -> QueryView:
        """The view of a query from its keys and values, (query_len, 2, num_heads, head_dim).

        absorb: whether, in dense(softmax(Q K^T) V) with Q = g W + b, W moves into K and the dense weights into V.
        bias: as in `QueryView`. Keys and values of unused rows must be finite, and are not absorbed.
        """
        by_head = key_value.permute(1, 2, 0, 3)
        keys, values = by_head.contiguous() if self._native else by_head
        if not absorb or not self.compress_query.absorbs:
            return QueryView(keys, values, bias=bias)
        assert bias is None, "unused rows among those that are absorbed. This is a bug."
        absorbed = AbsorbedQuery(
            keys=self.compress_query.absorb(keys).flatten(0, 1) * self.scale,
            biases=self.compress_query.absorb_bias(keys).flatten() * self.scale,
            values=self.chunk.attention_out.outputs_of_heads(values).flatten(0, 1),
        )
        return QueryView(keys, values, absorbed)

    def forward(
        self, embeddings: Tensor, summary: Tensor | None, hint: Tensor, gate: Gate, groups: Groups, *, branch: Branch
    ) -> tuple[Tensor, Tensor]:
        """The updated E and H; H in `branch`, up to the weights that they share.

        embeddings: (n, k, hidden_size).  summary, hint: (n, hidden_size); None is zeros.
        """
        with branch.fork():
            gated = gate(hint, self._read(hint, groups), summary)
        wait = branch.mark()
        rows = embeddings.flatten(0, 1)
        # (n, k, 3, num_heads, head_dim)
        qkv = self.chunk.qkv(rows).view(*embeddings.shape[:2], 3, self.chunk.num_heads, -1)
        attended = _by_group(groups, lambda part, view: self._attend_jointly(qkv[part], view))
        updated = self.chunk.attention_out(attended) + rows
        wait()
        both = torch.cat([updated, gated])
        both = self.chunk.feed_forward(self.chunk.attention_norm(both))
        return both[: len(rows)].view_as(embeddings), both[len(rows) :]

    def _attend_jointly(self, qkv: Tensor, view: QueryView) -> Tensor:
        """Attention of each row to the query's rows and the k rows of its candidate, with one softmax.

        qkv: (n, k, 3, num_heads, head_dim).  Returns (n * k, hidden_size).
        """
        if self._native:
            return attend_shared(qkv.flatten(0, 1), view.keys, view.values, own=qkv.shape[1])
        query, key, value = qkv.unbind(2)
        count, query_len = query.shape[1], view.keys.shape[1]
        to_candidate = [(query * key[:, j : j + 1]).sum(-1).flatten(0, 1).T for j in range(count)]  # (num_heads, n * k)
        to_query = view.keys @ query.flatten(0, 1).permute(1, 2, 0)  # (num_heads, query_len, n * k)
        # The long dimension is last: a CPU takes ten times as long for softmaxes over ten contiguous numbers.
        scores = torch.cat([to_query, *(each[:, None] for each in to_candidate)], 1)
        biased = scores * self.scale if view.bias is None else torch.add(view.bias[:, None], scores, alpha=self.scale)
        weights = biased.softmax(1)
        attended: Tensor = weights[:, :query_len].transpose(1, 2) @ view.values
        attended = attended.transpose(0, 1).reshape_as(query)
        for j in range(count):
            weight = weights[:, query_len + j].T.reshape(*query.shape[:3], 1)
            attended = torch.addcmul(attended, weight, value[:, j : j + 1])
        return attended.flatten(0, 1).flatten(1)

    def _read(self, hint: Tensor, groups: Groups) -> Tensor:
        """(n, hidden_size) the output projection of each hint's attention to its query. hint: (n, hidden_size)."""
        if all(view.absorbed is not None for _, view in groups):
            return _by_group(groups, lambda part, view: self._read_absorbed(hint[part], view.absorbed))
        queries = self.compress_query(hint).view(len(hint), 1, self.chunk.num_heads, -1)

        def read(part: slice, view: QueryView) -> Tensor:
            if self._native:
                return attend_shared(queries[part], view.keys, view.values)
            bias = None if view.bias is None else view.bias[None, : view.keys.shape[1]]
            attended: Tensor = scaled_dot_product_attention(
                queries[part].permute(1, 2, 0, 3), view.keys[None], view.values[None], attn_mask=bias
            )
            return attended[0].transpose(0, 1).flatten(1)

        return self.chunk.attention_out(_by_group(groups, read))  # type: ignore[no-any-return]

    def _read_absorbed(self, hint: Tensor, query: AbsorbedQuery | None) -> Tensor:
        assert query is not None, "checked by the caller. This is a bug."
        scores = torch.addmm(query.biases[:, None], query.keys, hint.T).view(self.chunk.num_heads, -1, len(hint))
        return self.chunk.attention_out.sum_of_outputs(scores.softmax(1).flatten(0, 1).T, query.values)


def _by_group(groups: Groups, attend: Callable[[slice, QueryView], Tensor]) -> Tensor:
    parts = [attend(part, view) for part, view in groups]
    return parts[0] if len(parts) == 1 else torch.cat(parts)
