"""Long candidates scored by their best passage (MaxP), and what a candidate costs."""

import random
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.dense_bert import full_score
from support.models import random_ids, save_cross_encoder, score_batch, tiny_cross_encoder, tiny_hf_cross_encoder
from support.tokenizer import CLS_ID, SENTENCE_ID, SEP_ID
from transformers import BertForSequenceClassification

from bandrank.models import hf
from bandrank.models.architectures import CrossEncoder
from bandrank.models.layers.packing import pack
from bandrank.models.layers.passages import passage_bounds, split
from bandrank.models.layers.patterns import FULL, longformer, sparse
from bandrank.models.prepared import prepare
from bandrank_kernels.windowed_attention import AttentionPattern

TwoModels = tuple[BertForSequenceClassification, CrossEncoder]
CLOSE = 1e-5  # float32, as in the golden tests


def passages_of(candidate: Sequence[int], room: int) -> list[list[int]]:
    """Cuts a candidate by the rule in its simplest form: each passage begins half a passage after the one before and
    ends with a [SEP].
    """
    *pieces, sep = candidate
    start, passages = 0, []
    while start + room < len(candidate):
        passages.append([*pieces[start : start + room - 1], sep])
        start += room // 2
    return [*passages, [*pieces[start:], sep]]


@given(st.integers(1, 2000), st.integers(2, 600))
def test_passages_cover_every_token(num_tokens: int, room: int) -> None:
    """Each token is in a passage, each passage fits with its [SEP], and the last one ends with the candidate."""
    bounds = passage_bounds(num_tokens, room)

    covered = np.zeros(num_tokens, bool)
    for begin, end in bounds:
        covered[begin:end] = True
    assert covered.all()
    assert all(0 < end - begin <= room - 1 for begin, end in bounds[:-1])  # and a copy of [SEP]
    assert 0 < bounds[-1][1] - bounds[-1][0] <= room
    assert bounds[-1][1] == num_tokens
    assert bounds == sorted(set(bounds))


@given(st.integers(0, 600), st.integers(0, 100))
def test_one_passage_when_it_fits(room: int, spare: int) -> None:
    num_tokens = max(0, room - spare)
    assert passage_bounds(num_tokens, room) == [(0, num_tokens)]


@given(st.integers(3, 2000), st.integers(4, 600))
def test_neighbouring_passages_share_about_half(num_tokens: int, room: int) -> None:
    bounds = passage_bounds(num_tokens, room)
    for (begin, _), (next_begin, _) in pairwise(bounds):
        assert next_begin - begin == room // 2


@given(
    st.lists(st.tuples(st.integers(0, 9), st.lists(st.integers(0, 60), max_size=4)), min_size=1, max_size=4),
    st.integers(1, 3),
    st.integers(0, 2),
)
def test_all_candidates_are_split_as_each(groups: list[tuple[int, list[int]]], closing: int, leading: int) -> None:
    """The batch is split by the bounds of each candidate alone, also with empty candidates and queries without any."""
    lengths = [length + closing for _, own in groups for length in own]
    ids = [[100 * index + token for token in range(length)] for index, length in enumerate(lengths)]
    rest = iter(ids)
    candidates = [[next(rest) for _ in own] for _, own in groups]
    expected, owners, ends = list[list[int]](), list[int](), [0]
    for (query_tokens, _), own in zip(groups, candidates, strict=True):
        for tokens in own:
            for begin, end in passage_bounds(len(tokens), 16 - leading - query_tokens, closing=closing):
                expected.append(tokens[begin:end] + (tokens[-closing:] if end < len(tokens) else []))
                owners.append(ids.index(tokens))
        ends.append(len(expected))
    batch = score_batch([[9] * query_tokens for query_tokens, _ in groups], candidates)

    parts = split(batch, 16, leading=leading, closing=closing)

    assert [parts.batch.candidates[index].tolist() for index in range(len(expected))] == expected
    assert parts.candidate.tolist() == owners
    assert parts.batch.cu_candidates.tolist() == ends


@pytest.mark.parametrize("room", [1, 0, -5])
def test_no_room_for_a_passage(room: int) -> None:
    """A piece and a [SEP] need two places."""
    with pytest.raises(ValueError, match=f"no room for a passage: {room} tokens beside the query"):
        passage_bounds(2, room)
    with pytest.raises(ValueError, match=f"no room for a passage: {room} tokens beside the query"):
        split(score_batch([[9] * 30], [[[9] * 6, [9] * 9]]), 31 + room)


@pytest.fixture(scope="module")
def bert_of_64_tokens(tmp_path_factory: pytest.TempPathFactory) -> TwoModels:
    """Returns a cross-encoder of 64 positions as a model of `transformers` and as our scorer."""
    bert = tiny_hf_cross_encoder(positions=64)
    scorer = hf.load(save_cross_encoder(tmp_path_factory.mktemp("short"), bert))
    assert isinstance(scorer, CrossEncoder)
    return bert, scorer


def test_a_score_is_that_of_the_best_passage(bert_of_64_tokens: TwoModels) -> None:
    """A long candidate has the best of the scores that `transformers` gives its passages alone, of which there is one
    up to 64 tokens; to ask which passage that is changes no score.
    """
    theirs, ours = bert_of_64_tokens
    rng = random.Random(0)
    queries = [random_ids(rng, 5), random_ids(rng, 20)]
    candidates = [[random_ids(rng, n) for n in (0, 56, 57, 58, 90, 200)], [random_ids(rng, n) for n in (41, 300, 300)]]
    batch = score_batch(queries, candidates)

    prepared = prepare(ours, device=torch.device("cpu"), dtype=torch.float32)
    with torch.inference_mode():
        scores, best = prepared.begin_passages(batch)()
        plain = prepared.score(batch)

    passages = [
        (query, candidate, passages_of(candidate, 64 - 1 - len(query)))
        for query, group in zip(queries, candidates, strict=True)
        for candidate in group
    ]
    alone = [[full_score(theirs, query, passage) for passage in each] for query, _, each in passages]
    assert scores.tolist() == pytest.approx([max(each) for each in alone], abs=CLOSE)
    assert [len(each) for each in alone][:3] == [1, 1, 2]
    assert best.tolist() == [int(np.argmax(each)) for each in alone]
    assert max(best.tolist()) > 1
    assert torch.equal(scores, plain)
    for (query, candidate, each), index in zip(passages, best.tolist(), strict=True):
        begin, end = prepared.passage_bounds(len(query), len(candidate))[index]
        assert each[index] == [*candidate[begin : min(end, len(candidate) - 1)], SEP_ID]


def test_of_passages_that_tie_the_first_is_best() -> None:
    """The first passage also wins among scores of -inf; a candidate of one passage has that one."""
    rng = random.Random(0)
    parts = split(score_batch([random_ids(rng, 3)], [[random_ids(rng, n) for n in (50, 4, 50)]]), 32)
    (first, second), num_passages = parts.candidate.searchsorted([1, 2]), len(parts.candidate)
    scores = torch.full((num_passages,), -torch.inf)
    scores[1] = scores[first - 1] = -7.0

    assert parts.which(scores, parts.best(scores, 3)).tolist() == [1, 0, 0]
    assert (first, second) == (3, 4)


def test_no_candidates_have_no_best_passages() -> None:
    scores, best = tiny_cross_encoder().score_passages(score_batch([[9, SEP_ID]], [[]]), lambda _: torch.empty(0))

    assert (len(scores), len(best)) == (0, 0)


def test_best_of_negative_scores() -> None:
    """The best passage counts even where all scores are below zero."""
    rng = random.Random(0)
    parts = split(score_batch([random_ids(rng, 3)], [[random_ids(rng, 50), random_ids(rng, 4)]]), 32)
    scores = -torch.arange(1.0, 1 + len(parts.candidate))

    assert parts.best(scores, 2).tolist() == [-1.0, -float(len(parts.candidate))]


def test_truncated_candidates_are_not_cut_in_passages() -> None:
    """With `long_candidates` "truncate", a candidate is cut to what fits beside its query, which is one passage."""
    scorer = tiny_cross_encoder(max_tokens=64, long_candidates="truncate")
    rng = random.Random(0)
    for num_pieces in (0, 5, 24):
        query = random_ids(rng, num_pieces)
        candidate, cut = scorer.candidate_template.apply(random_ids(rng, 200), limit=scorer.candidate_limit(len(query)))

        assert 1 + len(query) + len(candidate) == 64
        assert cut == 201 - (len(candidate) - 1)
        assert len(split(score_batch([query], [[candidate]]), 64).batch.candidates) == 1


def test_a_maxp_candidate_is_cut_at_its_own_limit() -> None:
    """With MaxP a candidate's limit does not depend on the query."""
    scorer = tiny_cross_encoder(max_tokens=64, max_candidate_tokens=100)
    ids, cut = scorer.candidate_template.apply([9] * 200, limit=scorer.candidate_limit(25))

    assert (len(ids), cut, ids[-1]) == (100, 101, SEP_ID)


@pytest.mark.parametrize(
    ("pattern", "sentence_token"),
    [
        *((pattern, None) for pattern in (FULL, sparse(4), longformer(4), sparse(None))),
        *((pattern, SENTENCE_ID) for pattern in (FULL, longformer(4))),
    ],
)
def test_num_rows_is_what_packing_makes(pattern: AttentionPattern, sentence_token: int | None) -> None:
    """A candidate's cost is the rows it adds to a batch; a query that is shared adds its own once."""
    scorer = tiny_cross_encoder(pattern=pattern, max_tokens=64, sentence_token=sentence_token)
    rng = random.Random(0)
    queries = [random_ids(rng, 4), random_ids(rng, 0), random_ids(rng, 24)]
    candidates = [[random_ids(rng, n) for n in group] for group in ([0, 57, 58, 59, 200], [], [3, 100])]
    for group in candidates:
        for candidate in group:
            candidate[::9] = [SENTENCE_ID] * len(candidate[::9])

    packed = pack(
        split(score_batch(queries, candidates), 64).batch, pattern, cls_id=CLS_ID, sentence_token=sentence_token
    ).rows

    cost = sum(
        scorer.num_rows(len(query), len(candidate))
        for query, group in zip(queries, candidates, strict=True)
        for candidate in group
    )
    shared = sum(len(query) for query in queries) if pattern.shares_queries else 0
    assert packed.num_rows == cost + shared
