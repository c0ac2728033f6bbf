"""Scorers whose linear layers the CPU kernels compute, in int8 and in bfloat16: near float32, and the same bits in any
batch.
"""

import pytest
import torch
from support.dense_scorers import pair_scores
from support.models import score_batch, tiny_cross_encoder
from support.native import needs_bfloat16, needs_native
from support.native_scorers import NATIVE, packed, prepared, scores
from support.torch_threads import torch_threads
from support.variants import VARIANTS, random_texts
from torch import Tensor

from bandrank.models.layers.patterns import sparse

pytestmark = needs_native
by_dtype = pytest.mark.parametrize("dtype", [torch.int8, pytest.param(torch.bfloat16, marks=needs_bfloat16)], ids=str)


@by_dtype
@pytest.mark.parametrize("variant", sorted(VARIANTS.keys() - {"bi_encoder static"}))  # which has no layers
def test_every_architecture_is_near_float32(variant: str, dtype: torch.dtype) -> None:
    """Scores differ from float32's by a small part of their spread, and do differ: another dtype did compute them."""
    scorer = VARIANTS[variant]()
    batch = score_batch(*random_texts(scorer))
    exact, near = (scores(prepared(scorer, each), batch) for each in (torch.float32, dtype))

    spread = exact.std()
    assert not torch.equal(near, exact)
    assert (near - exact).abs().max() < 0.5 * spread
    assert torch.corrcoef(torch.stack([near, exact]))[0, 1] > 0.98


@by_dtype
@pytest.mark.parametrize("name", NATIVE)
def test_a_score_is_the_same_bits_alone_and_in_company(name: str, dtype: torch.dtype) -> None:
    scorer = packed(name, dtype)
    assert scorer.packed
    queries, candidates = random_texts(scorer.scorer)
    together = scores(scorer, score_batch(queries, candidates)).tolist()

    alone = pair_scores(lambda query, ids: scores(scorer, score_batch([query], [[ids]])).item(), queries, candidates)
    turned = scores(scorer, score_batch(queries, [group[::-1] for group in candidates])).tolist()

    assert alone == together
    assert turned == [*together[:7][::-1], *together[7:][::-1]]


@by_dtype
@pytest.mark.parametrize("name", NATIVE)
def test_a_score_is_the_same_bits_among_any_number(name: str, dtype: torch.dtype) -> None:
    """Libraries for floats round a product differently with the number of its rows; the kernels must not."""
    scorer = packed(name, dtype)
    queries, candidates = random_texts(scorer.scorer)
    many = candidates[0] * 6 + candidates[2] * 3
    together = scores(scorer, score_batch(queries[:1], [many])).tolist()

    for count in (1, 2, 3, 5, 8, 16, 17, 33, 48):
        assert scores(scorer, score_batch(queries[:1], [many[:count]])).tolist() == together[:count], count


@by_dtype
def test_workers_do_not_change_a_bit(dtype: torch.dtype) -> None:
    """Representations are cached, so they must not depend on the threads that computed them either."""
    scorer = prepared(tiny_cross_encoder(num_heads=2, pattern=sparse(4)), dtype)
    queries, candidates = random_texts(scorer.scorer)
    batch = score_batch(queries, [group * 9 for group in candidates])
    bi_encoder = packed("bi_encoder", dtype)

    def everything() -> list[Tensor]:
        with torch.inference_mode():
            encoded = bi_encoder.encode_candidates(batch.candidates)
            sizes = torch.from_numpy(encoded.lengths)
            return [scorer(batch), *scorer.begin_passages(batch)(), encoded.values, sizes]

    one = everything()
    with torch_threads(3):
        three = everything()
        assert torch.get_num_threads() == 3
    assert all(map(torch.equal, one, three))


@by_dtype
def test_nothing_is_scored_without_an_error(dtype: torch.dtype) -> None:
    """A batch may have no candidates, or only empty ones."""
    scorer = packed("sparse", dtype)
    assert scores(scorer, score_batch([[5, 3]], [[]])).shape == (0,)
    assert scores(scorer, score_batch([], [])).shape == (0,)
    assert scores(scorer, score_batch([[]], [[[], []]])).isfinite().all()
