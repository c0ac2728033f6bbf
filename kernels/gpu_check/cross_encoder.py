"""A cross-encoder of the size of MiniLM-L6 with random weights, and requests to it."""

from collections.abc import Sequence

import numpy as np
import torch

from bandrank.models.architectures.cross_encoder import CrossEncoder, CrossEncoderConfig
from bandrank.models.batch import ScoreBatch
from bandrank.models.encoders import EncoderConfig
from bandrank.models.layers.execution import Execution
from bandrank.models.layers.norm import LayerNorm
from bandrank.models.layers.packing import PackedTokens, pack
from bandrank.models.prepared import prepare
from bandrank.models.ragged import Ragged, offsets
from bandrank_kernels.windowed_attention import AttentionPattern
from gpu_check.lab import Lab

QUERY_TOKENS = 10
VOCAB, POSITIONS = 30522, 4224
SIZE = EncoderConfig(VOCAB, 384, 6, 12, 1536, POSITIONS)
DRY_SIZE = EncoderConfig(VOCAB, 64, 2, 2, 256, POSITIONS)


def build(lab: Lab, size: EncoderConfig, pattern: AttentionPattern) -> CrossEncoder:
    """Ready to serve."""
    config = CrossEncoderConfig(size, cls_id=101, sep_id=102, pattern=pattern, max_tokens=POSITIONS)
    torch.manual_seed(0)
    model = CrossEncoder(config)
    prepare(model, device=lab.device, dtype=lab.dtype)
    return model


def fuse_norms(model: CrossEncoder) -> None:
    """Of few rows too, as in graphs."""
    for module in model.modules():
        if isinstance(module, LayerNorm):
            module.prepare_for(Execution(fused_from=0))


def request(lengths: Sequence[int], *, seed: int = 0) -> ScoreBatch:
    """Random token ids: one query, and candidates of these lengths and a [SEP]."""
    rng = np.random.default_rng(seed)
    query, *candidates = (rng.integers(1000, VOCAB, length + 1) for length in (QUERY_TOKENS, *lengths))
    return ScoreBatch(
        Ragged.from_token_ids([query.tolist()]),
        Ragged.from_token_ids([candidate.tolist() for candidate in candidates]),
        offsets([len(candidates)]),
    )


def packed(model: CrossEncoder, batch: ScoreBatch) -> PackedTokens:
    """The batch as the model packs it."""
    return pack(batch, model.config.pattern, cls_id=model.config.cls_id, sentence_token=None)
