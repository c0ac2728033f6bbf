"""Ragged sequences, batches of them, and token templates."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.models import score_batch

from bandrank.models.batch import ScoreBatch
from bandrank.models.ids import ID_BYTES, RaggedIds, pack_ids, unpack_ids
from bandrank.models.ragged import Ragged
from bandrank.models.template import TokenTemplate
from bandrank.models.words import Words
from bandrank_kernels.arrays import indices_within, offsets, ranges

token_lists = st.lists(st.lists(st.integers(0, 30000), max_size=8), max_size=8)


@given(token_lists)
def test_sequences_come_back(sequences: list[list[int]]) -> None:
    ragged = Ragged.from_token_ids(sequences)

    assert [ragged[i].tolist() for i in range(len(ragged))] == sequences
    assert ragged.lengths.tolist() == [len(sequence) for sequence in sequences]
    assert ragged.max_seqlen == max((len(sequence) for sequence in sequences), default=0)
    assert ragged.values.dtype == torch.int64


@given(st.lists(st.integers(0, 5), min_size=1, max_size=6))
def test_tensors_come_back(lengths: list[int]) -> None:
    tensors = [torch.full((length, 3), float(i)) for i, length in enumerate(lengths)]
    ragged = Ragged.from_tensors(tensors)

    assert all(torch.equal(ragged[i], tensor) for i, tensor in enumerate(tensors))


def test_no_tensor_to_take_the_shape_from() -> None:
    """Without a sequence there is no dtype and no width."""
    with pytest.raises(ValueError, match="no sequence to take dtype and shape from"):
        Ragged.from_tensors([])


@pytest.mark.parametrize("cu_seqlens", [[0, 2], [1, 3], [0, 3, 2, 3], [0, 4]])
def test_offsets_that_do_not_cover_the_values(cu_seqlens: list[int]) -> None:
    with pytest.raises(ValueError, match="cu_seqlens must ascend from 0 to 3"):
        Ragged(torch.zeros(3), np.array(cu_seqlens))


def test_words_that_are_not_those_of_the_sequences() -> None:
    """Each sequence has words of its own, and each word has a weight."""
    pieces = np.zeros((2, 3), np.uint16)
    with pytest.raises(ValueError, match="words of 2 texts beside 1 sequences"):
        Ragged(torch.zeros(3), np.array([0, 3]), Words(pieces, pieces.astype(np.uint8)))
    with pytest.raises(ValueError, match=r"pieces are \(2, 3\) and weights \(2, 2\)"):
        Words(pieces, np.zeros((2, 2), np.uint8))


@pytest.mark.parametrize("cu_candidates", [[0, 3], [0, 1, 2], [1, 1, 3], [0, 1, 2, 3]])
def test_a_batch_whose_counts_differ(cu_candidates: list[int]) -> None:
    """Each of the two queries owns a run of the three candidates, and none is left over."""
    queries, candidates = Ragged.from_token_ids([[1], [2]]), Ragged.from_token_ids([[3], [4], [5]])
    with pytest.raises(ValueError, match="cu_candidates must have 3 entries from 0 to 3"):
        ScoreBatch(queries, candidates, np.array(cu_candidates))


def test_candidates_know_their_query() -> None:
    """A query without candidates is skipped, so the next candidate belongs to a later query."""
    batch = ScoreBatch(Ragged.from_token_ids([[1], [2], [3]]), Ragged.from_token_ids([[]] * 5), offsets([2, 0, 3]))

    assert batch.candidate_query.tolist() == [0, 0, 2, 2, 2]


def test_groups_of_a_block() -> None:
    """A block of candidates may begin and end within a query's candidates."""
    batch = score_batch([[1]] * 4, [[[1]] * 3, [], [[1]] * 2, [[1]]])

    assert list(batch.groups()) == [(0, slice(0, 3)), (2, slice(3, 5)), (3, slice(5, 6))]
    for begin, end in pairwise([0, 2, 4, 6]):
        owners = [query for query, own in batch.groups(begin, end) for _ in range(own.start, own.stop)]
        assert owners == batch.candidate_query[begin:end].tolist()


@given(st.lists(st.integers(0, 5), max_size=6))
def test_indices_within_sequences(lengths: list[int]) -> None:
    """Each sequence counts its rows from 0."""
    assert indices_within(np.array(lengths, np.int64)).tolist() == [
        index for length in lengths for index in range(length)
    ]


@given(st.lists(st.integers(0, 9), max_size=20), st.integers(2, 12), st.one_of(st.none(), st.integers(2, 30)))
def test_templates_count_what_they_cut(pieces: list[int], max_tokens: int, limit: int | None) -> None:
    """Prefix and suffix always stay, the limit holds, and kept and cut pieces together are all pieces."""
    template = TokenTemplate((101,), (102,), max_tokens)
    ids, cut = template.apply(pieces, limit=limit)

    assert ids == [101, *pieces[: len(ids) - 2], 102]
    assert len(ids) <= min(max_tokens, limit or max_tokens)
    assert cut == len(pieces) - (len(ids) - 2)
    assert cut == 0 or len(ids) == min(max_tokens, limit or max_tokens)


@given(
    st.lists(st.lists(st.integers(0, 9), max_size=20), max_size=6),
    st.sampled_from([((), (2,)), ((1,), (2, 3)), ((), ())]),
    st.integers(3, 12),
    st.one_of(st.none(), st.integers(0, 30)),
    st.sampled_from([None, 7]),
)
def test_templates_are_applied_to_all_texts_as_to_each(
    texts: list[list[int]],
    around: tuple[tuple[int, ...], tuple[int, ...]],
    max_tokens: int,
    limit: int | None,
    sentence_token: int | None,
) -> None:
    template = TokenTemplate(*around, max_tokens, sentence_token)
    ids, cut = template.apply_all([*map(pack_ids, texts)], limit=limit)

    assert [*zip(ids.tolist(), cut, strict=True)] == [template.apply(text, limit=limit) for text in texts]


@given(token_lists, st.integers(-1, 9), st.integers(-1, 9))
def test_runs_of_ids(texts: list[list[int]], begin: int, end: int) -> None:
    """Runs of ids are sliced and joined as lists of texts are, and each text keeps its ids."""
    ids = RaggedIds.of(texts)

    assert ids.tolist() == texts
    assert ids[begin:end].tolist() == texts[begin:end]
    assert [each.tolist() for each in reversed(ids)] == texts[::-1]
    assert RaggedIds.joined([ids[:end], ids[end:], ids]).tolist() == [*texts, *texts]
    assert Ragged.from_ids([ids[:end], ids[end:]]).values.tolist() == [token for text in texts for token in text]
    with pytest.raises(IndexError, match=f"text {len(texts)} of {len(texts)}"):
        ids[len(texts)]


def test_no_runs_of_ids() -> None:
    assert RaggedIds.joined([]).tolist() == []
    assert RaggedIds.of([]).values.dtype == np.int32


@given(st.lists(st.integers(0, 2**31 - 1), max_size=9))
def test_packed_ids_come_back(ids: list[int]) -> None:
    """Every id that int32 holds takes four bytes."""
    assert unpack_ids(pack_ids(ids)).tolist() == ids
    assert len(pack_ids(ids)) == ID_BYTES * len(ids)


@given(st.lists(st.tuples(st.integers(-3, 9), st.integers(0, 5)), max_size=6))
def test_ranges_are_runs_of_numbers(runs: list[tuple[int, int]]) -> None:
    starts, lengths = np.array(runs, np.int64).reshape(-1, 2).T

    assert ranges(starts, lengths).tolist() == [
        number for start, length in runs for number in range(start, start + length)
    ]
