"""T5 (Raffel et al. 2020, arXiv 1910.10683): RMSNorm before each sublayer, no biases but for distances; of the
decoder, only the first token of an answer.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from bandrank.models.encoders.distance_bias import DistanceBiasConfig, DistanceBiasStack
from bandrank.models.layers.answer_block import AnswerBlock
from bandrank.models.layers.block import BlockOptions
from bandrank.models.layers.distance_bias import PreNormBiasBlock
from bandrank.models.layers.embeddings import Embeddings
from bandrank.models.layers.feed_forward import GATES, Activation
from bandrank.models.layers.key_mask import KeyMaskPlan
from bandrank.models.layers.linear import WholeLinear
from bandrank.models.layers.norm import RMSNorm
from bandrank.models.layers.relative_bias import RelativeBias
from bandrank.models.ragged import Ragged
from bandrank_kernels.transfer import to_device


@dataclass(frozen=True, kw_only=True)
class T5Config(DistanceBiasConfig):
    """The shape of a T5. head_size: the width of a head.  activation: of a gated unit in T5 1.1 and mT5.
    num_answer_layers: of the decoder; 0 without one.
    """

    overflows_float16: ClassVar[bool] = True

    head_size: int
    activation: Activation
    num_answer_layers: int = 0
    num_token_types: int = 0
    layer_norm_eps: float = 1e-6
    kind: str = "t5"

    def __post_init__(self) -> None:
        """Any heads are legal."""

    @property
    def gated(self) -> bool:  # type: ignore[override]  # of the class in other families
        return self.activation in GATES

    @property
    def head_dim(self) -> int:
        return self.head_size


class T5Stack(DistanceBiasStack):
    """An encoder with random weights, and a decoder if the config has one. start: the vector that starts an answer."""

    def __init__(self, config: T5Config) -> None:
        options = BlockOptions(
            activation=config.activation, bias=False, norm_bias=False, linear=WholeLinear, norm=RMSNorm
        )
        layers, end = range(1, config.num_layers + 1), config.num_answer_layers
        blocks = [PreNormBiasBlock(config, options, final=number == config.num_layers) for number in layers]
        embeddings = Embeddings(config, position_table=False, normed=False)
        super().__init__(config, embeddings, blocks, RelativeBias(config.num_heads))
        self.start = nn.Parameter(torch.zeros(config.hidden_size)) if end else None
        self.decoder = nn.ModuleList(AnswerBlock(config, options, final=index == end - 1) for index in range(end))

    def answer(self, texts: Ragged) -> Tensor:
        """(n, hidden_size) output of the decoder at the start of an answer to each text.

        texts: (total, hidden_size) output of the encoder; none is empty.
        """
        assert self.start is not None, "an encoder alone was asked. This is a bug."
        states = pad_sequence(list(torch.split(texts.values, texts.lengths.tolist())), batch_first=True)
        (lengths,) = to_device([torch.from_numpy(texts.lengths)], states.device)
        seen = torch.arange(states.shape[1], device=states.device) < lengths[:, None]
        plan, rows = KeyMaskPlan.of(seen, states.dtype), states.flatten(0, 1)
        hidden = self.start.expand(len(states), -1)
        for block in self.decoder:
            hidden = block.answer(hidden, rows, plan)  # type: ignore[operator]  # nn.ModuleList forgets their type
        return hidden
