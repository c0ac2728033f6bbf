"""Attention biased by distance, as in MPNet and JinaBERT: the CPU kernels agree with plain torch, and give the same
bits in any company.
"""

import copy
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from support.dense_scorers import pair_scores
from support.layouts import packed_rows
from support.models import CLS_ID, SEP_ID, random_scorer, score_batch
from support.native import needs_native
from support.t5 import tiny_t5_config
from support.tokenizer import vocab_size
from support.variants import random_texts

from bandrank.models.architectures import BiEncoder, ColBERT, CrossEncoder
from bandrank.models.architectures.bi_encoder import BiEncoderConfig
from bandrank.models.architectures.colbert import ColBERTConfig
from bandrank.models.architectures.cross_encoder import CrossEncoderConfig
from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.encoders.jina_bert import JinaBertConfig
from bandrank.models.encoders.mpnet import MpnetConfig
from bandrank.models.layers.alibi import Alibi
from bandrank.models.layers.distance_bias import DistanceBiasBlock
from bandrank.models.layers.execution import Execution, Preparable
from bandrank.models.layers.patterns import FULL, longformer, sparse
from bandrank.models.prepared import prepare
from bandrank.models.ragged import Ragged
from bandrank.models.scorer import Scorer
from bandrank_kernels.windowed_attention import AttentionPattern

pytestmark = needs_native
CPU = torch.device("cpu")


SHAPE = {
    "vocab_size": vocab_size(),
    "hidden_size": 32,
    "num_layers": 2,
    "num_heads": 2,  # of 16 numbers each, a size that the CPU kernels compute
    "intermediate_size": 64,
    "max_positions": 512,
}
CONFIGS: dict[str, EncoderConfig] = {
    "mpnet": MpnetConfig(**SHAPE),
    "jina_bert": JinaBertConfig(**SHAPE),
    "jina_bert reglu": JinaBertConfig(**SHAPE, activation="reglu"),
    "jina_bert for code": JinaBertConfig(**SHAPE, norms_queries=True),
    "t5": tiny_t5_config(),
    "t5 gated": tiny_t5_config(activation="geglu_tanh"),
}
every_config = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


def cross_encoder(encoder: EncoderConfig, pattern: AttentionPattern) -> CrossEncoder:
    config = CrossEncoderConfig(
        encoder=encoder, cls_id=CLS_ID, sep_id=SEP_ID, pattern=pattern, max_tokens=128, max_query_tokens=50
    )
    return random_scorer(CrossEncoder(config), 0)


def bi_encoder(encoder: EncoderConfig) -> BiEncoder:
    return random_scorer(BiEncoder(BiEncoderConfig(encoder, CLS_ID, SEP_ID, max_tokens=128)), 0)


CROSS_ENCODERS: dict[str, Callable[[EncoderConfig], Scorer]] = {
    "full": lambda encoder: cross_encoder(encoder, FULL),
    "sparse": lambda encoder: cross_encoder(encoder, sparse(4)),
    "longformer": lambda encoder: cross_encoder(encoder, longformer(4)),
}
SCORERS = CROSS_ENCODERS | {"bi-encoder": bi_encoder}


@every_config
@pytest.mark.parametrize("name", SCORERS)
def test_kernels_score_as_plain_torch(name: str, config: EncoderConfig) -> None:
    """Only the attention differs: weights and states stay in float32."""
    plain = SCORERS[name](config).eval()
    by_kernels = copy.deepcopy(plain)
    for module in by_kernels.modules():
        if isinstance(module, Preparable):
            module.prepare_for(Execution(backend="native"))
    batch = score_batch(*random_texts(plain))

    with torch.inference_mode():
        expected, scores = (each(batch) for each in (plain, by_kernels))

    assert expected.std() > 0.01
    torch.testing.assert_close(scores, expected, rtol=1e-4, atol=1e-4)
    assert not torch.equal(scores, expected), "the kernels did not run"


@every_config
@pytest.mark.parametrize("name", CROSS_ENCODERS)
def test_a_score_in_int8_is_the_same_bits_alone_and_in_company(name: str, config: EncoderConfig) -> None:
    """The CPU kernels compute the attention, as `bandrank check` reports."""
    scorer = prepare(CROSS_ENCODERS[name](config), device=CPU, dtype=torch.int8)
    queries, candidates = random_texts(scorer.scorer)

    with torch.inference_mode():
        together = scorer(score_batch(queries, candidates)).tolist()
        alone = pair_scores(lambda query, ids: scorer(score_batch([query], [[ids]])).item(), queries, candidates)

    assert scorer.attention == "CPU kernels"
    assert alone == together


@every_config
@pytest.mark.parametrize(
    ("name", "dtype"), [("full", torch.float32), ("bi-encoder", torch.float32), ("bi-encoder", torch.float64)]
)
def test_scores_are_those_of_training(name: str, dtype: torch.dtype, config: EncoderConfig) -> None:
    """For gradients, attention is computed by chunks of scores; without, sequence by sequence."""
    scorer = SCORERS[name](config).eval().to(dtype)
    batch = score_batch(*random_texts(scorer))

    trained = scorer(batch).detach()
    with torch.inference_mode():
        scores = scorer(batch)

    torch.testing.assert_close(scores, trained, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.inference_mode()
def test_a_sequence_attends_at_once_and_with_the_same_bits_in_any_company(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks of scores, which go through memory, take two to five times as long."""
    monkeypatch.delattr("bandrank.models.layers.distance_bias.attend_in_chunks")
    together, alone = packed_rows([6] * 3, [[70], [77], [80]], shared=False), packed_rows([6], [[77]], shared=False)
    qkv, places = torch.randn(together.num_rows, 3, 2, 16).to(dtype), torch.zeros(together.num_rows, dtype=torch.int64)
    for sequence in range(3):
        rows = [sequence, *together.query_rows(sequence), *together.candidate_rows(sequence)]
        places[rows] = torch.arange(len(rows))
    own = torch.tensor([1, *together.query_rows(1), *together.candidate_rows(1)])
    block, alibi = DistanceBiasBlock(JinaBertConfig(**SHAPE)), Alibi(2)

    both = block.attend(qkv, places, alibi.plan(together, FULL, CPU))
    by_itself = block.attend(qkv[own], places[own], alibi.plan(alone, FULL, CPU))

    assert torch.equal(by_itself, both[own])


@every_config
def test_masked_keys_are_not_seen(config: EncoderConfig) -> None:
    """A query's own tokens have the same vectors with and without the [MASK] rows that fill it up."""
    fields = {"query_marker": None, "candidate_marker": None, "mask_id": 1, "dim": 16, "max_query_tokens": 12}
    colbert = random_scorer(ColBERT(ColBERTConfig(encoder=config, cls_id=CLS_ID, sep_id=SEP_ID, **fields)), 0)
    query = Ragged.from_token_ids([[CLS_ID, 9, 7, 30, SEP_ID]])

    with torch.inference_mode():
        filled, alone = colbert.encode_queries(query).values, colbert.encode_candidates(query).values

    torch.testing.assert_close(filled[:5], alone, rtol=0, atol=1e-5)
    assert len(filled) == 12


@every_config
def test_sentence_tokens_are_refused(config: EncoderConfig) -> None:
    """Such tokens leave gaps in the positions of a candidate's rows, which the CPU kernels take to be consecutive."""
    with pytest.raises(ValueError, match="sentence_token leaves gaps"):
        replace(cross_encoder(config, longformer(4)).config, sentence_token=9)
