"""ColBERT against its published form: padded batches on `transformers`' BERT, masks and maxima written out."""

import random
from typing import Any

import pytest
import torch
from support.dense_scorers import batch_scores, bert_of, weights_of
from support.models import NUM_HEADS, random_ids
from support.precomputing import tiny_colbert
from support.tokenizer import CLS_ID, MASK_ID, PAD_ID, SEP_ID, tiny_tokenizer
from torch import Tensor
from transformers import BertModel

from bandrank.models.architectures import ColBERT
from bandrank.models.layers.maxsim import maxsim
from bandrank.models.ragged import Ragged
from bandrank_kernels.arrays import offsets

CLOSE = 1e-4  # float32 in another order of summation: 3e-6 of a sum of 32 cosines

VARIANTS: dict[str, dict[str, Any]] = {
    "v2": {},
    "v2, masks seen": {"attend_to_masks": True},
    "v2, l2": {"similarity": "l2"},
    "v2, all tokens": {"skipped_ids": ()},
    "short queries": {"max_query_tokens": 8},
    "baseline": {"query_marker": None, "candidate_marker": None, "augment": False, "floor": True},
    "not augmented": {"augment": False},
}
every_variant = pytest.mark.parametrize("variant", VARIANTS)


def vectors(scorer: ColBERT, bert: BertModel, ids: Tensor, attended: Tensor) -> Tensor:
    """Returns the unit vectors of a padded batch, (n, len, dim). ids, attended: (n, len)."""
    states = bert(input_ids=ids, attention_mask=attended.long()).last_hidden_state
    projected = states @ scorer.state_dict()["projection.weight"].T
    return projected / projected.norm(dim=-1, keepdim=True)  # type: ignore[no-any-return]


def dense_scores(scorer: ColBERT, bert: BertModel, query: list[int], candidates: list[list[int]]) -> list[float]:
    """Returns the scores of the candidates, padded together."""
    config = scorer.config
    query_ids = torch.tensor([query])
    seen = torch.ones_like(query_ids)
    if config.augment:
        masks = config.max_query_tokens - len(query)
        query_ids = torch.tensor([query + [MASK_ID] * masks])
        seen = torch.tensor([[1] * len(query) + [int(config.attend_to_masks)] * masks])
    of_query = vectors(scorer, bert, query_ids, seen)[0]

    longest = max(len(candidate) for candidate in candidates)
    ids = torch.tensor([candidate + [PAD_ID] * (longest - len(candidate)) for candidate in candidates])
    of_candidates = vectors(scorer, bert, ids, ids != PAD_ID)
    scores = []
    for candidate, rows in zip(candidates, of_candidates, strict=True):
        valid = [row for token, row in zip(candidate, rows, strict=False) if token not in config.skipped_ids]
        total = 0.0
        for row in of_query:
            if config.similarity == "l2":
                matches = [-float(((row - other) ** 2).sum()) for other in valid]
            else:
                matches = [float(row @ other) for other in valid]
            total += max([*matches, 0.0] if config.floor else matches)
        scores.append(total)
    return scores


def texts(scorer: ColBERT) -> tuple[list[list[int]], list[list[list[int]]]]:
    """Returns four queries of 0 to 60 pieces, one without candidates; some candidates are punctuation alone."""
    rng = random.Random(0)
    comma, stop = (tiny_tokenizer().token_to_id(symbol) for symbol in ",.")
    queries = [scorer.query_template.apply(random_ids(rng, num_pieces)[:-1])[0] for num_pieces in (4, 3, 0, 60)]
    pieces = [random_ids(rng, n)[:-1] for n in (0, 1, 9, 40)]
    marked = [[stop], [comma, stop, stop], [*pieces[2], comma, *pieces[1], stop]]
    groups = [pieces + marked, [], [pieces[3]], pieces[:2]]
    return queries, [[scorer.candidate_template.apply(one)[0] for one in group] for group in groups]


@every_variant
@pytest.mark.parametrize("prepared", [False, True], ids=["as trained", "as served"])
def test_scores_are_the_equations(variant: str, prepared: bool) -> None:
    """A ragged batch gives the scores of padded ones."""
    scorer = tiny_colbert(**VARIANTS[variant])
    queries, candidates = texts(scorer)
    bert = bert_of(weights_of(scorer, "encoder."), num_heads=NUM_HEADS)
    with torch.inference_mode():
        expected = [
            score
            for query, group in zip(queries, candidates, strict=True)
            if group
            for score in dense_scores(scorer, bert, query, group)
        ]

    scores = batch_scores(scorer, queries, candidates, prepared=prepared)

    assert scores == pytest.approx(expected, abs=CLOSE)
    assert max(expected) - min(expected) > 100 * CLOSE


def test_punctuation_has_no_vector_but_is_read() -> None:
    """A text of punctuation keeps [CLS], marker and [SEP], whose vectors depend on what stood between them."""
    scorer = tiny_colbert()
    comma, stop = (tiny_tokenizer().token_to_id(symbol) for symbol in ",.")
    texts = [scorer.candidate_template.apply(pieces)[0] for pieces in ([comma, stop], [stop, stop], [comma, 60, stop])]
    with torch.inference_mode():
        encoded = scorer.encode_candidates(Ragged.from_token_ids(texts))

    assert encoded.lengths.tolist() == [3, 3, 4]
    assert (encoded[0] - encoded[1]).abs().max() > 1e-2
    torch.testing.assert_close(encoded.values.norm(dim=-1), torch.ones(10))


def test_queries_are_filled_up_to_their_length() -> None:
    """A query of any length has max_query_tokens vectors; without augmentation it has one for each token."""
    queries = Ragged.from_token_ids([[CLS_ID, 1, SEP_ID], [CLS_ID, 1, *[60] * 29, SEP_ID]])
    with torch.inference_mode():
        assert tiny_colbert().encode_queries(queries).lengths.tolist() == [32, 32]
        assert tiny_colbert(augment=False).encode_queries(queries).lengths.tolist() == [3, 32]


def test_templates() -> None:
    """A text stands as [CLS] marker text [SEP], so that the marker takes room from it."""
    marked = tiny_colbert(max_query_tokens=8, max_candidate_tokens=9)
    plain = tiny_colbert(max_query_tokens=8, query_marker=None, candidate_marker=None)

    assert marked.query_template.apply([60] * 9) == ([CLS_ID, 1, *[60] * 5, SEP_ID], 4)
    assert marked.candidate_template.apply([60] * 9) == ([CLS_ID, 2, *[60] * 6, SEP_ID], 3)
    assert plain.query_template.apply([60] * 9) == ([CLS_ID, *[60] * 6, SEP_ID], 3)


@pytest.mark.parametrize("lengths", [[], [0], [3, 0, 1], [5000, 4000, 1, 9000, 0, 2, 8192, 8191, 1], [1] * 9000])
def test_maxsim_of_any_lengths(lengths: list[int]) -> None:
    """Blocks end between candidates, some candidates are longer than a block, and empty ones match nothing."""
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(5, 8, generator=generator)
    values = torch.randn(sum(lengths), 8, generator=generator)

    best = maxsim(query, Ragged(values.half(), offsets(lengths)))

    empty = torch.full((1, 5), -torch.inf)
    expected = [torch.cat([empty, rows @ query.T]).amax(0) for rows in values.half().float().split(lengths)]
    assert best.shape == (len(lengths), 5)
    for ours, theirs in zip(best, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


def test_gradients_reach_the_best_row_alone() -> None:
    query = torch.tensor([[1.0, 0.0]])
    rows = torch.tensor([[0.5, 0.0], [0.9, 0.3], [0.1, 0.0], [0.7, 0.0]], requires_grad=True)

    maxsim(query, Ragged(rows, offsets([3, 1]))).sum().backward()

    assert rows.grad is not None
    assert rows.grad.tolist() == [[0, 0], [1, 0], [0, 0], [1, 0]]
