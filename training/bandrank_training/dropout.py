"""Dropout of hidden states (Srivastava et al. 2014; where BERT has it: Devlin et al. 2019, appendix A.2).

The service's layers have none, so hooks add it to their outputs during training. Attention weights are not dropped,
because no layer outputs them.
"""

from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import dropout

from bandrank.models.layers.block import Block
from bandrank.models.layers.embeddings import Embeddings


def add_dropout(scorer: nn.Module, share: float) -> int:
    """Adds dropout after the trained embeddings and both sublayers of each trained layer, active in training mode only.

    Returns the number of modules with dropout. Layers that are entirely frozen get none.
    """
    followed = [module for module in _followed(scorer) if any(each.requires_grad for each in module.parameters())]
    for module in followed:
        module.register_forward_hook(partial(_drop, share))
    return len(followed)


def _followed(scorer: nn.Module) -> list[nn.Module]:
    """The embeddings, and the last linear layer of each sublayer of each layer, interaction layers included."""
    found: list[nn.Module] = []
    for module in scorer.modules():
        if isinstance(module, Embeddings):
            found.append(module)
        elif isinstance(module, Block):
            found += [module.attention_out, module.down]
    return found


def _drop(share: float, module: nn.Module, _inputs: Any, output: Tensor) -> Tensor:
    return dropout(output, share, training=module.training)
