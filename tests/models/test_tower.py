"""Texts encoded alone: where pooling reads one row of each, the last layer computes no other, with the same result."""

import random
from collections.abc import Callable

import pytest
import torch
from support.deberta import tiny_deberta_config
from support.decoders import tiny_decoder_config
from support.models import CLS_ID, SEP_ID, random_ids, random_scorer, score_batch, tiny_bi_encoder, tiny_encoder_config
from support.modernbert import tiny_encoder_config as tiny_modernbert_config
from support.t5 import tiny_t5_config
from torch import Tensor, nn
from torch.nn.functional import normalize

from bandrank.models.architectures import BiEncoder
from bandrank.models.architectures.bi_encoder import BiEncoderConfig
from bandrank.models.architectures.sequence_cross_encoder import sequences
from bandrank.models.encoders import tower
from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.encoders.jina_bert import JinaBertConfig
from bandrank.models.encoders.mpnet import MpnetConfig
from bandrank.models.layers.pooling import Pooling, pool
from bandrank.models.prepared import prepare
from bandrank.models.ragged import Ragged

LENGTHS = (5, 1, 40, 17, 3)
CONFIGS: dict[str, Callable[[], EncoderConfig]] = {
    "bert": tiny_encoder_config,
    "modernbert": tiny_modernbert_config,
    "deberta": tiny_deberta_config,
    "mpnet": lambda: MpnetConfig(**vars(tiny_encoder_config()) | {"num_token_types": 0, "kind": "mpnet"}),
    "jina_bert": lambda: JinaBertConfig(**vars(tiny_encoder_config()) | {"kind": "jina_bert"}),
    "decoder": tiny_decoder_config,
    "t5": tiny_t5_config,
}
INT8 = ("bert", "modernbert", "mpnet", "jina_bert", "t5")


def texts(lengths: tuple[int, ...] = LENGTHS) -> Ragged:
    """Returns texts of random token ids."""
    rng = random.Random(0)
    return Ragged.from_token_ids([random_ids(rng, length)[:length] for length in lengths])


@pytest.mark.parametrize("pooling", ["cls", "last", "mean"])
@pytest.mark.parametrize(
    ("kind", "dtype"), [*((kind, torch.float32) for kind in CONFIGS), *((kind, torch.int8) for kind in INT8)], ids=str
)
@torch.inference_mode()
def test_pooled_rows_are_those_of_all(kind: str, pooling: Pooling, dtype: torch.dtype) -> None:
    """Computing only the rows that are pooled gives the vectors of computing all rows and pooling them."""
    config = BiEncoderConfig(CONFIGS[kind](), CLS_ID, SEP_ID, max_tokens=128)
    scorer = prepare(random_scorer(BiEncoder(config), 0), device=torch.device("cpu"), dtype=dtype).scorer
    assert isinstance(scorer, BiEncoder)

    pooled = tower.read_pooled(scorer.encoder, texts(), pooling)

    expected = pool(tower.read(scorer.encoder, texts()), pooling)
    assert expected.std() > 0.1
    torch.testing.assert_close(pooled, expected, rtol=0, atol=1e-5 if dtype is torch.float32 else 0.02)


@pytest.mark.parametrize(("pooling", "rows"), [("cls", len(LENGTHS)), ("last", len(LENGTHS)), ("mean", sum(LENGTHS))])
@torch.inference_mode()
def test_the_last_layer_computes_no_other_rows(pooling: Pooling, rows: int) -> None:
    """The feed-forward part of the last layer gets only the rows that are pooled."""
    encoder = tiny_bi_encoder().encoder
    seen: list[int] = []

    def count(_module: nn.Module, inputs: tuple[Tensor]) -> None:
        seen.append(len(inputs[0]))

    encoder.layer(-1).down.register_forward_pre_hook(count)
    tower.read_pooled(encoder, texts(), pooling)

    assert seen == [rows]


@torch.inference_mode()
def test_an_empty_text_has_zeros() -> None:
    encoder = tiny_bi_encoder().encoder

    pooled = tower.read_pooled(encoder, texts((4, 0)), "cls")

    assert pooled[0].any()
    assert not pooled[1].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8])
def test_a_vector_is_cut_before_it_gets_unit_length(dtype: torch.dtype) -> None:
    """Its numbers have the bits of the whole one's."""
    whole, dot, cosine = (
        prepare(tiny_bi_encoder(num_heads=2, **more), device=torch.device("cpu"), dtype=dtype)
        for more in ({"similarity": "dot"}, {"similarity": "dot", "size": 20}, {"size": 20})
    )
    with torch.inference_mode():
        first, of_dot, of_cosine = (each.encode_candidates(texts()).values[:, :20] for each in (whole, dot, cosine))

    assert torch.equal(of_dot, first)
    assert torch.equal(of_cosine, normalize(first.contiguous(), dim=-1))


def test_sequences_of_pairs() -> None:
    """Each sequence is [CLS], the query and a candidate, which may be empty; the order is that of the candidates."""
    queries, candidates = [[7, 8], [], [9]], [[[1], []], [], [[2, 3, 4], [5]]]

    found = sequences(score_batch(queries, candidates), CLS_ID)

    expected = [[CLS_ID, 7, 8, 1], [CLS_ID, 7, 8], [CLS_ID, 9, 2, 3, 4], [CLS_ID, 9, 5]]
    assert [found[index].tolist() for index in range(len(found))] == expected
