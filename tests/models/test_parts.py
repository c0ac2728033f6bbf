"""How a batch is cut into parts, and how their results are put together again."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.models import score_batch, tiny_cross_encoder
from support.variants import random_texts

from bandrank.models.parts import COARSE, FINE, MIN_PART_ROWS, Cut, Grain, split
from bandrank.models.ragged import Ragged
from bandrank.models.words import Words

LENGTHS = st.lists(st.integers(0, 2000), max_size=40)


@given(LENGTHS, st.integers(1, 8), st.sampled_from([FINE, COARSE]), st.booleans())
def test_runs_cover_all_sequences_once(lengths: list[int], count: int, grain: Grain, in_order: bool) -> None:
    """No run is empty, the order is kept where it must be, and there are no more runs than are worthwhile."""
    cut = split(np.array(lengths, np.int64), count, grain, in_order=in_order)

    indices = [index for run in cut.runs for index in range(run.start, run.stop)]
    assert indices == [*range(len(lengths))]
    assert len(cut.runs) == 1 or all(run.start < run.stop for run in cut.runs)
    assert len(cut.runs) <= max(1, min(count, sum(lengths) // MIN_PART_ROWS), sum(lengths) // grain.least)
    if cut.order is not None:
        assert not in_order
        assert sorted(cut.order.tolist()) == indices


@given(LENGTHS, st.integers(1, 8), st.booleans())
def test_what_is_computed_of_parts_is_in_the_order_of_the_whole(lengths: list[int], count: int, in_order: bool) -> None:
    """The results are sequences, with their words, or one number for each sequence."""
    cu_seqlens = np.array([0, *np.cumsum(lengths)], np.int64)
    pieces = np.arange(len(lengths), dtype=np.uint16)[:, None]
    words = Words(pieces, pieces.astype(np.uint8))
    whole = Ragged(torch.arange(cu_seqlens[-1]), cu_seqlens, words)
    cut = split(whole.lengths, count, in_order=in_order)

    parts = cut.parts(whole)
    joined = cut.joined(parts)
    assert torch.equal(joined.values, whole.values)
    assert joined.cu_seqlens.tolist() == cu_seqlens.tolist()
    assert joined.words is not None
    assert joined.words.pieces.tolist() == pieces.tolist()
    sizes = cut.concatenated([torch.from_numpy(part.lengths) for part in parts])
    assert sizes.tolist() == lengths


def sizes(lengths: list[int], grain: Grain = FINE, *, count: int = 2, in_order: bool = True) -> list[int]:
    """Returns the rows of each part that workers are given."""
    rows = np.array(lengths, np.int64)
    cut = split(rows, count, grain, in_order=in_order)
    ordered = rows if cut.order is None else rows[cut.order]
    return [int(ordered[run].sum()) for run in cut.runs]


def test_small_batches_give_each_worker_one_part_and_large_ones_smaller_and_smaller_ones() -> None:
    """A worker that is slow with one of the first parts takes fewer of the last ones."""
    assert sizes([75] * 2) == [150]
    assert sizes([75] * 10) == [375, 375]
    many = sizes([75] * 100)
    shares = [1875, 937, 937]
    assert many == [pytest.approx(share, abs=75) for share in shares for _ in range(2)]
    assert sum(many[::2]) == pytest.approx(sum(many[1::2]), abs=150)
    assert min(sizes([64] * 64, COARSE)) == COARSE.least


def test_parts_end_as_near_as_they_can_to_where_they_should() -> None:
    """A sequence that crosses the end of a part belongs to the part that has more of it."""
    assert sizes([100, 90, 200, 100]) == [190, 300]
    assert sizes([100, 110, 200, 100]) == [210, 300]
    assert sizes([100, 200, 90, 100]) == [300, 190]


def test_sequences_that_need_no_neighbours_are_dealt_out() -> None:
    """Long sequences come first and short ones fill the gaps, so that workers have nearly the same."""
    lengths = [40, 60, 20, 75, 55, 45, 150, 130, 110, 90]

    assert sizes(lengths) == [445, 330]
    assert sizes(lengths, in_order=False) == [380, 395]
    assert sizes(lengths, count=4, in_order=False) == [195, 185, 190, 205]
    assert sizes([300, 0, 0], count=3, in_order=False) == [300]
    large = sizes([*range(10, 110), *range(10, 110)], in_order=False)  # the parts of a large batch, too
    assert large == [pytest.approx(share, abs=10) for share in (2975, 1488, 744, 744) for _ in range(2)]


def test_a_long_candidate_is_not_waited_for() -> None:
    """A batch is not cut if one worker would get much more than its share, while the others had nothing to do."""
    assert sizes([4096, 4096]) == [4096, 4096]
    assert sizes([4096] * 3) == [3 * 4096]
    assert sizes([75] * 20 + [4096]) == [75 * 20 + 4096]
    assert sizes([75] * 2 + [600], in_order=False) == [750]


def test_a_batch_is_not_cut_where_parts_would_compute_much_again() -> None:
    """A short query costs little in each part, a long one more than waiting for each other."""
    lengths = np.full(100, 75)

    assert [len(split(lengths, 2, again=again).runs) for again in (0, 60, 700, 3000)] == [6, 6, 1, 1]
    assert [len(split(lengths[:10], 2, again=again).runs) for again in (0, 100, 400)] == [2, 2, 1]


def test_parts_of_a_batch_have_its_pairs() -> None:
    """Each candidate has its query, wherever the runs end; a query whose candidates are in two parts is in both."""
    queries, candidates = random_texts(tiny_cross_encoder())
    batch = score_batch(queries, candidates)
    pairs = [(query, candidate) for query, group in zip(queries, candidates, strict=True) for candidate in group]

    for runs in ([slice(0, 10)], [slice(0, 3), slice(3, 8), slice(8, 10)], [slice(i, i + 1) for i in range(10)]):
        found = [
            (part.queries[query].tolist(), part.candidates[index].tolist())
            for part in Cut(runs).batches(batch)
            for query, group in part.groups()
            for index in range(group.start, group.stop)
        ]
        assert found == pairs
    assert len(Cut([slice(0, 0)]).batches(score_batch([], []))[0].candidates) == 0


def test_candidates_of_one_query_change_their_places() -> None:
    """The results come back in the candidates' original order."""
    batch = score_batch([[1, 2]], [[[3], [4, 5], [], [6, 7, 8]]])
    cut = Cut([slice(0, 1), slice(1, 4)], np.array([3, 0, 2, 1]))

    parts = cut.batches(batch)
    assert [[part.candidates[i].tolist() for i in range(len(part.candidates))] for part in parts] == [
        [[6, 7, 8]],
        [[3], [], [4, 5]],
    ]
    assert all(part.queries[0].tolist() == [1, 2] for part in parts)
    lengths = cut.concatenated([torch.from_numpy(part.candidates.lengths) for part in parts])
    assert lengths.tolist() == [1, 2, 0, 3]
