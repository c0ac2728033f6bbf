"""The rows of a packed batch, against a loop over its candidates."""

import random

import pytest
from support.models import score_batch
from support.tokenizer import CLS_ID, SENTENCE_ID

from bandrank.models.layers.packing import pack
from bandrank.models.layers.patterns import FULL, longformer, sparse
from bandrank_kernels.windowed_attention import AttentionPattern

Row = tuple[int, int, int]  # id, position, token type


def rows_of(query: list[int], candidate: list[int], sentence_token: int | None) -> tuple[list[Row], list[Row]]:
    """Returns the rows of one pair behind its [CLS]: the query's, with the candidate's sentence tokens, and the
    candidate's other ones.
    """
    asked = [(token, 1 + place, 0) for place, token in enumerate(query)]
    read = [(token, 1 + len(query) + place, 1) for place, token in enumerate(candidate)]
    moved = [row for row in read if row[0] == sentence_token]
    return asked + moved, [row for row in read if row[0] != sentence_token]


@pytest.mark.parametrize(
    ("pattern", "sentence_token"),
    [(sparse(4), None), (FULL, None), (FULL, SENTENCE_ID), (longformer(4), SENTENCE_ID)],
)
def test_rows_are_those_of_each_pair(pattern: AttentionPattern, sentence_token: int | None) -> None:
    """One query is empty, one has no candidates, and some candidates are empty; queries that are shared come once."""
    rng = random.Random(0)
    tokens = [9, 10, 11, SENTENCE_ID] if sentence_token is not None else [9, 10, 11]
    queries = [rng.choices([9, 10], k=length) for length in (3, 0, 5, 2)]
    candidates = [[rng.choices(tokens, k=length) for length in group] for group in ([0, 4, 7], [3], [], [1, 0])]
    expected: list[list[Row]] = [[], [], []]
    of_query: list[int] = []
    for query, group in zip(queries, candidates, strict=True):
        pairs = [rows_of(query, candidate, sentence_token) for candidate in group]
        alone, _ = rows_of(query, [], None)
        shown = [alone] if pattern.shares_queries else [asked for asked, _ in pairs]
        of_query += map(len, shown)
        expected[0] += [(CLS_ID, 0, 0)] * len(group)
        expected[1] += [row for rows in shown for row in rows]
        expected[2] += [row for _, read in pairs for row in read]

    packed = pack(score_batch(queries, candidates), pattern, cls_id=CLS_ID, sentence_token=sentence_token)

    assert [*zip(*packed.numbers.tolist(), strict=True)] == [row for part in expected for row in part]
    assert packed.rows.query_lengths.tolist() == of_query
    assert (packed.rows.first_query_row, packed.rows.first_candidate_row) == (
        len(expected[0]),
        len(expected[0]) + len(expected[1]),
    )
