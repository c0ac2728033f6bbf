"""Makes windowed cross-encoders, to be trained, from other scorers' weights."""

from dataclasses import replace

import torch

from bandrank.models.architectures import BiEncoder, CrossEncoder
from bandrank.models.architectures.cross_encoder import CrossEncoderConfig
from bandrank.models.layers.patterns import sparse
from bandrank.models.scorer import Scorer


def windowed(scorer: Scorer, window: int, *, seed: int = 0) -> CrossEncoder:
    """A cross-encoder with the sparse pattern of this window (Schlatt et al. 2024) and the scorer's weights.

    A cross-encoder keeps its head and its limits. A bi-encoder gives only its encoder: the head is random, the same for
    the same seed, and texts may be as long as the encoder's positions.
    Raises ValueError for any other scorer, a bi-encoder of two encoders among them, and for a negative window.
    """
    pattern = sparse(window)
    if isinstance(scorer, CrossEncoder):
        result = CrossEncoder(replace(scorer.config, pattern=pattern, sentence_token=None))
        result.load_state_dict(scorer.state_dict())
        return result.eval()
    if isinstance(scorer, BiEncoder):
        encoder, cls_id, sep_id = scorer.config.encoder, scorer.config.cls_id, scorer.config.sep_id
        if scorer.encodes_queries_apart:
            raise ValueError("it has one encoder for queries and one for candidates, and a cross-encoder has one")
        if encoder.causal:
            raise ValueError("its encoder reads from left to right: no [CLS] could see query and candidate")
        if cls_id is None or sep_id is None:
            raise ValueError("its texts do not stand between two tokens such as [CLS] and [SEP]")
        torch.manual_seed(seed)
        config = CrossEncoderConfig(
            encoder=encoder,
            cls_id=cls_id,
            sep_id=sep_id,
            pattern=pattern,
            max_tokens=encoder.max_positions,
            max_query_tokens=min(256, encoder.max_positions // 2),
        )
        return CrossEncoder(config).initialise(scorer.encoder).eval()
    raise ValueError(f"a {scorer.architecture} gives no cross-encoder; a cross_encoder or a bi_encoder does")
