"""A layer of T5's decoder at the first token of its answer."""

from torch import Tensor

from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.layers.block import BlockOptions, PreNormBlock
from bandrank.models.layers.linear import Linear
from bandrank_kernels.windowed_attention import AttentionPlan


class AnswerBlock(PreNormBlock):
    """A pre-norm block that attends to the states of a text. Before that, the token attends to itself alone, which is
    its value. qkv: projects the token to a query, the states to keys and values.
    """

    def __init__(self, config: EncoderConfig, options: BlockOptions, *, final: bool) -> None:
        super().__init__(config, options, final=final)
        size, width = config.hidden_size, config.num_heads * config.head_dim
        self.qkv = Linear(size, 3 * width, bias=False)  # read in part
        self.own_norm = options.norm(size, eps=config.layer_norm_eps, bias=False)
        self.own_value, self.own_out = (options.linear(*sizes, bias=False) for sizes in ((size, width), (width, size)))

    def answer(self, hidden: Tensor, rows: Tensor, plan: AttentionPlan) -> Tensor:
        """(n, hidden_size) output. hidden: (n, hidden_size), a row for each text.  rows: the states of all texts."""
        hidden = hidden + self.own_out(self.own_value(self.own_norm(hidden)))
        return self._after_attention(self.attend_absorbed(self.attention_norm(hidden), rows, plan), hidden)
