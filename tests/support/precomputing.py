"""Tiny random scorers that precompute, one function for each architecture."""

import string
from functools import partial
from typing import Any

import torch
from support.models import AnyScorer, random_scorer, tiny_encoder_config
from support.tokenizer import CLS_ID, MASK_ID, SEP_ID, SPECIAL

from bandrank.models.architectures import VIRT, ColBERT, CrossEncoder, Deformer, MixEncoder, PolyEncoder, Splade
from bandrank.models.architectures.colbert import ColBERTConfig
from bandrank.models.architectures.deformer import DeformerConfig
from bandrank.models.architectures.mix_encoder import MixEncoderConfig
from bandrank.models.architectures.poly_encoder import PolyEncoderConfig
from bandrank.models.architectures.splade import SpladeConfig
from bandrank.models.architectures.virt import VIRTConfig


def _texts(num_layers: int, **more: Any) -> dict[str, Any]:
    """The fields that all configs below share. more: fields to add or to replace."""
    encoder = tiny_encoder_config(num_layers=num_layers)
    return {"encoder": encoder, "cls_id": CLS_ID, "sep_id": SEP_ID} | more


def tiny_mix_encoder(*, seed: int = 0, num_layers: int = 2, paper: str | None = None, **more: Any) -> MixEncoder:
    """A random MixEncoder in eval mode, not yet prepared. paper: "a", "b" or "c".  more: fields of its config."""
    make: Any = MixEncoderConfig if paper is None else partial(MixEncoderConfig.of_paper, paper)
    layers = {"interaction_layers": (num_layers - 1,)} if paper is None else {}
    return random_scorer(MixEncoder(make(**_texts(num_layers, **layers | more))), seed)


def tiny_poly_encoder(*, seed: int = 0, num_layers: int = 2, **more: Any) -> PolyEncoder:
    """A random poly-encoder in eval mode, not yet prepared. more: fields of PolyEncoderConfig."""
    return random_scorer(PolyEncoder(PolyEncoderConfig(**_texts(num_layers, **{"num_codes": 5} | more))), seed)


def tiny_colbert(*, seed: int = 0, num_layers: int = 2, **more: Any) -> ColBERT:
    """A random ColBERT in eval mode, not yet prepared; its markers are [unused0], [unused1]. more: config fields."""
    punctuation = tuple(range(len(SPECIAL), len(SPECIAL) + len(string.punctuation)))
    markers = {"query_marker": 1, "candidate_marker": 2, "skipped_ids": punctuation, "mask_id": MASK_ID, "dim": 16}
    return random_scorer(ColBERT(ColBERTConfig(**_texts(num_layers, **markers | more))), seed)


def tiny_deformer(*, seed: int = 0, num_layers: int = 3, **more: Any) -> Deformer:
    """A random Deformer in eval mode, not yet prepared, split after its first layer. more: fields of its config."""
    return random_scorer(Deformer(DeformerConfig(**_texts(num_layers, **{"split": 1} | more))), seed)


def tiny_virt(*, seed: int = 0, num_layers: int = 2, **more: Any) -> VIRT:
    """A random VIRT in eval mode, not yet prepared. more: fields of VIRTConfig."""
    return random_scorer(VIRT(VIRTConfig(**_texts(num_layers, **more))), seed)


def tiny_splade(*, seed: int = 0, num_layers: int = 2, **more: Any) -> Splade:
    """A random SPLADE in eval mode, not yet prepared. more: fields of SpladeConfig."""
    return random_scorer(Splade(SpladeConfig(**_texts(num_layers, **more))), seed)


def with_words(scorer: AnyScorer) -> AnyScorer:
    """Gives words random rarities, so that shared words add some points to a score, and returns the scorer."""
    chance = torch.Generator().manual_seed(3)
    assert isinstance(scorer, CrossEncoder | MixEncoder)
    assert scorer.lexical is not None
    scorer.lexical.idf.copy_(6 * torch.rand(len(scorer.lexical.idf), generator=chance))
    with torch.no_grad():
        scorer.lexical.gate.copy_(2 * torch.randn(3, 3, generator=chance))
    return scorer
