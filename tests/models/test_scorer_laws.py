"""The laws that `Scorer` states, for every architecture."""

import random
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.models import as_served, score_batch
from support.tokenizer import TOKENIZER_FILE
from support.variants import PRECOMPUTING, VARIANTS, random_texts, template_ids

from bandrank.models import checkpoint
from bandrank.models.architectures import ARCHITECTURES
from bandrank.models.batch import ScoreBatch
from bandrank.models.ragged import Ragged
from bandrank.models.scorer import Scorer
from bandrank_kernels.arrays import offsets

# float32 through two layers, in matrix products of another shape; scores are of the order of 1. Dot products of vectors
# of length 6, and sums over 32 rows, add up terms that are larger than that.
CLOSE = 1e-5
CLOSE_SUM = 1e-4

every_variant = pytest.mark.parametrize("variant", VARIANTS)
every_precomputing_variant = pytest.mark.parametrize("variant", PRECOMPUTING)


@cache
def scorer_of(variant: str) -> Scorer:
    """Returns the variant as it is served on a CPU."""
    return as_served(VARIANTS[variant]())


def close(variant: str) -> float:
    """Returns the tolerance for scores that are equal up to rounding."""
    return CLOSE_SUM if any(word in variant for word in ("dot", "colbert", "mix_encoder lexical")) else CLOSE


def scores_of(scorer: Scorer, queries: list[list[int]], candidates: list[list[list[int]]]) -> list[list[float]]:
    """Returns the scores grouped by query."""
    with torch.inference_mode():
        scores = scorer(score_batch(queries, candidates)).tolist()
    ends = offsets([len(group) for group in candidates])
    return [scores[begin:end] for begin, end in pairwise(ends)]


def test_every_architecture_is_here() -> None:
    """An architecture that joins the table is tested by these laws too."""
    assert {variant.split()[0] for variant in VARIANTS} == set(ARCHITECTURES)


@every_variant
def test_forward_is_score_of_encoded_candidates(variant: str) -> None:
    """Scoring in one go gives the scores of representations that were made one by one, before the query was known."""
    scorer = scorer_of(variant)
    queries, candidates = random_texts(scorer)
    batch = score_batch(queries, candidates)
    with torch.inference_mode():
        alone = [scorer.encode_candidates(Ragged.from_token_ids([ids])) for group in candidates for ids in group]
        stored = Ragged.joined(alone)

        scores = scorer.score(ScoreBatch(batch.queries, stored, batch.cu_candidates))

        torch.testing.assert_close(scores, scorer(batch), rtol=0, atol=close(variant))


@every_variant
def test_scores_differ(variant: str) -> None:
    """The scores of a query's candidates spread far beyond the tolerance, so that the laws below could fail."""
    scorer = scorer_of(variant)
    for group in scores_of(scorer, *random_texts(scorer)):
        assert not group or max(group) - min(group) > 1000 * close(variant)


@every_variant
@settings(max_examples=5)
@given(data=st.data())
def test_company_order_and_split_do_not_matter(variant: str, data: st.DataObject) -> None:
    """A candidate scored alone gets the score that it gets in any company, at any index, in any batch."""
    scorer = scorer_of(variant)
    rng = random.Random(data.draw(st.integers(0, 99), label="seed"))
    lengths = data.draw(st.lists(st.lists(st.integers(0, 90), max_size=4), min_size=1, max_size=3), label="pieces")
    queries = [template_ids(scorer, rng, rng.randint(0, 12), query=True) for _ in lengths]
    candidates = [[template_ids(scorer, rng, n) for n in group] for group in lengths]

    together = scores_of(scorer, queries, candidates)

    for query, group, scores in zip(queries, candidates, together, strict=True):
        alone = [scores_of(scorer, [query], [[candidate]])[0][0] for candidate in group]
        assert scores == pytest.approx(alone, abs=close(variant))
    order = data.draw(st.permutations(range(len(queries))), label="order of queries")
    turned = scores_of(scorer, [queries[i] for i in order], [candidates[i][::-1] for i in order])
    for i, scores in zip(order, turned, strict=True):
        assert scores[::-1] == pytest.approx(together[i], abs=close(variant))


@every_variant
def test_a_query_shared_or_given_again(variant: str) -> None:
    """Candidates of one query get the scores that they get when the query is repeated for each of them."""
    scorer = scorer_of(variant)
    queries, candidates = random_texts(scorer)
    query, group = queries[0], candidates[0]

    shared = scores_of(scorer, [query], [group])[0]
    separate = scores_of(scorer, [query] * len(group), [[candidate] for candidate in group])

    assert shared == pytest.approx([scores[0] for scores in separate], abs=close(variant))


@every_variant
def test_scores_are_float32_one_per_candidate(variant: str) -> None:
    """A batch without candidates has no scores; an empty candidate has one even for an empty query."""
    scorer = scorer_of(variant)
    empty = [[*scorer.query_template.prefix, *scorer.query_template.suffix]]
    with torch.inference_mode():
        texts: list[tuple[list[list[int]], list[list[list[int]]]]] = [([], []), (empty, [[]]), (empty, [empty])]
        for queries, candidates in (*texts, random_texts(scorer)):
            scores = scorer(score_batch(queries, candidates))

            assert scores.dtype == torch.float32
            assert scores.shape == (sum(len(group) for group in candidates),)
            assert scores.isfinite().all()


@every_variant
def test_saved_and_loaded_scorer_scores_the_same(variant: str, tmp_path: Path) -> None:
    """Class, config and the bits of the weights come back, and the scores up to rounding: a CPU may round a product
    differently if its weights lie elsewhere in memory.
    """
    scorer = VARIANTS[variant]()
    queries, candidates = random_texts(scorer)

    checkpoint.save(scorer, tmp_path / "saved", tokenizer=TOKENIZER_FILE)
    loaded = checkpoint.load(tmp_path / "saved")

    assert (type(loaded), loaded.config) == (type(scorer), scorer.config)
    assert loaded.state_dict().keys() == scorer.state_dict().keys()
    for name, weights in scorer.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], weights), name
    for score, expected in zip(
        scores_of(loaded, queries, candidates), scores_of(scorer, queries, candidates), strict=True
    ):
        assert score == pytest.approx(expected, abs=1e-6)


@every_variant
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_ranks_nearly_the_same(variant: str, dtype: torch.dtype) -> None:
    """Scores computed in half precision move by less than a tenth of their spread, and are float32."""
    exact = scorer_of(variant)
    half = as_served(VARIANTS[variant](), dtype)
    rng = random.Random(0)
    query = template_ids(exact, rng, 8, query=True)
    group = [template_ids(exact, rng, rng.randint(5, 60)) for _ in range(40)]

    expected, scores = (np.array(scores_of(scorer, [query], [group])[0]) for scorer in (exact, half))

    assert np.sqrt(np.mean((scores - expected) ** 2)) < 0.1 * expected.std()
    assert half(score_batch([query], [group])).dtype == torch.float32


@pytest.mark.parametrize("variant", ["cross_encoder full", "deformer"])
def test_an_encoder_with_one_token_type(variant: str) -> None:
    """It scores as one whose second type is like the first."""
    two = VARIANTS[variant]()
    types = two.encoder.state_dict()["embeddings.token_type.weight"]
    types[1] = types[0]
    config = replace(two.config, encoder=replace(two.config.encoder, num_token_types=1))
    one = type(two)(config).eval()  # type: ignore[call-arg]  # each takes a config
    one.load_state_dict(two.state_dict() | {"encoder.embeddings.token_type.weight": types[:1]})

    assert scores_of(one, *random_texts(one)) == scores_of(two, *random_texts(two))


@every_variant
def test_prepare_freezes(variant: str) -> None:
    """A prepared scorer is in eval mode, and its weights take no gradient."""
    scorer = scorer_of(variant)

    assert not scorer.training
    assert not any(parameter.requires_grad for parameter in scorer.parameters())


@every_precomputing_variant
def test_stored_representations_may_be_rounded(variant: str) -> None:
    """Kept in float16 on the host, representations move scores by less than a fiftieth of their spread."""
    scorer = scorer_of(variant)
    rng = random.Random(0)
    query = template_ids(scorer, rng, 8, query=True)
    batch = score_batch([query], [[template_ids(scorer, rng, rng.randint(5, 60)) for _ in range(40)]])
    with torch.inference_mode():
        encoded = scorer.encode_candidates(batch.candidates)
        stored = replace(encoded, values=encoded.values.half())

        expected = scorer.score(ScoreBatch(batch.queries, encoded, batch.cu_candidates))
        scores = scorer.score(ScoreBatch(batch.queries, stored, batch.cu_candidates))

    assert (scores - expected).square().mean().sqrt() < 0.02 * expected.std()
    assert not torch.equal(scores, expected)


@every_variant
def test_representations_have_the_size_that_is_told(variant: str) -> None:
    """A cache can lay out float32 rows of `representation_size` before it has seen one; token ids have size 0."""
    scorer = scorer_of(variant)
    with torch.inference_mode():
        encoded = scorer.encode_candidates(score_batch(*random_texts(scorer)).candidates)

    if scorer.precomputes:
        assert encoded.values.dtype == torch.float32
        assert encoded.values.shape[1:] == (scorer.representation_size,)
    else:
        assert (encoded.values.dtype, encoded.values.shape[1:]) == (torch.int64, ())
        assert scorer.representation_size == 0


@every_variant
def test_cost_grows_with_the_candidate(variant: str) -> None:
    """No candidate is free, and a longer representation is not cheaper."""
    scorer = scorer_of(variant)
    costs = [scorer.num_rows(8, rows) for rows in (1, 2, 50, 500)]

    assert costs[0] > 0
    assert costs == sorted(costs)


@every_variant
def test_cost_grows_with_the_query(variant: str) -> None:
    """However short the candidates are, the cost is at least the query's number of tokens, which are encoded too. It is
    the same for every query that a table reads.
    """
    scorer = scorer_of(variant)
    longest = scorer.query_template.max_tokens

    if getattr(scorer.config, "query_table", False):
        assert scorer.rows_of(longest, [1, 1]) == scorer.rows_of(1, [1, 1])
    else:
        assert sum(scorer.rows_of(longest, [1, 1])) >= longest
    assert scorer.rows_of(longest, []) == []


@every_variant
def test_gradients_reach_every_weight(variant: str) -> None:
    """Before `prepare`, a scorer can be trained."""
    scorer = VARIANTS[variant]()
    queries, candidates = random_texts(scorer)

    scorer(score_batch(queries, candidates)).square().sum().backward()

    without = [name for name, parameter in scorer.named_parameters() if parameter.grad is None]
    assert without == []
