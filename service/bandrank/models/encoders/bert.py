"""BERT (Devlin et al. 2019): a position table, post-norm blocks, GELU."""

from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.encoders.stack import Stack
from bandrank.models.layers.block import BlockShape, PostNormBlock
from bandrank.models.layers.embeddings import Embeddings


def bert(config: EncoderConfig) -> Stack:
    """An encoder with random weights."""
    embeddings = Embeddings(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        max_positions=config.max_positions,
        num_token_types=config.num_token_types,
        layer_norm_eps=config.layer_norm_eps,
    )
    return Stack(config, embeddings, [bert_block(config) for _ in range(config.num_layers)])


def bert_block(config: EncoderConfig) -> PostNormBlock:
    """One of its layers."""
    shape = BlockShape(
        hidden_size=config.hidden_size,
        num_heads=config.num_heads,
        intermediate_size=config.intermediate_size,
        layer_norm_eps=config.layer_norm_eps,
    )
    return PostNormBlock(shape)
